//! The log, read in the order of its positions.

use ledger_protocol::event::Event;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use uuid::Uuid;

use crate::Error;
use crate::error::database;
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

/// Hands over every event and returns the last position. A gap, or bytes that are no event, end it.
pub(crate) async fn read(
    conn: &mut PgConnection,
    take: impl FnMut(Stored) -> Result<(), Error>,
) -> Result<u64, Error> {
    read_to(conn, i64::MAX, take).await
}

/// The same, up to a position.
pub(crate) async fn read_to(
    conn: &mut PgConnection,
    to: i64,
    mut take: impl FnMut(Stored) -> Result<(), Error>,
) -> Result<u64, Error> {
    let (mut last, mut after) = (0_u64, i64::MIN);
    loop {
        // By position alone, wherever it lies, so that an event out of place is found.
        let page: Vec<(i64, Uuid, Vec<u8>)> = database(
            sqlx::query_as(
                "SELECT position, stream, body FROM events
                 WHERE shard = 0 AND position > $1 AND position <= $3 ORDER BY position LIMIT $2",
            )
            .bind(after)
            .bind(PAGE_ROWS)
            .bind(to)
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
