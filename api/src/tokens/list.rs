//! `tokens.list`: a tenant's API tokens, without their secrets (SPEC A13).

use std::sync::Arc;

use ledger_protocol::id::TokenId;
use serde_json::json;

use crate::Api;
use crate::auth::store::{self, Stored};
use crate::auth::{Caller, Permission, Resource};
use crate::error::Error;
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let limit = input.page_limit()?;
    let after: Option<TokenId> = input.optional_id("cursor")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller.require(Permission::NodesAdmin, Resource::Everything)?;
    let pool = api.ledger().pool();
    if let Some(cursor) = after {
        let known = store::find(pool, cursor).await?;
        if known.is_none_or(|known| known.tenant != tenant) {
            return Err(Error::not_found(format!("cursor {cursor}")));
        }
    }
    // One more than is shown tells whether there is another page.
    let mut found = store::list(pool, tenant, after, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let items: Vec<_> = found.iter().map(Stored::to_json).collect();
    let mut page = json!({ "items": items });
    if let Some(last) = found.last().filter(|_| more) {
        page["cursor"] = json!(last.id);
    }
    render(&page)
}
