//! Who signs the log's checkpoints.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use ed25519_dalek::SigningKey;
use ledger_protocol::tlog::{KeyName, NoteSignature, Signer, VerifierKey};

/// Why a key did not sign.
pub type LogKeyFailure = Box<dyn std::error::Error + Send + Sync>;

/// A signature that is being made.
pub type SigningNote<'a> =
    Pin<Box<dyn Future<Output = Result<NoteSignature, LogKeyFailure>> + Send + 'a>>;

/// The log's key, wherever it is held.
pub trait LogKey: fmt::Debug + Send + Sync {
    /// What others verify its signatures with. Its name is the log's origin.
    fn verifier_key(&self) -> VerifierKey;

    /// Signs the text of a note. The same text gets the same signature, always.
    fn sign<'a>(&'a self, text: &'a str) -> SigningNote<'a>;
}

/// A key that this process holds, as a key file gives it. It is wiped when it is dropped.
#[derive(Debug)]
pub struct HeldLogKey(Signer);

impl HeldLogKey {
    /// Holds the key of the log with this origin.
    pub const fn new(origin: KeyName, key: SigningKey) -> Self {
        Self(Signer::new(origin, key))
    }
}

impl LogKey for HeldLogKey {
    fn verifier_key(&self) -> VerifierKey {
        self.0.verifier_key()
    }

    fn sign<'a>(&'a self, text: &'a str) -> SigningNote<'a> {
        let signed = self.0.sign(text).map_err(Into::into);
        Box::pin(std::future::ready(signed))
    }
}
