//! Bodies of the events in a command's life. Fields stand in the order of their wire names, as
//! the canonical form asks. Each body names node, kind and `seq`, so that a reader of one event
//! knows what it is about without a second look.

use serde::{Deserialize, Serialize};

use crate::batch::Inclusion;
use crate::id::{BatchId, NodeId};
use crate::kind::Lane;
use crate::time::Timestamp;
use crate::trust::Signed;

use super::is_false;

/// A command entered its node's queue. Everything that later decisions need is frozen here.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandQueued {
    /// Its result is signed by the node.
    #[serde(default, skip_serializing_if = "is_false")]
    pub attested: bool,
    /// The batch whose approval it needs or belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_id: Option<BatchId>,
    /// The proof that its batch allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_inclusion: Option<Inclusion>,
    /// Where its support bundle goes in the blob store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_key: Option<String>,
    /// It can do harm.
    #[serde(default, skip_serializing_if = "is_false")]
    pub destructive: bool,
    /// It waits for its batch and has no `notBefore` yet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub held: bool,
    /// Key under which a retry finds this command; unique per node.
    pub idempotency_key: String,
    /// Name of its kind.
    pub kind: String,
    /// Version of its kind.
    pub kind_version: u32,
    /// Its lane.
    pub lane: Lane,
    /// Desired-state generation that the node must have applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_generation: Option<u64>,
    /// Its node.
    pub node_id: NodeId,
    /// Not accepted by the node after this time.
    pub not_after: Timestamp,
    /// Not dispatched before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// The payload, as canonical MessagePack.
    #[serde(with = "crate::bytes")]
    pub payload: Vec<u8>,
    /// It may run again when it was accepted but never started.
    #[serde(default, skip_serializing_if = "is_false")]
    pub retry_safe: bool,
    /// Its effect ends the daemon.
    #[serde(default, skip_serializing_if = "is_false")]
    pub self_terminating: bool,
    /// Its place in the node's queue, from 1.
    pub seq: u64,
    /// The service's signature over [`crate::trust::intent::of_command`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Box<Signed>>,
    /// How long it may run past `notAfter`, in seconds.
    pub timeout_seconds: u32,
}

/// A held command's batch was approved.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandReleased {
    /// Name of its kind.
    pub kind: String,
    /// Its node.
    pub node_id: NodeId,
    /// Not dispatched before this time.
    pub not_before: Timestamp,
    /// Its place in the node's queue.
    pub seq: u64,
}

/// A gateway sent a command to its node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandDispatched {
    /// How often it was dispatched, this time included.
    pub attempt: u32,
    /// Epoch of the session that carries it.
    pub epoch: u64,
    /// Name of its kind.
    pub kind: String,
    /// Its node.
    pub node_id: NodeId,
    /// Its place in the node's queue.
    pub seq: u64,
}

/// The node had no room; the command keeps its place and waits again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandReturned {
    /// Epoch of the session that reported it.
    pub epoch: u64,
    /// Name of its kind.
    pub kind: String,
    /// Its node.
    pub node_id: NodeId,
    /// Why: `busy`.
    pub reason: String,
    /// Not dispatched again before this time.
    pub retry_at: Timestamp,
    /// Its place in the node's queue.
    pub seq: u64,
}

/// The node accepted the command into its journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandAcked {
    /// Epoch of the session that reported it.
    pub epoch: u64,
    /// Name of its kind.
    pub kind: String,
    /// Its node.
    pub node_id: NodeId,
    /// Epoch of the session that sent it to a journal which was lost since (SPEC D8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_epoch: Option<u64>,
    /// Its place in the node's queue.
    pub seq: u64,
}

/// The node started the command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandRunning {
    /// Epoch of the session that reported it.
    pub epoch: u64,
    /// Name of its kind.
    pub kind: String,
    /// Its node.
    pub node_id: NodeId,
    /// Epoch of the session that sent it to a journal which was lost since (SPEC D8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_epoch: Option<u64>,
    /// Its place in the node's queue.
    pub seq: u64,
}

/// Somebody asked for the command to stop.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandCancelRequested {
    /// Name of its kind.
    pub kind: String,
    /// Its node.
    pub node_id: NodeId,
    /// Its place in the node's queue.
    pub seq: u64,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The node did it.
    Succeeded,
    /// The node tried and failed, or nothing was heard of it.
    Failed,
    /// The node refused it.
    Rejected,
    /// It was not accepted in time.
    Expired,
    /// It was stopped before it had an effect.
    Cancelled,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 5] = [
        Self::Succeeded,
        Self::Failed,
        Self::Rejected,
        Self::Expired,
        Self::Cancelled,
    ];

    /// The outcome's name as a command's state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What of a longer result was left out (SPEC D13).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Truncated {
    /// Size of the whole result, in bytes.
    pub bytes: u64,
    /// SHA-256 of the whole result, in hex.
    pub sha256: String,
}

/// What is known of a command's end: the node's own word, or what time has decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How it ended.
    pub outcome: Outcome,
    /// What is known of why (SPEC S3).
    pub reason: Option<String>,
    /// More about the reason, as canonical MessagePack.
    pub details: Option<Vec<u8>>,
    /// The result, as the node's canonical MessagePack.
    pub result: Option<Vec<u8>>,
    /// What of the result was left out.
    pub result_truncated: Option<Truncated>,
    /// The node's signature over its word, as received.
    pub node_sig: Option<Vec<u8>>,
}

impl Ending {
    /// An ending with a reason and nothing else.
    pub fn because(outcome: Outcome, reason: &str) -> Self {
        Self {
            outcome,
            reason: Some(reason.to_owned()),
            details: None,
            result: None,
            result_truncated: None,
            node_sig: None,
        }
    }

    /// Whether the other one says the same; by whose signature is not what it says, and a node that
    /// has joined anew signs with another key.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let Self {
            outcome,
            reason,
            details,
            result,
            result_truncated,
            node_sig: _,
        } = self;
        *outcome == other.outcome
            && *reason == other.reason
            && *details == other.details
            && *result == other.result
            && *result_truncated == other.result_truncated
    }
}

/// The command ended. Exactly one per command (SPEC S4).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandSettled {
    /// More about the reason, as canonical MessagePack.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::bytes::optional"
    )]
    pub details: Option<Vec<u8>>,
    /// Epoch of the session that reported it; absent when time or a cancel decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Name of its kind.
    pub kind: String,
    /// Its node.
    pub node_id: NodeId,
    /// The node's signature over its word, as received.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::bytes::opaque::optional"
    )]
    pub node_sig: Option<Vec<u8>>,
    /// What is known of why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The result, as the node's canonical MessagePack.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::bytes::optional"
    )]
    pub result: Option<Vec<u8>>,
    /// What of the result was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_truncated: Option<Truncated>,
    /// Its place in the node's queue.
    pub seq: u64,
    /// How it ended.
    pub state: Outcome,
}

impl CommandSettled {
    /// What is known of the end.
    pub fn ending(&self) -> Ending {
        Ending {
            outcome: self.state,
            reason: self.reason.clone(),
            details: self.details.clone(),
            result: self.result.clone(),
            result_truncated: self.result_truncated.clone(),
            node_sig: self.node_sig.clone(),
        }
    }
}

/// The node's word came after the command had ended; it is kept, the state stays.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandLateResult(pub CommandSettled);

impl std::ops::Deref for CommandLateResult {
    type Target = CommandSettled;

    fn deref(&self) -> &CommandSettled {
        &self.0
    }
}
