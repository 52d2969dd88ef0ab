//! `nodes.delete`: a node leaves the fleet; its pending commands are cancelled (SPEC A11).

use std::sync::Arc;

use ledger_protocol::id::NodeId;

use super::view::NodeView;
use crate::Api;
use crate::auth::{Caller, Permission};
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesAdmin, node, None)
        .await?;
    let node = api
        .ledger()
        .delete_node(&caller.actor, tenant, node)
        .await?;
    render(&NodeView::of(&node))
}
