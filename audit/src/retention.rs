//! Retention: what is old leaves the database, and nothing else ever does (SPEC section 10).
//!
//! Events leave with their partition, once every one of them has been read back from the archive
//! and held against the tree. Commands that have ended leave the read tables; the log has them still.
//! The schema's owner does this, on request: the service has no right to.

use std::time::Duration;

use ledger_projections::log;
use ledger_projections::retention::{self, Partition};
use ledger_protocol::command::State;
use ledger_protocol::event::{self, Event};
use ledger_protocol::id::CommandId;
use ledger_protocol::tlog::{
    EntryBundle, Malformed, Note, Policy as TrustPolicy, Resource, TILE_WIDTH, TreeHead, Untrusted,
    new_bundles, new_tiles,
};
use sqlx::{Connection as _, PgConnection};
use tokio::time::sleep;
use uuid::Uuid;

use crate::Error;
use crate::archive::streams::Gathered;
use crate::archive::{Archive, ArchiveError};
use crate::archiver::{self, ArchiverError};
use crate::error::database;
use crate::limits::{DROP_ATTEMPTS, DROP_LOCK_WITHIN, DROP_RETRY, FORGET_PAGE_ROWS};
use crate::serve::{self, Unserved};

/// For how long what has happened stays in the database.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Age above which events leave for the archive; without one, none does.
    pub events: Option<Duration>,
    /// Time since their end after which commands leave the read tables; without one, none does. A
    /// command's idempotency key goes with it.
    pub commands: Option<Duration>,
    /// Whether only to say what would be done. The archive is brought up all the same.
    pub is_rehearsal: bool,
}

/// What was done, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retained {
    /// Up to which position the archive has the log now.
    pub archived: u64,
    /// Partitions that were dropped, with their first and last positions.
    pub dropped: Vec<Partition>,
    /// Up to which position the archive alone has the log.
    pub through: u64,
    /// Why the next partition stays; nothing when no age was given.
    pub kept: Option<Kept>,
    /// Commands that left the read tables.
    pub commands: u64,
}

/// Why a partition stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Kept {
    /// The log still grows in it.
    #[error("{partition} is the one that the log grows in")]
    Growing {
        /// Its name.
        partition: String,
    },
    /// It has younger events.
    #[error("{partition} has events younger than that, up to position {last}")]
    Young {
        /// Its name.
        partition: String,
        /// Its last position.
        last: u64,
    },
    /// The newest checkpoint does not reach far enough.
    #[error("{partition} ends at position {last}, beyond what was signed and archived")]
    Unarchived {
        /// Its name.
        partition: String,
        /// Its last position.
        last: u64,
    },
    /// It is still to be published to NATS.
    #[error("{partition} has events that were not published to NATS yet, after position {told}")]
    Unpublished {
        /// Its name.
        partition: String,
        /// The last one that was.
        told: u64,
    },
    /// A command in it has not ended.
    #[error("{partition} has events of {command}, which has not ended")]
    Live {
        /// Its name.
        partition: String,
        /// The command.
        command: CommandId,
    },
}

/// Why it was not done, or not all of it. What was done is done.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// The archive could not be brought up.
    #[error("the archive is not up with the log")]
    Archiver(#[from] ArchiverError),
    /// The newest checkpoint is none.
    #[error("the newest checkpoint is none: it {0}")]
    Note(#[source] Malformed),
    /// It is not by the log's key.
    #[error("the newest checkpoint is not to be trusted: {0}")]
    Untrusted(#[source] Untrusted),
    /// The archive is not whole.
    #[error("{partition} stays: the archive was read back and is not what was signed")]
    Archive {
        /// Name of the partition.
        partition: String,
        /// What is wrong.
        #[source]
        source: ArchiveError,
    },
    /// The database is not what was signed.
    #[error("{partition} stays: the database is not what was signed")]
    Log {
        /// Name of the partition.
        partition: String,
        /// What is wrong.
        #[source]
        source: Unserved,
    },
    /// An event cannot be read, so its age is not known.
    #[error("the event at position {position} is not readable")]
    Event {
        /// Its position.
        position: u64,
        /// Why.
        #[source]
        source: event::Error,
    },
    /// An event is not there.
    #[error("position {position} of the log is missing")]
    Missing {
        /// Its position.
        position: u64,
    },
    /// Somebody reads the log in a long transaction.
    #[error("{partition} is in use (an export, a replay, a backup); try again later")]
    Busy {
        /// Name of the partition.
        partition: String,
    },
    /// The database.
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    /// The read tables.
    #[error("the tables cannot be read or written")]
    Tables(#[from] ledger_projections::Error),
    /// A question that took too long.
    #[error(transparent)]
    Question(#[from] Error),
}

/// Applies a policy, as the schema's owner. `trust` is the log's key: only what it has signed may
/// leave.
pub async fn retain(
    conn: &mut PgConnection,
    archive: &Archive,
    trust: &TrustPolicy,
    policy: Policy,
    mut progress: impl FnMut(u64, u64),
) -> Result<Retained, RetentionError> {
    let (note, newest) = archiver::advance(conn, archive).await?;
    let head = *newest.head();
    let parsed = Note::parse(note.as_bytes()).map_err(RetentionError::Note)?;
    trust.believe(&parsed).map_err(RetentionError::Untrusted)?;
    let mut retained = Retained {
        archived: head.size,
        dropped: Vec::new(),
        through: retention::archived_through(conn).await?,
        kept: None,
        commands: 0,
    };
    let now = "SELECT (extract(epoch FROM now()) * 1000000)::bigint";
    let now: i64 = database(sqlx::query_scalar(now).fetch_one(&mut *conn)).await?;
    let before =
        |age: Duration| now.saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
    if let Some(age) = policy.events {
        for partition in retention::partitions(conn).await? {
            let kept = kept(conn, &partition, &head, before(age)).await?;
            if kept.is_some() {
                retained.kept = kept;
                break;
            }
            check_archive(conn, archive, &partition, &head, &mut progress).await?;
            if !policy.is_rehearsal {
                drop_partition(conn, &partition, &archive.to_string(), &note).await?;
            }
            retained.through = partition.last;
            retained.dropped.push(partition);
        }
    }
    if let Some(age) = policy.commands {
        retained.commands = forget(conn, before(age), policy.is_rehearsal).await?;
    }
    Ok(retained)
}

/// Why a partition stays, if it does.
async fn kept(
    conn: &mut PgConnection,
    partition: &Partition,
    head: &TreeHead,
    before: i64,
) -> Result<Option<Kept>, RetentionError> {
    let (name, last) = (partition.name.clone(), partition.last);
    // The next position is that of the newest row, so it must stay.
    if last >= log::head(conn).await? {
        return Ok(Some(Kept::Growing { partition: name }));
    }
    let event = log::read(conn, last - 1, 1).await?.pop();
    let event = event.ok_or(RetentionError::Missing { position: last })?;
    let event = Event::decode(&event.bytes);
    let event = event.map_err(|source| RetentionError::Event {
        position: last,
        source,
    })?;
    if event.at.as_micros() >= before {
        return Ok(Some(Kept::Young {
            partition: name,
            last,
        }));
    }
    // Its last bundle must be full, for the archive to have it whole.
    if last.next_multiple_of(TILE_WIDTH.into()) > head.size {
        return Ok(Some(Kept::Unarchived {
            partition: name,
            last,
        }));
    }
    let told = retention::published_through(conn).await?;
    if let Some(told) = told.filter(|told| *told < last) {
        return Ok(Some(Kept::Unpublished {
            partition: name,
            told,
        }));
    }
    let live = retention::live_within(conn, (partition.first, last)).await?;
    Ok(live.map(|id| Kept::Live {
        partition: name,
        command: CommandId::from_uuid(id),
    }))
}

/// Reads back what the archive has of a partition, and holds it against what was signed. Writes where
/// the events of each stream are.
async fn check_archive(
    conn: &mut PgConnection,
    archive: &Archive,
    partition: &Partition,
    head: &TreeHead,
    progress: &mut impl FnMut(u64, u64),
) -> Result<(), RetentionError> {
    let name = || partition.name.clone();
    let unsigned = |source| RetentionError::Log {
        partition: name(),
        source,
    };
    let broken = |source| RetentionError::Archive {
        partition: name(),
        source,
    };
    let width = u64::from(TILE_WIDTH);
    let first = partition.first.saturating_sub(1) / width * width;
    let end = partition.last.next_multiple_of(width);
    let mut streams = Gathered::new(partition.first, partition.last);
    for bundle in new_bundles(first, end) {
        let tile = serve::hashes(conn, bundle.tile(), head)
            .await
            .map_err(unsigned)?;
        let entries = archive.entries(bundle, &tile).await.map_err(broken)?;
        let entries = EntryBundle::first(&entries, bundle.width());
        for (position, entry) in (bundle.first_entry() + 1..).zip(entries) {
            let event = Event::decode(entry);
            let event = event.map_err(|source| RetentionError::Event { position, source })?;
            let stream = event.stream.uuid();
            let added = streams.add(archive, stream, position).await;
            added.map_err(broken)?;
        }
        let done = bundle.first_entry() + u64::from(bundle.width()) - first;
        progress(done, end - first);
    }
    for tile in new_tiles(first, end).filter(|tile| tile.is_full()) {
        let signed = serve::hashes(conn, tile, head).await.map_err(unsigned)?;
        let resource = Resource::Tile(tile);
        let file = resource.to_string();
        match archive.read(resource).await.map_err(broken)? {
            Some(there) if there == signed.encode() => {}
            Some(_) => return Err(broken(ArchiveError::Differs { file })),
            None => return Err(broken(ArchiveError::Missing { file })),
        }
    }
    archive.flush().await.map_err(broken)?;
    Ok(())
}

/// Drops a partition. Appends wait while its lock is awaited, so that is short, and repeated.
async fn drop_partition(
    conn: &mut PgConnection,
    partition: &Partition,
    archive: &str,
    checkpoint: &str,
) -> Result<(), RetentionError> {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    for attempt in 0..DROP_ATTEMPTS {
        if attempt > 0 {
            sleep(DROP_RETRY).await;
        }
        let mut transaction = conn.begin().await?;
        let milliseconds = DROP_LOCK_WITHIN.as_millis().to_string();
        sqlx::query("SELECT set_config('lock_timeout', $1, true)")
            .bind(milliseconds)
            .execute(&mut *transaction)
            .await?;
        let dropped =
            retention::drop_partition(&mut transaction, partition, archive, checkpoint).await;
        match dropped {
            Ok(()) => return Ok(transaction.commit().await?),
            Err(ledger_projections::Error::Database(sqlx::Error::Database(error)))
                if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) =>
            {
                transaction.rollback().await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let partition = partition.name.clone();
    Err(RetentionError::Busy { partition })
}

/// Takes commands that ended before a time out of the read tables; how many.
async fn forget(
    conn: &mut PgConnection,
    before: i64,
    is_rehearsal: bool,
) -> Result<u64, RetentionError> {
    let (mut last, mut forgotten) = (Uuid::nil(), 0);
    if !is_rehearsal {
        // Before the first is missing, so that no replay wonders.
        retention::note_forgetting(conn, before).await?;
    }
    loop {
        let page = retention::ended(conn, last, FORGET_PAGE_ROWS).await?;
        let Some(newest) = page.last() else {
            return Ok(forgotten);
        };
        last = newest.id.uuid();
        let old: Vec<_> = page
            .iter()
            .filter(|command| match &command.state {
                State::Settled(settled) => settled.at.as_micros() < before,
                _ => false,
            })
            .collect();
        forgotten += old.len() as u64;
        let is_over = queued_at(last) >= before;
        if !is_rehearsal && !old.is_empty() {
            let mut transaction = conn.begin().await?;
            retention::forget(&mut transaction, &old).await?;
            transaction.commit().await?;
        }
        if is_over {
            return Ok(forgotten);
        }
    }
}

/// When a command got its id, in microseconds since the epoch (RFC 9562, UUIDv7): none ends before.
fn queued_at(id: Uuid) -> i64 {
    let milliseconds = i64::try_from(id.as_u128() >> 80).unwrap_or(i64::MAX);
    milliseconds.saturating_mul(1_000)
}
