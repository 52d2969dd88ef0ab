//! Cosignatures (C2SP tlog-cosignature, the Ed25519 type): what a witness states of a checkpoint.

use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey};

use super::checkpoint::Checkpoint;
use super::key::{Algorithm, KeyName, VerifierKey};
use super::limits::COSIGNATURE_SECONDS_MAX;
use super::note::NoteSignature;
use crate::dsse::{PublicKey, SIGNATURE_BYTES};

/// A time that no cosignature can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time of a cosignature is 1 to {COSIGNATURE_SECONDS_MAX} seconds, not {given}")]
pub struct InvalidTimestamp {
    /// What was given, in seconds since the epoch.
    pub given: u64,
}

/// That a witness saw, at a time, no tree of the log that is larger than the checkpoint's, and none
/// that is inconsistent with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cosignature {
    /// When, in seconds since the epoch.
    pub timestamp_seconds: u64,
    /// Ed25519 over [`Self::message`].
    pub signature: [u8; SIGNATURE_BYTES],
}

impl Cosignature {
    /// The line that tells what is signed from all else that a key might sign.
    pub(super) const HEADER: &'static str = "cosignature/v1\n";

    /// The bytes that are signed.
    pub fn message(timestamp_seconds: u64, checkpoint: &Checkpoint) -> Vec<u8> {
        format!("{}time {timestamp_seconds}\n{checkpoint}", Self::HEADER).into_bytes()
    }

    /// Whether it is by this key, of this checkpoint.
    pub fn verify(&self, key: &VerifierKey, checkpoint: &Checkpoint) -> bool {
        let message = Self::message(self.timestamp_seconds, checkpoint);
        key.algorithm() == Algorithm::CosignatureV1 && key.verifies(&message, &self.signature)
    }

    /// Reads what follows the key's ID in a note's signature.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (timestamp, signature) = bytes.split_first_chunk()?;
        let timestamp_seconds = u64::from_be_bytes(*timestamp);
        (timestamp_seconds <= COSIGNATURE_SECONDS_MAX).then_some(Self {
            timestamp_seconds,
            signature: signature.try_into().ok()?,
        })
    }

    /// What follows the key's ID in a note's signature.
    pub fn encode(&self) -> Vec<u8> {
        let timestamp = self.timestamp_seconds.to_be_bytes();
        [timestamp.as_slice(), &self.signature].concat()
    }
}

/// Who cosigns checkpoints with Ed25519: a witness. Its key must sign nothing else.
pub struct Cosigner {
    name: KeyName,
    key: SigningKey,
}

impl Cosigner {
    /// A cosigner of this name.
    pub const fn new(name: KeyName, key: SigningKey) -> Self {
        Self { name, key }
    }

    /// What others verify its cosignatures with.
    pub fn verifier_key(&self) -> VerifierKey {
        let key = PublicKey::of(&self.key);
        VerifierKey::new(self.name.clone(), Algorithm::CosignatureV1, key)
    }

    /// Cosigns a checkpoint, which must be consistent with all that it cosigned of this log, and of
    /// no smaller size. The time is now, in seconds since the epoch, and not 0 (C2SP tlog-witness).
    pub fn cosign(
        &self,
        checkpoint: &Checkpoint,
        timestamp_seconds: u64,
    ) -> Result<NoteSignature, InvalidTimestamp> {
        if !(1..=COSIGNATURE_SECONDS_MAX).contains(&timestamp_seconds) {
            let given = timestamp_seconds;
            return Err(InvalidTimestamp { given });
        }
        let message = Cosignature::message(timestamp_seconds, checkpoint);
        let cosignature = Cosignature {
            timestamp_seconds,
            signature: self.key.sign(&message).to_bytes(),
        };
        Ok(NoteSignature::by(
            &self.verifier_key(),
            cosignature.encode(),
        ))
    }
}

impl fmt::Debug for Cosigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cosigner({})", self.verifier_key())
    }
}
