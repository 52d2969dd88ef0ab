//! What the notices leave open, read from the ledger: whether a newer session of a node is open
//! elsewhere, and which commands it was asked to stop.

use ledger::Ledger;
use ledger_projections::{Error, commands, nodes};
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::node::Node;
use tracing::warn;

/// What was read.
#[derive(Debug)]
pub(super) struct Checked {
    /// The nodes in doubt.
    pub(super) nodes: Vec<NodeId>,
    /// Those that could be read, with the commands in flight that were asked to stop.
    pub(super) read: Vec<(Node, Vec<CommandId>)>,
}

/// Reads the nodes, one after the other over one connection.
pub(super) async fn check(ledger: Ledger, nodes: Vec<NodeId>) -> Checked {
    let mut read = Vec::new();
    if let Err(error) = read_into(&ledger, &nodes, &mut read).await {
        // A session that is not the newest finds out with its next append.
        let error = &error as &dyn std::error::Error;
        warn!(error, "sessions could not be compared with the ledger");
    }
    Checked { nodes, read }
}

async fn read_into(
    ledger: &Ledger,
    ids: &[NodeId],
    read: &mut Vec<(Node, Vec<CommandId>)>,
) -> Result<(), Error> {
    let mut conn = ledger.pool().acquire().await?;
    for id in ids {
        let Some(node) = nodes::get(&mut conn, *id).await? else {
            continue;
        };
        let in_flight = commands::in_flight(&mut conn, *id).await?;
        let cancelled = in_flight.iter().filter(|c| c.cancel_requested_at.is_some());
        read.push((node, cancelled.map(|command| command.id).collect()));
    }
    Ok(())
}
