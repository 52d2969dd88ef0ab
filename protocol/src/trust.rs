//! Whom a node believes, and what it is shown to believe it (SPEC P1, P3, P5).
//!
//! Roots sign two things: the [`TrustBundle`] that a node keeps, and the certificates of worker
//! keys, which live for a day and sign commands and desired states. The gateway carries all of it
//! and can make none of it.
//!
//! To let a root vouch for something new: a purpose in [`crate::dsse`], and the bytes here.

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::dsse::{self, PublicKey, Purpose, SIGNATURE_BYTES};
use crate::event::Approver;
use crate::limits::{APPROVERS_MAX, ROOTS_MAX};
use crate::time::Timestamp;

pub mod intent;

/// What a node believes: which roots sign for the service, whose approvals count, and how much
/// may be destroyed without them. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustBundle {
    /// Those who may approve batches; none where batches are recorded for audit only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<Approver>,
    /// How many approvals a batch needs; 0 without approvers.
    pub quorum: u32,
    /// Roots that sign worker keys and the next bundle.
    pub roots: Vec<PublicKey>,
    /// How many destructive commands an hour a node takes without a batch, where there are
    /// approvers (SPEC P4).
    pub unbatched_destructive_per_hour: u32,
    /// Higher with every change of the content.
    pub version: u64,
}

/// A bundle as it travels: its bytes as they were signed, and who signed them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SignedBundle {
    /// Canonical MessagePack of the [`TrustBundle`].
    #[serde(with = "crate::bytes::opaque")]
    pub bundle: Vec<u8>,
    /// Signatures with purpose `trust-bundle`, by old and new roots.
    pub signatures: Vec<RootSignature>,
}

/// A bundle that the service has published, under the version in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Published {
    /// Its version.
    pub version: u64,
    /// The bundle.
    pub signed: SignedBundle,
}

/// A root's signature.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RootSignature {
    /// The root.
    pub root: PublicKey,
    /// Its signature.
    #[serde(with = "crate::bytes::opaque")]
    pub signature: Vec<u8>,
}

/// Why a bundle is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unbelievable {
    /// The bytes are no bundle.
    #[error("trust bundle is not readable: {0}")]
    Unreadable(String),
    /// A field has a value that cannot be.
    #[error("trust bundle's {field} {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
    /// No root that is believed has signed it.
    #[error("trust bundle {version} is signed by no root that is trusted")]
    Unsigned {
        /// Its version.
        version: u64,
    },
    /// It would take back what is known.
    #[error("trust bundle {given} is not newer than {known}")]
    Older {
        /// Version that is known.
        known: u64,
        /// Version that came.
        given: u64,
    },
}

impl TrustBundle {
    /// Reads a bundle from its canonical bytes, and checks its bounds. Nothing is believed yet.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unbelievable> {
        let bundle: Self = canonical::decode_lenient(bytes)
            .map_err(|error| Unbelievable::Unreadable(error.to_string()))?;
        bundle.check_bounds()?;
        Ok(bundle)
    }

    /// Whether it can be what a service means.
    pub fn check_bounds(&self) -> Result<(), Unbelievable> {
        let invalid = |field, problem| Err(Unbelievable::Invalid { field, problem });
        let mut roots = self.roots.clone();
        roots.sort_unstable();
        roots.dedup();
        if roots.is_empty() || roots.len() > ROOTS_MAX || roots.len() != self.roots.len() {
            return invalid("roots", "must be 1 to 8 distinct keys");
        }
        if self.version == 0 {
            return invalid("version", "must be 1 or more");
        }
        let approvers = self.approvers.len();
        if approvers > APPROVERS_MAX || self.quorum as usize > approvers {
            return invalid(
                "quorum",
                "must be at most the number of approvers, at most 64",
            );
        }
        if (approvers == 0) != (self.quorum == 0) {
            return invalid("quorum", "must be 1 or more with approvers, 0 without");
        }
        Ok(())
    }

    /// The bytes that are signed.
    pub fn encode(&self) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(self)
    }

    /// Whether both mean the same, whatever their version.
    pub fn means(&self, other: &Self) -> bool {
        self.differs_in(other).is_empty()
    }

    /// The fields in which two bundles mean different things, by their wire names.
    pub fn differs_in(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            approvers,
            quorum,
            roots,
            unbatched_destructive_per_hour,
            version: _,
        } = self;
        let allowance = *unbatched_destructive_per_hour;
        let fields = [
            ("approvers", *approvers != other.approvers),
            ("quorum", *quorum != other.quorum),
            ("roots", *roots != other.roots),
            (
                "unbatchedDestructivePerHour",
                allowance != other.unbatched_destructive_per_hour,
            ),
        ];
        let differing = fields.into_iter().filter(|(_, differs)| *differs);
        differing.map(|(field, _)| field).collect()
    }
}

impl SignedBundle {
    /// The bundle, if one of these roots has signed it and it is newer than what is known (0 for
    /// nothing). So a node catches up by what it knows: each bundle is signed by a root of the one
    /// before it.
    pub fn believe(&self, roots: &[PublicKey], known: u64) -> Result<TrustBundle, Unbelievable> {
        let bundle = TrustBundle::decode(&self.bundle)?;
        let given = bundle.version;
        if given <= known {
            return Err(Unbelievable::Older { known, given });
        }
        let holds = |by: &RootSignature| {
            let is_trusted = roots.contains(&by.root);
            is_trusted
                && by
                    .root
                    .verifies(Purpose::TrustBundle, &self.bundle, &by.signature)
        };
        if !self.signatures.iter().take(2 * ROOTS_MAX).any(holds) {
            return Err(Unbelievable::Unsigned { version: given });
        }
        Ok(bundle)
    }

    /// The bundle, if one of its own roots has signed it: what a node that has no trust yet begins
    /// with, over a connection that it trusts.
    pub fn begin(&self) -> Result<TrustBundle, Unbelievable> {
        let roots = TrustBundle::decode(&self.bundle)?.roots;
        self.believe(&roots, 0)
    }
}

/// A worker key, certified by a root. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerCertificate {
    /// The worker's public key.
    pub key: PublicKey,
    /// It signs no command that could be accepted later than this.
    pub not_after: Timestamp,
    /// It signs nothing before this.
    pub not_before: Timestamp,
    /// The root that certifies it.
    pub root: PublicKey,
    /// The root's signature, purpose `worker-key`, over [`WorkerCertificate::statement`].
    #[serde(with = "crate::bytes::opaque")]
    pub signature: Vec<u8>,
}

/// What a root signs of a worker key.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkerStatement {
    key: PublicKey,
    not_after: Timestamp,
    not_before: Timestamp,
    root: PublicKey,
}

impl WorkerCertificate {
    /// The bytes that a root signs, with purpose `worker-key`: canonical MessagePack of `key`,
    /// `notAfter`, `notBefore` and `root`.
    pub fn statement(
        key: PublicKey,
        (not_before, not_after): (Timestamp, Timestamp),
        root: PublicKey,
    ) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(&WorkerStatement {
            key,
            not_after,
            not_before,
            root,
        })
    }

    /// Whether the root that it names has signed it.
    fn is_certified(&self) -> bool {
        let statement = Self::statement(self.key, (self.not_before, self.not_after), self.root);
        statement.is_ok_and(|statement| {
            let purpose = Purpose::WorkerKey;
            self.root.verifies(purpose, &statement, &self.signature)
        })
    }
}

/// Worker certificates that their roots have signed: a worker signs thousands of commands, each with
/// the same certificate. The newest are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Certified(Vec<WorkerCertificate>);

impl Certified {
    /// How many are kept; a service has one for each process that signs, and a new one each half day.
    const MAX: usize = 64;

    /// Whether the root that the certificate names has signed it.
    fn holds(&mut self, worker: &WorkerCertificate) -> bool {
        if self.0.last() == Some(worker) || self.0.contains(worker) {
            return true;
        }
        let holds = worker.is_certified();
        if holds {
            if self.0.len() == Self::MAX {
                self.0.remove(0);
            }
            self.0.push(worker.clone());
        }
        holds
    }
}

/// What is signed with a worker key, and the key's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signed {
    /// The signature.
    #[serde(with = "crate::bytes::opaque")]
    pub signature: Vec<u8>,
    /// Whose it is.
    pub worker: WorkerCertificate,
}

/// Why a signature is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    /// There is none, and the bundle asks for one.
    #[error("is not signed")]
    Missing,
    /// Certified by a root that the bundle does not name: a newer bundle may.
    #[error("is signed under root {0}, which is not trusted here")]
    UnknownRoot(PublicKey),
    /// The root did not sign the worker's certificate.
    #[error("is signed by a worker key that its root has not certified")]
    Worker,
    /// The worker's certificate is not valid yet.
    #[error("is signed by a worker key that is valid from {0} only")]
    TooEarly(Timestamp),
    /// The worker's certificate ends before the command does.
    #[error("may be accepted after its worker key ends, at {0}")]
    OutlivesWorker(Timestamp),
    /// The signature is not the worker's over these bytes.
    #[error("is not what its worker key has signed")]
    Altered,
}

impl Signed {
    /// Signs a payload with a certified key.
    pub fn new(
        key: &SigningKey,
        worker: &WorkerCertificate,
        purpose: Purpose,
        payload: &[u8],
    ) -> Self {
        let signature: [u8; SIGNATURE_BYTES] = dsse::sign(key, purpose, payload);
        Self {
            signature: signature.to_vec(),
            worker: worker.clone(),
        }
    }

    /// Whether a worker under one of these roots has signed the payload for the purpose. `now` is
    /// the server's time, `until` the last moment at which the payload may be acted on.
    pub fn verify(
        &self,
        roots: &[PublicKey],
        times: (Timestamp, Timestamp),
        purpose: Purpose,
        payload: &[u8],
    ) -> Result<(), BadSignature> {
        self.verify_among(&mut Certified::default(), roots, times, purpose, payload)
    }

    /// The same, by who looks at many: the certificates that hold are kept.
    pub fn verify_among(
        &self,
        known: &mut Certified,
        roots: &[PublicKey],
        (now, until): (Timestamp, Timestamp),
        purpose: Purpose,
        payload: &[u8],
    ) -> Result<(), BadSignature> {
        let worker = &self.worker;
        if !roots.contains(&worker.root) {
            return Err(BadSignature::UnknownRoot(worker.root));
        }
        if !known.holds(worker) {
            return Err(BadSignature::Worker);
        }
        if now < worker.not_before {
            return Err(BadSignature::TooEarly(worker.not_before));
        }
        if until > worker.not_after {
            return Err(BadSignature::OutlivesWorker(worker.not_after));
        }
        if !worker.key.verifies(purpose, payload, &self.signature) {
            return Err(BadSignature::Altered);
        }
        Ok(())
    }
}
