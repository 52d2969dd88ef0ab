//! Looking, now and then, whether nodes are told what this service was configured with (SPEC P1, P3):
//! replicas with other settings publish over each other, and a restore may lose what nodes have seen.

use ledger_projections::trust::{self, Ahead};
use ledger_protocol::batch::create::Policy;
use ledger_protocol::trust::TrustBundle;
use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::publish::{newest_trust_bundle, tell_ahead};
use super::{PublishError, Signer};
use crate::limits::{TRUST_LOOK_EVERY, TRUST_LOOK_WITHIN};

/// What a look found that was not so at the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// The newest bundle means something else than this service.
    Differs {
        /// Its version; 0 for none at all.
        version: u64,
        /// The fields in which it differs.
        fields: Vec<&'static str>,
    },
    /// The newest bundle means again what this service does.
    Agrees {
        /// Its version.
        version: u64,
    },
    /// Nodes claim what is published nowhere.
    Ahead {
        /// The newest version.
        newest: u64,
        /// Who does.
        ahead: Ahead,
    },
}

impl News {
    fn tell(&self) {
        match self {
            Self::Differs { version, fields } => tracing::warn!(
                version,
                ?fields,
                "nodes are told by this trust bundle what this service was not configured with: are \
                 --approvers, --command-root and --unbatched-destructive-per-hour the same for each \
                 `serve`? The one that starts last publishes its own"
            ),
            Self::Agrees { version } => tracing::info!(
                version,
                "nodes are told by this trust bundle what this service was configured with"
            ),
            Self::Ahead { newest, ahead } => tell_ahead(*newest, *ahead),
        }
    }
}

/// What this service means, and what of it has been told.
pub(crate) struct Watch<'a> {
    pool: &'a PgPool,
    own: TrustBundle,
    differed_at: Option<u64>,
    ahead: Option<Ahead>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(signer: &Signer, pool: &'a PgPool, policy: &Policy) -> Self {
        Self {
            pool,
            own: signer.content(policy),
            differed_at: None,
            ahead: None,
        }
    }

    /// Looks once. What has not changed is not told again.
    pub(crate) async fn look(&mut self) -> Result<Vec<News>, PublishError> {
        let newest = newest_trust_bundle(self.pool).await?;
        let version = newest.as_ref().map_or(0, |newest| newest.version);
        let ahead = trust::ahead(&mut *self.pool.acquire().await?, version).await?;
        let mut news = Vec::new();
        let fields = newest.map_or(vec!["version"], |newest| self.own.differs_in(&newest));
        if fields.is_empty() {
            if self.differed_at.take().is_some() {
                news.push(News::Agrees { version });
            }
        } else if self.differed_at.replace(version) != Some(version) {
            news.push(News::Differs { version, fields });
        }
        // They come back one after the other: each would be news.
        let is_told = |told: Ahead, ahead: Ahead| {
            told.highest >= ahead.highest && ahead.nodes < told.nodes.saturating_mul(2)
        };
        match (self.ahead, ahead) {
            (Some(told), Some(ahead)) if is_told(told, ahead) => {}
            (_, ahead) => {
                self.ahead = ahead;
                let newest = version;
                news.extend(ahead.map(|ahead| News::Ahead { newest, ahead }));
            }
        }
        Ok(news)
    }
}

impl Signer {
    /// Looks until `shutdown` whether nodes are told what `policy` and these roots say, and logs
    /// each change. A look is two short questions.
    pub async fn watch(&self, pool: &PgPool, policy: &Policy, shutdown: CancellationToken) {
        let mut watch = Watch::new(self, pool, policy);
        let mut failed = false;
        loop {
            tokio::select! {
                () = sleep(TRUST_LOOK_EVERY) => {}
                () = shutdown.cancelled() => return,
            }
            let looked = tokio::select! {
                looked = timeout(TRUST_LOOK_WITHIN, watch.look()) => looked,
                () = shutdown.cancelled() => return,
            };
            let error = match looked {
                Ok(Ok(news)) => {
                    news.iter().for_each(News::tell);
                    None
                }
                Ok(Err(error)) => Some(error),
                // Whoever needs the database says that it does not answer.
                Err(_) => continue,
            };
            if let Some(error) = &error
                && !failed
            {
                let error = error as &dyn std::error::Error;
                tracing::warn!(error, "what nodes are told to trust could not be looked at");
            }
            failed = error.is_some();
        }
    }
}
