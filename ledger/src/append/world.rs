//! What a group has loaded and what it changes, in memory, between reading and writing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ledger_projections::rows::{BatchRow, CommandRow, LeafRow, NodeRow};
use ledger_projections::write::{Before, Changes};
use ledger_protocol::batch::create::Scope;
use ledger_protocol::batch::{Batch, Inclusion};
use ledger_protocol::command::Command;
use ledger_protocol::event::{Actor, Body, Event, NodeSpecSet, Stream};
use ledger_protocol::id::{BatchId, CommandId, EventId, NodeId, TenantId};
use ledger_protocol::kind::Lane;
use ledger_protocol::merkle::Hash;
use ledger_protocol::node::Node;
use ledger_protocol::time::Timestamp;

use crate::{Error, clock};

/// The state that a group decides on. What a request changes is seen by the next one.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) nodes: HashMap<NodeId, Node>,
    pub(super) commands: HashMap<CommandId, Command>,
    pub(super) keys: HashMap<(NodeId, String), CommandId>,
    /// Highest `seq` that a node's word has ended, of the nodes whose sessions open; 0 for none.
    pub(super) answered: HashMap<NodeId, u64>,
    /// Upper bound of the commands that wait in a lane; exact where it matters.
    pub(super) pending: HashMap<(NodeId, Lane), u32>,
    pub(super) batches: HashMap<BatchId, Batch>,
    pub(super) batch_keys: HashMap<String, BatchId>,
    /// Leaves that a batch of theirs allows, with the proof.
    pub(super) inclusions: HashMap<(BatchId, Hash), Inclusion>,
    /// Scopes of batches that are new.
    pub(super) scopes: Vec<(BatchId, Scope)>,
    /// The events, with their bytes, in the order in which they will be numbered.
    pub(super) events: Vec<(Event, Vec<u8>)>,
    nodes_before: HashMap<NodeId, Option<Node>>,
    commands_before: HashMap<CommandId, Before>,
    /// Batches that change, and whether they were there.
    batches_before: HashMap<BatchId, bool>,
    keys_new: Vec<(NodeId, String, CommandId)>,
    specs: HashMap<NodeId, NodeSpecSet>,
}

/// Something that was decided to happen.
pub(super) type Decision = (Stream, Body);

impl World {
    /// Tells the `seq` of a node's newest command.
    pub(super) fn number(&mut self, node: NodeId, newest: u64) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.seq = node.seq.max(newest);
        }
    }

    /// Lets decisions of one request happen, all or none.
    pub(super) fn apply(
        &mut self,
        actor: &Actor,
        tenant: TenantId,
        at: Timestamp,
        decisions: Vec<Decision>,
    ) -> Result<(), Error> {
        let mut nodes: HashMap<NodeId, Option<Node>> = HashMap::new();
        let mut commands: HashMap<CommandId, Option<Command>> = HashMap::new();
        let mut batches: HashMap<BatchId, Option<Batch>> = HashMap::new();
        let mut events = Vec::with_capacity(decisions.len());
        for (stream, body) in decisions {
            let id = EventId::new(at, clock::random());
            let mut event = Event {
                id,
                stream,
                version: 0,
                at,
                actor: actor.clone(),
                tenant,
                body,
            };
            if let Stream::Command(id) = stream {
                let before = commands
                    .remove(&id)
                    .unwrap_or_else(|| self.commands.get(&id).cloned());
                event.version = before.as_ref().map_or(1, |command| command.version + 1);
                commands.insert(id, Some(Command::evolve(before, &event)?));
            }
            if let Stream::Batch(id) = stream {
                let before = batches
                    .remove(&id)
                    .unwrap_or_else(|| self.batches.get(&id).cloned());
                event.version = before.as_ref().map_or(1, |batch| batch.version + 1);
                batches.insert(id, Some(Batch::evolve(before, &event)?));
            }
            let node = match (&event.body, stream) {
                (Body::CommandQueued(queued), _) => Some(queued.node_id),
                (_, Stream::Node(node)) => Some(node),
                (_, Stream::Command(_) | Stream::Batch(_)) => None,
            };
            if let Some(id) = node {
                let before = nodes
                    .remove(&id)
                    .unwrap_or_else(|| self.nodes.get(&id).cloned());
                if let Stream::Node(_) = stream {
                    event.version = before.as_ref().map_or(1, |node| node.version + 1);
                }
                nodes.insert(id, Some(Node::evolve(before, &event)?));
            }
            let bytes = event.encode()?;
            events.push((event, bytes));
        }
        for (event, _) in &events {
            self.note(event);
        }
        self.events.extend(events);
        for (id, node) in nodes {
            if let Some(node) = node {
                let before = self.nodes.insert(id, node);
                self.nodes_before.entry(id).or_insert(before);
            }
        }
        for (id, batch) in batches {
            if let Some(batch) = batch {
                let key = batch.created.idempotency_key.clone();
                self.batch_keys.insert(key, id);
                let before = self.batches.insert(id, batch);
                self.batches_before.entry(id).or_insert(before.is_some());
            }
        }
        for (id, command) in commands {
            if let Some(command) = command {
                let before = self.commands.insert(id, command);
                if let Entry::Vacant(entry) = self.commands_before.entry(id) {
                    entry.insert(match before {
                        None => Before::None,
                        Some(before) if before.state_name().is_terminal() => Before::Settled,
                        Some(_) => Before::Live,
                    });
                }
            }
        }
        Ok(())
    }

    /// What an event changes beside node and command.
    fn note(&mut self, event: &Event) {
        match (&event.body, event.stream) {
            (Body::CommandQueued(queued), Stream::Command(id)) => {
                let key = queued.idempotency_key.clone();
                self.keys.insert((queued.node_id, key.clone()), id);
                self.keys_new.push((queued.node_id, key, id));
                *self
                    .pending
                    .entry((queued.node_id, queued.lane))
                    .or_default() += 1;
            }
            (Body::NodeSpecSet(body), Stream::Node(id)) => {
                self.specs.insert(id, body.clone());
            }
            (_, _) => {}
        }
    }

    /// The rows to write.
    pub(super) fn changes(&self) -> Result<Changes, Error> {
        let mut changes = Changes {
            keys: self.keys_new.clone(),
            ..Changes::default()
        };
        for (id, before) in &self.nodes_before {
            let Some(node) = self.nodes.get(id) else {
                continue;
            };
            match before {
                None => changes.nodes_new.push(NodeRow::of(node)?),
                // Only its `seq` moved, which its newest command tells.
                Some(before) if before.version == node.version => {}
                Some(_) => changes.nodes_changed.push(NodeRow::of(node)?),
            }
        }
        for (id, before) in &self.commands_before {
            let Some(command) = self.commands.get(id) else {
                continue;
            };
            changes.command(*before, CommandRow::of(command)?, *id);
        }
        for (id, was_there) in &self.batches_before {
            let Some(batch) = self.batches.get(id) else {
                continue;
            };
            let row = BatchRow::of(batch)?;
            if *was_there {
                changes.batches_changed.push(row);
            } else {
                changes.batches_new.push(row);
            }
        }
        for (id, scope) in &self.scopes {
            let rows = scope.proved().map(|proved| LeafRow::of(*id, proved));
            changes.leaves.extend(rows);
        }
        for (node, set) in &self.specs {
            changes.specs.push((*node, set.clone()));
        }
        Ok(changes)
    }
}
