//! Which checkpoints are believed: signed by the log, and cosigned by enough witnesses (C2SP
//! tlog-proof, "Verifying a tlog proof").

use std::collections::BTreeSet;

use super::checkpoint::Checkpoint;
use super::key::{Algorithm, VerifierKey};
use super::lines::Malformed;
use super::note::{Note, Unverified, Verified};

/// A policy by which nothing could be believed, or too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolicy {
    /// No key of the log.
    #[error("names no key of the log")]
    NoLogKey,
    /// A witness with a key that does not cosign.
    #[error("has a witness's key that makes no cosignatures; its type must be 0x04")]
    Witness,
    /// One key in two roles, or under two names.
    #[error("has one public key twice: every witness, and the log, must have its own")]
    Repeated,
    /// More cosignatures than there are witnesses.
    #[error("asks for {quorum} cosignatures of {witnesses} witnesses")]
    Quorum {
        /// How many are asked for.
        quorum: usize,
        /// How many there can be.
        witnesses: usize,
    },
}

/// Why a checkpoint is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// Its signatures.
    #[error("the checkpoint {0}")]
    Unverified(#[from] Unverified),
    /// The note is no checkpoint.
    #[error("the checkpoint {0}")]
    Malformed(#[from] Malformed),
    /// It is another log's.
    #[error("the checkpoint is of the log `{given}`, not of `{expected}`")]
    Origin {
        /// The log that it is of.
        given: String,
        /// The log that it should be of.
        expected: String,
    },
    /// The log did not sign it.
    #[error("the checkpoint is not signed by the log")]
    NotTheLogs,
    /// Too few witnesses cosigned it.
    #[error("the checkpoint is cosigned by {given} witnesses that are known; {quorum} must be")]
    Quorum {
        /// How many did.
        given: usize,
        /// How many must.
        quorum: usize,
    },
}

/// What somebody trusts: one log, and any number of witnesses of which so many must have cosigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    origin: String,
    /// Those of the log, then those of witnesses.
    keys: Vec<VerifierKey>,
    log_keys: usize,
    quorum: usize,
}

/// A checkpoint that is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedCheckpoint<'p> {
    /// What the log says.
    pub checkpoint: Checkpoint,
    /// The witnesses that cosigned it, with their times.
    pub cosigned: Vec<Verified<'p>>,
}

impl Policy {
    /// Trust in the log of this origin and these keys, when `quorum` of the witnesses cosigned.
    pub fn new(
        origin: &str,
        log: Vec<VerifierKey>,
        witnesses: Vec<VerifierKey>,
        quorum: usize,
    ) -> Result<Self, InvalidPolicy> {
        let (log_keys, witness_keys) = (log.len(), witnesses.len());
        if log_keys == 0 {
            return Err(InvalidPolicy::NoLogKey);
        }
        let cosigns = |key: &VerifierKey| key.algorithm() == Algorithm::CosignatureV1;
        if !witnesses.iter().all(cosigns) {
            return Err(InvalidPolicy::Witness);
        }
        if quorum > witness_keys {
            let witnesses = witness_keys;
            return Err(InvalidPolicy::Quorum { quorum, witnesses });
        }
        let keys = [log, witnesses].concat();
        let distinct: BTreeSet<_> = keys.iter().map(VerifierKey::public_key).collect();
        if distinct.len() < keys.len() {
            return Err(InvalidPolicy::Repeated);
        }
        Ok(Self {
            origin: origin.to_owned(),
            keys,
            log_keys,
            quorum,
        })
    }

    /// Believes a checkpoint, or says why not. Whether the times of the cosignatures are recent
    /// enough is the caller's to say.
    pub fn believe(&self, note: &Note) -> Result<TrustedCheckpoint<'_>, Untrusted> {
        let (log, _) = self.keys.split_at(self.log_keys.min(self.keys.len()));
        let verified = note.verify(&self.keys)?;
        let checkpoint = Checkpoint::parse(note.text())?;
        if checkpoint.origin() != self.origin {
            return Err(Untrusted::Origin {
                given: checkpoint.origin().to_owned(),
                expected: self.origin.clone(),
            });
        }
        let (by_log, cosigned): (Vec<_>, Vec<_>) = verified
            .into_iter()
            .partition(|verified| log.contains(verified.key));
        if by_log.is_empty() {
            return Err(Untrusted::NotTheLogs);
        }
        let (given, quorum) = (cosigned.len(), self.quorum);
        if given < quorum {
            return Err(Untrusted::Quorum { given, quorum });
        }
        Ok(TrustedCheckpoint {
            checkpoint,
            cosigned,
        })
    }
}
