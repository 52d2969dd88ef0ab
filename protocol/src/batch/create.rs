//! Propose a batch (SPEC P3).

use std::collections::BTreeSet;

use crate::canonical;
use crate::event::{Approver, BatchCreated, Body};
use crate::id::{BatchId, TenantId};
use crate::kind::Registry;
use crate::limits;
use crate::merkle::{self, Hash, Tree};
use crate::refusal::Refusal;
use crate::text;
use crate::time::Timestamp;

use super::{Batch, Inclusion, Leaf};

/// Who may approve batches, and how many must.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Those who may, by name; each key and each name stands once.
    pub approvers: Vec<Approver>,
    /// How many must; 0 when there is none.
    pub quorum: u32,
    /// How many destructive commands an hour a node takes without a batch, where there are
    /// approvers (SPEC P4).
    pub unbatched_destructive_per_hour: u32,
}

impl Policy {
    /// A policy, or what is wrong with it.
    pub fn new(mut approvers: Vec<Approver>, quorum: u32) -> Result<Self, Refusal> {
        let invalid = |field, problem: String| Err(Refusal::Invalid { field, problem });
        if approvers.len() > limits::APPROVERS_MAX {
            let (given, most) = (approvers.len(), limits::APPROVERS_MAX);
            return invalid("approvers", format!("are {given}; the most is {most}"));
        }
        for approver in &approvers {
            let name = &approver.name;
            if name.is_empty() || name.len() > limits::NAME_BYTES_MAX {
                let most = limits::NAME_BYTES_MAX;
                return invalid("approvers", format!("need names of 1 to {most} bytes"));
            }
            if let Some(flaw) = text::flaw(name) {
                return invalid("approvers", format!("have a name that {flaw}"));
            }
        }
        approvers.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        // Names that differ in case alone are one person's, wherever approvals are counted.
        let names = approvers.iter().map(|known| known.name.to_lowercase());
        let names: BTreeSet<_> = names.collect();
        let keys: BTreeSet<_> = approvers.iter().map(|known| known.key).collect();
        if names.len() < approvers.len() || keys.len() < approvers.len() {
            let problem = "have a name or a key that stands twice";
            return invalid("approvers", problem.to_owned());
        }
        let count = u32::try_from(approvers.len()).unwrap_or(u32::MAX);
        if quorum > count || (quorum == 0) != approvers.is_empty() {
            let problem =
                format!("must be 1 to the number of approvers, {count}, or 0 without any");
            return invalid("quorum", problem);
        }
        Ok(Self {
            approvers,
            quorum,
            unbatched_destructive_per_hour: 0,
        })
    }

    /// Whether a destructive command needs a batch, whatever the node has taken this hour.
    pub fn asks_for_a_batch(&self) -> bool {
        !self.approvers.is_empty() && self.unbatched_destructive_per_hour == 0
    }
}

/// What a caller proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// Id that the batch will have.
    pub id: BatchId,
    /// Whose it will be.
    pub tenant: TenantId,
    /// Why.
    pub reason: String,
    /// What it allows.
    pub scope: Scope,
    /// Key in the ledger; unique.
    pub idempotency_key: String,
    /// How long it may be approved, and its commands queued, in seconds from its creation.
    pub expires_in_seconds: u32,
}

/// The leaves of a scope, in the order in which they were given, and their tree.
#[derive(Debug, Clone)]
pub struct Scope {
    leaves: Vec<Leaf>,
    encoded: Vec<Vec<u8>>,
    hashes: Vec<Hash>,
    tree: Tree,
}

impl PartialEq for Scope {
    fn eq(&self, other: &Self) -> bool {
        self.leaves == other.leaves
    }
}

impl Eq for Scope {}

/// A leaf with all that a command needs to show that it is in the scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proved {
    /// The leaf's canonical bytes.
    pub leaf: Vec<u8>,
    /// Its hash.
    pub hash: Hash,
    /// The proof.
    pub inclusion: Inclusion,
}

impl Scope {
    /// A scope of 1 to [`limits::SCOPE_LEAVES_MAX`] leaves of known kinds, each once.
    pub fn new(leaves: Vec<Leaf>, registry: &Registry) -> Result<Self, Refusal> {
        let invalid = |problem: String| Refusal::Invalid {
            field: "scope",
            problem,
        };
        if leaves.is_empty() || leaves.len() > limits::SCOPE_LEAVES_MAX {
            let (given, most) = (leaves.len(), limits::SCOPE_LEAVES_MAX);
            return Err(invalid(format!(
                "must have 1 to {most} leaves; it has {given}"
            )));
        }
        let mut seen = BTreeSet::new();
        for (number, leaf) in leaves.iter().enumerate() {
            if registry.get(&leaf.kind).is_none() {
                let kind = leaf.kind.escape_debug();
                return Err(invalid(format!(
                    "[{number}].kind `{kind}` is not registered"
                )));
            }
            if leaf.payload_sha256.as_deref() == Some(&Leaf::empty_payload_sha256()) {
                let problem = "must be left out for the empty payload";
                return Err(invalid(format!("[{number}].payloadSha256 {problem}")));
            }
            if !seen.insert(leaf) {
                return Err(invalid(format!("[{number}] stands in the scope before")));
            }
        }
        let encode = |leaf: &Leaf| leaf.encode();
        let encoded = leaves
            .iter()
            .map(encode)
            .collect::<Result<Vec<_>, canonical::Error>>();
        let encoded = encoded.map_err(|error| invalid(error.to_string()))?;
        let hashes: Vec<Hash> = encoded.iter().map(|leaf| merkle::leaf_hash(leaf)).collect();
        let tree = Tree::new(hashes.clone());
        Ok(Self {
            leaves,
            encoded,
            hashes,
            tree,
        })
    }

    /// Root of the tree over the leaves.
    pub fn root(&self) -> Hash {
        self.tree.root()
    }

    /// How many leaves it has.
    pub fn leaf_count(&self) -> u64 {
        self.leaves.len() as u64
    }

    /// Size of the leaves, in bytes.
    pub fn bytes(&self) -> usize {
        self.encoded.iter().map(Vec::len).sum()
    }

    /// Every leaf with its proof, in order.
    pub fn proved(&self) -> impl Iterator<Item = Proved> + '_ {
        let leaves = self.encoded.iter().zip(&self.hashes).enumerate();
        leaves.map(|(index, (leaf, hash))| Proved {
            leaf: leaf.clone(),
            hash: *hash,
            inclusion: Inclusion::new(index as u64, &self.tree.path(index).unwrap_or_default()),
        })
    }
}

impl Create {
    /// Whether `first`, which has the key, is what is asked for again.
    pub fn is_retry_of(&self, first: &Batch) -> Result<(), Refusal> {
        let field = if self.reason != first.created.reason {
            "reason"
        } else if self.scope.root().as_slice() != first.created.root
            || self.scope.leaf_count() != first.created.leaf_count
        {
            "scope"
        } else if first.created_at.plus_seconds(self.expires_in_seconds) != first.created.expires_at
        {
            "expiresInSeconds"
        } else {
            return Ok(());
        };
        Err(Refusal::BatchKeyConflict {
            field,
            batch: first.id,
        })
    }

    /// The event that proposes the batch to those who may approve it now, or why not.
    pub fn decide(&self, policy: &Policy, now: Timestamp) -> Result<Body, Refusal> {
        let invalid = |field, problem: String| Err(Refusal::Invalid { field, problem });
        let (chars, most) = (self.reason.chars().count(), limits::BATCH_REASON_CHARS_MAX);
        if chars == 0 || chars > most {
            let problem = format!("must have 1 to {most} characters; it has {chars}");
            return invalid("reason", problem);
        }
        if let Some(flaw) = text::flaw(&self.reason) {
            return invalid("reason", flaw.to_string());
        }
        let key = &self.idempotency_key;
        if key.is_empty() || key.len() > limits::LEDGER_KEY_BYTES_MAX {
            let most = limits::LEDGER_KEY_BYTES_MAX;
            return invalid("idempotencyKey", format!("must have 1 to {most} bytes"));
        }
        let (least, most) = (
            limits::BATCH_EXPIRES_SECONDS_MIN,
            limits::BATCH_EXPIRES_SECONDS_MAX,
        );
        if !(least..=most).contains(&self.expires_in_seconds) {
            return invalid("expiresInSeconds", format!("must be {least} to {most}"));
        }
        Ok(Body::BatchCreated(BatchCreated {
            approvers: policy.approvers.clone(),
            expires_at: now.plus_seconds(self.expires_in_seconds),
            idempotency_key: key.clone(),
            leaf_count: self.scope.leaf_count(),
            quorum: policy.quorum,
            reason: self.reason.clone(),
            root: self.scope.root().to_vec(),
        }))
    }
}
