//! What callers hand to the append, and what they get.

use ledger_protocol::batch::create::Create;
use ledger_protocol::batch::{Batch, Leaf};
use ledger_protocol::command::Command;
use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::dsse::PublicKey;
use ledger_protocol::event::{Actor, JournalLost, NodeCertified, NodeRegistered, NodeSpecSet};
use ledger_protocol::frame::{JournalEntry, Update};
use ledger_protocol::id::{BatchId, CommandId, NodeId, TenantId};
use ledger_protocol::node::{Node, OpenSession, Presented};
use ledger_protocol::time::Timestamp;

use crate::Fence;

/// A command to queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The tenant in whose view the node must be.
    pub tenant: TenantId,
    /// The node.
    pub node: NodeId,
    /// Name of a registered kind.
    pub kind: String,
    /// The payload; checked against the kind's schema.
    pub payload: serde_json::Value,
    /// Key in the ledger, unique per node: `api:…`, `wf:<workflow>:<step>`, `acceptance:…`.
    pub idempotency_key: String,
    /// The last moment at which the node may accept it, at most 12 h ahead.
    pub not_after: Timestamp,
    /// Not dispatched before this time.
    pub not_before: Option<Timestamp>,
    /// Desired-state generation that the node must have applied.
    pub min_generation: Option<u64>,
    /// Its batch, which holds it until it is approved.
    pub batch_id: Option<BatchId>,
}

/// A batch to propose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Propose {
    /// Whose it will be.
    pub tenant: TenantId,
    /// Why.
    pub reason: String,
    /// What it allows.
    pub scope: Vec<Leaf>,
    /// Key in the ledger, unique.
    pub idempotency_key: String,
    /// How long it may be approved, and its commands queued, in seconds.
    pub expires_in_seconds: u32,
}

/// The answer to [`Propose`].
#[derive(Debug, Clone, PartialEq)]
pub struct Proposed {
    /// The batch, as it stands now.
    pub batch: Batch,
    /// It was proposed before, under the same key.
    pub replayed: bool,
}

/// The answer to [`Run`].
#[derive(Debug, Clone, PartialEq)]
pub struct Queued {
    /// The command, as it stands now.
    pub command: Command,
    /// It was queued before, under the same key (SPEC A2).
    pub replayed: bool,
}

/// The answer to an opened session.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// What shows that the journal knows nothing of the sessions before (SPEC D2, D8).
    pub journal_lost: Option<JournalLost>,
    /// The node; its epoch is the session's.
    pub node: Node,
    /// Its commands in flight, in `seq` order, to be sent again (SPEC D6).
    pub replay: Vec<Command>,
}

/// What an append has made.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A command was queued, now or before.
    Queued(Box<Queued>),
    /// A command changed, or stays as it was.
    Command(Box<Command>),
    /// A node changed, or stays as it was.
    Node(Box<Node>),
    /// A session was opened.
    Opened(Box<Opened>),
    /// A batch was proposed, now or before.
    Proposed(Box<Proposed>),
    /// A batch was approved, or stays as it was.
    Batch(Box<Batch>),
}

/// One thing to decide; the node's lock guards all that it touches.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Enqueue(Box<Enqueue>),
    Cancel {
        tenant: TenantId,
        command: CommandId,
    },
    Release {
        tenant: TenantId,
        command: CommandId,
    },
    Dispatch {
        command: CommandId,
        epoch: u64,
    },
    Report {
        epoch: u64,
        update: Box<Update>,
        retry_at: Timestamp,
    },
    Expire {
        command: CommandId,
        timeout_seconds: Option<u32>,
    },
    RegisterNode {
        tenant: TenantId,
        registered: NodeRegistered,
    },
    DeleteNode {
        tenant: TenantId,
    },
    Certify(NodeCertified),
    Renew {
        shown: Presented,
        certified: NodeCertified,
    },
    RevokeCertificate {
        tenant: TenantId,
        reason: String,
    },
    SetSpec {
        tenant: TenantId,
        spec: NodeSpecSet,
    },
    ApplyGeneration {
        epoch: u64,
        generation: u64,
    },
    OpenSession {
        open: OpenSession,
        entries: Vec<JournalEntry>,
    },
    CloseSession {
        epoch: u64,
        reason: String,
    },
}

/// A request about a node, with who asks, under which fence.
#[derive(Debug, Clone)]
pub(crate) struct NodeItem {
    pub(crate) actor: Actor,
    pub(crate) node: NodeId,
    pub(crate) fence: Option<Fence>,
    pub(crate) request: Request,
}

/// One thing to decide about a batch, whose lock guards it.
#[derive(Debug, Clone)]
pub(crate) enum BatchRequest {
    Create(Box<Create>),
    Approve {
        tenant: TenantId,
        batch: BatchId,
        key: PublicKey,
        signature: Vec<u8>,
    },
}

/// A request about a batch, with who asks.
#[derive(Debug, Clone)]
pub(crate) struct BatchItem {
    pub(crate) actor: Actor,
    pub(crate) request: BatchRequest,
}

/// What waits for the append.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Node(NodeItem),
    Batch(BatchItem),
}

impl Item {
    /// The request about a node, if it is one.
    pub(crate) fn of_node(&self) -> Option<&NodeItem> {
        match self {
            Self::Node(item) => Some(item),
            Self::Batch(_) => None,
        }
    }

    /// Rough size of what the request brings, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Node(item) => item.bytes(),
            Self::Batch(item) => match &item.request {
                BatchRequest::Create(create) => create.scope.bytes(),
                BatchRequest::Approve { .. } => 0,
            },
        }
    }
}

impl NodeItem {
    /// The command that the request is about, when it names one.
    pub(crate) fn command(&self) -> Option<CommandId> {
        match &self.request {
            Request::Cancel { command, .. }
            | Request::Release { command, .. }
            | Request::Dispatch { command, .. }
            | Request::Expire { command, .. } => Some(*command),
            Request::Report { update, .. } => Some(update.command_id),
            Request::Enqueue(_)
            | Request::RegisterNode { .. }
            | Request::DeleteNode { .. }
            | Request::Certify(_)
            | Request::Renew { .. }
            | Request::RevokeCertificate { .. }
            | Request::SetSpec { .. }
            | Request::ApplyGeneration { .. }
            | Request::OpenSession { .. }
            | Request::CloseSession { .. } => None,
        }
    }

    /// Whether the decision needs every live command of the node.
    pub(crate) fn needs_live_commands(&self) -> bool {
        matches!(
            self.request,
            Request::OpenSession { .. }
                | Request::DeleteNode { .. }
                | Request::Certify(_)
                | Request::RevokeCertificate { .. }
        )
    }

    fn bytes(&self) -> usize {
        match &self.request {
            Request::Enqueue(enqueue) => enqueue.payload.len(),
            Request::Report { update, .. } => update.result.as_ref().map_or(0, Vec::len),
            Request::SetSpec { spec, .. } => spec.spec.len(),
            Request::Cancel { .. }
            | Request::Release { .. }
            | Request::Dispatch { .. }
            | Request::Expire { .. }
            | Request::RegisterNode { .. }
            | Request::DeleteNode { .. }
            | Request::Certify(_)
            | Request::Renew { .. }
            | Request::RevokeCertificate { .. }
            | Request::ApplyGeneration { .. }
            | Request::OpenSession { .. }
            | Request::CloseSession { .. } => 0,
        }
    }
}
