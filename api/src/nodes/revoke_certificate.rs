//! `nodes.revokeCertificate`: a machine that is not to be trusted any more is locked out at once; the
//! way back is a join with another key (SPEC P7).

use std::sync::Arc;

use ledger_protocol::id::NodeId;
use ledger_protocol::limits::REASON_BYTES_MAX;

use super::view::NodeView;
use crate::Api;
use crate::auth::{Caller, Permission};
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    let reason = input.name("reason", REASON_BYTES_MAX)?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesAdmin, node, None)
        .await?;
    let node = api
        .ledger()
        .revoke_certificate(&caller.actor, tenant, node, reason)
        .await?;
    render(&NodeView::of(&node))
}
