//! Which commands a sweep has to look at.
//!
//! Asked here and not through a question of the read tables, because each row is decoded by
//! itself: one that cannot be read must not hide the others of its page.

use ledger_protocol::canonical;
use ledger_protocol::command::{Command, expire};
use ledger_protocol::id::CommandId;
use ledger_protocol::kind::Registry;
use ledger_protocol::limits::UNREGISTERED_TIMEOUT_SECONDS;
use ledger_protocol::time::Timestamp;
use sqlx::PgPool;
use uuid::Uuid;

use crate::error::{Error, database};
use crate::limits;

/// Where a page ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    not_after: i64,
    id: Uuid,
}

impl Cursor {
    pub(crate) const START: Self = Self {
        not_after: i64::MIN,
        id: Uuid::nil(),
    };
}

/// A command past its `notAfter`.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) id: CommandId,
    pub(crate) command: Result<Command, canonical::Error>,
}

/// The commands past their `notAfter` at `now`, in order of (`notAfter`, id), and where to go on;
/// no cursor after the last page.
pub(crate) async fn page(
    pool: &PgPool,
    now: Timestamp,
    after: Cursor,
) -> Result<(Vec<Candidate>, Option<Cursor>), Error> {
    let rows: Vec<(Uuid, i64, Vec<u8>)> = database(
        sqlx::query_as(
            "SELECT id, not_after, snapshot FROM commands_live
             WHERE not_after < $1 AND (not_after, id) > ($2, $3)
             ORDER BY not_after, id LIMIT $4",
        )
        .bind(now.as_micros())
        .bind(after.not_after)
        .bind(after.id)
        .bind(i64::from(limits::PAGE_ROWS))
        .fetch_all(pool),
    )
    .await?;
    let full = rows.len() >= limits::PAGE_ROWS as usize;
    let next = rows.last().filter(|_| full).map(|row| Cursor {
        id: row.0,
        not_after: row.1,
    });
    let candidates = rows.into_iter().map(|(id, _, snapshot)| Candidate {
        id: CommandId::from_uuid(id),
        command: canonical::decode(&snapshot),
    });
    Ok((candidates.collect(), next))
}

/// Whether time has decided the command, so that an append is worth its while. A command in flight
/// has its timeout as well; that of a kind that is no longer registered counts as 15 min (SPEC K2).
pub(crate) fn is_decided(command: &Command, registry: &Registry, now: Timestamp) -> bool {
    let timeout_seconds = match registry.get(&command.queued.kind) {
        Some(_) => command.queued.timeout_seconds,
        None => UNREGISTERED_TIMEOUT_SECONDS,
    };
    expire::decide(command, timeout_seconds, now).is_ok()
}
