//! `secrets.delete`: commands that ask from now on get it no more (SPEC P6).

use std::sync::Arc;

use ledger_projections::secrets;

use super::checked;
use super::view::SecretView;
use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::error::Error;
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let name = checked("name", input.text("name")?)?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller.require(Permission::SecretsAdmin, Resource::Everything)?;
    let mut connection = api.connection().await?;
    let deleted = secrets::delete(&mut connection, tenant, &name).await?;
    let deleted = deleted.ok_or_else(|| Error::not_found(format!("secret {name}")))?;
    let (version, by) = (deleted.version, caller.actor.as_str());
    tracing::info!(%tenant, secret = name, version, by, "a secret is deleted");
    render(&SecretView::of(&deleted))
}
