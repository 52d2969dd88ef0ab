//! Secrets: kept encrypted, and given to the node whose command names one (SPEC P6).
//!
//! [`master`](MasterKeys) encrypts them at rest; [`SecretStore`] is where they are kept; the keeper
//! ([`keep`]) answers nodes, in the process that holds the master key and the signer; a gateway asks it
//! through a table ([`Ledger::exchange_secret`]) and reads neither question nor answer.
//!
//! To keep secrets elsewhere: an implementation of [`SecretStore`].

use std::sync::Arc;

use ledger_projections::secrets::Described;
use ledger_protocol::event::Actor;
use ledger_protocol::id::{NodeId, TenantId};
use ledger_protocol::secret::SecretValue;
use tokio::sync::Notify;

use crate::Ledger;

mod exchange;
mod keeper;
mod master;
mod store;

pub use keeper::keep;
pub use master::{MASTER_KEY_BYTES, MasterKey, MasterKeys, SealFailure};
pub use store::{DatabaseStore, Getting, Held, SecretStore, StoreFailure};

/// A secret to be put.
#[derive(Debug)]
pub struct PutSecret {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its name, which [`check_name`](ledger_protocol::secret::check_name) accepts.
    pub name: String,
    /// Its value, of 1 to [`SECRET_BYTES_MAX`](ledger_protocol::limits::SECRET_BYTES_MAX) bytes.
    pub value: SecretValue,
    /// Only commands of these kinds get it; all when `None`.
    pub kinds: Option<Vec<String>>,
    /// Only these nodes get it; all of the tenant when `None`.
    pub nodes: Option<Vec<NodeId>>,
}

/// Why a secret is not kept.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// There is no master key to encrypt it with.
    #[error("this service keeps no secrets, for it was given no master key")]
    NoMasterKey,
    /// Others put the same secret, again and again.
    #[error("others put the same secret at the same time")]
    Contended,
    /// It cannot be encrypted.
    #[error("the secret is not encrypted")]
    Seal(#[from] SealFailure),
    /// The table could not be read or written.
    #[error("the secrets cannot be used")]
    Projection(#[from] ledger_projections::Error),
}

impl From<sqlx::Error> for SecretError {
    fn from(error: sqlx::Error) -> Self {
        Self::Projection(error.into())
    }
}

/// Who waits for whom in this process. What other processes ask and answer is looked for.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    /// A question was asked.
    asked: Notify,
    /// Questions were answered.
    answered: Notify,
}

impl Ledger {
    /// Puts a secret, in the place of the one that has the name. Commands that ask from now on get it;
    /// what nodes have got already, they have.
    pub async fn put_secret(
        &self,
        actor: &Actor,
        put: PutSecret,
    ) -> Result<Described, SecretError> {
        let keys = self.inner.options.master_keys.as_ref();
        let keys = keys.ok_or(SecretError::NoMasterKey)?;
        let store = DatabaseStore::new(self.pool().clone(), Arc::clone(keys));
        store.put(actor, put, self.now()).await
    }
}
