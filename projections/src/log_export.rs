//! What an export reads of the log's tree beside what everybody reads (SPEC U2).

use sqlx::PgConnection;

use crate::Error;
use crate::log_tree::Published;
use crate::rows::{bigint, unsigned};

/// Checkpoints of the log with this origin, larger than `above` and smaller than `below`, in the
/// order of their sizes, at most `limit`.
pub async fn checkpoints(
    conn: &mut PgConnection,
    origin: &str,
    (above, below): (u64, u64),
    limit: u32,
) -> Result<Vec<Published>, Error> {
    let rows: Vec<(i64, String)> = sqlx::query_as(
        "SELECT size, note FROM checkpoints
         WHERE size > $1 AND size < $2 AND starts_with(note, $3 || chr(10))
         ORDER BY size LIMIT $4",
    )
    .bind(bigint(above))
    .bind(bigint(below))
    .bind(origin)
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    let published = |(size, note): (i64, String)| {
        let size = unsigned(size, "checkpoints", "size", &size)?;
        Ok(Published { size, note })
    };
    rows.into_iter().map(published).collect()
}
