//! What the notices leave open, read from the ledger: whether a newer session of a node is open
//! elsewhere, which of its commands it was asked to stop, and which were dispatched to it without
//! anybody having been told.

use ledger::Ledger;
use ledger_projections::{Error, batches, commands, nodes};
use ledger_protocol::command::Command;
use ledger_protocol::id::NodeId;
use ledger_protocol::node::Node;
use ledger_protocol::session::Batches;
use tracing::warn;

/// What was read.
#[derive(Debug)]
pub(super) struct Checked {
    /// The nodes that were read, with their commands in flight in `seq` order and the
    /// batches that these name.
    pub(super) read: Vec<(Node, Vec<Command>, Batches)>,
    /// All nodes that were to be read.
    pub(super) nodes: Vec<NodeId>,
    /// Those that could not be read.
    pub(super) unread: Vec<NodeId>,
}

/// Reads the nodes, one after the other over one connection.
pub(super) async fn check(ledger: Ledger, nodes: Vec<NodeId>) -> Checked {
    let mut read = Vec::new();
    let mut unread = nodes.clone();
    if let Err(error) = read_into(&ledger, &mut unread, &mut read).await {
        let error = &error as &dyn std::error::Error;
        warn!(
            error,
            "sessions could not be compared with the ledger; it is tried again"
        );
    }
    Checked {
        read,
        nodes,
        unread,
    }
}

async fn read_into(
    ledger: &Ledger,
    unread: &mut Vec<NodeId>,
    read: &mut Vec<(Node, Vec<Command>, Batches)>,
) -> Result<(), Error> {
    let mut conn = ledger.pool().acquire().await?;
    while let Some(id) = unread.last() {
        if let Some(node) = nodes::get(&mut conn, *id).await? {
            let in_flight = commands::in_flight(&mut conn, *id).await?;
            let named = batches::get_many(&mut conn, Batches::named_by(&in_flight)).await?;
            read.push((node, in_flight, named.into_iter().collect()));
        }
        unread.pop();
    }
    Ok(())
}
