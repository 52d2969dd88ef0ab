//! The bytes that a worker key signs: of a command what can never change, of a desired state all.

use serde::Serialize;

use crate::canonical;
use crate::frame;
use crate::id::{BatchId, CommandId, NodeId};
use crate::kind::Lane;
use crate::time::Timestamp;

/// What is signed of a command, with purpose `command`: canonical MessagePack of this. A node
/// makes it of the command that it is about to run. Fields stand in the order of their wire names.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CommandIntent<'a> {
    attested: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_id: Option<BatchId>,
    command_id: CommandId,
    destructive: bool,
    kind: &'a str,
    kind_version: u32,
    lane: Lane,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_generation: Option<u64>,
    node_id: NodeId,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<Timestamp>,
    #[serde(with = "serde_bytes")]
    payload: &'a [u8],
    retry_safe: bool,
    self_terminating: bool,
    seq: u64,
    timeout_seconds: u32,
}

/// What is signed of a command.
pub fn of_command(command: &frame::Command) -> Result<Vec<u8>, canonical::Error> {
    canonical::encode(&CommandIntent {
        attested: command.attested,
        batch_id: command.batch_id,
        command_id: command.command_id,
        destructive: command.destructive,
        kind: &command.kind,
        kind_version: command.kind_version,
        lane: command.lane,
        min_generation: command.min_generation,
        node_id: command.node_id,
        not_after: command.not_after,
        payload: &command.payload,
        retry_safe: command.retry_safe,
        self_terminating: command.self_terminating,
        seq: command.seq,
        timeout_seconds: command.timeout_seconds,
    })
}

/// What is signed of a node's desired state, with purpose `desired-state`: canonical MessagePack
/// of this.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SpecIntent<'a> {
    generation: u64,
    node_id: NodeId,
    #[serde(with = "serde_bytes")]
    spec: &'a [u8],
}

/// What is signed of a node's desired state (SPEC P5).
pub fn of_spec(node_id: NodeId, generation: u64, spec: &[u8]) -> Result<Vec<u8>, canonical::Error> {
    canonical::encode(&SpecIntent {
        generation,
        node_id,
        spec,
    })
}
