//! Why a request does not change the ledger. Each refusal tells what was asked, what stands
//! against it and, where there is one, what would work.

use crate::attestation::Unproved;
use crate::command::StateName;
use crate::id::{BatchId, CommandId, NodeId};
use crate::kind::Lane;
use crate::limits;
use crate::time::Timestamp;

/// A request that was decided against.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such node, or not in the tenant's view (SPEC A6).
    #[error("node {0} not found")]
    UnknownNode(NodeId),
    /// No such command on that node, or not in the tenant's view (SPEC A6).
    #[error("command {0} not found")]
    UnknownCommand(CommandId),
    /// The node was deleted.
    #[error("node {0} was deleted; its history stays readable")]
    NodeDeleted(NodeId),
    /// The node exists already.
    #[error("node {0} is registered already")]
    NodeExists(NodeId),
    /// The node has joined anew since this certificate was given (SPEC P7).
    #[error("certificate of node {0} was replaced when it joined anew")]
    CertificateReplaced(NodeId),
    /// The certificates of the node were revoked (SPEC P7).
    #[error("certificates of node {0} were revoked; it must join anew, with a new key")]
    CertificateRevoked(NodeId),
    /// A join with a key whose certificates were revoked (SPEC P7).
    #[error("certificates for this key of node {0} were revoked; join with a new key")]
    KeyRevoked(NodeId),
    /// The ledger knows no certificate with this key to be renewed (SPEC P7).
    #[error("the newest certificate of node {0} is for another key; another key joins")]
    UnknownKey(NodeId),
    /// The node has no certificate to be revoked.
    #[error("node {0} never joined, so that it has no certificate")]
    NeverJoined(NodeId),
    /// The session that asks is not the node's newest (SPEC D2).
    #[error("session epoch {given} is not the node's newest, {current}")]
    StaleEpoch {
        /// The node's epoch.
        current: u64,
        /// The epoch of who asks.
        given: u64,
    },
    /// The command is not waiting.
    #[error("command is {state}, not pending")]
    NotPending {
        /// The state that it has.
        state: StateName,
    },
    /// The command may not go out yet.
    #[error("command is not due before {until}")]
    NotDue {
        /// `notBefore`, or the end of a backoff.
        until: Timestamp,
    },
    /// The command waits for its batch.
    #[error("command waits for the approval of its batch")]
    Held,
    /// The command waits for nobody's approval.
    #[error("command is not held by a batch")]
    NotHeld,
    /// The command may not go out any more.
    #[error("command was to be accepted before {not_after}")]
    PastDeadline {
        /// Its `notAfter`.
        not_after: Timestamp,
    },
    /// A request for a command waited in the queue until the command's own deadline had passed.
    #[error("the request waited until its notAfter, {not_after}, had passed; nothing was queued")]
    WaitedTooLong {
        /// The deadline that was asked for.
        not_after: Timestamp,
    },
    /// The node has not applied the generation that the command asks for (SPEC T1).
    #[error("node has applied generation {applied}; the command asks for {wanted}")]
    StaleGeneration {
        /// What the node has applied.
        applied: u64,
        /// What the command asks for.
        wanted: u64,
    },
    /// A report on a command that no gateway ever sent.
    #[error("command was never dispatched")]
    NeverDispatched,
    /// The node has to sign how a command of an attested kind ended, and has not (SPEC P2).
    #[error("nodeSig is missing; {kind} is attested: the node must sign how it ended")]
    Unattested {
        /// The command's kind.
        kind: String,
    },
    /// A signature that is not the node's over what it is said to have said (SPEC P2).
    #[error("nodeSig does not hold: {0}")]
    BadAttestation(Unproved),
    /// The sweeper's view was old: the deadline has not passed (SPEC T2).
    #[error("command is not overdue before {until}")]
    NotOverdue {
        /// When it would be.
        until: Timestamp,
    },
    /// The node's certificate allows other kinds only (SPEC D11).
    #[error("node {node} runs a restricted identity that does not accept {kind}")]
    RestrictedIdentity {
        /// The node.
        node: NodeId,
        /// The kind.
        kind: String,
    },
    /// The key is taken by a command that differs (SPEC A2).
    #[error("idempotencyKey was used before with another {field}")]
    KeyConflict {
        /// The first field that differs.
        field: &'static str,
        /// The command that has the key.
        command: CommandId,
    },
    /// No such batch, or not in the tenant's view (SPEC A6).
    #[error("batch {0} not found")]
    UnknownBatch(BatchId),
    /// The key is taken by a batch that differs (SPEC P3).
    #[error("idempotencyKey was used before with another {field}")]
    BatchKeyConflict {
        /// The first field that differs.
        field: &'static str,
        /// The batch that has the key.
        batch: BatchId,
    },
    /// The batch's time has passed (SPEC P3).
    #[error("batch {batch} expired at {at}")]
    BatchExpired {
        /// The batch.
        batch: BatchId,
        /// When.
        at: Timestamp,
    },
    /// The batch does not allow the command (SPEC P4).
    #[error("batch {batch} does not allow {kind} with this payload on {subject}")]
    OutsideBatch {
        /// The batch.
        batch: BatchId,
        /// The command's kind.
        kind: String,
        /// What it would act on.
        subject: String,
    },
    /// A destructive command needs the approval of others (SPEC P4).
    #[error(
        "{kind} is destructive and needs a batch here; propose one with commandBatches.create and \
         name it as batchId"
    )]
    BatchRequired {
        /// The command's kind.
        kind: String,
    },
    /// Too few have approved the batch (SPEC P3).
    #[error("batch {batch} has {given} of the {quorum} approvals that it needs")]
    BatchNotApproved {
        /// The batch.
        batch: BatchId,
        /// Approvals so far.
        given: usize,
        /// Approvals that it needs.
        quorum: u32,
    },
    /// There were no approvers when the batch was proposed (SPEC P3).
    #[error("batch {0} is recorded for audit only; there were no approvers when it was proposed")]
    BatchRecordedOnly(BatchId),
    /// Who proposed a batch does not approve it (SPEC P3).
    #[error("batch {batch} was proposed by you; who proposes a batch does not approve it")]
    ApprovedByCreator {
        /// The batch.
        batch: BatchId,
    },
    /// One person's approval counts once (SPEC P3).
    #[error("batch {batch} was approved by you before, with another key; one person counts once")]
    ApprovedBySamePerson {
        /// The batch.
        batch: BatchId,
    },
    /// One key's approval counts once (SPEC P3).
    #[error(
        "batch {batch} was approved with this key before, by another identity; a key counts once"
    )]
    ApprovedWithSameKey {
        /// The batch.
        batch: BatchId,
    },
    /// The lane of the node is full (SPEC K4).
    #[error("node has {limit} pending commands in lane {lane}, the most it may have")]
    PendingFull {
        /// The lane.
        lane: Lane,
        /// The limit.
        limit: u32,
    },
    /// A field has a value that cannot be.
    #[error("{field} {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The limit, and what would work.
        problem: String,
    },
    /// The desired state that is asked for is not newer than the node's.
    #[error("generation {given} is not above the node's generation {current}")]
    StaleSpec {
        /// The node's generation.
        current: u64,
        /// The generation that was given.
        given: u64,
    },
}

impl Refusal {
    /// A payload above its limit.
    pub fn payload_too_large(bytes: usize) -> Self {
        Self::Invalid {
            field: "payload",
            problem: format!(
                "has {bytes} bytes as MessagePack; the limit is {}",
                limits::PAYLOAD_BYTES_MAX
            ),
        }
    }
}
