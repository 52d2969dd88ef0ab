//! The archiver: the one worker that keeps an archive up with the log (SPEC U1).
//!
//! What it copies is held against the newest checkpoint on the way, and that checkpoint against the
//! archive's own: an archive never gets the history of another log, nor a rewritten one of this.

#[cfg(test)]
mod tests;

use std::time::Duration;

use ledger::{Ledger, lease};
use ledger_projections::log_tree;
use ledger_protocol::tlog::{
    Checkpoint, ConsistencyProof, Note, Resource, RightEdge, Tile, TileIndex, Tiles, new_bundles,
    new_tiles,
};
use sqlx::PgConnection;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::archive::{Archive, ArchiveError};
use crate::checkpointer::chain;
use crate::limits::{
    ARCHIVE_EVERY, ARCHIVER_LEASE, ARCHIVER_RENEWALS, LOG_STEP_WITHIN, TOLD_EVERY,
};
use crate::serve::{self, Unserved};

/// Name of the archiver's lease.
const LEASE: &str = "archiver";

/// Why an archive is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum ArchiverError {
    /// The log, as it is served.
    #[error("the log cannot be copied")]
    Log(#[from] Unserved),
    /// The archive itself.
    #[error("the archive cannot be written")]
    Archive(#[from] ArchiveError),
    /// Its checkpoint is none.
    #[error("the checkpoint in the archive is none: it {0}")]
    Checkpoint(#[source] ledger_protocol::tlog::Malformed),
    /// It is of another log.
    #[error("the archive is of the log {there}, and this is {here}")]
    Origin {
        /// The archive's.
        there: String,
        /// Ours.
        here: String,
    },
    /// The archive has more of the log than the database.
    #[error(
        "the archive has {there} events and the newest checkpoint {here}: the database was put back"
    )]
    Ahead {
        /// Events in the archive.
        there: u64,
        /// Events under the newest checkpoint.
        here: u64,
    },
    /// They are two histories.
    #[error("the archive's {size} events are not the first of this log: one of both was changed")]
    Forked {
        /// Events in the archive.
        size: u64,
    },
    /// A step took too long.
    #[error("it took longer than {seconds} s")]
    TimedOut {
        /// The bound.
        seconds: u64,
    },
}

/// Brings an archive up to the newest checkpoint, which it gives, as it is and as it is read. May be stopped at any point and
/// begun again; nothing is shown before all that it stands for is there.
pub(crate) async fn advance(
    conn: &mut PgConnection,
    archive: &Archive,
) -> Result<(String, Checkpoint), ArchiverError> {
    let (note, newest) = within(serve::newest(conn)).await?;
    let head = newest.head();
    let there = within(archived(archive)).await?;
    let size = there.as_ref().map_or(0, |there| there.head().size);
    if let Some(there) = there {
        let (from, here) = (*there.head(), newest.origin().to_owned());
        if there.origin() != here {
            let there = there.origin().to_owned();
            return Err(ArchiverError::Origin { there, here });
        }
        if from.size > head.size {
            return Err(ArchiverError::Ahead {
                there: from.size,
                here: head.size,
            });
        }
        if from == *head {
            return Ok((note, newest));
        }
        let forked = || ArchiverError::Forked { size };
        let wanted = ConsistencyProof::tiles(from.size, head.size).map_err(|_| forked())?;
        let tiles = within(tiles_of(conn, &wanted)).await?;
        let tiles: Tiles = tiles.into_iter().collect();
        let proof = ConsistencyProof::read(from.size, head.size, &tiles).map_err(|_| forked())?;
        proof.verify(&from, head).map_err(|_| forked())?;
    }
    for bundle in new_bundles(size, head.size) {
        within(async {
            let entries = serve::entries(conn, Some(archive), bundle, head).await?;
            archive.write(Resource::Entries(bundle), entries).await?;
            Ok::<_, ArchiverError>(())
        })
        .await?;
    }
    for tile in new_tiles(size, head.size) {
        within(async {
            let hashes = serve::hashes(conn, tile, head).await?.encode();
            archive.write(Resource::Tile(tile), hashes).await?;
            Ok::<_, ArchiverError>(())
        })
        .await?;
    }
    within(archive.set_checkpoint(note.clone())).await?;
    // What ended within a tile that is full now.
    for partial in RightEdge::tiles(size)
        .into_iter()
        .filter(|tile| !tile.is_full())
    {
        let place = (partial.level(), partial.index());
        let mut grown = new_tiles(size, head.size).filter(|tile| tile.is_full());
        if let Some(full) = grown.find(|tile| (tile.level(), tile.index()) == place) {
            within(archive.remove_partials(full)).await?;
        }
    }
    Ok((note, newest))
}

async fn tiles_of(conn: &mut PgConnection, wanted: &[TileIndex]) -> Result<Vec<Tile>, Unserved> {
    Ok(log_tree::tiles(conn, wanted).await?)
}

/// The archive's own checkpoint.
async fn archived(archive: &Archive) -> Result<Option<Checkpoint>, ArchiverError> {
    let Some(bytes) = archive.read(Resource::Checkpoint).await? else {
        return Ok(None);
    };
    let note = Note::parse(&bytes).map_err(ArchiverError::Checkpoint)?;
    let checkpoint = Checkpoint::parse(note.text()).map_err(ArchiverError::Checkpoint)?;
    Ok(Some(checkpoint))
}

async fn within<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<T, ArchiverError>
where
    ArchiverError: From<E>,
{
    match timeout(LOG_STEP_WITHIN, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(ArchiverError::TimedOut {
            seconds: LOG_STEP_WITHIN.as_secs(),
        }),
    }
}

/// Keeps an archive up with the log until `shutdown`. May run in any number of processes, each under
/// a `holder` of its own: a lease chooses one.
pub async fn archive(
    ledger: Ledger,
    archive: Archive,
    holder: String,
    shutdown: CancellationToken,
) {
    let mut told = Told::default();
    loop {
        let turn = turn(&ledger, &archive, &holder);
        tokio::select! {
            () = shutdown.cancelled() => return,
            result = turn => told.tell(&archive, result),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = sleep(ARCHIVE_EVERY) => {}
        }
    }
}

/// Why a turn ended early.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    #[error("the archiver's lease")]
    Lease(#[from] ledger::Error),
    #[error(transparent)]
    Archiver(#[from] ArchiverError),
}

/// Advances the archive, if this process is the one to; gives the size that it has now.
async fn turn(ledger: &Ledger, archive: &Archive, holder: &str) -> Result<Option<u64>, TurnError> {
    let pool = ledger.pool();
    let Some(fence) = lease::acquire(pool, LEASE, holder, ARCHIVER_LEASE).await? else {
        return Ok(None);
    };
    let keep = async {
        loop {
            sleep(ARCHIVER_LEASE / ARCHIVER_RENEWALS).await;
            if let Ok(false) = lease::renew(pool, &fence, ARCHIVER_LEASE).await {
                return;
            }
        }
    };
    let advance = async {
        let mut conn = pool.acquire().await?;
        match advance(&mut conn, archive).await {
            // There is nothing to copy before the first checkpoint.
            Err(ArchiverError::Log(Unserved::Absent)) => Ok(None),
            advanced => Ok(Some(advanced?.1.head().size)),
        }
    };
    tokio::select! {
        () = keep => Ok(None),
        advanced = advance => advanced,
    }
}

/// What the log of this process was told, so that it is not told every few seconds.
#[derive(Debug, Default)]
struct Told {
    at: Option<Instant>,
    size: u64,
}

impl Told {
    fn tell(&mut self, archive: &Archive, result: Result<Option<u64>, TurnError>) {
        let recent = |within: Duration| self.at.is_some_and(|at| at.elapsed() < within);
        match result {
            Ok(None) => {}
            Ok(Some(size)) => {
                if size != self.size && !recent(TOLD_EVERY) {
                    tracing::info!(size, %archive, "the log was archived");
                    (self.at, self.size) = (Some(Instant::now()), size);
                }
            }
            Err(error) => {
                if !recent(TOLD_EVERY) {
                    let problem = chain(&error);
                    tracing::error!(problem, %archive, "the log is not archived; it is tried again");
                    self.at = Some(Instant::now());
                }
            }
        }
    }
}
