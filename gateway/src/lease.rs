//! The lease of this process, by which the ledger's sweeper knows that it lives. Sessions name it;
//! when the process dies they are closed for it (SPEC D2).

use std::sync::{Mutex, PoisonError};

use ledger::{Fence, Ledger, lease};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::limits;

/// This process's lease.
#[derive(Debug)]
pub(crate) struct Lease {
    name: String,
    held: Mutex<Option<Fence>>,
}

impl Lease {
    /// A lease that no other process has, and that is not taken yet.
    pub(crate) fn new(ledger: &Ledger, gateway: &str) -> Self {
        let random = ledger.new_id_random();
        let random = random.iter().map(|byte| format!("{byte:02x}"));
        let name = format!(
            "{}{gateway}:{}",
            lease::GATEWAY_PREFIX,
            random.collect::<String>()
        );
        Self {
            name,
            held: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the ledger has heard of it: a session that names a lease which is not there would
    /// be closed by nobody.
    pub(crate) fn is_known(&self) -> bool {
        let held = self.held.lock();
        held.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Takes it, or keeps it for another while; also one that lapsed meanwhile and was forgotten.
    pub(crate) async fn take(&self, ledger: &Ledger) -> bool {
        let taken = lease::acquire(ledger.pool(), &self.name, &self.name, limits::LEASE);
        match timeout(limits::LEASE_WITHIN, taken).await {
            Ok(Ok(Some(fence))) => {
                let held = self.held.lock();
                *held.unwrap_or_else(PoisonError::into_inner) = Some(fence);
                true
            }
            // Its name has a random part, so nobody else can have it.
            Ok(Ok(None)) | Err(_) => false,
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, "the gateway's lease was not renewed");
                false
            }
        }
    }

    /// Keeps it, until it is dropped.
    pub(crate) async fn keep(&self, ledger: &Ledger) {
        let mut failed = false;
        loop {
            let taken = self.take(ledger).await;
            if !taken && !failed {
                warn!("the gateway's lease cannot be renewed; its sessions may be taken for lost");
            }
            failed = !taken;
            sleep(if taken {
                limits::LEASE / limits::LEASE_RENEWALS
            } else {
                limits::LEASE_RETRY
            })
            .await;
        }
    }

    /// Gives it up, once no session is left that names it.
    pub(crate) async fn give_up(&self, ledger: &Ledger) {
        if !self.is_known() {
            return;
        }
        // A renewal that was dropped on its way may have raised the term.
        self.take(ledger).await;
        let held = self.held.lock();
        let held = held.unwrap_or_else(PoisonError::into_inner).take();
        let Some(fence) = held else { return };
        let released = lease::release(ledger.pool(), &fence);
        if !matches!(timeout(limits::LEASE_WITHIN, released).await, Ok(Ok(()))) {
            warn!("the gateway's lease runs out by itself");
        }
    }
}
