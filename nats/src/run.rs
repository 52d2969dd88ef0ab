//! The publisher as a worker: one of many leads, and it never gives up.

use std::time::Duration;

use ledger::{Ledger, lease};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::connection::{Address, Connection};
use crate::error::Severity;
use crate::options::NatsOptions;
use crate::publisher::{Backoff, Never, Publisher};
use crate::{Error, limits};

/// Name of the publisher's lease.
const LEASE: &str = "publisher";
/// What the server's operator sees.
const NAME: &str = "command-ledger publisher";

/// Publishes the log until `shutdown`. May run in any number of processes: a lease chooses one of
/// them that can reach its NATS. Whatever happens to NATS, the ledger does not notice; the publisher
/// comes back by itself and fills the stream from where it ends (SPEC L9). Returns early, with an
/// error, only when it can never work: a URL that is none, a server that is too old.
pub async fn run(
    ledger: Ledger,
    options: NatsOptions,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let address = Address::parse(&options.url)?;
    let mut link = Link::default();
    loop {
        let fence = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            fence = lead(&ledger, &options, &address, &mut link) => fence?,
        };
        tracing::info!(term = fence.term, "became the publisher");
        let ended = tokio::select! {
            () = shutdown.cancelled() => None,
            () = keep(&ledger, &options, &fence) => {
                tracing::warn!(term = fence.term, "lost the publisher's lease");
                continue;
            }
            ended = publish(&ledger, &options, &address, &mut link) => Some(ended),
        };
        let released = crate::error::database(lease::release(ledger.pool(), &fence)).await;
        if let Err(error) = released {
            tracing::warn!(
                error = error.chain(),
                "the publisher's lease runs out by itself"
            );
        }
        match ended {
            None => return Ok(()),
            Some(Ended::Never(error)) => return Err(error),
            Some(Ended::Stuck) => {
                let seconds = limits::STUCK_MAX.as_secs();
                tracing::warn!(
                    term = fence.term,
                    seconds,
                    "published nothing for too long; another process may be the publisher now"
                );
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = sleep(limits::LEASE_REST) => {}
        }
    }
}

/// What lasts from one term to the next.
#[derive(Default)]
pub(crate) struct Link {
    connection: Option<Connection>,
    backoff: Backoff,
}

impl Link {
    /// Waits until the server is there; fails only where it never will be.
    async fn reach(&mut self, address: &Address) -> Result<(), Error> {
        loop {
            match &self.connection {
                Some(open) if open.is_open() => return Ok(()),
                // It comes back by itself.
                Some(_) => sleep(limits::LEASE_RETRY).await,
                None => match Connection::open(address, NAME).await {
                    Ok(open) => self.connection = Some(open),
                    Err(error) if error.severity() == Severity::Fatal => return Err(error),
                    Err(error) => self.wait_after(&error, Duration::MAX).await,
                },
            }
        }
    }

    /// Waits after a failure, longer each time and at most so long.
    async fn wait_after(&mut self, error: &Error, at_most: Duration) {
        let failures = self.backoff.failed();
        // An outage is told when it begins; its attempts are of use to a debugger only.
        if failures == 1 {
            tracing::warn!(
                error = error.chain(),
                "publishing failed; it goes on where it was"
            );
        } else {
            tracing::debug!(error = error.chain(), failures, "publishing failed again");
        }
        sleep(self.backoff.wait().min(at_most)).await;
    }
}

/// Waits until this process is the one that publishes. It does not ask for the lease while it
/// cannot reach NATS, for another one may.
async fn lead(
    ledger: &Ledger,
    options: &NatsOptions,
    address: &Address,
    link: &mut Link,
) -> Result<ledger::Fence, Error> {
    let mut failed = false;
    loop {
        link.reach(address).await?;
        let taken = lease::acquire(ledger.pool(), LEASE, &options.holder, options.lease);
        match crate::error::database(taken).await {
            Ok(Some(fence)) => return Ok(fence),
            Ok(None) => failed = false,
            Err(error) => {
                // Said once for each outage.
                if !failed {
                    tracing::warn!(error = error.chain(), "cannot become the publisher");
                }
                failed = true;
            }
        }
        sleep(limits::LEASE_RETRY.min(options.lease)).await;
    }
}

/// Renews the lease; returns when it is lost. The stream's own check keeps a publisher that lost
/// it unnoticed from doing harm.
async fn keep(ledger: &Ledger, options: &NatsOptions, fence: &ledger::Fence) {
    let mut left = limits::LEASE_RENEWALS;
    while left > 0 {
        sleep(options.lease / limits::LEASE_RENEWALS).await;
        let renewed = lease::renew(ledger.pool(), fence, options.lease);
        match crate::error::database(renewed).await {
            Ok(true) => left = limits::LEASE_RENEWALS,
            Ok(false) => return,
            Err(_) => left -= 1,
        }
    }
}

/// Why publishing ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It can never work with these options or this server.
    Never(Error),
    /// Nothing could be published for [`limits::STUCK_MAX`], or the stream is not the ledger's.
    Stuck,
}

/// Publishes until that can never work, or has not worked for too long.
pub(crate) async fn publish(
    ledger: &Ledger,
    options: &NatsOptions,
    address: &Address,
    link: &mut Link,
) -> Ended {
    let mut worked_at = Instant::now();
    loop {
        // Boxed, because it is by far the largest part of the worker's future.
        let attempt = Box::pin(attempt(ledger, options, address, link, &mut worked_at));
        let Err(error) = attempt.await;
        match error.severity() {
            Severity::Fatal => return Ended::Never(error),
            Severity::Alarm => {
                tracing::error!(error = error.chain(), "publishing has stopped");
                sleep(limits::ALARM_EVERY).await;
                return Ended::Stuck;
            }
            Severity::Passing => {}
        }
        let left = limits::STUCK_MAX.saturating_sub(worked_at.elapsed());
        if left.is_zero() {
            return Ended::Stuck;
        }
        link.wait_after(&error, left).await;
    }
}

async fn attempt(
    ledger: &Ledger,
    options: &NatsOptions,
    address: &Address,
    link: &mut Link,
    worked_at: &mut Instant,
) -> Result<Never, Error> {
    let connection = match &mut link.connection {
        Some(connection) => connection,
        none => none.insert(Connection::open(address, NAME).await?),
    };
    let mut publisher = Publisher::open(ledger, connection, options).await?;
    let backoff = &mut link.backoff;
    publisher
        .tail(|| {
            backoff.reset();
            *worked_at = Instant::now();
        })
        .await
}
