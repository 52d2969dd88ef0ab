//! The publisher as a worker: one of many leads, and it never gives up.

use std::time::Duration;

use ledger::{Ledger, lease};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::connection::{Address, Connection};
use crate::error::Severity;
use crate::options::NatsOptions;
use crate::publisher::{Backoff, Never, Publisher};
use crate::{Error, limits};

/// Name of the publisher's lease.
const LEASE: &str = "publisher";

/// Publishes the log until `shutdown`. May run in any number of processes: a lease chooses one of
/// them. Whatever happens to NATS, the ledger does not notice; the publisher comes back by itself
/// and fills the stream from where it ends (SPEC L9). Returns early, with an error, only when it
/// can never work: a URL that is none, a server that is too old.
pub async fn run(
    ledger: Ledger,
    options: NatsOptions,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let address = Address::parse(&options.url)?;
    loop {
        let fence = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            fence = lead(&ledger, &options) => fence,
        };
        tracing::info!(term = fence.term, "became the publisher");
        let failure = tokio::select! {
            () = shutdown.cancelled() => None,
            () = keep(&ledger, &options, &fence) => {
                tracing::warn!(term = fence.term, "lost the publisher's lease");
                continue;
            }
            failure = publish(&ledger, &options, &address) => Some(failure),
        };
        let released = crate::error::database(lease::release(ledger.pool(), &fence)).await;
        if let Err(error) = released {
            tracing::warn!(
                error = error.chain(),
                "the publisher's lease runs out by itself"
            );
        }
        return failure.map_or(Ok(()), Err);
    }
}

/// Waits until this process is the one that publishes.
async fn lead(ledger: &Ledger, options: &NatsOptions) -> ledger::Fence {
    let mut failed = false;
    loop {
        let taken = lease::acquire(ledger.pool(), LEASE, &options.holder, options.lease);
        match crate::error::database(taken).await {
            Ok(Some(fence)) => return fence,
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

/// Publishes for ever; returns only what can never work.
pub(crate) async fn publish(ledger: &Ledger, options: &NatsOptions, address: &Address) -> Error {
    let mut backoff = Backoff::default();
    let mut connection = None;
    loop {
        // Boxed, because it is by far the largest part of the worker's future.
        let Err(error) = Box::pin(attempt(
            ledger,
            options,
            address,
            &mut connection,
            &mut backoff,
        ))
        .await;
        let error = match error.severity() {
            Severity::Fatal => return error,
            Severity::Alarm => {
                tracing::error!(error = error.chain(), "publishing has stopped");
                sleep(limits::ALARM_EVERY).await;
                continue;
            }
            Severity::Passing => error,
        };
        let failures = backoff.failed();
        let wait: Duration = backoff.wait();
        // An outage is told when it begins; its attempts are of use to a debugger only.
        if failures == 1 {
            tracing::warn!(
                error = error.chain(),
                "publishing failed; it goes on where it was"
            );
        } else {
            tracing::debug!(error = error.chain(), failures, "publishing failed again");
        }
        sleep(wait).await;
    }
}

async fn attempt(
    ledger: &Ledger,
    options: &NatsOptions,
    address: &Address,
    connection: &mut Option<Connection>,
    backoff: &mut Backoff,
) -> Result<Never, Error> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open(address, "command-ledger publisher").await?),
    };
    let mut publisher = Publisher::open(ledger, connection, options).await?;
    publisher.tail(|| backoff.reset()).await
}
