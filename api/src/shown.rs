//! Commands, nodes and batches as the API shows them, for those who have them from elsewhere, such as
//! out of the log.

use ledger_protocol::batch::Batch;
use ledger_protocol::canonical;
use ledger_protocol::command::Command;
use ledger_protocol::node::Node;
use ledger_protocol::time::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::command_batches::BatchView;
use crate::commands::view::CommandView;
use crate::error::Error;
use crate::nodes::NodeView;

/// A command, as `commands.get` shows it.
pub fn command(command: &Command) -> Result<Value, Error> {
    value(&CommandView::of(command)?)
}

/// A node, as `nodes.get` shows it, but for what is no part of the log: what it believes, and its
/// refused reports. `spec` is its desired state.
pub fn node(node: &Node, spec: Option<&[u8]>) -> Result<Value, Error> {
    let mut view = NodeView::of(node);
    let spec = spec.map(canonical::to_json).transpose();
    view.spec = spec.map_err(Error::internal)?;
    value(&view)
}

/// A batch, as `commandBatches.get` shows it at a time.
pub fn batch(batch: &Batch, at: Timestamp) -> Result<Value, Error> {
    value(&BatchView::of(batch, at))
}

fn value(view: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(view).map_err(Error::internal)
}
