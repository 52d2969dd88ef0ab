//! The frames that bring commands and desired states to their nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::batch::{Batch, BatchProof};
use crate::command;
use crate::event::{CommandQueued, NodeSpecSet};
use crate::frame::{Command, Frame, Spec};
use crate::id::{BatchId, CommandId};

/// A command as its node is sent it, of the event that queued it. The one place that makes it: what
/// is signed when a command is queued is made of the same (SPEC P1).
pub fn command(id: CommandId, queued: &CommandQueued) -> Command {
    Command {
        attested: queued.attested,
        batch: None,
        batch_id: queued.batch_id,
        command_id: id,
        destructive: queued.destructive,
        kind: queued.kind.clone(),
        kind_version: queued.kind_version,
        lane: queued.lane,
        min_generation: queued.min_generation,
        node_id: queued.node_id,
        not_after: Some(queued.not_after),
        payload: queued.payload.clone(),
        retry_safe: queued.retry_safe,
        self_terminating: queued.self_terminating,
        seq: queued.seq,
        signed: queued.signed.clone(),
        timeout_seconds: queued.timeout_seconds,
    }
}

/// The frame that sends a command to its node, where no batch is known.
pub fn command_frame(command: &command::Command) -> Frame {
    Batches::default().command_frame(command)
}

/// The frame that brings a desired state with its signature (SPEC P5).
pub fn spec_frame(set: NodeSpecSet) -> Frame {
    Frame::Spec(Spec {
        generation: set.generation,
        signed: set.signed,
        spec: set.spec,
    })
}

/// Batches that commands name, as far as they were looked up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Batches(BTreeMap<BatchId, Batch>);

impl FromIterator<Batch> for Batches {
    fn from_iter<I: IntoIterator<Item = Batch>>(batches: I) -> Self {
        Self(batches.into_iter().map(|batch| (batch.id, batch)).collect())
    }
}

impl Batches {
    /// The batches that these commands name, each once.
    pub fn named_by<'a>(
        commands: impl IntoIterator<Item = &'a command::Command>,
    ) -> BTreeSet<BatchId> {
        let named = commands.into_iter();
        named
            .filter_map(|command| command.queued.batch_id)
            .collect()
    }

    /// The frame that sends a command to its node, with what shows that its batch was approved
    /// (SPEC P3).
    pub fn command_frame(&self, command: &command::Command) -> Frame {
        let queued = &command.queued;
        let batch = queued.batch_id.and_then(|id| self.0.get(&id));
        let proof = batch
            .zip(queued.batch_inclusion.clone())
            .map(|(batch, inclusion)| BatchProof::of(batch, inclusion));
        Frame::Command(Command {
            batch: proof.map(Box::new),
            ..self::command(command.id, queued)
        })
    }
}
