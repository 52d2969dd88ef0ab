//! Records of the daemon's journal (SPEC D5), as canonical MessagePack.
//!
//! To add a record: a variant here and an arm in `Book::apply`. A variant or field is never
//! reinterpreted, because a journal outlives the version that wrote it; a daemon that reads a
//! record it does not know takes the journal as lost.

use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::event::Truncated;
use crate::frame::{self, Update, UpdateState};
use crate::id::CommandId;
use crate::kind::Role;
use crate::time::Timestamp;
use crate::trust::SignedBundle;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Record {
    /// The command passed every check; as it was received.
    Accepted(Box<frame::Command>),
    /// The effect begins after this.
    Started(Started),
    /// The command ended here, or was refused.
    Ended(Box<Ended>),
    /// The ledger has answered the end.
    Confirmed(Confirmed),
    /// What is left of a confirmed end after the journal was rewritten.
    Forgotten(Forgotten),
    /// The highest `seq` that was ever seen; only a rewrite needs to say it.
    Seen(u64),
    /// A generation of the desired state was applied.
    Applied(u64),
    /// A trust bundle was believed.
    Trusted(Box<SignedBundle>),
    /// A destructive command without a batch is accepted at this time, the server's (SPEC P4).
    Unbatched(Timestamp),
}

impl Record {
    /// The bytes to store.
    pub fn encode(&self) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(self)
    }

    /// Reads stored bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, canonical::Error> {
        canonical::decode(bytes)
    }

    /// Whether anything is done or said on the strength of this record, so that it must be
    /// durable first. The others may be lost: the daemon then only says again what it said.
    pub fn is_urgent(&self) -> bool {
        match self {
            Self::Accepted(_)
            | Self::Started(_)
            | Self::Ended(_)
            | Self::Applied(_)
            | Self::Trusted(_)
            | Self::Unbatched(_) => true,
            Self::Confirmed(_) | Self::Forgotten(_) | Self::Seen(_) => false,
        }
    }
}

/// The effect begins; under which life of the machine and of the daemon (SPEC D9).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// Version of the agent.
    pub agent_version: String,
    /// The machine's boot id.
    pub boot_id: String,
    /// The command.
    pub command_id: CommandId,
    /// What the agent was.
    pub role: Role,
}

/// A command ended here, or was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// It was accepted before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepted: bool,
    /// Its `notAfter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// Its place in the node's queue; 0 when it was for another node.
    pub seq: u64,
    /// It was started before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started: bool,
    /// The word that is reported.
    pub update: Update,
}

/// The ledger has answered an end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Confirmed {
    /// The command.
    pub command_id: CommandId,
    /// Why the ledger will never take it; absent when it has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What is left of a confirmed end: enough to never run the command again and to give its
/// outcome to who asks again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forgotten {
    /// The command.
    pub command_id: CommandId,
    /// Its `notAfter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// The reason that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Size and hash of the result that is no longer kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_truncated: Option<Truncated>,
    /// The end that was reported.
    pub state: UpdateState,
}
