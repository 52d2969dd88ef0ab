//! Bodies of the events in a batch's life (SPEC P3); fields stand in the order of their wire names.

use serde::{Deserialize, Serialize};

use crate::dsse::PublicKey;
use crate::time::Timestamp;

/// Who may approve, by the key that proves it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Approver {
    /// The approver's key.
    pub key: PublicKey,
    /// The name that people know the approver by.
    pub name: String,
}

/// A batch was proposed. All that its approvers sign is frozen here, and so is who they may be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchCreated {
    /// Those who may approve it, by name; none when it is recorded for audit only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<Approver>,
    /// No approval and no command after this time.
    pub expires_at: Timestamp,
    /// Key under which a retry finds this batch; unique in the ledger.
    pub idempotency_key: String,
    /// How many leaves its scope has.
    pub leaf_count: u64,
    /// How many approvals let its commands go; 0 when it is recorded for audit only.
    pub quorum: u32,
    /// Why, in the words of who proposes it.
    pub reason: String,
    /// Root of the Merkle tree over the leaves of its scope.
    #[serde(with = "crate::bytes::opaque")]
    pub root: Vec<u8>,
}

/// An approver has signed the batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchApproved {
    /// The approver's name.
    pub approver: String,
    /// The approver's key.
    pub key: PublicKey,
    /// The signature, purpose `batch-approval`, over [`crate::batch::Statement`].
    #[serde(with = "crate::bytes::opaque")]
    pub signature: Vec<u8>,
}
