//! Questions about nodes.

use ledger_protocol::event::NodeSpecSet;
use ledger_protocol::id::{NodeId, TenantId};
use ledger_protocol::node::Node;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;
use crate::rows::{NodeRow, unsigned};

/// The node with this id.
pub async fn get(conn: &mut PgConnection, id: NodeId) -> Result<Option<Node>, Error> {
    let row: Option<NodeRow> = sqlx::query_as(
        "SELECT id, tenant, deleted, seq, applied_generation, allowed_kinds, snapshot
         FROM nodes WHERE id = $1",
    )
    .bind(id.uuid())
    .fetch_optional(conn)
    .await?;
    row.map(NodeRow::node).transpose()
}

/// The nodes with these ids that exist, locked in order of id until the transaction ends. Every
/// append holds these locks while it decides, on the nodes and on all their commands.
pub async fn lock(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Node>, Error> {
    let rows: Vec<NodeRow> = sqlx::query_as(
        "SELECT id, tenant, deleted, seq, applied_generation, allowed_kinds, snapshot
         FROM nodes WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE",
    )
    .bind(ids)
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(NodeRow::node).collect()
}

/// A page of a tenant's nodes, by id.
pub async fn list(
    conn: &mut PgConnection,
    tenant: TenantId,
    after: Option<NodeId>,
    limit: u32,
    include_deleted: bool,
) -> Result<Vec<Node>, Error> {
    let rows: Vec<NodeRow> = sqlx::query_as(
        "SELECT id, tenant, deleted, seq, applied_generation, allowed_kinds, snapshot
         FROM nodes
         WHERE tenant = $1 AND id > $2 AND ($3 OR NOT deleted) ORDER BY id LIMIT $4",
    )
    .bind(tenant.uuid())
    .bind(after.map_or(Uuid::nil(), NodeId::uuid))
    .bind(include_deleted)
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(NodeRow::node).collect()
}

/// The node's newest desired state.
pub async fn spec(conn: &mut PgConnection, id: NodeId) -> Result<Option<NodeSpecSet>, Error> {
    let row: Option<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT generation, spec FROM node_specs WHERE node = $1")
            .bind(id.uuid())
            .fetch_optional(conn)
            .await?;
    let Some((generation, spec)) = row else {
        return Ok(None);
    };
    let generation = unsigned(generation, "node_specs", "generation", &id)?;
    Ok(Some(NodeSpecSet { generation, spec }))
}
