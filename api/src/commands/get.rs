//! `commands.get`: one command (SPEC A3).

use std::sync::Arc;

use ledger_protocol::id::{CommandId, NodeId};

use super::view::CommandView;
use crate::Api;
use crate::auth::{Caller, Permission};
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    let command: CommandId = input.id("commandId")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesRead, node, None)
        .await?;
    let command = super::in_view(&api, &caller, node, command).await?;
    render(&CommandView::of(&command)?)
}
