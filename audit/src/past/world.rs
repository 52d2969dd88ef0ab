//! Everything that the events so far have made, but for ended commands of which nothing more comes.

use std::collections::{BTreeMap, HashSet};

use ledger_protocol::batch::Batch;
use ledger_protocol::command::Command;
use ledger_protocol::event::{Body, Event, Stream};
use ledger_protocol::id::{BatchId, CommandId, NodeId};
use ledger_protocol::node::Node;
use ledger_protocol::time::Timestamp;

use crate::Error;

/// Something that there was.
#[derive(Debug)]
pub enum Item<'a> {
    /// A command.
    Command(&'a Command),
    /// A node, and its desired state.
    Node(&'a Node, Option<&'a [u8]>),
    /// A batch, and when the last event was recorded.
    Batch(&'a Batch, Timestamp),
}

/// Who is shown them.
pub type Each<'a> = dyn FnMut(Item<'_>) -> Result<(), Error> + Send + 'a;

/// How many there were.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands by the names of their states; a state that none had is left out.
    pub commands: BTreeMap<&'static str, u64>,
    /// Nodes that were not deleted, and how many of them were connected.
    pub nodes: u64,
    /// Of these, the connected ones.
    pub connected: u64,
    /// Nodes that had been deleted.
    pub deleted: u64,
    /// Batches.
    pub batches: u64,
    /// Of these, those that enough had approved.
    pub approved: u64,
}

/// The ledger at a past position, in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// The position.
    pub position: u64,
    /// When the event at the position was recorded; nothing before the first.
    pub at: Option<Timestamp>,
    /// How many there were of what was looked at.
    pub counts: Counts,
}

#[derive(Debug, Default)]
pub(super) struct World {
    only: Option<Stream>,
    /// Commands that are not let go when they end.
    kept: HashSet<CommandId>,
    pub(super) commands: BTreeMap<CommandId, Command>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) batches: BTreeMap<BatchId, Batch>,
    specs: BTreeMap<NodeId, Vec<u8>>,
    /// Those that were let go.
    ended: BTreeMap<&'static str, u64>,
    at: Option<Timestamp>,
}

impl World {
    pub(super) fn new(only: Option<Stream>, kept: HashSet<CommandId>) -> Self {
        Self {
            only,
            kept,
            ..Self::default()
        }
    }

    /// Whether an event has to do with what is looked at.
    fn concerns(&self, event: &Event) -> bool {
        self.only.is_none_or(|only| {
            let queues = match (&event.body, only) {
                (Body::CommandQueued(queued), Stream::Node(node)) => queued.node_id == node,
                (_, _) => false,
            };
            event.stream == only || queues
        })
    }

    /// Folds one more event. Gives back a command that has ended with it and is let go.
    pub(super) fn apply(&mut self, position: u64, event: &Event) -> Result<Option<Command>, Error> {
        self.at = Some(event.at);
        if !self.concerns(event) {
            return Ok(None);
        }
        let corrupt = |source| Error::Corrupt { position, source };
        match event.stream {
            Stream::Command(id) => {
                if let Body::CommandQueued(queued) = &event.body {
                    // The node counts its commands, so its fold has the event as well.
                    self.apply_to_node(queued.node_id, position, event)?;
                }
                if matches!(self.only, Some(Stream::Node(_))) {
                    return Ok(None);
                }
                let before = self.commands.remove(&id);
                // Of one that was let go, which nobody asked to see.
                if before.is_none() && matches!(event.body, Body::CommandLateResult(_)) {
                    return Ok(None);
                }
                let command = Command::evolve(before, event).map_err(corrupt)?;
                let state = command.state_name();
                if state.is_terminal() && !self.kept.contains(&id) {
                    *self.ended.entry(state.as_str()).or_default() += 1;
                    return Ok(Some(command));
                }
                self.commands.insert(id, command);
            }
            Stream::Node(id) => self.apply_to_node(id, position, event)?,
            Stream::Batch(id) => {
                let batch = Batch::evolve(self.batches.remove(&id), event).map_err(corrupt)?;
                self.batches.insert(id, batch);
            }
        }
        Ok(None)
    }

    fn apply_to_node(&mut self, id: NodeId, position: u64, event: &Event) -> Result<(), Error> {
        // A command alone has no node here.
        if self.only.is_some_and(|only| only != Stream::Node(id)) {
            return Ok(());
        }
        let node = Node::evolve(self.nodes.remove(&id), event);
        let node = node.map_err(|source| Error::Corrupt { position, source })?;
        if let Body::NodeSpecSet(set) = &event.body {
            self.specs.insert(id, set.spec.clone());
        }
        self.nodes.insert(id, node);
        Ok(())
    }

    /// Hands over all that is held.
    pub(super) fn hand_over(&self, each: &mut Each<'_>) -> Result<(), Error> {
        for command in self.commands.values() {
            each(Item::Command(command))?;
        }
        for (id, node) in &self.nodes {
            each(Item::Node(node, self.specs.get(id).map(Vec::as_slice)))?;
        }
        for batch in self.batches.values() {
            each(Item::Batch(batch, self.at.unwrap_or(batch.created_at)))?;
        }
        Ok(())
    }

    /// What there is, in numbers.
    pub(super) fn past(&self, position: u64) -> Past {
        let mut commands = self.ended.clone();
        for command in self.commands.values() {
            *commands.entry(command.state_name().as_str()).or_default() += 1;
        }
        let count = |holds: fn(&Node) -> bool| {
            self.nodes.values().filter(|node| holds(node)).count() as u64
        };
        let approved = self.batches.values();
        let approved = approved.filter(|batch| batch.approved_at.is_some());
        Past {
            position,
            at: self.at,
            counts: Counts {
                commands,
                nodes: count(|node| node.deleted_at.is_none()),
                connected: count(Node::is_connected),
                deleted: count(|node| node.deleted_at.is_some()),
                batches: self.batches.len() as u64,
                approved: approved.count() as u64,
            },
        }
    }
}
