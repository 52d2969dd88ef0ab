//! Who holds a root.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use ed25519_dalek::SigningKey;
use ledger_protocol::dsse::{self, PublicKey, Purpose};

/// Why a root did not sign.
pub type RootFailure = Box<dyn std::error::Error + Send + Sync>;

/// A signature that is being made.
pub type Signing<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, RootFailure>> + Send + 'a>>;

/// A root, wherever it is held. It signs a worker key twice a day, and a bundle when what nodes are
/// to trust has changed.
pub trait RootKey: fmt::Debug + Send + Sync {
    /// Its public key.
    fn public_key(&self) -> PublicKey;

    /// Signs a payload for a purpose, in the encoding of [`Purpose::encode`]. Whoever asks does not
    /// wait for long.
    fn sign<'a>(&'a self, purpose: Purpose, payload: &'a [u8]) -> Signing<'a>;
}

/// A root that this process holds, as a key file gives it. The key is wiped when it is dropped.
pub struct HeldRoot(SigningKey);

impl HeldRoot {
    /// Holds this key.
    pub fn new(key: SigningKey) -> Self {
        Self(key)
    }
}

impl fmt::Debug for HeldRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldRoot").field(&self.public_key()).finish()
    }
}

impl RootKey for HeldRoot {
    fn public_key(&self) -> PublicKey {
        PublicKey::of(&self.0)
    }

    fn sign<'a>(&'a self, purpose: Purpose, payload: &'a [u8]) -> Signing<'a> {
        let signature = dsse::sign(&self.0, purpose, payload).to_vec();
        Box::pin(std::future::ready(Ok(signature)))
    }
}
