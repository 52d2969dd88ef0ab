//! Reading the log by position (SPEC L5): `position > n` is all that a reader needs, because
//! positions are gapless and become visible in order.

use ledger_protocol::event::Stream;
use sqlx::PgConnection;

use crate::Error;
use crate::rows::{bigint, unsigned};

/// An event as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Its place in the log, from 1.
    pub position: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

fn recorded(rows: Vec<(i64, Vec<u8>)>) -> Result<Vec<Recorded>, Error> {
    rows.into_iter()
        .map(|(position, bytes)| {
            Ok(Recorded {
                position: unsigned(position, "events", "position", &position)?,
                bytes,
            })
        })
        .collect()
}

/// The last position; 0 while the log is empty.
pub async fn head(conn: &mut PgConnection) -> Result<u64, Error> {
    let position: Option<i64> = sqlx::query_scalar(
        "SELECT position FROM events WHERE shard = 0 ORDER BY position DESC LIMIT 1",
    )
    .fetch_optional(conn)
    .await?;
    unsigned(position.unwrap_or(0), "events", "position", &"last")
}

/// The events after a position, in order, at most `limit`.
pub async fn read(conn: &mut PgConnection, after: u64, limit: u32) -> Result<Vec<Recorded>, Error> {
    let rows = sqlx::query_as(
        "SELECT position, body FROM events
         WHERE shard = 0 AND position > $1 AND position <= $1 + $2 ORDER BY position",
    )
    .bind(bigint(after))
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    recorded(rows)
}

/// Every event of one stream, in order.
pub async fn stream(conn: &mut PgConnection, stream: Stream) -> Result<Vec<Recorded>, Error> {
    let rows = sqlx::query_as(
        "SELECT position, body FROM events WHERE shard = 0 AND stream = $1 ORDER BY position",
    )
    .bind(stream.uuid())
    .fetch_all(conn)
    .await?;
    recorded(rows)
}

/// The events of one stream before a position, the newest first, at most `limit`.
pub async fn stream_before(
    conn: &mut PgConnection,
    stream: Stream,
    before: u64,
    limit: u32,
) -> Result<Vec<Recorded>, Error> {
    let rows = sqlx::query_as(
        "SELECT position, body FROM events
         WHERE shard = 0 AND stream = $1 AND position < $2 ORDER BY position DESC LIMIT $3",
    )
    .bind(stream.uuid())
    .bind(bigint(before))
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    recorded(rows)
}
