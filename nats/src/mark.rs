//! Up to where copies and wakes were sent, and up to which size checkpoints were (SPEC L11). The stream
//! can be filled again from the ledger; what was told to plain subscribers and controllers is told
//! once.

use sqlx::PgPool;

use crate::Error;
use crate::error::database;

/// The last position, or size, that was told under this name; 0 before the first.
pub(crate) async fn read(pool: &PgPool, name: &str) -> Result<u64, Error> {
    let position: Option<i64> = database(
        sqlx::query_scalar("SELECT position FROM publications WHERE name = $1")
            .bind(name)
            .fetch_optional(pool),
    )
    .await?;
    // The table holds no negative number.
    Ok(position
        .and_then(|position| u64::try_from(position).ok())
        .unwrap_or(0))
}

/// Moves the mark up to `position`; it never goes back, whoever else moves it.
pub(crate) async fn advance(pool: &PgPool, name: &str, position: u64) -> Result<(), Error> {
    database(
        sqlx::query(
            "INSERT INTO publications AS own (name, position) VALUES ($1, $2)
             ON CONFLICT (name) DO UPDATE SET position = excluded.position
             WHERE own.position < excluded.position",
        )
        .bind(name)
        .bind(i64::try_from(position).unwrap_or(i64::MAX))
        .execute(pool),
    )
    .await?;
    Ok(())
}
