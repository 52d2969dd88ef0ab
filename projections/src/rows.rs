//! How a fold becomes a row; the append writes these rows and the replay compares them.

use ledger_protocol::batch::Batch;
use ledger_protocol::batch::create::Proved;
use ledger_protocol::canonical;
use ledger_protocol::command::{Command, State};
use ledger_protocol::event::NodeSpecSet;
use ledger_protocol::id::{BatchId, NodeId};
use ledger_protocol::node::Node;
use uuid::Uuid;

use crate::Error;

/// Number as Postgres keeps it. Positions, versions, `seq` and generations stay far below 2⁶³.
pub(crate) fn bigint(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(
    value: i64,
    table: &'static str,
    column: &'static str,
    key: &dyn ToString,
) -> Result<u64, Error> {
    u64::try_from(value).map_err(|_| Error::Number {
        table,
        column,
        key: key.to_string(),
        value,
    })
}

/// The column `signed` of `node_specs`.
pub fn signed_column(set: &NodeSpecSet) -> Result<Option<Vec<u8>>, Error> {
    let signed = set.signed.as_ref().map(canonical::encode).transpose();
    signed.map_err(Error::Encode)
}

/// A row of `commands_live`.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct LiveRow {
    /// The command.
    pub id: Uuid,
    /// Its node.
    pub node: Uuid,
    /// Its place in the node's queue.
    pub seq: i64,
    /// Its lane.
    pub lane: String,
    /// Its kind.
    pub kind: String,
    /// Its state.
    pub state: String,
    /// Whether it is with its node.
    pub in_flight: bool,
    /// When it may go out, in microseconds.
    pub due_at: i64,
    /// The end of its wait, in microseconds.
    pub not_after: i64,
    /// Generation that it asks for; 0 for none.
    pub min_generation: i64,
    /// The batch that holds it.
    pub held_by: Option<Uuid>,
    /// The fold.
    pub snapshot: Vec<u8>,
}

/// A row of `commands_settled`.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct SettledRow {
    /// The command.
    pub id: Uuid,
    /// Its node.
    pub node: Uuid,
    /// Its place in the node's queue.
    pub seq: i64,
    /// Its state.
    pub state: String,
    /// The fold.
    pub snapshot: Vec<u8>,
}

/// The row that a command has: in one of two tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandRow {
    /// It has not ended.
    Live(LiveRow),
    /// It has ended.
    Settled(SettledRow),
}

impl CommandRow {
    /// The row of this command.
    pub fn of(command: &Command) -> Result<Self, Error> {
        let snapshot = canonical::encode(command).map_err(Error::Encode)?;
        let queued = &command.queued;
        let state = command.state_name();
        if state.is_terminal() {
            return Ok(Self::Settled(SettledRow {
                id: command.id.uuid(),
                node: queued.node_id.uuid(),
                seq: bigint(queued.seq),
                state: state.as_str().to_owned(),
                snapshot,
            }));
        }
        let held = matches!(command.state, State::Pending { held: true, .. });
        let due_at = match command.state {
            State::Pending { held: true, .. } => i64::MAX,
            State::Pending {
                held: false,
                not_before,
                retry_at,
            } => not_before
                .max(retry_at)
                .map_or(0, ledger_protocol::time::Timestamp::as_micros),
            State::Dispatched { .. }
            | State::Acked { .. }
            | State::Running { .. }
            | State::Settled(_) => 0,
        };
        Ok(Self::Live(LiveRow {
            id: command.id.uuid(),
            node: queued.node_id.uuid(),
            seq: bigint(queued.seq),
            lane: queued.lane.as_str().to_owned(),
            kind: queued.kind.clone(),
            state: state.as_str().to_owned(),
            in_flight: command.is_in_flight(),
            due_at,
            not_after: queued.not_after.as_micros(),
            min_generation: bigint(queued.min_generation.unwrap_or(0)),
            held_by: queued.batch_id.filter(|_| held).map(BatchId::uuid),
            snapshot,
        }))
    }
}

/// A row of `batches`.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct BatchRow {
    /// The batch.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: Uuid,
    /// Its idempotency key.
    pub key: String,
    /// Whether its quorum was reached.
    pub approved: bool,
    /// The fold.
    pub snapshot: Vec<u8>,
}

impl BatchRow {
    /// The row of this batch.
    pub fn of(batch: &Batch) -> Result<Self, Error> {
        Ok(Self {
            id: batch.id.uuid(),
            tenant: batch.tenant.uuid(),
            key: batch.created.idempotency_key.clone(),
            approved: batch.approved_at.is_some(),
            snapshot: canonical::encode(batch).map_err(Error::Encode)?,
        })
    }
}

/// A row of `batch_leaves`.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct LeafRow {
    /// The batch.
    pub batch: Uuid,
    /// The leaf's place in the scope, from 0.
    pub place: i32,
    /// Its hash.
    pub hash: Vec<u8>,
    /// Its bytes.
    pub leaf: Vec<u8>,
    /// The hashes from its sibling upwards.
    pub path: Vec<u8>,
}

impl LeafRow {
    /// The row of a leaf of this batch.
    pub fn of(batch: BatchId, proved: Proved) -> Self {
        Self {
            batch: batch.uuid(),
            place: i32::try_from(proved.inclusion.index).unwrap_or(i32::MAX),
            hash: proved.hash.to_vec(),
            leaf: proved.leaf,
            path: proved.inclusion.path,
        }
    }
}

/// A row of `nodes`.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct NodeRow {
    /// The node.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: Uuid,
    /// Whether it left the fleet.
    pub deleted: bool,
    /// Desired-state generation that it has applied.
    pub applied_generation: i64,
    /// Kinds that its identity accepts; all when absent.
    pub allowed_kinds: Option<Vec<String>>,
    /// Lease of the gateway's process that holds its session; none without one.
    pub gateway_lease: Option<String>,
    /// The fold without `seq`.
    pub snapshot: Vec<u8>,
}

impl NodeRow {
    /// The row of this node.
    pub fn of(node: &Node) -> Result<Self, Error> {
        let certificate = node.certificate.as_ref();
        Ok(Self {
            id: node.id.uuid(),
            tenant: node.tenant.uuid(),
            deleted: node.deleted_at.is_some(),
            applied_generation: bigint(node.applied_generation),
            allowed_kinds: certificate.and_then(|held| held.allowed_kinds.clone()),
            gateway_lease: node.gateway_lease().map(str::to_owned),
            snapshot: canonical::encode(node).map_err(Error::Encode)?,
        })
    }

    /// The node of this row, as if it had no commands: [`crate::nodes`] knows their `seq`.
    pub(crate) fn node(self) -> Result<Node, Error> {
        let key = || NodeId::from_uuid(self.id).to_string();
        let mut node: Node = canonical::decode(&self.snapshot).map_err(|source| Error::Row {
            table: "nodes",
            column: "snapshot",
            key: key(),
            source,
        })?;
        node.seq = node.seq_lifted;
        Ok(node)
    }
}
