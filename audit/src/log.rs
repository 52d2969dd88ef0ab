//! The log, read in the order of its positions.

use ledger_projections::{log_tree, retention};
use ledger_protocol::event::Event;
use ledger_protocol::merkle::HASH_BYTES;
use ledger_protocol::tlog::{BundleIndex, EntryBundle, Tile, new_bundles};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use uuid::Uuid;

use crate::Error;
use crate::archive::Archive;
use crate::error::{database, rows};
use crate::limits::PAGE_ROWS;

/// One event as it is stored.
pub(crate) struct Stored {
    pub(crate) position: u64,
    /// What the row says that it is about; the bytes say it, too.
    pub(crate) stream: Uuid,
    pub(crate) event: Event,
}

/// One snapshot of the database: appends may go on meanwhile. Nothing is written, so a standby will
/// do and spares the primary a long snapshot.
pub(crate) async fn snapshot(pool: &PgPool) -> Result<Transaction<'static, Postgres>, Error> {
    database(pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")).await
}

/// Hands over every event, of what has left the database those in the archive, and returns the last
/// position. A gap, or bytes that are no event, end it.
pub(crate) async fn read(
    conn: &mut PgConnection,
    archive: Option<&Archive>,
    take: impl FnMut(Stored) -> Result<(), Error>,
) -> Result<u64, Error> {
    read_to(conn, archive, u64::MAX, take).await
}

/// The same, up to a position.
pub(crate) async fn read_to(
    conn: &mut PgConnection,
    archive: Option<&Archive>,
    to: u64,
    mut take: impl FnMut(Stored) -> Result<(), Error>,
) -> Result<u64, Error> {
    let through = retention::archived_through(conn).await.map_err(rows)?;
    let (mut last, mut after) = (0_u64, i64::MIN);
    for bundle in new_bundles(0, through) {
        let archive = archive.ok_or(Error::Archived { through })?;
        let bytes = archived(conn, archive, bundle).await?;
        for body in EntryBundle::first(&bytes, bundle.width()) {
            let position = last + 1;
            if position > to {
                return Ok(last);
            }
            let event =
                Event::decode(body).map_err(|source| Error::Unreadable { position, source })?;
            let stream = event.stream.uuid();
            take(Stored {
                position,
                stream,
                event,
            })?;
            last = position;
        }
    }
    loop {
        // By position alone, wherever it lies, so that an event out of place is found.
        let page: Vec<(i64, Uuid, Vec<u8>)> = database(
            sqlx::query_as(
                "SELECT position, stream, body FROM events
                 WHERE shard = 0 AND position > $1 AND position <= $3 ORDER BY position LIMIT $2",
            )
            .bind(after)
            .bind(PAGE_ROWS)
            .bind(i64::try_from(to).unwrap_or(i64::MAX))
            .fetch_all(&mut *conn),
        )
        .await?;
        for (found, stream, body) in &page {
            let position = last + 1;
            if u64::try_from(*found) != Ok(position) {
                return Err(Error::Gap {
                    expected: position,
                    found: *found,
                });
            }
            let event =
                Event::decode(body).map_err(|source| Error::Unreadable { position, source })?;
            take(Stored {
                position,
                stream: *stream,
                event,
            })?;
            last = position;
        }
        match page.last() {
            Some((position, _, _)) => after = *position,
            None => return Ok(last),
        }
    }
}

/// A bundle of events out of the archive, held against the hashes that the database has of them.
pub(crate) async fn archived(
    conn: &mut PgConnection,
    archive: &Archive,
    bundle: BundleIndex,
) -> Result<Vec<u8>, Error> {
    let tiles = log_tree::tiles(conn, &[bundle.tile()])
        .await
        .map_err(rows)?;
    let hashes = tiles.first().map(Tile::encode).unwrap_or_default();
    let hashes = hashes.get(..usize::from(bundle.width()) * HASH_BYTES);
    let tile = hashes.and_then(|hashes| Tile::decode(bundle.tile(), hashes).ok());
    let first = bundle.first_entry() + 1;
    let tile = tile.ok_or(Error::NoTile { first })?;
    let entries = archive.entries(bundle, &tile).await;
    entries.map_err(Error::Archive)
}
