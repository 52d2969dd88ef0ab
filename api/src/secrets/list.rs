//! `secrets.list`: which secrets a tenant has, by name, and nothing of their values (SPEC P6).

use std::sync::Arc;

use ledger_projections::secrets;
use serde::Serialize;

use super::checked;
use super::view::SecretView;
use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::input::Input;
use crate::methods::{Answer, render};

#[derive(Serialize)]
struct Page<'a> {
    items: Vec<SecretView<'a>>,
    /// Name of the last item; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let limit = input.page_limit()?;
    let after = input.optional_text("cursor", "the cursor of a page before")?;
    // The page goes on after a name, be it that of a secret that is gone by now.
    let after = after.map(|after| checked("cursor", after)).transpose()?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller.require(Permission::SecretsAdmin, Resource::Everything)?;
    let mut connection = api.connection().await?;
    // One more than is shown tells whether there is another page.
    let found = secrets::list(&mut connection, tenant, after.as_deref(), limit + 1);
    let mut found = found.await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let cursor = found.last().filter(|_| more);
    render(&Page {
        items: found.iter().map(SecretView::of).collect(),
        cursor: cursor.map(|last| last.name.as_str()),
    })
}
