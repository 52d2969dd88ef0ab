//! Batches as the API shows them.

use ledger_protocol::batch::Batch;
use ledger_protocol::dsse::PublicKey;
use ledger_protocol::event::Actor;
use ledger_protocol::id::{BatchId, TenantId};
use ledger_protocol::time::Timestamp;
use serde::Serialize;

use crate::commands::view::{Time, signature};

/// A batch; a field that has nothing to say is absent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BatchView<'a> {
    id: BatchId,
    tenant_id: TenantId,
    /// `recorded`, `proposed`, `approved` or `expired`.
    state: &'static str,
    reason: &'a str,
    leaf_count: u64,
    /// Root of the Merkle tree over the leaves, in hex.
    root: String,
    quorum: u32,
    approvers: Vec<ApproverView<'a>>,
    approvals: Vec<ApprovalView<'a>>,
    created_by: &'a Actor,
    created_at: Time,
    expires_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    approved_at: Option<Time>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) replayed: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApproverView<'a> {
    name: &'a str,
    public_key: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApprovalView<'a> {
    approver: &'a str,
    public_key: String,
    signature: String,
    at: Time,
    by: &'a Actor,
}

/// A key as base64.
fn key(key: &PublicKey) -> String {
    signature(key.as_bytes())
}

impl<'a> BatchView<'a> {
    pub(crate) fn of(batch: &'a Batch, now: Timestamp) -> Self {
        let created = &batch.created;
        let approvers = created.approvers.iter().map(|approver| ApproverView {
            name: &approver.name,
            public_key: key(&approver.key),
        });
        let approvals = batch.approvals.iter().map(|approval| ApprovalView {
            approver: &approval.given.approver,
            public_key: key(&approval.given.key),
            signature: signature(&approval.given.signature),
            at: Time(approval.at),
            by: &approval.by,
        });
        Self {
            id: batch.id,
            tenant_id: batch.tenant,
            state: batch.standing(now).as_str(),
            reason: &created.reason,
            leaf_count: created.leaf_count,
            root: hex::encode(&created.root),
            quorum: created.quorum,
            approvers: approvers.collect(),
            approvals: approvals.collect(),
            created_by: &batch.created_by,
            created_at: Time(batch.created_at),
            expires_at: Time(created.expires_at),
            approved_at: batch.approved_at.map(Time),
            replayed: false,
        }
    }
}
