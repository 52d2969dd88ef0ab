//! The events of the ledger (SPEC L1) and the bytes they are stored as (SPEC L2).
//!
//! To add an event: a body in `event/`, a line in the `bodies!` list below, an arm wherever the
//! compiler asks for one, and a vector in `protocol/vectors/`. To add a field to a body: it must
//! be optional and skipped when absent. Nothing is ever removed or reinterpreted.

use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::canonical;
use crate::id::{BatchId, CommandId, EventId, NodeId, TenantId};
use crate::limits::EVENT_BYTES_MAX;
use crate::time::Timestamp;

mod batch;
mod command;
mod node;

pub use batch::*;
pub use command::*;
pub use node::*;

/// For serde: leaves out a flag that is not set.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

/// For serde: leaves out a number that says nothing.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Who appended an event: `api:<identity>`, `gateway:<name>`, `sweeper`, `module:<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Actor(String);

impl Actor {
    /// An identity of the API.
    pub fn api(identity: &str) -> Self {
        Self(format!("api:{identity}"))
    }

    /// A gateway, by its name.
    pub fn gateway(name: &str) -> Self {
        Self(format!("gateway:{name}"))
    }

    /// The sweeper.
    pub fn sweeper() -> Self {
        Self("sweeper".to_owned())
    }

    /// A module, by its name.
    pub fn module(name: &str) -> Self {
        Self(format!("module:{name}"))
    }

    /// Whether it may be the same person: names that differ in case alone are told apart by no one.
    pub fn may_be(&self, other: &Self) -> bool {
        self.0.to_lowercase() == other.0.to_lowercase()
    }

    /// The text that is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an event is about; each stream has versions of its own, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// A command's life.
    Command(CommandId),
    /// A node's life.
    Node(NodeId),
    /// A batch's life.
    Batch(BatchId),
}

impl Stream {
    /// The UUID of what the stream is about.
    pub fn uuid(self) -> Uuid {
        match self {
            Self::Command(id) => id.uuid(),
            Self::Node(id) => id.uuid(),
            Self::Batch(id) => id.uuid(),
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(id) => id.fmt(f),
            Self::Node(id) => id.fmt(f),
            Self::Batch(id) => id.fmt(f),
        }
    }
}

impl Serialize for Stream {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Stream {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let command = || text.parse().map(Self::Command).ok();
        let node = || text.parse().map(Self::Node).ok();
        let batch = || text.parse().map(Self::Batch).ok();
        command()
            .or_else(node)
            .or_else(batch)
            .ok_or_else(|| serde::de::Error::custom("stream is no id of a command, node or batch"))
    }
}

/// One event, as decided and as decoded from its stored bytes. Its position is not part of it:
/// the place in the log already says it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// UUIDv7; also the message id on NATS.
    pub id: EventId,
    /// What it is about.
    pub stream: Stream,
    /// Version of the stream that this event makes, from 1.
    pub version: u64,
    /// When it was decided, by the clock of the process that appended it.
    pub at: Timestamp,
    /// Who appended it.
    pub actor: Actor,
    /// Whose it is.
    pub tenant: TenantId,
    /// What happened.
    pub body: Body,
}

/// An event that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are not a canonical value of the expected shape.
    #[error("event bytes are not readable")]
    Bytes(#[from] canonical::Error),
    /// The type is not one that this version knows.
    #[error("event type `{name}` is unknown to this version")]
    UnknownType {
        /// The type in the bytes.
        name: String,
    },
    /// The schema version is newer than this version reads.
    #[error("event type `{name}` has schema version {schema}, newer than this version reads")]
    UnknownSchema {
        /// The type in the bytes.
        name: String,
        /// The schema version in the bytes.
        schema: u16,
    },
    /// The event would not fit one leaf of the log.
    #[error("event would have {bytes} bytes; a leaf of the log holds at most {EVENT_BYTES_MAX}")]
    TooLarge {
        /// Size of the event, in bytes.
        bytes: usize,
    },
}

#[derive(Serialize, Deserialize)]
struct Stored<B> {
    actor: Actor,
    at: Timestamp,
    body: B,
    id: EventId,
    schema: u16,
    stream: Stream,
    tenant: TenantId,
    #[serde(rename = "type")]
    kind: std::borrow::Cow<'static, str>,
    version: u64,
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $variant:ident($body:ident) = $name:literal, $schema:literal;)*) => {
        /// What happened.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body {
            $($(#[$doc])* $variant($body),)*
        }

        impl Body {
            /// The names of all event types.
            pub const TYPES: &'static [&'static str] = &[$($name),*];

            /// The type that stands in the stored bytes.
            pub const fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* }
            }

            /// The body as JSON, for people and for NATS.
            pub fn to_json(&self) -> serde_json::Value {
                // A body has text keys and no map that could fail; null would show a defect.
                match self { $(Self::$variant(body) => {
                    serde_json::to_value(body).unwrap_or_default()
                })* }
            }
        }

        $(impl From<$body> for Body {
            fn from(body: $body) -> Self {
                Self::$variant(body)
            }
        })*

        impl Event {
            /// The bytes to store.
            pub fn encode(&self) -> Result<Vec<u8>, Error> {
                let bytes = match &self.body {
                    $(Body::$variant(body) => self.encode_with(body, $name, $schema),)*
                }?;
                if bytes.len() > EVENT_BYTES_MAX {
                    return Err(Error::TooLarge { bytes: bytes.len() });
                }
                Ok(bytes)
            }

            /// Reads stored bytes; the bytes themselves stay the event.
            pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
                let head: Stored<IgnoredAny> = canonical::decode(bytes)?;
                match head.kind.as_ref() {
                    $($name => {
                        if head.schema > $schema {
                            let name = head.kind.into_owned();
                            return Err(Error::UnknownSchema { name, schema: head.schema });
                        }
                        let stored: Stored<$body> =
                            rmp_serde::from_slice(bytes).map_err(canonical::Error::from)?;
                        Ok(Self {
                            id: stored.id,
                            stream: stored.stream,
                            version: stored.version,
                            at: stored.at,
                            actor: stored.actor,
                            tenant: stored.tenant,
                            body: Body::$variant(stored.body),
                        })
                    })*
                    name => Err(Error::UnknownType { name: name.to_owned() }),
                }
            }
        }
    };
}

bodies! {
    /// A command entered its node's queue.
    CommandQueued(CommandQueued) = "command.queued", 1;
    /// A held command's batch was approved.
    CommandReleased(CommandReleased) = "command.released", 1;
    /// A gateway sent a command to its node.
    CommandDispatched(CommandDispatched) = "command.dispatched", 1;
    /// The node had no room; the command waits again.
    CommandReturned(CommandReturned) = "command.returned", 1;
    /// The node accepted the command into its journal.
    CommandAcked(CommandAcked) = "command.acked", 1;
    /// The node started the command.
    CommandRunning(CommandRunning) = "command.running", 1;
    /// Somebody asked for the command to stop.
    CommandCancelRequested(CommandCancelRequested) = "command.cancel-requested", 1;
    /// The command ended.
    CommandSettled(CommandSettled) = "command.settled", 1;
    /// The node's word came after the command had ended.
    CommandLateResult(CommandLateResult) = "command.late-result", 1;
    /// A node joined the fleet's books.
    NodeRegistered(NodeRegistered) = "node.registered", 1;
    /// A node's session opened under a new epoch.
    NodeSessionOpened(NodeSessionOpened) = "node.session-opened", 1;
    /// A node's session ended.
    NodeSessionClosed(NodeSessionClosed) = "node.session-closed", 1;
    /// A node was given a certificate.
    NodeCertified(NodeCertified) = "node.certified", 1;
    /// The certificates of a node's key were revoked.
    NodeCertificateRevoked(NodeCertificateRevoked) = "node.certificate-revoked", 1;
    /// A node's desired state was set.
    NodeSpecSet(NodeSpecSet) = "node.spec-set", 1;
    /// A node applied a generation of its desired state.
    NodeGenerationApplied(NodeGenerationApplied) = "node.generation-applied", 1;
    /// A node left the fleet.
    NodeDeleted(NodeDeleted) = "node.deleted", 1;
    /// A batch of destructive commands was proposed.
    BatchCreated(BatchCreated) = "batch.created", 1;
    /// An approver has signed a batch.
    BatchApproved(BatchApproved) = "batch.approved", 1;
}

impl Event {
    fn encode_with<B: Serialize>(
        &self,
        body: B,
        name: &'static str,
        schema: u16,
    ) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(&Stored {
            actor: self.actor.clone(),
            at: self.at,
            body,
            id: self.id,
            schema,
            stream: self.stream,
            tenant: self.tenant,
            kind: name.into(),
            version: self.version,
        })
    }

    /// The node that the event concerns: that of the command, or the one it is about.
    pub fn node_id(&self) -> Option<NodeId> {
        match &self.body {
            Body::CommandQueued(body) => Some(body.node_id),
            Body::CommandReleased(body) => Some(body.node_id),
            Body::CommandDispatched(body) => Some(body.node_id),
            Body::CommandReturned(body) => Some(body.node_id),
            Body::CommandAcked(body) => Some(body.node_id),
            Body::CommandRunning(body) => Some(body.node_id),
            Body::CommandCancelRequested(body) => Some(body.node_id),
            Body::CommandSettled(body) => Some(body.node_id),
            Body::CommandLateResult(body) => Some(body.node_id),
            Body::NodeRegistered(_)
            | Body::NodeSessionOpened(_)
            | Body::NodeSessionClosed(_)
            | Body::NodeCertified(_)
            | Body::NodeCertificateRevoked(_)
            | Body::NodeSpecSet(_)
            | Body::NodeGenerationApplied(_)
            | Body::NodeDeleted(_) => match self.stream {
                Stream::Node(node) => Some(node),
                Stream::Command(_) | Stream::Batch(_) => None,
            },
            Body::BatchCreated(_) | Body::BatchApproved(_) => None,
        }
    }

    /// The command that the event is about, if it is about one.
    pub fn command_id(&self) -> Option<CommandId> {
        match self.stream {
            Stream::Command(command) => Some(command),
            Stream::Node(_) | Stream::Batch(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
