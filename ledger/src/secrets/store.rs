//! Where secrets are kept.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ledger_projections::secrets::{self, Described, KeyId, Stored};
use ledger_protocol::event::Actor;
use ledger_protocol::id::{NodeId, TenantId};
use ledger_protocol::secret::SecretValue;
use ledger_protocol::time::Timestamp;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{MasterKeys, PutSecret, SecretError};
use crate::limits::{PUT_SECRET_ATTEMPTS_MAX, REKEY_EVERY, REKEY_PAGE_ROWS, UNREADABLE_TOLD_MAX};

/// A secret as its store holds it.
#[derive(Debug)]
pub struct Held {
    /// Its value.
    pub value: SecretValue,
    /// Only commands of these kinds get it; all when `None`.
    pub kinds: Option<Vec<String>>,
    /// Only these nodes get it; all of the tenant when `None`.
    pub nodes: Option<Vec<NodeId>>,
}

/// Why a store gave no secret. It must not show anything of a value.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// There is one, and it cannot be read, however often it is tried.
    #[error("the secret cannot be read")]
    Unreadable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store did not answer; later it may.
    #[error("the store of secrets did not answer")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A secret that is being looked up.
pub type Getting<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Held>, StoreFailure>> + Send + 'a>>;

/// Where secrets are kept. The keeper asks for one after it has checked everything that can be checked
/// without it.
///
/// [`DatabaseStore`] is the one that there is. Another could read HashiCorp Vault's KV version 2: `GET
/// /v1/{mount}/data/{tenant}/{name}` with the token of the service, the value in one field of `data.data`,
/// kinds and nodes in `data.metadata.custom_metadata`; 404, and a version that was deleted, is `None`; 403
/// and 5xx are `Unavailable`. Secrets are then put and deleted with Vault's own tools and policies.
pub trait SecretStore: fmt::Debug + Send + Sync {
    /// The secret of this name, if the tenant has it. Asked again when the answer takes too long, so
    /// it must bear being dropped.
    fn get<'a>(&'a self, tenant: TenantId, name: &'a str) -> Getting<'a>;
}

/// Secrets in the ledger's database, encrypted under master keys that are not in it.
#[derive(Debug, Clone)]
pub struct DatabaseStore {
    pool: PgPool,
    keys: Arc<MasterKeys>,
}

impl SecretStore for DatabaseStore {
    fn get<'a>(&'a self, tenant: TenantId, name: &'a str) -> Getting<'a> {
        Box::pin(async move {
            let conn = self.pool.acquire().await;
            let mut conn = conn.map_err(|error| StoreFailure::Unavailable(error.into()))?;
            let stored = secrets::get(&mut conn, tenant, name).await;
            let stored = stored.map_err(|error| StoreFailure::Unavailable(error.into()))?;
            let Some(stored) = stored else {
                return Ok(None);
            };
            let value = self.keys.open(&stored);
            let value = value.map_err(|error| StoreFailure::Unreadable(error.into()))?;
            Ok(Some(Held {
                value,
                kinds: stored.described.kinds,
                nodes: stored.described.nodes,
            }))
        })
    }
}

impl DatabaseStore {
    /// The secrets of this database.
    pub const fn new(pool: PgPool, keys: Arc<MasterKeys>) -> Self {
        Self { pool, keys }
    }

    /// Puts a secret as the next version of its name.
    pub(super) async fn put(
        &self,
        actor: &Actor,
        put: PutSecret,
        now: Timestamp,
    ) -> Result<Described, SecretError> {
        let mut described = Described {
            tenant: put.tenant,
            name: put.name,
            version: 0,
            key_id: self.keys.first_id(),
            kinds: put.kinds,
            nodes: put.nodes,
            put_at: now,
            put_by: actor.as_str().to_owned(),
        };
        for _ in 0..PUT_SECRET_ATTEMPTS_MAX {
            let mut conn = self.pool.acquire().await?;
            let known = secrets::get(&mut conn, described.tenant, &described.name).await?;
            described.version = known.map_or(0, |known| known.described.version) + 1;
            let stored = Stored {
                sealed: self.keys.seal(&described, &put.value)?,
                described,
            };
            if secrets::put(&mut conn, &stored).await? {
                let described = stored.described;
                tracing::info!(
                    tenant = %described.tenant, secret = described.name,
                    version = described.version, by = described.put_by, "a secret is put"
                );
                return Ok(described);
            }
            described = stored.described;
        }
        Err(SecretError::Contended)
    }

    /// Puts what is under an older master key under the first, page by page, until `shutdown`; then the
    /// older is needed no more. Any number of processes may do so at once.
    pub async fn run(&self, shutdown: CancellationToken) {
        let (mut after, mut told) = (None, Told::default());
        let mut look = tokio::time::interval(REKEY_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = shutdown.cancelled() => return,
            }
            let looked = async {
                self.tell_unknown(&mut told).await?;
                self.rekey(after.take(), &mut told).await
            };
            after = looked.await.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "secrets could not be put under the new master key");
                None
            });
        }
    }

    /// Says under which master keys there are secrets that nobody here can open. Said again when that
    /// changes.
    async fn tell_unknown(&self, told: &mut Told) -> Result<(), SecretError> {
        let mut known = self.keys.old_ids();
        known.push(self.keys.first_id());
        let mut conn = self.pool.acquire().await?;
        let unknown = secrets::under_others(&mut conn, &known).await?;
        if unknown != told.unknown {
            for (key, secrets) in &unknown {
                let key = hex::encode(key);
                tracing::warn!(
                    key,
                    secrets,
                    "secrets are under a master key that this service was not given; no command \
                     gets them: give the key with --secrets-key, or put them anew"
                );
            }
            told.unknown = unknown;
        }
        Ok(())
    }

    /// Puts one page under the first key; answers where the next begins.
    async fn rekey(
        &self,
        after: Option<(TenantId, String)>,
        told: &mut Told,
    ) -> Result<Option<(TenantId, String)>, SecretError> {
        let old = self.keys.old_ids();
        if old.is_empty() {
            return Ok(None);
        }
        let mut conn = self.pool.acquire().await?;
        let begin = after
            .as_ref()
            .map(|(tenant, name)| (*tenant, name.as_str()));
        let page = secrets::under(&mut conn, &old, begin, REKEY_PAGE_ROWS).await?;
        let mut done = 0_u32;
        for stored in &page {
            let described = &stored.described;
            let value = match self.keys.open(stored) {
                Ok(value) => value,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    let (tenant, secret) = (described.tenant, &described.name);
                    if told.is_news(stored) {
                        tracing::warn!(
                            %tenant, secret, error,
                            "a secret cannot be read and stays under its master key: put it anew, or \
                             delete it"
                        );
                    }
                    continue;
                }
            };
            let sealed = self.keys.seal(described, &value)?;
            let key = self.keys.first_id();
            done += u32::from(secrets::rekey(&mut conn, stored, key, &sealed).await?);
        }
        if done > 0 {
            tracing::info!(secrets = done, "secrets are under the new master key");
        }
        let last = page.into_iter().nth(REKEY_PAGE_ROWS as usize - 1);
        Ok(last.map(|last| (last.described.tenant, last.described.name)))
    }
}

/// What was said already, so that a row that stays as it is makes one line of the log.
#[derive(Debug, Default)]
struct Told {
    unknown: Vec<(KeyId, u64)>,
    unreadable: BTreeSet<(TenantId, String, u64)>,
}

impl Told {
    fn is_news(&mut self, stored: &Stored) -> bool {
        let described = &stored.described;
        let row = (described.tenant, described.name.clone(), described.version);
        self.unreadable.len() < UNREADABLE_TOLD_MAX && self.unreadable.insert(row)
    }
}
