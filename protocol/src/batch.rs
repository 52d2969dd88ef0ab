//! A batch of destructive commands under approval: the fold of its events, and what may happen to
//! it next (SPEC P3).
//!
//! A batch's scope is a list of [`Leaf`]s, of which the ledger's log holds the Merkle root. Each
//! command of the batch carries the proof that its own leaf is one of them, so that whoever has the
//! log can check it without the list. Approvers sign a [`Statement`].

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::canonical;
use crate::command::Corrupt;
use crate::dsse::{PublicKey, Purpose};
use crate::event::{Actor, BatchApproved, BatchCreated, Body, Event, Stream};
use crate::id::{BatchId, NodeId, TenantId};
use crate::limits::APPROVERS_MAX;
use crate::merkle::{self, HASH_BYTES, Hash};
use crate::refusal::Refusal;
use crate::time::Timestamp;
use crate::trust::TrustBundle;

pub mod approve;
pub mod create;
#[cfg(test)]
mod tests;

/// One action that a batch allows. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leaf {
    /// Name of the command's kind.
    pub kind: String,
    /// SHA-256 of the payload as canonical MessagePack; absent for the empty payload, `{}`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::bytes::opaque::optional"
    )]
    pub payload_sha256: Option<Vec<u8>>,
    /// What the command acts on: the id of its node.
    pub subject: String,
}

/// The empty payload, `{}`, as canonical MessagePack.
const EMPTY_PAYLOAD: [u8; 1] = [0x80];

impl Leaf {
    /// The one leaf that allows this command.
    pub fn of(node: NodeId, kind: &str, payload: &[u8]) -> Self {
        Self {
            kind: kind.to_owned(),
            payload_sha256: Self::bound_sha256(payload),
            subject: node.to_string(),
        }
    }

    /// What a leaf holds of a payload, given as canonical MessagePack: nothing of the empty one.
    pub fn bound_sha256(payload: &[u8]) -> Option<Vec<u8>> {
        let bound = payload != EMPTY_PAYLOAD;
        bound.then(|| Sha256::digest(payload).to_vec())
    }

    /// The hash that a leaf binding the empty payload would have, which none does.
    pub fn empty_payload_sha256() -> Hash {
        Sha256::digest(EMPTY_PAYLOAD).into()
    }

    /// The leaf's canonical bytes.
    pub fn encode(&self) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(self)
    }

    /// The leaf's hash in a tree.
    pub fn hash(&self) -> Result<Hash, canonical::Error> {
        Ok(merkle::leaf_hash(&self.encode()?))
    }
}

/// The proof that a leaf is one of a batch's (RFC 9162, section 2.1.3).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Inclusion {
    /// The leaf's place in the scope, from 0.
    pub index: u64,
    /// The hashes from its sibling upwards, one behind the other.
    #[serde(with = "crate::bytes::opaque")]
    pub path: Vec<u8>,
}

impl Inclusion {
    /// The proof with this path.
    pub fn new(index: u64, path: &[Hash]) -> Self {
        let path = path.concat();
        Self { index, path }
    }

    /// Whether it proves the leaf to be in the batch's scope.
    pub fn proves(&self, leaf: &Leaf, batch: &BatchCreated) -> bool {
        leaf.hash()
            .is_ok_and(|leaf| self.leads(leaf, batch.leaf_count, &batch.root))
    }

    /// Whether the path leads from the leaf to the root of a tree of this many leaves.
    fn leads(&self, leaf: Hash, leaf_count: u64, root: &[u8]) -> bool {
        let (hashes, rest) = self.path.as_chunks::<HASH_BYTES>();
        let reached = merkle::root_of_path(leaf, self.index, leaf_count, hashes);
        rest.is_empty() && reached.is_some_and(|reached| reached.as_slice() == root)
    }
}

/// A command's place in its batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The proof that the batch allows it.
    pub inclusion: Inclusion,
    /// It waits for the batch's approval.
    pub held: bool,
    /// When the batch expires, and the command with it.
    pub expires_at: Timestamp,
}

/// What approvers sign, with purpose `batch-approval`: canonical MessagePack of this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Statement<'a> {
    /// The batch.
    pub batch_id: BatchId,
    /// When it expires.
    pub expires_at: Timestamp,
    /// How many leaves its scope has.
    pub leaf_count: u64,
    /// Why it was proposed.
    pub reason: &'a str,
    /// Root of the Merkle tree over the leaves.
    #[serde(with = "serde_bytes")]
    pub root: &'a [u8],
    /// Whose it is.
    pub tenant_id: TenantId,
}

impl Statement<'_> {
    /// The bytes that are signed for their purpose.
    pub fn encode(&self) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(self)
    }

    /// Whether the signature is this key's over it.
    pub fn is_signed_by(&self, key: &PublicKey, signature: &[u8]) -> bool {
        self.encode()
            .is_ok_and(|payload| key.verifies(Purpose::BatchApproval, &payload, signature))
    }
}

/// What a node is shown of a batch: the proof that the command is one of it, and its approvals.
/// Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchProof {
    /// The approvals.
    pub approvals: Vec<Signature>,
    /// When it expires.
    pub expires_at: Timestamp,
    /// The proof that the command's leaf is one of the scope.
    pub inclusion: Inclusion,
    /// How many leaves its scope has.
    pub leaf_count: u64,
    /// Why it was proposed.
    pub reason: String,
    /// Root of the Merkle tree over the leaves.
    #[serde(with = "crate::bytes::opaque")]
    pub root: Vec<u8>,
    /// Whose it is.
    pub tenant_id: TenantId,
}

/// An approver's signature over the batch's [`Statement`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signature {
    /// The approver's key.
    pub key: PublicKey,
    /// The signature.
    #[serde(with = "crate::bytes::opaque")]
    pub signature: Vec<u8>,
}

/// Why a node does not take a batch for approved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unapproved {
    /// The command belongs to no batch.
    #[error("has no batch, and destructive commands need one here")]
    NoBatch,
    /// The proof was not sent along.
    #[error("names batch {0}, without its approvals")]
    NoProof(BatchId),
    /// The leaf is not in the batch's scope.
    #[error("is not in the scope of batch {0}")]
    OutsideScope(BatchId),
    /// It could be accepted after the batch's end.
    #[error("may be accepted after its batch expires, at {0}")]
    Outlives(Timestamp),
    /// Too few approvals that count here.
    #[error("has {given} of {quorum} approvals")]
    TooFew {
        /// Approvals by distinct people with distinct keys.
        given: usize,
        /// How many it takes.
        quorum: u32,
    },
}

impl BatchProof {
    /// What the batch's approvers show to a node.
    pub fn of(batch: &Batch, inclusion: Inclusion) -> Self {
        let approvals = batch.approvals.iter().map(|approval| Signature {
            key: approval.given.key,
            signature: approval.given.signature.clone(),
        });
        Self {
            approvals: approvals.collect(),
            expires_at: batch.created.expires_at,
            inclusion,
            leaf_count: batch.created.leaf_count,
            reason: batch.created.reason.clone(),
            root: batch.created.root.clone(),
            tenant_id: batch.tenant,
        }
    }

    /// Whether it shows that enough of the bundle's approvers allowed the leaf, in batch `id`, for
    /// a command that may be accepted until `until` (SPEC P3).
    pub fn approves(
        &self,
        id: BatchId,
        leaf: &Leaf,
        until: Timestamp,
        trust: &TrustBundle,
    ) -> Result<(), Unapproved> {
        let leaf = leaf.hash().map_err(|_| Unapproved::OutsideScope(id))?;
        if !self.inclusion.leads(leaf, self.leaf_count, &self.root) {
            return Err(Unapproved::OutsideScope(id));
        }
        if until > self.expires_at {
            return Err(Unapproved::Outlives(self.expires_at));
        }
        let statement = Statement {
            batch_id: id,
            expires_at: self.expires_at,
            leaf_count: self.leaf_count,
            reason: &self.reason,
            root: &self.root,
            tenant_id: self.tenant_id,
        };
        // One person may have several keys in the bundle, and one key several names.
        let mut keys = BTreeSet::new();
        let mut people = BTreeSet::new();
        for approval in self.approvals.iter().take(APPROVERS_MAX) {
            let known = trust
                .approvers
                .iter()
                .find(|known| known.key == approval.key);
            let Some(known) = known else { continue };
            if statement.is_signed_by(&approval.key, &approval.signature) {
                keys.insert(approval.key);
                people.insert(known.name.to_lowercase());
            }
        }
        let given = keys.len().min(people.len());
        if given < trust.quorum as usize {
            let quorum = trust.quorum;
            return Err(Unapproved::TooFew { given, quorum });
        }
        Ok(())
    }
}

/// A batch as its events tell it. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Batch {
    /// The approvals, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// When the quorum was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Timestamp>,
    /// What was frozen when it was proposed.
    pub created: BatchCreated,
    /// When it was proposed.
    pub created_at: Timestamp,
    /// Who proposed it.
    pub created_by: Actor,
    /// Its id.
    pub id: BatchId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Version of its stream.
    pub version: u64,
}

/// An approver's word, and who brought it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Approval {
    /// When it was recorded.
    pub at: Timestamp,
    /// Who brought it.
    pub by: Actor,
    /// What was signed.
    pub given: BatchApproved,
}

/// Where a batch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Nobody's approval is asked for.
    Recorded,
    /// Approvals are missing.
    Proposed,
    /// Enough have approved.
    Approved,
    /// Its time has passed.
    Expired,
}

impl Standing {
    /// Its name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Proposed => "proposed",
            Self::Approved => "approved",
            Self::Expired => "expired",
        }
    }
}

impl Batch {
    /// Folds one more event of the batch's stream into it; `None` before the first. Pure (SPEC L7).
    pub fn evolve(batch: Option<Self>, event: &Event) -> Result<Self, Corrupt> {
        let stream = event.stream;
        let current = batch.as_ref().map_or(0, |batch| batch.version);
        if event.version != current + 1 {
            let given = event.version;
            return Err(Corrupt::Version {
                stream,
                current,
                given,
            });
        }
        match (batch, &event.body, stream) {
            (None, Body::BatchCreated(created), Stream::Batch(id)) => Ok(Self {
                approvals: Vec::new(),
                approved_at: None,
                created: created.clone(),
                created_at: event.at,
                created_by: event.actor.clone(),
                id,
                tenant: event.tenant,
                version: 1,
            }),
            (Some(mut batch), Body::BatchApproved(given), Stream::Batch(id)) => {
                let theirs = batch.approver(&given.key);
                let known = theirs.is_some_and(|known| known.name == given.approver);
                let again = batch.approval_by(&given.key).is_some();
                if !known || again || id != batch.id || event.tenant != batch.tenant {
                    return Err(Corrupt::Mismatch {
                        stream,
                        event: event.body.type_name(),
                    });
                }
                batch.version = event.version;
                batch.approvals.push(Approval {
                    at: event.at,
                    by: event.actor.clone(),
                    given: given.clone(),
                });
                if batch.has_quorum() {
                    batch.approved_at = Some(batch.approved_at.unwrap_or(event.at));
                }
                Ok(batch)
            }
            (batch, body, _) => Err(Corrupt::Transition {
                stream,
                event: body.type_name(),
                state: batch.map_or("none", |_| "proposed").to_owned(),
            }),
        }
    }

    fn has_quorum(&self) -> bool {
        self.approvals.len() >= self.created.quorum as usize
    }

    fn approver(&self, key: &PublicKey) -> Option<&crate::event::Approver> {
        self.created
            .approvers
            .iter()
            .find(|known| known.key == *key)
    }

    fn approval_by(&self, key: &PublicKey) -> Option<&Approval> {
        self.approvals
            .iter()
            .find(|approval| approval.given.key == *key)
    }

    /// Whether its commands wait for approvals.
    pub fn holds(&self) -> bool {
        self.created.quorum > 0 && self.approved_at.is_none()
    }

    /// Where it stands at this time.
    pub fn standing(&self, now: Timestamp) -> Standing {
        if now > self.created.expires_at {
            Standing::Expired
        } else if self.created.quorum == 0 {
            Standing::Recorded
        } else if self.holds() {
            Standing::Proposed
        } else {
            Standing::Approved
        }
    }

    /// What approvers sign.
    pub fn statement(&self) -> Statement<'_> {
        Statement {
            batch_id: self.id,
            expires_at: self.created.expires_at,
            leaf_count: self.created.leaf_count,
            reason: &self.created.reason,
            root: &self.created.root,
            tenant_id: self.tenant,
        }
    }

    /// Where a command stands in the batch that it names, or why it may not be queued. `inclusion`
    /// is what is to prove that the scope has its leaf.
    pub fn admit(
        &self,
        leaf: &Leaf,
        inclusion: Option<&Inclusion>,
        now: Timestamp,
    ) -> Result<Place, Refusal> {
        if now >= self.created.expires_at {
            let at = self.created.expires_at;
            return Err(Refusal::BatchExpired { batch: self.id, at });
        }
        // The rows beside the log are believed no more than whoever could write them.
        match inclusion.filter(|inclusion| inclusion.proves(leaf, &self.created)) {
            Some(inclusion) => Ok(Place {
                inclusion: inclusion.clone(),
                held: self.holds(),
                expires_at: self.created.expires_at,
            }),
            None => Err(Refusal::OutsideBatch {
                batch: self.id,
                kind: leaf.kind.clone(),
                subject: leaf.subject.clone(),
            }),
        }
    }
}
