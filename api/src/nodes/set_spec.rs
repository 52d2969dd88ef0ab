//! `nodes.setSpec`: a node's desired state, under a generation above the one it has (SPEC A11).

use std::sync::Arc;

use ledger_protocol::canonical;
use ledger_protocol::event::NodeSpecSet;
use ledger_protocol::id::NodeId;
use serde_json::Value;

use super::view::NodeView;
use crate::Api;
use crate::auth::{Caller, Permission};
use crate::error::Error;
use crate::input::Input;
use crate::limits::JSON_INTEGER_MAX;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    let generation = input.integer("generation", 1..=JSON_INTEGER_MAX)?;
    let json = Value::Object(input.object("spec")?);
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesAdmin, node, None)
        .await?;
    let spec = canonical::from_json(&json)
        .map_err(|error| Error::invalid("spec", format!("cannot be kept: {error}")))?;
    let spec = NodeSpecSet {
        signed: None,
        generation,
        spec,
    };
    let node = api
        .ledger()
        .set_spec(&caller.actor, tenant, node, spec)
        .await?;
    let mut view = NodeView::of(&node);
    view.spec = Some(json);
    render(&view)
}
