//! `nodes.*`: the fleet's books (SPEC A11).

use ledger_projections::nodes;
use ledger_protocol::id::NodeId;
use ledger_protocol::node::Node;

use crate::Api;
use crate::auth::Caller;
use crate::error::Error;

pub(crate) mod create_join_token;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod register;
pub(crate) mod revoke_certificate;
pub(crate) mod set_spec;
mod view;

pub(crate) use view::NodeView;

/// The node, when it is in the caller's view; a deleted one is, because its history is
/// (SPEC A6, A11).
pub(crate) async fn in_view(api: &Api, caller: &Caller, node: NodeId) -> Result<Node, Error> {
    let found = nodes::get(&mut *api.connection().await?, node).await?;
    found
        .filter(|found| found.tenant == caller.tenant)
        .ok_or_else(|| Error::not_found(format!("node {node}")))
}
