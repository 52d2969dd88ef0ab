//! Queue a command (SPEC A1, A2, K1, K4, T1, T3).

use crate::batch::Place;
use crate::batch::create::Policy;
use crate::event::{Body, CommandQueued};
use crate::id::{BatchId, CommandId, NodeId, TenantId};
use crate::kind::Kind;
use crate::limits;
use crate::node::Node;
use crate::refusal::Refusal;
use crate::text;
use crate::time::Timestamp;

use super::Command;

/// What a caller asks for. The payload has passed the kind's schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enqueue {
    /// When it was asked for; what decides on it may come to it later.
    pub asked_at: Timestamp,
    /// Id that the command will have.
    pub id: CommandId,
    /// The tenant in whose view the node must be.
    pub tenant: TenantId,
    /// The node.
    pub node: NodeId,
    /// The kind.
    pub kind: Kind,
    /// The payload, as canonical MessagePack.
    pub payload: Vec<u8>,
    /// Key in the ledger; unique per node.
    pub idempotency_key: String,
    /// The last moment at which the node may accept it.
    pub not_after: Timestamp,
    /// Not dispatched before this time.
    pub not_before: Option<Timestamp>,
    /// Generation that the node must have applied.
    pub min_generation: Option<u64>,
    /// Its batch.
    pub batch_id: Option<BatchId>,
}

impl Enqueue {
    /// The part of a retry's check that needs no node: whether `first`, which has the key, is what
    /// is asked for again (SPEC A2).
    pub fn is_retry_of(&self, first: &Command) -> Result<(), Refusal> {
        let field = if self.kind.name != first.queued.kind {
            "kind"
        } else if self.payload != first.queued.payload {
            "payload"
        } else if self.batch_id != first.queued.batch_id {
            "batchId"
        } else {
            return Ok(());
        };
        Err(Refusal::KeyConflict {
            field,
            command: first.id,
        })
    }

    /// Whether the node may be asked, by this tenant.
    pub fn node_in_view(&self, node: Option<&Node>) -> Result<(), Refusal> {
        match node {
            Some(node) if node.tenant == self.tenant && node.deleted_at.is_none() => Ok(()),
            Some(_) | None => Err(Refusal::UnknownNode(self.node)),
        }
    }

    /// Whether a destructive command may come without a batch (SPEC P4). Where a node may take a few,
    /// it is the node that counts them.
    pub fn is_approvable(&self, policy: &Policy) -> Result<(), Refusal> {
        if self.kind.destructive && self.batch_id.is_none() && policy.asks_for_a_batch() {
            let kind = self.kind.name.to_string();
            return Err(Refusal::BatchRequired { kind });
        }
        Ok(())
    }

    /// The event that queues the command as the node's next, or why not. `place` is its place in
    /// the batch that it names; `pending` the number of commands that wait in the node's lane now.
    pub fn decide(
        &self,
        node: &Node,
        place: Option<Place>,
        pending: u32,
        pending_max: u32,
        now: Timestamp,
    ) -> Result<Body, Refusal> {
        let held = place.as_ref().is_some_and(|place| place.held);
        let expires_at = place.as_ref().map(|place| place.expires_at);
        // What its approvers allowed until then is not accepted later.
        let not_after = expires_at.map_or(self.not_after, |at| at.min(self.not_after));
        self.check_bounds(held, not_after, now)?;
        if !node.accepts(&self.kind.name) {
            let kind = self.kind.name.to_string();
            return Err(Refusal::RestrictedIdentity {
                node: node.id,
                kind,
            });
        }
        if node.seq >= limits::COUNT_MAX {
            let problem = format!("has used every seq up to {}", limits::COUNT_MAX);
            return Err(Refusal::Invalid {
                field: "nodeId",
                problem,
            });
        }
        if pending >= pending_max {
            return Err(Refusal::PendingFull {
                lane: self.kind.lane,
                limit: pending_max,
            });
        }
        Ok(Body::CommandQueued(CommandQueued {
            attested: self.kind.attested,
            batch_id: self.batch_id,
            batch_inclusion: place.map(|place| place.inclusion),
            bundle_key: None,
            destructive: self.kind.destructive,
            held,
            idempotency_key: self.idempotency_key.clone(),
            kind: self.kind.name.to_string(),
            kind_version: self.kind.version,
            lane: self.kind.lane,
            min_generation: self.min_generation,
            node_id: self.node,
            not_after,
            not_before: self.not_before,
            payload: self.payload.clone(),
            retry_safe: self.kind.retry_safe,
            self_terminating: self.kind.self_terminating,
            seq: node.seq.saturating_add(1),
            signed: None,
            timeout_seconds: self.kind.timeout_seconds,
        }))
    }

    fn check_bounds(
        &self,
        held: bool,
        not_after: Timestamp,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let invalid = |field, problem: String| Err(Refusal::Invalid { field, problem });
        if self.payload.len() > limits::PAYLOAD_BYTES_MAX {
            return Err(Refusal::payload_too_large(self.payload.len()));
        }
        let key = &self.idempotency_key;
        if key.is_empty() || key.len() > limits::LEDGER_KEY_BYTES_MAX {
            return invalid(
                "idempotencyKey",
                format!("must have 1 to {} bytes", limits::LEDGER_KEY_BYTES_MAX),
            );
        }
        if let Some(flaw) = text::flaw(key) {
            return invalid("idempotencyKey", flaw.to_string());
        }
        if self.not_after <= now && self.not_after > self.asked_at {
            return Err(Refusal::WaitedTooLong {
                not_after: self.not_after,
            });
        }
        if self.not_after <= now {
            return invalid("notAfter", format!("must lie after now, {now}"));
        }
        let latest = now.plus_seconds(limits::MODULE_NOT_AFTER_SECONDS_MAX);
        if self.not_after > latest {
            return invalid(
                "notAfter",
                format!("must lie at most 12 h ahead, by {latest}"),
            );
        }
        match self.not_before {
            Some(not_before) if not_before >= not_after => invalid(
                "notBefore",
                format!("must come before notAfter, {not_after}"),
            ),
            Some(_) if held => invalid(
                "notBefore",
                "must be absent while a batch holds the command".to_owned(),
            ),
            Some(_) | None => Ok(()),
        }
    }
}
