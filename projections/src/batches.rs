//! Questions about batches.

use ledger_protocol::batch::{Batch, Inclusion, Leaf};
use ledger_protocol::canonical;
use ledger_protocol::id::{BatchId, CommandId, NodeId, TenantId};
use ledger_protocol::merkle::Hash;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;
use crate::rows::unsigned;

fn decode(id: Uuid, snapshot: &[u8]) -> Result<Batch, Error> {
    canonical::decode(snapshot).map_err(|source| Error::Row {
        table: "batches",
        column: "snapshot",
        key: BatchId::from_uuid(id).to_string(),
        source,
    })
}

fn decode_all(rows: Vec<(Uuid, Vec<u8>)>) -> Result<Vec<Batch>, Error> {
    rows.into_iter()
        .map(|(id, snapshot)| decode(id, &snapshot))
        .collect()
}

/// The batch with this id.
pub async fn get(conn: &mut PgConnection, id: BatchId) -> Result<Option<Batch>, Error> {
    let rows = sqlx::query_as("SELECT id, snapshot FROM batches WHERE id = $1")
        .bind(id.uuid())
        .fetch_all(conn)
        .await?;
    Ok(decode_all(rows)?.pop())
}

/// The batches with these ids that exist; nothing is asked when there are no ids.
pub async fn get_many(
    conn: &mut PgConnection,
    ids: impl IntoIterator<Item = BatchId>,
) -> Result<Vec<Batch>, Error> {
    let ids: Vec<Uuid> = ids.into_iter().map(BatchId::uuid).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query_as("SELECT id, snapshot FROM batches WHERE id = ANY($1)")
        .bind(ids)
        .fetch_all(conn)
        .await?;
    decode_all(rows)
}

/// The batches with these ids that exist, locked in order of id until the transaction ends.
pub async fn lock(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Batch>, Error> {
    let rows = sqlx::query_as(
        "SELECT id, snapshot FROM batches WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE",
    )
    .bind(ids)
    .fetch_all(conn)
    .await?;
    decode_all(rows)
}

/// First part of the advisory locks on the idempotency keys of batches.
const BATCH_KEYS: i32 = 0x434c_424b;

/// The batches that have these keys. Each key is locked until the transaction ends, so that nobody
/// takes one meanwhile that is free.
pub async fn lock_keys(conn: &mut PgConnection, keys: &[&str]) -> Result<Vec<Batch>, Error> {
    // In one order everywhere; a statement of its own, so that the next one sees what was
    // committed before the locks were got.
    sqlx::query(
        "SELECT pg_advisory_xact_lock($1, hash) FROM (
             SELECT DISTINCT hashtext(key) AS hash FROM unnest($2::text[]) AS key ORDER BY 1
         ) AS hashes",
    )
    .bind(BATCH_KEYS)
    .bind(keys)
    .execute(&mut *conn)
    .await?;
    let rows = sqlx::query_as("SELECT id, snapshot FROM batches WHERE key = ANY($1)")
        .bind(keys)
        .fetch_all(conn)
        .await?;
    decode_all(rows)
}

/// A page of a tenant's batches, newest first by id; those after `before`, the end of the page
/// before.
pub async fn list(
    conn: &mut PgConnection,
    tenant: TenantId,
    before: Option<BatchId>,
    limit: u32,
) -> Result<Vec<Batch>, Error> {
    let rows = sqlx::query_as(
        "SELECT id, snapshot FROM batches WHERE tenant = $1 AND id < $2 ORDER BY id DESC LIMIT $3",
    )
    .bind(tenant.uuid())
    .bind(before.map_or(Uuid::max(), BatchId::uuid))
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    decode_all(rows)
}

/// A page of a batch's scope, in its order, from a place on.
pub async fn leaves(
    conn: &mut PgConnection,
    batch: BatchId,
    from: u32,
    limit: u32,
) -> Result<Vec<Leaf>, Error> {
    let rows: Vec<(i32, Vec<u8>)> = sqlx::query_as(
        "SELECT place, leaf FROM batch_leaves WHERE batch = $1 AND place >= $2
         ORDER BY place LIMIT $3",
    )
    .bind(batch.uuid())
    .bind(i32::try_from(from).unwrap_or(i32::MAX))
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    let leaf = |(place, bytes): (i32, Vec<u8>)| {
        canonical::decode(&bytes).map_err(|source| Error::Row {
            table: "batch_leaves",
            column: "leaf",
            key: format!("{batch} {place}"),
            source,
        })
    };
    rows.into_iter().map(leaf).collect()
}

/// The proofs of those of these leaves, given by batch and hash, that their batch allows.
pub async fn inclusions(
    conn: &mut PgConnection,
    asked: &[(BatchId, Hash)],
) -> Result<Vec<(BatchId, Vec<u8>, Inclusion)>, Error> {
    let batches: Vec<Uuid> = asked.iter().map(|(batch, _)| batch.uuid()).collect();
    let hashes: Vec<&[u8]> = asked.iter().map(|(_, hash)| hash.as_slice()).collect();
    let rows: Vec<(Uuid, Vec<u8>, i32, Vec<u8>)> = sqlx::query_as(
        "SELECT batch, hash, place, path FROM batch_leaves
         WHERE (batch, hash) IN (SELECT * FROM unnest($1::uuid[], $2::bytea[]))",
    )
    .bind(batches)
    .bind(hashes)
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|(batch, hash, place, path)| {
            let index = unsigned(i64::from(place), "batch_leaves", "place", &batch)?;
            Ok((BatchId::from_uuid(batch), hash, Inclusion { index, path }))
        })
        .collect()
}

/// A command that its batch holds no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The batch.
    pub batch: BatchId,
    /// The command.
    pub command: CommandId,
    /// Its node.
    pub node: NodeId,
    /// Whose it is.
    pub tenant: TenantId,
}

/// Commands that are still held although their batch was approved, in order of batch and id, after
/// the one given; those of one batch, or of all.
pub async fn releasable(
    conn: &mut PgConnection,
    batch: Option<BatchId>,
    after: Option<Held>,
    limit: u32,
) -> Result<Vec<Held>, Error> {
    let rows: Vec<(Uuid, Uuid, Uuid, Uuid)> = sqlx::query_as(
        "SELECT c.held_by, c.id, c.node, b.tenant
         FROM commands_live AS c JOIN batches AS b ON b.id = c.held_by AND b.approved
         WHERE c.held_by IS NOT NULL AND ($1::uuid IS NULL OR c.held_by = $1)
           AND (c.held_by, c.id) > ($2, $3)
         ORDER BY c.held_by, c.id LIMIT $4",
    )
    .bind(batch.map(BatchId::uuid))
    .bind(after.map_or(Uuid::nil(), |held| held.batch.uuid()))
    .bind(after.map_or(Uuid::nil(), |held| held.command.uuid()))
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    let held = |(batch, command, node, tenant)| Held {
        batch: BatchId::from_uuid(batch),
        command: CommandId::from_uuid(command),
        node: NodeId::from_uuid(node),
        tenant: TenantId::from_uuid(tenant),
    };
    Ok(rows.into_iter().map(held).collect())
}
