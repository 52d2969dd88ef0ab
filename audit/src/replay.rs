//! The log, folded from position 1 and compared with the live tables (SPEC L7).

use std::collections::{HashMap, HashSet};

use ledger_projections::retention;
use ledger_projections::rows::{BatchRow, LiveRow, NodeRow, SettledRow};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::Error;
use crate::archive::Archive;
use crate::error::{database, rows};
use crate::fold::{Expected, Folds, ended_before};
use crate::log;
use crate::report::Report;
use crate::scopes;
use crate::tables::{KeyRow, Row, SpecRow};

/// Folds the whole log and compares the result with every row of the read tables. All is read in
/// one snapshot of the database, so appends may go on meanwhile.
///
/// The folds are held in memory. An error means that the log itself is not sound, and names the
/// position; differences in the tables are the report's. Commands that retention has taken out of the
/// tables are no difference.
pub async fn replay(pool: &PgPool, archive: Option<&Archive>) -> Result<Report, Error> {
    let mut snapshot = log::snapshot(pool).await?;
    let mut report = Report::default();
    let before = retention::forgotten_before(&mut snapshot).await;
    let before = before.map_err(rows)?;
    let mut folds = Folds::new(before);
    report.events = fold_log(&mut snapshot, archive, &mut folds, &mut report).await?;
    find_elsewhere(&mut snapshot, &mut report).await?;
    (report.commands, report.nodes) = folds.counts();
    let expected = folds.rows(report.events)?;
    let mut forgotten = Forgotten::of(&expected, before);
    compare::<NodeRow>(&mut snapshot, expected.nodes, &mut report, |_| false).await?;
    compare::<SpecRow>(&mut snapshot, expected.specs, &mut report, |_| false).await?;
    compare::<LiveRow>(&mut snapshot, expected.live, &mut report, |_| false).await?;
    let is_forgotten = |row: &SettledRow| forgotten.has(row);
    compare(&mut snapshot, expected.settled, &mut report, is_forgotten).await?;
    compare::<BatchRow>(&mut snapshot, expected.batches, &mut report, |_| false).await?;
    scopes::compare(&mut snapshot, expected.scopes, &mut report).await?;
    let has_key_of = |row: &KeyRow| forgotten.commands.contains(&row.command);
    compare(&mut snapshot, expected.keys, &mut report, has_key_of).await?;
    database(snapshot.rollback()).await?;
    tracing::info!(
        events = report.events,
        differences = report.differences_total,
        "replayed the log"
    );
    Ok(report)
}

/// Folds every event and returns the last position.
async fn fold_log(
    conn: &mut PgConnection,
    archive: Option<&Archive>,
    folds: &mut Folds,
    report: &mut Report,
) -> Result<u64, Error> {
    log::read(conn, archive, |stored| {
        let own = stored.event.stream.uuid();
        if own != stored.stream {
            let (expected, found) = (own.to_string(), stored.stream.to_string());
            let key = stored.position.to_string();
            report.add("events", &key, "stream", &expected, &found);
        }
        folds.apply(stored.position, &stored.event)
    })
    .await
}

/// There is one shard, and no other may have anything.
async fn find_elsewhere(conn: &mut PgConnection, report: &mut Report) -> Result<(), Error> {
    let elsewhere: Option<(i16, i64)> = database(
        sqlx::query_as(
            "SELECT shard, position FROM events WHERE shard < 0 OR shard > 0
             ORDER BY shard, position LIMIT 1",
        )
        .fetch_optional(&mut *conn),
    )
    .await?;
    if let Some((shard, position)) = elsewhere {
        let key = format!("{position} of shard {shard}");
        report.add("events", &key, "(row)", "no such row", "this row");
    }
    Ok(())
}

/// The ended commands that retention may have taken out of the tables: those that ended before a time,
/// but for the newest of each node (SPEC A7).
struct Forgotten {
    before: Option<i64>,
    newest: HashMap<Uuid, i64>,
    /// Those that are missing.
    commands: HashSet<Uuid>,
}

impl Forgotten {
    fn of(expected: &Expected, before: Option<i64>) -> Self {
        let mut newest = HashMap::new();
        if before.is_some() {
            let live = expected.live.values().map(|row| (row.node, row.seq));
            let settled = expected.settled.values().map(|row| (row.node, row.seq));
            for (node, seq) in live.chain(settled) {
                let newest = newest.entry(node).or_insert(seq);
                *newest = seq.max(*newest);
            }
        }
        Self {
            before,
            newest,
            commands: HashSet::new(),
        }
    }

    /// Whether this command may be missing; one that is, and may be, is noted.
    fn has(&mut self, missing: &SettledRow) -> bool {
        let is_old = ended_before(missing, self.before);
        let newest = self.newest.get(&missing.node);
        let may_be = is_old && newest.is_some_and(|newest| missing.seq < *newest);
        if may_be {
            self.commands.insert(missing.id);
        }
        may_be
    }
}

/// Goes through a table and takes each row out of what is expected; what is left is missing, unless it
/// may be.
async fn compare<R: Row>(
    conn: &mut PgConnection,
    mut expected: HashMap<R::Key, R>,
    report: &mut Report,
    mut may_be_missing: impl FnMut(&R) -> bool,
) -> Result<(), Error> {
    let mut last: Option<R> = None;
    loop {
        let page = database(R::page(&mut *conn, last.as_ref())).await?;
        for row in &page {
            report.compare(expected.remove(&row.key()).as_ref(), Some(row));
        }
        match page.into_iter().last() {
            Some(row) => last = Some(row),
            None => break,
        }
    }
    let mut missing: Vec<R> = expected.into_values().collect();
    missing.retain(|row| !may_be_missing(row));
    missing.sort_by_cached_key(R::key_text);
    for row in &missing {
        report.compare(Some(row), None);
    }
    Ok(())
}
