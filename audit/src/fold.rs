//! The folds of the whole log, with what the read tables must hold.

use std::collections::{BTreeMap, HashMap};

use ledger_projections::rows::{BatchRow, CommandRow, LiveRow, NodeRow, SettledRow};
use ledger_protocol::batch::Batch;
use ledger_protocol::canonical;
use ledger_protocol::command::{Command, State};
use ledger_protocol::event::{BatchCreated, Body, CommandQueued, Event, Stream};
use ledger_protocol::id::{BatchId, CommandId};
use ledger_protocol::node::Node;
use uuid::Uuid;

use crate::Error;
use crate::tables::{KeyRow, SpecRow};

/// Everything that the events so far have made.
#[derive(Debug, Default)]
pub(crate) struct Folds {
    /// Commands that ended before this time may have been forgotten, and their keys used again.
    forgotten_before: Option<i64>,
    commands: HashMap<Uuid, Folded>,
    nodes: HashMap<Uuid, Node>,
    specs: HashMap<Uuid, SpecRow>,
    keys: HashMap<(Uuid, String), KeyRow>,
    batches: HashMap<Uuid, Batch>,
}

/// A command; one that has ended is kept as its row, which is much smaller.
#[derive(Debug)]
enum Folded {
    Live(Box<Command>),
    Settled(SettledRow),
}

/// What each table must hold.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    pub(crate) live: HashMap<Uuid, LiveRow>,
    pub(crate) settled: HashMap<Uuid, SettledRow>,
    pub(crate) nodes: HashMap<Uuid, NodeRow>,
    pub(crate) specs: HashMap<Uuid, SpecRow>,
    pub(crate) keys: HashMap<(Uuid, String), KeyRow>,
    pub(crate) batches: HashMap<Uuid, BatchRow>,
    /// What the scopes of the batches must be.
    pub(crate) scopes: BTreeMap<BatchId, BatchCreated>,
}

impl Folds {
    /// Of a log whose commands that ended before a time, in microseconds since the epoch, may have been
    /// taken out of the tables.
    pub(crate) fn new(forgotten_before: Option<i64>) -> Self {
        Self {
            forgotten_before,
            ..Self::default()
        }
    }

    /// Folds the event at `position`.
    pub(crate) fn apply(&mut self, position: u64, event: &Event) -> Result<(), Error> {
        match event.stream {
            Stream::Command(id) => self.apply_to_command(id, position, event),
            Stream::Node(id) => self.apply_to_node(id.uuid(), position, event),
            Stream::Batch(id) => {
                let batch = Batch::evolve(self.batches.remove(&id.uuid()), event)
                    .map_err(|source| Error::Corrupt { position, source })?;
                self.batches.insert(id.uuid(), batch);
                Ok(())
            }
        }
    }

    fn apply_to_command(
        &mut self,
        id: CommandId,
        position: u64,
        event: &Event,
    ) -> Result<(), Error> {
        let before = match self.commands.remove(&id.uuid()) {
            None => None,
            Some(Folded::Live(command)) => Some(*command),
            Some(Folded::Settled(row)) => Some(
                canonical::decode(&row.snapshot)
                    .map_err(|source| Error::Fold { position, source })?,
            ),
        };
        let command =
            Command::evolve(before, event).map_err(|source| Error::Corrupt { position, source })?;
        if let Body::CommandQueued(queued) = &event.body {
            // The node counts its commands, so its fold has the event as well.
            self.apply_to_node(queued.node_id.uuid(), position, event)?;
            self.take_key(queued, id, position)?;
        }
        let folded = if command.state_name().is_terminal() {
            match CommandRow::of(&command).map_err(|source| Error::Row { position, source })? {
                CommandRow::Settled(row) => Folded::Settled(row),
                CommandRow::Live(_) => Folded::Live(Box::new(command)),
            }
        } else {
            Folded::Live(Box::new(command))
        };
        self.commands.insert(id.uuid(), folded);
        Ok(())
    }

    fn apply_to_node(&mut self, id: Uuid, position: u64, event: &Event) -> Result<(), Error> {
        let node = Node::evolve(self.nodes.remove(&id), event)
            .map_err(|source| Error::Corrupt { position, source })?;
        if let Body::NodeSpecSet(set) = &event.body {
            let row = SpecRow::of(id, set);
            let row = row.map_err(|source| Error::Row { position, source })?;
            self.specs.insert(id, row);
        }
        self.nodes.insert(id, node);
        Ok(())
    }

    fn take_key(
        &mut self,
        queued: &CommandQueued,
        command: CommandId,
        position: u64,
    ) -> Result<(), Error> {
        let row = KeyRow {
            node: queued.node_id.uuid(),
            key: queued.idempotency_key.clone(),
            command: command.uuid(),
        };
        match self.keys.insert((row.node, row.key.clone()), row) {
            None => Ok(()),
            Some(before) if self.may_be_forgotten(before.command) => Ok(()),
            Some(_) => Err(Error::KeyTwice { position }),
        }
    }

    fn may_be_forgotten(&self, command: Uuid) -> bool {
        match self.commands.get(&command) {
            Some(Folded::Settled(row)) => ended_before(row, self.forgotten_before),
            Some(Folded::Live(_)) | None => false,
        }
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.commands.len() as u64, self.nodes.len() as u64)
    }

    /// The rows that the tables must hold after the event at `position`, the last.
    pub(crate) fn rows(self, position: u64) -> Result<Expected, Error> {
        let failed = |source| Error::Row { position, source };
        let mut expected = Expected {
            specs: self.specs,
            keys: self.keys,
            ..Expected::default()
        };
        for (id, folded) in self.commands {
            let row = match folded {
                Folded::Settled(row) => CommandRow::Settled(row),
                Folded::Live(command) => CommandRow::of(&command).map_err(failed)?,
            };
            match row {
                CommandRow::Live(row) => {
                    expected.live.insert(id, row);
                }
                CommandRow::Settled(row) => {
                    expected.settled.insert(id, row);
                }
            }
        }
        for (id, batch) in self.batches {
            let row = BatchRow::of(&batch).map_err(failed)?;
            expected.batches.insert(id, row);
            expected.scopes.insert(batch.id, batch.created);
        }
        for (id, node) in self.nodes {
            expected
                .nodes
                .insert(id, NodeRow::of(&node).map_err(failed)?);
        }
        Ok(expected)
    }
}

/// Whether a command ended before a time, in microseconds since the epoch.
pub(crate) fn ended_before(row: &SettledRow, time: Option<i64>) -> bool {
    let Some(time) = time else {
        return false;
    };
    let command = canonical::decode::<Command>(&row.snapshot);
    command.is_ok_and(|command| match command.state {
        State::Settled(settled) => settled.at.as_micros() < time,
        _ => false,
    })
}
