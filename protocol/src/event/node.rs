//! Bodies of the events in a node's life; fields stand in the order of their wire names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::JournalId;
use crate::kind::Role;
use crate::time::Timestamp;
use crate::trust::Signed;

/// A node joined the fleet's books.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeRegistered {
    /// Labels that operators select by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name that people know it by.
    pub name: String,
    /// What its agent is.
    pub role: Role,
}

/// A node's session opened; its epoch is higher than any before (SPEC D2).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSessionOpened {
    /// Version of the agent.
    pub agent_version: String,
    /// Desired-state generation that the node has applied.
    pub applied_generation: u64,
    /// The machine's boot id.
    pub boot_id: String,
    /// Epoch of the session.
    pub epoch: u64,
    /// Name of the gateway that holds it.
    pub gateway: String,
    /// Lease of the gateway's process: once it has lapsed, nobody holds the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_lease: Option<String>,
    /// The life of the daemon's journal.
    pub journal_id: JournalId,
    /// The journal knows nothing of what the sessions before were sent (SPEC D8), by this sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_lost: Option<JournalLost>,
    /// The role that the daemon has now.
    pub role: Role,
    /// Highest `seq` that the journal has seen, when the ledger knew less (SPEC L11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_lifted: Option<u64>,
}

/// What shows that a journal is not the one that the sessions before had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalLost {
    /// It has another id.
    Replaced,
    /// It has the same id and has seen less than it has answered for: an older copy of the state
    /// folder is at work, by itself or next to the one that it was taken from (SPEC D2).
    Behind,
    /// It has the same id, and the session before was that of an older copy.
    Copied,
}

/// A node's session ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeSessionClosed {
    /// Epoch of the session.
    pub epoch: u64,
    /// Why it ended.
    pub reason: String,
}

/// A node was given a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCertified {
    /// Kinds that the identity may run; all when absent (SPEC D11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_kinds: Option<Vec<String>>,
    /// SHA-256 of the certificate's DER, in hex.
    pub fingerprint: String,
    /// End of validity.
    pub not_after: Timestamp,
    /// Start of validity.
    pub not_before: Timestamp,
    /// The node's Ed25519 public key, 32 bytes.
    #[serde(with = "crate::bytes::opaque")]
    pub public_key: Vec<u8>,
    /// Fingerprint of the certificate that was shown for it: the same daemon has renewed its own
    /// (SPEC P7). Absent for a join, after which another machine may stand there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renews: Option<String>,
}

/// The certificates of a node's key were revoked: none of them opens a session any more (SPEC P7).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeCertificateRevoked {
    /// Fingerprint of the newest of them.
    pub fingerprint: String,
    /// Why, by who revoked them.
    pub reason: String,
}

/// A node's desired state was set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeSpecSet {
    /// Its generation, higher than any before.
    pub generation: u64,
    /// The service's signature over [`crate::trust::intent::of_spec`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Box<Signed>>,
    /// The desired state, as canonical MessagePack.
    #[serde(with = "crate::bytes")]
    pub spec: Vec<u8>,
}

/// A node applied a generation of its desired state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeGenerationApplied {
    /// Epoch of the session that reported it.
    pub epoch: u64,
    /// The generation.
    pub generation: u64,
}

/// A node left the fleet; its history stays.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeDeleted {}
