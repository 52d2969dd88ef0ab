//! `commands.cancel`: ask for a command to stop (SPEC A5).

use std::sync::Arc;

use ledger_protocol::id::{CommandId, NodeId};

use super::view::CommandView;
use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    let command: CommandId = input.id("commandId")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    let resource = Resource::Node(node);
    if !caller.may(Permission::NodesExec, resource, None) {
        // The grant may be for some kinds only, so the command has to be seen first; and what is
        // not in view is NOT_FOUND before anything is denied (SPEC A6).
        let found = super::in_view(&api, &caller, node, command).await?;
        let kind = Some(found.queued.kind.as_str());
        caller
            .require_node(&api, Permission::NodesExec, node, kind)
            .await?;
    }
    let command = api
        .ledger()
        .cancel(&caller.actor, tenant, node, command)
        .await?;
    render(&CommandView::of(&command)?)
}
