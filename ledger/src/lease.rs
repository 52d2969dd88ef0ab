//! Leases: at most one sweeper and one publisher lead. A lease has a term, and the term is
//! checked inside the writing transaction, so a leader that was paused cannot write as one.

use std::time::Duration;

use sqlx::{PgConnection, PgPool};

use crate::Error;

/// The right to act as a singleton, as long as nobody has taken a later term.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    /// Name of the lease.
    pub name: String,
    /// Its term.
    pub term: i64,
}

/// Takes the lease when it is free, expired or the holder's own; nothing when another holds it.
/// The database's clock decides.
pub async fn acquire(
    pool: &PgPool,
    name: &str,
    holder: &str,
    ttl: Duration,
) -> Result<Option<Fence>, Error> {
    let term: Option<i64> = sqlx::query_scalar(
        "INSERT INTO leases AS held (name, holder, term, expires_at)
         VALUES ($1, $2, 1, now() + make_interval(secs => $3))
         ON CONFLICT (name) DO UPDATE
             SET holder = excluded.holder, term = held.term + 1, expires_at = excluded.expires_at
             WHERE held.expires_at < now() OR held.holder = excluded.holder
         RETURNING term",
    )
    .bind(name)
    .bind(holder)
    .bind(ttl.as_secs_f64())
    .fetch_optional(pool)
    .await?;
    Ok(term.map(|term| Fence {
        name: name.to_owned(),
        term,
    }))
}

/// Keeps the lease for another while; `false` when it was lost.
pub async fn renew(pool: &PgPool, fence: &Fence, ttl: Duration) -> Result<bool, Error> {
    let done = sqlx::query(
        "UPDATE leases SET expires_at = now() + make_interval(secs => $3)
         WHERE name = $1 AND term = $2 AND expires_at >= now()",
    )
    .bind(&fence.name)
    .bind(fence.term)
    .bind(ttl.as_secs_f64())
    .execute(pool)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Gives the lease up, so that another may take it at once.
pub async fn release(pool: &PgPool, fence: &Fence) -> Result<(), Error> {
    sqlx::query("UPDATE leases SET expires_at = '-infinity' WHERE name = $1 AND term = $2")
        .bind(&fence.name)
        .bind(fence.term)
        .execute(pool)
        .await?;
    Ok(())
}

/// Whether the fence still stands; it then does until the transaction ends.
pub(crate) async fn stands(conn: &mut PgConnection, fence: &Fence) -> Result<bool, Error> {
    let term: Option<i64> = sqlx::query_scalar("SELECT term FROM leases WHERE name = $1 FOR SHARE")
        .bind(&fence.name)
        .fetch_optional(conn)
        .await?;
    Ok(term == Some(fence.term))
}
