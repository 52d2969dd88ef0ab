//! `tokens.revoke`: an API token is refused from now on (SPEC A13).

use std::sync::Arc;

use ledger_protocol::id::TokenId;

use crate::Api;
use crate::auth::{Caller, Permission, Resource, store};
use crate::error::Error;
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let token: TokenId = input.id("tokenId")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller.require(Permission::NodesAdmin, Resource::Everything)?;
    let now = api.ledger().now();
    let revoked = store::revoke(api.ledger().pool(), tenant, token, now).await?;
    let revoked = revoked.ok_or_else(|| Error::not_found(format!("token {token}")))?;
    api.0.tokens.forget(token);
    render(&revoked.to_json())
}
