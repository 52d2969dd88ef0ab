//! Frames of a session (SPEC D1): a MessagePack array of a type code and a map.
//!
//! In prose, with vectors, for who writes a daemon in another language: `docs/protocol.md`.
//! To add a frame: a struct, a code that was never used, a line in the list at the end.

use serde::{Deserialize, Serialize};

use crate::batch::BatchProof;
use crate::canonical;
use crate::event::Truncated;
use crate::id::{BatchId, CommandId, JournalId, NodeId};
use crate::kind::{Lane, Role};
use crate::limits::FRAME_BYTES_MAX;
use crate::secret::{OneTimeKey, Sealed};
use crate::time::Timestamp;
use crate::trust::{Signed, SignedBundle};

/// The subprotocol that both sides name when the WebSocket opens.
pub const SUBPROTOCOL: &str = "command-ledger.v1";

/// Where a daemon opens its session, on the gateway.
pub const SESSION_PATH: &str = "/v1/session";
/// Where a daemon trades a join token and a certificate request for a certificate.
pub const JOIN_PATH: &str = "/v1/join";
/// Where a daemon trades its certificate and a certificate request for a newer certificate.
pub const RENEW_PATH: &str = "/v1/renew";

/// A frame that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Larger than a frame may be.
    #[error("frame has {bytes} bytes; the limit is {FRAME_BYTES_MAX}")]
    TooLarge {
        /// Its size, in bytes.
        bytes: usize,
    },
    /// Not an array of a type code and a map.
    #[error("frame is not an array of a type code and a map")]
    Envelope,
    /// The type code means nothing to this version.
    #[error("frame type {code} is unknown")]
    UnknownType {
        /// The code.
        code: u8,
    },
    /// The map is not the body of this type.
    #[error("body of frame `{name}` is not readable")]
    Body {
        /// Name of the frame.
        name: &'static str,
        /// What is wrong.
        #[source]
        source: canonical::Error,
    },
}

/// Node to gateway, first: who it is and what its journal holds (SPEC D6).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// Version of the agent.
    pub agent_version: String,
    /// Desired-state generation that it has applied; 0 for none.
    pub applied_generation: u64,
    /// The machine's boot id.
    pub boot_id: String,
    /// Open and unconfirmed entries of the journal.
    pub entries: Vec<JournalEntry>,
    /// Highest `seq` that the journal has ever seen; 0 for none.
    pub highest_seq: u64,
    /// The life of the journal.
    pub journal_id: JournalId,
    /// The node.
    pub node_id: NodeId,
    /// What the agent is.
    pub role: Role,
    /// Version of the trust bundle that it believes; 0 for none.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub trust_version: u64,
}

/// One entry of the daemon's journal, as `Hello` names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalEntry {
    /// The command.
    pub command_id: CommandId,
    /// Its place in the node's queue.
    pub seq: u64,
    /// How far it came.
    pub state: EntryState,
}

/// How far a command came, by the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryState {
    /// Accepted, not started.
    Accepted,
    /// Started, without an end.
    Started,
    /// Ended, the ledger's confirmation not seen.
    Finished,
}

/// Gateway to node, the answer to `Hello`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Welcome {
    /// Epoch of the session.
    pub epoch: u64,
    /// How often a `Ping` is sent, in seconds; silence three times as long ends the session.
    pub ping_seconds: u32,
    /// The server's time (SPEC D10).
    pub server_time: Timestamp,
    /// Trust bundles that the node does not have yet, the oldest first (SPEC P1).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trust: Vec<SignedBundle>,
}

/// Gateway to node: run this.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    /// The result must be signed by the node.
    pub attested: bool,
    /// What shows that its batch was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Box<BatchProof>>,
    /// Its batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_id: Option<BatchId>,
    /// The command.
    pub command_id: CommandId,
    /// It can do harm.
    pub destructive: bool,
    /// Name of its kind.
    pub kind: String,
    /// Version of its kind.
    pub kind_version: u32,
    /// Its lane.
    pub lane: Lane,
    /// Desired-state generation that the node must have applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_generation: Option<u64>,
    /// The node that it is for.
    pub node_id: NodeId,
    /// Not accepted after this time; a command without one is `EXPIRED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// The payload, as canonical MessagePack.
    #[serde(with = "crate::bytes")]
    pub payload: Vec<u8>,
    /// It may run again when it was accepted but never started.
    pub retry_safe: bool,
    /// Its effect ends the daemon.
    pub self_terminating: bool,
    /// Its place in the node's queue.
    pub seq: u64,
    /// The service's signature over [`crate::trust::intent::of_command`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Box<Signed>>,
    /// How long it may run past `notAfter`, in seconds.
    pub timeout_seconds: u32,
}

/// Gateway to node: stop this, if it can still be stopped (SPEC D12).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cancel {
    /// The command.
    pub command_id: CommandId,
}

/// Node to gateway: what became of commands, in the order in which it happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommandUpdate {
    /// One to 64 updates.
    pub updates: Vec<Update>,
}

/// The node's word on one command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    /// The command.
    pub command_id: CommandId,
    /// More about the reason, as canonical MessagePack.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::bytes::optional"
    )]
    pub details: Option<Vec<u8>>,
    /// The node's signature, for attested kinds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::bytes::opaque::optional"
    )]
    pub node_sig: Option<Vec<u8>>,
    /// Why: a refusal code, or the kind's own reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The result, as canonical MessagePack, at most 48 KiB.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::bytes::optional"
    )]
    pub result: Option<Vec<u8>>,
    /// What of a longer result was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_truncated: Option<Truncated>,
    /// What happened.
    pub state: UpdateState,
}

impl Update {
    /// An update that says only what happened.
    pub fn bare(command_id: CommandId, state: UpdateState) -> Self {
        Self {
            command_id,
            details: None,
            node_sig: None,
            reason: None,
            result: None,
            result_truncated: None,
            state,
        }
    }
}

/// What a daemon can say of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdateState {
    /// No room in the lane: send it again later.
    Busy,
    /// In the journal.
    Acked,
    /// Started.
    Running,
    /// Done.
    Succeeded,
    /// Tried and failed.
    Failed,
    /// Refused by an acceptance check.
    Rejected,
    /// Stopped before it had an effect.
    Cancelled,
}

impl UpdateState {
    /// The name in frames, and in what is signed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Acked => "acked",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it is an end.
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Busy | Self::Acked | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Rejected | Self::Cancelled => true,
        }
    }
}

/// Gateway to node: these updates are in the ledger, or never will be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UpdateAck {
    /// One for each update of a `CommandUpdate`, in its order.
    pub updates: Vec<Acknowledgement>,
}

/// The ledger's answer to one update.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledgement {
    /// With `refused`, the reason for machines, as the document of the protocol lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The command.
    pub command_id: CommandId,
    /// Absent when the update is in the ledger; else why it never will be. The daemon keeps its
    /// entry for people to look at and does not send it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The update's state.
    pub state: UpdateState,
}

/// Node to gateway: how it is, and what it needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Desired-state generation that it has applied.
    pub applied_generation: u64,
    /// Version of the trust bundle that it believes; 0 for none.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub trust_version: u64,
    /// It asks for the newest desired state.
    #[serde(default)]
    pub wants_spec: bool,
    /// It asks for newer trust bundles.
    #[serde(default, skip_serializing_if = "crate::event::is_false")]
    pub wants_trust: bool,
}

/// Gateway to node: the desired state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    /// Its generation.
    pub generation: u64,
    /// The service's signature over [`crate::trust::intent::of_spec`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Box<Signed>>,
    /// The desired state, as canonical MessagePack.
    #[serde(with = "crate::bytes")]
    pub spec: Vec<u8>,
}

/// Gateway to node: trust bundles that the node does not have yet (SPEC P1).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Trust {
    /// The oldest first.
    pub bundles: Vec<SignedBundle>,
}

/// Node to gateway: the command that runs needs this secret (SPEC P6).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRequest {
    /// The command.
    pub command_id: CommandId,
    /// The key that was made for this question.
    pub key: OneTimeKey,
    /// The node's signature over [`crate::secret::Exchange`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::bytes::opaque::optional"
    )]
    pub node_sig: Option<Vec<u8>>,
    /// The secret, as the command's payload names it.
    pub secret_ref: String,
}

/// Gateway to node: the answer to a [`SecretRequest`]. It has either `refused` or `sealed`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Secret {
    /// The command.
    pub command_id: CommandId,
    /// The key of the question.
    pub key: OneTimeKey,
    /// Why there is no value: a code of [`crate::secret::Refused`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The value, sealed to the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
    /// The service's signature over [`crate::secret::Exchange::statement`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Box<Signed>>,
}

/// Either way: a sign of life. It is answered once, by a `Ping` with `reply` set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ping {
    /// Returned as it came.
    pub nonce: u64,
    /// This answers a `Ping`.
    pub reply: bool,
    /// The server's time, when the gateway sends it (SPEC D10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_time: Option<Timestamp>,
}

macro_rules! frames {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// One frame.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Frame {
            $($(#[$doc])* $name($name),)*
        }

        $(impl From<$name> for Frame {
            fn from(frame: $name) -> Self {
                Self::$name(frame)
            }
        })*

        impl Frame {
            /// The frame's name, as the document of the protocol has it.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }

            /// The bytes of one binary WebSocket message.
            pub fn encode(&self) -> Result<Vec<u8>, canonical::Error> {
                match self { $(Self::$name(body) => canonical::encode(&($code as u8, body)),)* }
            }

            /// The body as JSON, for people and for the vectors.
            pub fn body_json(&self) -> serde_json::Value {
                match self { $(Self::$name(body) => {
                    serde_json::to_value(body).unwrap_or_default()
                })* }
            }

            /// Reads one binary WebSocket message.
            pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
                if bytes.len() > FRAME_BYTES_MAX {
                    return Err(Error::TooLarge { bytes: bytes.len() });
                }
                // Codes stay below 128, so that array header and code are one byte each.
                let [0x92, code, body @ ..] = bytes else { return Err(Error::Envelope) };
                match *code {
                    $($code => canonical::decode_lenient(body).map(Self::$name).map_err(|source| {
                        Error::Body { name: stringify!($name), source }
                    }),)*
                    code => Err(Error::UnknownType { code }),
                }
            }
        }
    };
}

frames! {
    /// Node to gateway, first.
    Hello = 1;
    /// Gateway to node, the answer to `Hello`.
    Welcome = 2;
    /// Gateway to node: run this.
    Command = 3;
    /// Gateway to node: stop this.
    Cancel = 4;
    /// Node to gateway: what became of commands.
    CommandUpdate = 5;
    /// Gateway to node: the answer to `CommandUpdate`.
    UpdateAck = 6;
    /// Node to gateway: how it is.
    Status = 7;
    /// Gateway to node: the desired state.
    Spec = 8;
    /// Either way: a sign of life.
    Ping = 9;
    /// Gateway to node: whom to trust.
    Trust = 10;
    /// Node to gateway: a command that runs needs a secret.
    SecretRequest = 11;
    /// Gateway to node: the answer to `SecretRequest`.
    Secret = 12;
}

/// What a daemon posts to [`JOIN_PATH`], as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinRequest {
    /// PKCS #10 certificate request, PEM, signed by the node's new key.
    pub csr: String,
    /// The join token.
    pub token: String,
}

/// What a daemon posts to [`RENEW_PATH`], as JSON, over a connection that shows its certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    /// PKCS #10 certificate request, PEM, for the key of the certificate that is shown.
    pub csr: String,
}

/// The gateway's answer to a [`JoinRequest`] or a [`RenewRequest`], as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinResponse {
    /// The certificate authority, PEM.
    pub ca_certificate: String,
    /// The node's certificate, PEM.
    pub certificate: String,
    /// The node.
    pub node_id: NodeId,
    /// Its role.
    pub role: Role,
    /// The newest trust bundle, with which the node begins (SPEC P1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<SignedBundle>,
}

#[cfg(test)]
mod tests;
