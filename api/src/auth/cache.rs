//! Verified tokens, remembered for a few seconds.
//!
//! After [`TOKEN_REFRESH_AFTER`] one request asks the database again while the others go on, so
//! an expiry of the memory never sends a crowd to the database. A revocation takes effect within
//! that time plus one statement, and with the database away after [`TOKEN_TRUSTED_MAX`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledger_protocol::id::TokenId;
use ledger_protocol::time::Timestamp;
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::Caller;
use super::store::Stored;
use crate::error::Error;
use crate::limits::{
    TOKEN_LOOKUP_WAIT_MAX, TOKEN_LOOKUPS_MAX, TOKEN_REFRESH_AFTER, TOKEN_TRUSTED_MAX,
    TOKENS_CACHED_MAX,
};

pub(crate) struct Cache {
    tokens: Mutex<HashMap<TokenId, Remembered>>,
    lookups: Arc<Semaphore>,
}

struct Remembered {
    secret_sha256: [u8; 32],
    expires_at: Option<Timestamp>,
    caller: Arc<Caller>,
    refresh_at: Instant,
    trusted_until: Instant,
}

/// What is remembered of a token that somebody shows.
pub(crate) enum Look {
    /// It was verified a moment ago.
    Known(Arc<Caller>),
    /// It was verified, and whoever gets this answer is to verify it again.
    Stale(Arc<Caller>),
    /// It is known to be refused.
    Refused,
    /// Only the database can tell.
    Unknown,
}

fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self {
            tokens: Mutex::new(HashMap::new()),
            lookups: Arc::new(Semaphore::new(TOKEN_LOOKUPS_MAX)),
        }
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<TokenId, Remembered>> {
        // A panic while the lock was held cannot leave the map half changed.
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to ask the database about a token. Waiting for it costs a caller that hangs up
    /// nothing.
    pub(crate) async fn permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permit = Arc::clone(&self.lookups).acquire_owned();
        match timeout(TOKEN_LOOKUP_WAIT_MAX, permit).await {
            Ok(permit) => permit.map_err(Error::internal),
            Err(_) => Err(Error::overloaded()),
        }
    }

    /// What is remembered of the token with this hash of its secret.
    pub(crate) fn look(&self, id: TokenId, hash: &[u8; 32], now: Timestamp) -> Look {
        let at = Instant::now();
        let mut tokens = self.tokens();
        let Some(token) = tokens.get_mut(&id).filter(|token| at < token.trusted_until) else {
            return Look::Unknown;
        };
        let expired = token.expires_at.is_some_and(|end| end <= now);
        if expired || !same(&token.secret_sha256, hash) {
            return Look::Refused;
        }
        let caller = Arc::clone(&token.caller);
        if at < token.refresh_at {
            return Look::Known(caller);
        }
        token.refresh_at = at + TOKEN_REFRESH_AFTER;
        Look::Stale(caller)
    }

    /// Takes in what the database said of the token; the caller when it is valid.
    pub(crate) fn keep(
        &self,
        id: TokenId,
        stored: Option<Stored>,
        hash: &[u8; 32],
        now: Timestamp,
    ) -> Option<Arc<Caller>> {
        let mut tokens = self.tokens();
        let valid = stored.filter(|token| {
            token.revoked_at.is_none() && token.expires_at.is_none_or(|end| now < end)
        });
        let Some(token) = valid else {
            tokens.remove(&id);
            return None;
        };
        if !same(&token.secret_sha256, hash) {
            return None;
        }
        let at = Instant::now();
        if tokens.len() >= TOKENS_CACHED_MAX {
            tokens.retain(|_, token| at < token.trusted_until);
        }
        if tokens.len() >= TOKENS_CACHED_MAX {
            // Whichever it is, its next request asks the database.
            let any = tokens.keys().next().copied();
            any.and_then(|any| tokens.remove(&any));
        }
        let remembered = Remembered {
            secret_sha256: token.secret_sha256,
            expires_at: token.expires_at,
            caller: Arc::new(token.into_caller()),
            refresh_at: at + TOKEN_REFRESH_AFTER,
            trusted_until: at + TOKEN_TRUSTED_MAX,
        };
        let caller = Arc::clone(&remembered.caller);
        tokens.insert(id, remembered);
        Some(caller)
    }

    /// The next request with this token asks the database.
    pub(crate) fn forget(&self, id: TokenId) {
        self.tokens().remove(&id);
    }
}
