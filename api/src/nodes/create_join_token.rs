//! `nodes.createJoinToken`: what a new daemon trades for its certificate (SPEC A11, P7).

use std::sync::Arc;

use ledger_projections::join_tokens::{self, JoinToken, secret_sha256};
use ledger_protocol::id::{JoinTokenId, NodeId};
use ledger_protocol::refusal::Refusal;
use serde::Serialize;

use crate::Api;
use crate::auth::{Caller, Permission, secret};
use crate::commands::view::Time;
use crate::input::Input;
use crate::limits::{
    JOIN_EXPIRES_SECONDS_DEFAULT, JOIN_EXPIRES_SECONDS_MAX, JOIN_EXPIRES_SECONDS_MIN,
};
use crate::methods::{Answer, render};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Made<'a> {
    token: String,
    node_id: NodeId,
    expires_at: Time,
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
    input.finish()?;

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
    };
    join_tokens::create(&mut *api.connection().await?, &token).await?;
    let options = &api.0.options;
    render(&Made {
        token: format!("{}.{secret}", token.id),
        node_id: node,
        expires_at: Time(token.expires_at),
        gateway: options.gateway.as_deref(),
        ca_certificate: options.ca_certificate.as_deref(),
    })
}
