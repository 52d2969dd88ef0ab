//! `tokens.create`: a new API token, shown once (SPEC A13).

use std::sync::Arc;

use ledger_protocol::limits::NAME_BYTES_MAX;
use serde_json::json;

use crate::Api;
use crate::auth::{Caller, Grant, NewToken, Permission, Resource, create_token};
use crate::error::Error;
use crate::input::Input;
use crate::limits::{GRANTS_MAX, TOKEN_EXPIRES_SECONDS_MAX};
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let identity = input.name("identity", NAME_BYTES_MAX)?;
    let grants = input.list("grants", 1..=GRANTS_MAX)?;
    let life = input.optional_u32("expiresInSeconds", 1..=TOKEN_EXPIRES_SECONDS_MAX)?;
    input.finish()?;
    let grants = grants
        .iter()
        .map(Grant::from_json)
        .collect::<Result<Vec<_>, _>>();
    let invalid = |problem| Error::invalid("grants", problem);
    let grants = grants.map_err(invalid)?;
    for grant in &grants {
        grant
            .check_kinds(api.ledger().registry())
            .map_err(invalid)?;
    }

    caller.check_tenant(tenant)?;
    caller.require(Permission::NodesAdmin, Resource::Everything)?;
    for grant in &grants {
        check_held(&caller, grant)?;
    }
    let now = api.ledger().now();
    let expires_at = life.map(|seconds| now.plus_seconds(seconds));
    let token = NewToken {
        tenant,
        identity,
        grants,
        expires_at,
    };
    let (id, text) = create_token(api.ledger().pool(), &token, now).await?;
    let grants: Vec<_> = token.grants.iter().map(Grant::to_json).collect();
    let mut made = json!({
        "id": id,
        "token": text,
        "tenantId": tenant,
        "identity": token.identity,
        "grants": grants,
        "createdAt": now.to_string(),
    });
    if let Some(at) = expires_at {
        made["expiresAt"] = json!(at.to_string());
    }
    render(&made)
}

/// A token can be given what its maker holds, no more: else the right to make tokens would be
/// every right.
fn check_held(caller: &Caller, grant: &Grant) -> Result<(), Error> {
    let (permission, resource) = (grant.permission, grant.resource);
    let held = match &grant.kinds {
        None => caller.may(permission, resource, None),
        Some(kinds) => kinds
            .iter()
            .all(|kind| caller.may(permission, resource, Some(kind))),
    };
    if held {
        Ok(())
    } else {
        Err(Error::PermissionDenied {
            permission,
            resource: resource.to_string(),
        })
    }
}
