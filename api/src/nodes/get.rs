//! `nodes.get`: one node (SPEC A11).

use std::sync::Arc;

use ledger_projections::{nodes, refused_reports, trust};
use ledger_protocol::canonical;
use ledger_protocol::id::NodeId;

use super::view::{NodeView, RefusedReportView, TrustView};
use crate::Api;
use crate::auth::{Caller, Permission};
use crate::error::Error;
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesRead, node, None)
        .await?;
    let node = super::in_view(&api, &caller, node).await?;
    let mut view = NodeView::of(&node);
    let standing = trust::standing(&mut *api.connection().await?, node.id).await?;
    view.trust = standing.map(TrustView::of);
    if node.generation > 0 {
        let spec = nodes::spec(&mut *api.connection().await?, node.id).await?;
        // A newer one may have been set since the node was read; a spec never stands beside the
        // generation of another.
        let spec = spec.filter(|spec| spec.generation == node.generation);
        let json = spec.map(|spec| canonical::to_json(&spec.spec)).transpose();
        view.spec = json.map_err(Error::internal)?;
    }
    let refused = refused_reports::of_node(&mut *api.connection().await?, node.id).await?;
    view.refused_reports = refused.iter().map(RefusedReportView::of).collect();
    render(&view)
}
