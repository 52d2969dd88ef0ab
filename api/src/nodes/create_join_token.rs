//! `nodes.createJoinToken`: what a new daemon trades for its certificate (SPEC A11, P7).

use std::collections::BTreeSet;
use std::sync::Arc;

use ledger_projections::join_tokens::{self, JoinToken, secret_sha256};
use ledger_protocol::id::{JoinTokenId, NodeId};
use ledger_protocol::refusal::Refusal;
use serde::Serialize;
use serde_json::Value;

use crate::Api;
use crate::auth::{Caller, Permission, secret};
use crate::commands::view::Time;
use crate::error::Error;
use crate::input::Input;
use crate::limits::{
    JOIN_EXPIRES_SECONDS_DEFAULT, JOIN_EXPIRES_SECONDS_MAX, JOIN_EXPIRES_SECONDS_MIN,
    JOIN_KINDS_MAX,
};
use crate::methods::{Answer, render};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Made<'a> {
    token: String,
    node_id: NodeId,
    expires_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_kinds: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca_certificate: Option<&'a str>,
}

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    let life = JOIN_EXPIRES_SECONDS_MIN..=JOIN_EXPIRES_SECONDS_MAX;
    let life = input.optional_u32("expiresInSeconds", life)?;
    let life = life.unwrap_or(JOIN_EXPIRES_SECONDS_DEFAULT);
    let allowed_kinds = input.optional_list("allowedKinds", 1..=JOIN_KINDS_MAX)?;
    input.finish()?;
    let allowed_kinds = allowed_kinds.map(|kinds| known_kinds(&api, &kinds));
    let allowed_kinds = allowed_kinds.transpose()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesAdmin, node, None)
        .await?;
    let known = super::in_view(&api, &caller, node).await?;
    if known.deleted_at.is_some() {
        return Err(Refusal::UnknownNode(node).into());
    }
    let created_at = api.ledger().now();
    let secret = secret::new()?;
    let token = JoinToken {
        id: JoinTokenId::new(created_at, secret::random()?),
        tenant,
        node,
        secret_sha256: secret_sha256(&secret),
        created_at,
        expires_at: created_at.plus_seconds(life),
        allowed_kinds,
    };
    join_tokens::create(&mut *api.connection().await?, &token).await?;
    let options = &api.0.options;
    render(&Made {
        token: format!("{}.{secret}", token.id),
        node_id: node,
        expires_at: Time(token.expires_at),
        allowed_kinds: token.allowed_kinds.as_deref(),
        gateway: options.gateway.as_deref(),
        ca_certificate: options.ca_certificate.as_deref(),
    })
}

/// The kinds of a restricted identity: registered ones, each once.
fn known_kinds(api: &Api, given: &[Value]) -> Result<Vec<String>, Error> {
    let registry = api.ledger().registry();
    let mut kinds = BTreeSet::new();
    for kind in given {
        let known = kind.as_str().and_then(|name| registry.get(name));
        let Some(known) = known else {
            let names: Vec<_> = registry.iter().map(|kind| kind.name.as_ref()).collect();
            let problem = format!(
                "has {kind}, which is no kind; known are {}",
                names.join(", ")
            );
            return Err(Error::invalid("allowedKinds", problem));
        };
        if !kinds.insert(known.name.to_string()) {
            return Err(Error::invalid("allowedKinds", format!("has {kind} twice")));
        }
    }
    Ok(kinds.into_iter().collect())
}
