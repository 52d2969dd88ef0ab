//! The log, folded from position 1 and compared with the live tables (SPEC L7).

use std::collections::HashMap;

use ledger_projections::rows::{BatchRow, LiveRow, NodeRow, SettledRow};
use sqlx::{PgConnection, PgPool};

use crate::Error;
use crate::error::database;
use crate::fold::Folds;
use crate::log;
use crate::report::Report;
use crate::scopes;
use crate::tables::{KeyRow, Row, SpecRow};

/// Folds the whole log and compares the result with every row of the read tables. All is read in
/// one snapshot of the database, so appends may go on meanwhile.
///
/// The folds are held in memory. An error means that the log itself is not sound, and names the
/// position; differences in the tables are the report's.
pub async fn replay(pool: &PgPool) -> Result<Report, Error> {
    let mut snapshot = log::snapshot(pool).await?;
    let mut report = Report::default();
    let mut folds = Folds::default();
    report.events = fold_log(&mut snapshot, &mut folds, &mut report).await?;
    find_elsewhere(&mut snapshot, &mut report).await?;
    (report.commands, report.nodes) = folds.counts();
    let expected = folds.rows(report.events)?;
    compare::<NodeRow>(&mut snapshot, expected.nodes, &mut report).await?;
    compare::<SpecRow>(&mut snapshot, expected.specs, &mut report).await?;
    compare::<LiveRow>(&mut snapshot, expected.live, &mut report).await?;
    compare::<SettledRow>(&mut snapshot, expected.settled, &mut report).await?;
    compare::<BatchRow>(&mut snapshot, expected.batches, &mut report).await?;
    scopes::compare(&mut snapshot, expected.scopes, &mut report).await?;
    compare::<KeyRow>(&mut snapshot, expected.keys, &mut report).await?;
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
    folds: &mut Folds,
    report: &mut Report,
) -> Result<u64, Error> {
    log::read(conn, |stored| {
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

/// Goes through a table and takes each row out of what is expected; what is left is missing.
async fn compare<R: Row>(
    conn: &mut PgConnection,
    mut expected: HashMap<R::Key, R>,
    report: &mut Report,
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
    missing.sort_by_cached_key(R::key_text);
    for row in &missing {
        report.compare(Some(row), None);
    }
    Ok(())
}
