//! Trust bundles on their way from the ledger's database to nodes (SPEC P1), and what nodes say that
//! they believe. This process can make neither; it looks for new bundles once every few seconds, for
//! all its sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ledger::Ledger;
use ledger_projections::{Error, trust};
use ledger_protocol::id::NodeId;
use ledger_protocol::trust::Published;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::limits;

/// What this process knows of the bundles.
#[derive(Debug)]
pub(crate) struct Trust {
    /// The newest ones, the oldest of them first; nothing before they were read.
    kept: watch::Sender<Option<Arc<[Published]>>>,
    /// What nodes have said and is not kept beside the log yet.
    told: Mutex<HashMap<NodeId, u64>>,
}

/// Tells a session when there are new bundles.
pub(crate) type News = watch::Receiver<Option<Arc<[Published]>>>;

impl Trust {
    /// Nothing is known yet.
    pub(crate) fn new() -> Self {
        Self {
            kept: watch::Sender::new(None),
            told: Mutex::default(),
        }
    }

    /// New bundles, from now on.
    pub(crate) fn news(&self) -> News {
        self.kept.subscribe()
    }

    /// The bundles above a version, the oldest first, at most as many as are kept.
    pub(crate) async fn above(
        &self,
        ledger: &Ledger,
        version: u64,
    ) -> Result<Vec<Published>, Error> {
        let kept = self.kept.borrow().clone();
        if let Some(kept) = kept {
            let oldest = kept.first().map_or(0, |oldest| oldest.version);
            if oldest <= version.saturating_add(1) {
                let new = kept.iter().filter(|bundle| bundle.version > version);
                return Ok(new.cloned().collect());
            }
        }
        read(ledger, version).await
    }

    /// The node says what it believes.
    pub(crate) fn told(&self, node: NodeId, version: u64) {
        let told = self.told.lock();
        told.unwrap_or_else(PoisonError::into_inner)
            .insert(node, version);
    }

    /// Looks for new bundles.
    pub(crate) async fn look(&self, ledger: &Ledger) -> bool {
        match timeout(limits::TRUST_WITHIN, self.read_new(ledger)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, "the trust bundles could not be read");
                false
            }
            Err(_) => false,
        }
    }

    async fn read_new(&self, ledger: &Ledger) -> Result<(), Error> {
        loop {
            let kept = self.kept.borrow().clone();
            let newest = kept.as_ref().and_then(|kept| kept.last());
            let new = read(ledger, newest.map_or(0, |newest| newest.version)).await?;
            let is_last = new.len() < limits::TRUST_BUNDLES_KEPT_MAX as usize;
            if kept.is_none() || !new.is_empty() {
                let mut all = kept.map_or_else(Vec::new, |kept| kept.to_vec());
                all.extend(new);
                let extra = all
                    .len()
                    .saturating_sub(limits::TRUST_BUNDLES_KEPT_MAX as usize);
                all.drain(..extra);
                self.kept.send_replace(Some(all.into()));
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Looks for new bundles and keeps what nodes have said, until it is dropped.
    pub(crate) async fn keep(&self, ledger: &Ledger) {
        let mut failed = false;
        loop {
            sleep(limits::TRUST_LOOK_EVERY).await;
            let done = self.look(ledger).await & self.record(ledger).await;
            if !done && !failed {
                warn!(
                    "the ledger does not answer about what nodes are to trust; it is asked again"
                );
            }
            failed = !done;
        }
    }

    async fn record(&self, ledger: &Ledger) -> bool {
        let told = self.told.lock();
        let told = std::mem::take(&mut *told.unwrap_or_else(PoisonError::into_inner));
        if told.is_empty() {
            return true;
        }
        let rows: Vec<_> = told
            .iter()
            .map(|(node, version)| (*node, *version))
            .collect();
        let recorded = async {
            let mut conn = ledger.pool().acquire().await?;
            trust::record(&mut conn, &rows).await
        };
        if matches!(timeout(limits::TRUST_WITHIN, recorded).await, Ok(Ok(()))) {
            return true;
        }
        // What was said meanwhile is newer.
        let kept = self.told.lock();
        let mut kept = kept.unwrap_or_else(PoisonError::into_inner);
        for (node, version) in told {
            kept.entry(node).or_insert(version);
        }
        false
    }
}

/// The bundles above a version as the database has them now.
pub(crate) async fn read(ledger: &Ledger, version: u64) -> Result<Vec<Published>, Error> {
    let mut conn = ledger.pool().acquire().await?;
    trust::above(&mut conn, version, limits::TRUST_BUNDLES_KEPT_MAX).await
}
