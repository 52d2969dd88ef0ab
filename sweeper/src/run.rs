//! The sweeper as a worker: one of many leads.

use std::time::Duration;

use ledger::{Fence, Ledger, lease};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, chain, database};
use crate::limits;
use crate::lost_gateways::LostGateways;
use crate::sweep::{Sweeper, Swept};

/// Name of the sweeper's lease.
const LEASE: &str = "sweeper";

/// How often things happen; tests are faster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) sweep_every: Duration,
    pub(crate) lease: Duration,
}

/// Ends overdue commands every 5 s, and keeps the log's partitions ahead of the appends, until
/// `shutdown`. May run in any number of processes, each under a `holder` of its own: a lease
/// chooses one of them, and the append refuses the word of one that lost it (SPEC T2).
pub async fn run(ledger: Ledger, holder: String, shutdown: CancellationToken) {
    let pace = Pace {
        sweep_every: limits::SWEEP_EVERY,
        lease: limits::LEASE,
    };
    run_at(pace, ledger, holder, shutdown).await;
}

pub(crate) async fn run_at(
    pace: Pace,
    ledger: Ledger,
    holder: String,
    shutdown: CancellationToken,
) {
    loop {
        let fence = tokio::select! {
            () = shutdown.cancelled() => return,
            fence = lead(&ledger, &holder, pace) => fence,
        };
        tracing::info!(term = fence.term, "became the sweeper");
        tokio::select! {
            () = shutdown.cancelled() => {
                if let Err(error) = database(lease::release(ledger.pool(), &fence)).await {
                    tracing::warn!(error = chain(&error), "the sweeper's lease runs out by itself");
                }
                return;
            }
            () = keep(&ledger, &fence, pace) => {}
            () = sweep(&ledger, &fence, pace) => {}
        }
        tracing::warn!(term = fence.term, "lost the sweeper's lease");
    }
}

/// Waits until this process is the one that sweeps.
async fn lead(ledger: &Ledger, holder: &str, pace: Pace) -> Fence {
    let mut failed = false;
    loop {
        match database(lease::acquire(ledger.pool(), LEASE, holder, pace.lease)).await {
            Ok(Some(fence)) => return fence,
            Ok(None) => failed = false,
            Err(error) => {
                // Said once for each outage.
                if !failed {
                    tracing::warn!(error = chain(&error), "cannot become the sweeper");
                }
                failed = true;
            }
        }
        sleep(limits::LEASE_RETRY.min(pace.lease / limits::LEASE_RENEWALS)).await;
    }
}

/// Renews the lease; returns when it is lost.
async fn keep(ledger: &Ledger, fence: &Fence, pace: Pace) {
    loop {
        sleep(pace.lease / limits::LEASE_RENEWALS).await;
        match database(lease::renew(ledger.pool(), fence, pace.lease)).await {
            Ok(true) => {}
            Ok(false) => return,
            // The term is checked in every append, so trying on does no harm.
            Err(error) => tracing::debug!(error = chain(&error), "the lease was not renewed"),
        }
    }
}

/// Sweeps until the lease is lost.
async fn sweep(ledger: &Ledger, fence: &Fence, pace: Pace) {
    let mut sweeper = Sweeper::default();
    let mut gateways = LostGateways::default();
    let mut ticks = interval(pace.sweep_every);
    // After a long sweep the next one starts a whole pause later, not at once and several times.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut maintained: Option<Instant> = None;
    let mut failed = false;
    loop {
        ticks.tick().await;
        match sweeper.sweep(ledger, fence).await {
            Ok(swept) => {
                failed = false;
                if swept.ended > 0 || swept.released > 0 {
                    let Swept {
                        released,
                        ended,
                        overtaken,
                        ..
                    } = swept;
                    tracing::info!(released, ended, overtaken, "swept");
                }
            }
            Err(Error::Fenced) => return,
            Err(error) => {
                if !failed {
                    tracing::warn!(
                        error = chain(&error),
                        "a sweep failed; the next one goes on"
                    );
                }
                failed = true;
            }
        }
        match gateways.sweep(ledger, fence).await {
            Ok(0) => {}
            Ok(closed) => tracing::info!(closed, "closed the sessions of lost gateways"),
            Err(Error::Fenced) => return,
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(
                    error,
                    "lost gateways were not looked for; the next sweep does"
                );
            }
        }
        if maintained.is_none_or(|at| at.elapsed() >= limits::MAINTAIN_EVERY) {
            match database(ledger::maintain(ledger.pool())).await {
                Ok(()) => maintained = Some(Instant::now()),
                Err(error) => {
                    tracing::error!(
                        error = chain(&error),
                        "the log's partitions were not extended"
                    );
                }
            }
        }
    }
}
