//! What changed between two positions: everything that has an event between them, in the order of
//! its first one.

use std::collections::HashMap;

use ledger_protocol::batch::Batch;
use ledger_protocol::command::{Command, State, StateName};
use ledger_protocol::event::{Event, Stream};
use ledger_protocol::id::{BatchId, CommandId, NodeId};
use ledger_protocol::node::Node;
use ledger_protocol::time::Timestamp;

use super::History;
use super::world::World;
use crate::Error;

/// Where a command stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandFacts {
    /// Its node.
    pub node: NodeId,
    /// Its kind.
    pub kind: String,
    /// Its state.
    pub state: StateName,
    /// Why it ended so, if it has and says so.
    pub reason: Option<String>,
    /// It waited for its batch.
    pub held: bool,
    /// How often it was dispatched.
    pub attempts: u32,
    /// Its cancellation had been asked for.
    pub cancel_requested: bool,
    /// A word of its node had come after the end.
    pub late_result: bool,
}

/// Where a node stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Epoch of its newest session.
    pub epoch: u64,
    /// Whether that was open.
    pub connected: bool,
    /// Generation of its desired state.
    pub generation: u64,
    /// The generation that it had applied.
    pub applied_generation: u64,
    /// Fingerprint of its newest certificate.
    pub certificate: Option<String>,
    /// Whether its certificates were revoked.
    pub revoked: bool,
    /// Whether it was deleted.
    pub deleted: bool,
}

/// Where a batch stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchFacts {
    /// Names of those who had approved, in order.
    pub approvals: Vec<String>,
    /// How many had to.
    pub quorum: u32,
    /// Whether enough had.
    pub approved: bool,
}

/// Something that changed: how it was before, if it was there, and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// A command.
    Command(CommandId, Option<CommandFacts>, CommandFacts),
    /// A node.
    Node(NodeId, Option<NodeFacts>, NodeFacts),
    /// A batch.
    Batch(BatchId, Option<BatchFacts>, BatchFacts),
}

/// A change between two positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Position of its first event after the earlier one.
    pub position: u64,
    /// When that was recorded.
    pub at: Timestamp,
    /// How many events it took.
    pub events: u64,
    /// What changed.
    pub changed: Changed,
}

impl CommandFacts {
    fn of(command: &Command) -> Self {
        let settled = match &command.state {
            State::Settled(settled) => Some(settled),
            State::Pending { .. }
            | State::Dispatched { .. }
            | State::Acked { .. }
            | State::Running { .. } => None,
        };
        Self {
            node: command.node_id(),
            kind: command.queued.kind.clone(),
            state: command.state_name(),
            reason: settled.and_then(|settled| settled.end.reason.clone()),
            held: matches!(command.state, State::Pending { held: true, .. }),
            attempts: command.attempts,
            cancel_requested: command.cancel_requested_at.is_some(),
            late_result: settled.is_some_and(|settled| settled.late.is_some()),
        }
    }
}

impl NodeFacts {
    fn of(node: &Node) -> Self {
        let certificate = node.certificate.as_ref();
        Self {
            name: node.name.clone(),
            epoch: node.epoch,
            connected: node.is_connected(),
            generation: node.generation,
            applied_generation: node.applied_generation,
            certificate: certificate.map(|held| held.fingerprint.clone()),
            revoked: node.is_revoked(),
            deleted: node.deleted_at.is_some(),
        }
    }
}

impl BatchFacts {
    fn of(batch: &Batch) -> Self {
        let approvals = batch.approvals.iter();
        Self {
            approvals: approvals.map(|one| one.given.approver.clone()).collect(),
            quorum: batch.created.quorum,
            approved: batch.approved_at.is_some(),
        }
    }
}

/// What is known of something once it has its first event after the earlier position.
struct Touched {
    position: u64,
    at: Timestamp,
    events: u64,
    before: Before,
}

enum Before {
    Command(Option<CommandFacts>),
    Node(Option<NodeFacts>),
    Batch(Option<BatchFacts>),
}

/// What changed after the event at `from`, up to the one at `to`. Held in memory: what changed, and
/// what is live.
pub async fn diff(history: &mut History, from: u64, to: u64) -> Result<Vec<Change>, Error> {
    let late = history.late(from, to).await?;
    let mut world = World::new(None, late);
    let mut touched: HashMap<Stream, Touched> = HashMap::new();
    let mut ended: HashMap<CommandId, CommandFacts> = HashMap::new();
    history
        .read(to, |position, event: Event| {
            if position > from {
                let touch = touched.entry(event.stream);
                let touch = touch.or_insert_with(|| Touched {
                    position,
                    at: event.at,
                    events: 0,
                    before: before(&world, event.stream),
                });
                touch.events += 1;
            }
            if let Some(command) = world.apply(position, &event)?
                && position > from
            {
                ended.insert(command.id, CommandFacts::of(&command));
            }
            Ok(())
        })
        .await?;
    let changes = touched.into_iter().filter_map(|(stream, touched)| {
        let changed = match (stream, touched.before) {
            (Stream::Command(id), Before::Command(before)) => {
                let held = world.commands.get(&id).map(CommandFacts::of);
                Changed::Command(id, before, held.or_else(|| ended.remove(&id))?)
            }
            (Stream::Node(id), Before::Node(before)) => {
                Changed::Node(id, before, world.nodes.get(&id).map(NodeFacts::of)?)
            }
            (Stream::Batch(id), Before::Batch(before)) => {
                Changed::Batch(id, before, world.batches.get(&id).map(BatchFacts::of)?)
            }
            // A stream is of what it was when it was touched.
            (_, _) => return None,
        };
        Some(Change {
            position: touched.position,
            at: touched.at,
            events: touched.events,
            changed,
        })
    });
    let mut changes: Vec<Change> = changes.collect();
    changes.sort_unstable_by_key(|change| change.position);
    Ok(changes)
}

fn before(world: &World, stream: Stream) -> Before {
    match stream {
        Stream::Command(id) => Before::Command(world.commands.get(&id).map(CommandFacts::of)),
        Stream::Node(id) => Before::Node(world.nodes.get(&id).map(NodeFacts::of)),
        Stream::Batch(id) => Before::Batch(world.batches.get(&id).map(BatchFacts::of)),
    }
}
