//! The scopes of batches against the Merkle roots that the log holds (SPEC P3).

use std::collections::BTreeMap;

use ledger_projections::rows::LeafRow;
use ledger_protocol::batch::Inclusion;
use ledger_protocol::batch::create::Proved;
use ledger_protocol::event::BatchCreated;
use ledger_protocol::id::BatchId;
use ledger_protocol::limits::SCOPE_LEAVES_MAX;
use ledger_protocol::merkle::{self, Hash, Tree};
use sqlx::PgConnection;

use crate::Error;
use crate::error::database;
use crate::report::Report;
use crate::tables::Row as _;

/// Compares the leaves of every batch with the root in its first event, and every proof with the
/// one that the leaves make. One scope at a time is held in memory.
pub(crate) async fn compare(
    conn: &mut PgConnection,
    mut expected: BTreeMap<BatchId, BatchCreated>,
    report: &mut Report,
) -> Result<(), Error> {
    let mut last: Option<LeafRow> = None;
    let mut scope: Vec<LeafRow> = Vec::new();
    loop {
        let page = database(LeafRow::page(&mut *conn, last.as_ref())).await?;
        last = page.last().cloned();
        for row in page {
            if scope.first().is_some_and(|first| first.batch != row.batch) {
                compare_scope(&mut expected, &scope, report);
                scope.clear();
            }
            // One more than there can be is enough to see that they are too many.
            if scope.len() <= SCOPE_LEAVES_MAX {
                scope.push(row);
            }
        }
        if last.is_none() {
            break;
        }
    }
    compare_scope(&mut expected, &scope, report);
    for (id, created) in &expected {
        compare_root(*id, created, &Tree::new(Vec::new()), 0, report);
    }
    Ok(())
}

fn compare_scope(
    expected: &mut BTreeMap<BatchId, BatchCreated>,
    rows: &[LeafRow],
    report: &mut Report,
) {
    let Some(first) = rows.first() else {
        return;
    };
    let id = BatchId::from_uuid(first.batch);
    let Some(created) = expected.remove(&id) else {
        return report.compare(None, Some(first));
    };
    let hashes: Vec<Hash> = rows
        .iter()
        .map(|row| merkle::leaf_hash(&row.leaf))
        .collect();
    let tree = Tree::new(hashes.clone());
    if !compare_root(id, &created, &tree, rows.len(), report) {
        return;
    }
    for (index, (row, hash)) in rows.iter().zip(hashes).enumerate() {
        let path = tree.path(index).unwrap_or_default();
        let proved = Proved {
            leaf: row.leaf.clone(),
            hash,
            inclusion: Inclusion::new(index as u64, &path),
        };
        report.compare(Some(&LeafRow::of(id, proved)), Some(row));
    }
}

fn compare_root(
    id: BatchId,
    created: &BatchCreated,
    tree: &Tree,
    leaves: usize,
    report: &mut Report,
) -> bool {
    let shown = |leaves: u64, root: &[u8]| format!("{leaves} leaves, root {}", hex::encode(root));
    let expected = shown(created.leaf_count, &created.root);
    let found = shown(leaves as u64, &tree.root());
    if expected != found {
        report.add(
            LeafRow::TABLE,
            &id.to_string(),
            "(scope)",
            &expected,
            &found,
        );
    }
    expected == found
}
