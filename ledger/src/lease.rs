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

/// What the names of gateways' leases begin with: each process has one of its own, under which the
/// ledger knows its sessions.
pub const GATEWAY_PREFIX: &str = "gateway:";

/// Names of gateways' leases that have lapsed, or were given up; at most `limit`.
pub async fn lapsed_gateways(pool: &PgPool, limit: u32) -> Result<Vec<String>, Error> {
    let names = sqlx::query_scalar(
        "SELECT name FROM leases WHERE starts_with(name, $1) AND expires_at < now()
         ORDER BY expires_at LIMIT $2",
    )
    .bind(GATEWAY_PREFIX)
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    Ok(names)
}

/// Forgets a lapsed lease that nothing needs any more. Its holder, should it live, makes it anew.
pub async fn forget(pool: &PgPool, name: &str) -> Result<(), Error> {
    sqlx::query("DELETE FROM leases WHERE name = $1 AND expires_at < now()")
        .bind(name)
        .execute(pool)
        .await?;
    Ok(())
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
pub async fn stands(conn: &mut PgConnection, fence: &Fence) -> Result<bool, Error> {
    let term: Option<i64> = sqlx::query_scalar("SELECT term FROM leases WHERE name = $1 FOR SHARE")
        .bind(&fence.name)
        .fetch_optional(conn)
        .await?;
    Ok(term == Some(fence.term))
}
