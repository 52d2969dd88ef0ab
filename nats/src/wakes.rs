//! Wakes of other processes: a look at the ledger at once instead of within a second.

use futures_util::StreamExt as _;
use ledger::Ledger;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::connection::{Address, Connection};
use crate::error::Severity;
use crate::publisher::Backoff;
use crate::{Error, subject};

/// Looks at the ledger whenever NATS says that a node has news, until `shutdown`. Nothing depends
/// on it: without NATS, or with a wake lost, the ledger's own poll finds the same within 1 s
/// (SPEC D3). Returns early only for a URL that is none or a server that is too old.
pub async fn wakes(ledger: Ledger, url: &str, shutdown: CancellationToken) -> Result<(), Error> {
    let address = Address::parse(url)?;
    let mut backoff = Backoff::default();
    loop {
        let failure = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            Err(failure) = listen(&ledger, &address, &mut backoff) => failure,
        };
        if failure.severity() == Severity::Fatal {
            return Err(failure);
        }
        if backoff.failed() == 1 {
            tracing::warn!(
                error = failure.chain(),
                "no wakes from NATS; the ledger is polled"
            );
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = sleep(backoff.wait()) => {}
        }
    }
}

async fn listen(
    ledger: &Ledger,
    address: &Address,
    backoff: &mut Backoff,
) -> Result<crate::publisher::Never, Error> {
    let connection = Connection::open(address, "command-ledger wakes").await?;
    let mut wakes = connection
        .client
        .subscribe(subject::WAKE_NODES)
        .await
        .map_err(Error::copy)?;
    backoff.reset();
    loop {
        tokio::select! {
            wake = wakes.next() => {
                if wake.is_none() {
                    return Err(Error::Unsubscribed);
                }
            }
            // What was said while the connection was down is lost, so a look repairs it.
            () = connection.connected.notified() => {}
        }
        ledger.look();
    }
}
