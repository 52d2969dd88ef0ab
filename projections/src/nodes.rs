//! Questions about nodes.

use std::collections::HashMap;

use ledger_protocol::canonical;
use ledger_protocol::event::{NodeSpecSet, Outcome};
use ledger_protocol::id::{NodeId, TenantId};
use ledger_protocol::node::Node;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;
use crate::rows::{NodeRow, unsigned};

/// A node's row, and the `seq` of its newest command.
#[derive(sqlx::FromRow)]
struct Numbered {
    #[sqlx(flatten)]
    row: NodeRow,
    newest_seq: i64,
}

impl Numbered {
    fn node(self) -> Result<Node, Error> {
        let newest = unsigned(self.newest_seq, "commands_live", "seq", &self.row.id)?;
        let mut node = self.row.node()?;
        node.seq = node.seq.max(newest);
        Ok(node)
    }
}

/// The node with this id.
pub async fn get(conn: &mut PgConnection, id: NodeId) -> Result<Option<Node>, Error> {
    let row: Option<Numbered> = sqlx::query_as(
        "SELECT id, tenant, deleted, applied_generation, allowed_kinds, gateway_lease, snapshot,
             greatest(settled.seq, (SELECT max(seq) FROM commands_live
                 WHERE node = nodes.id AND seq > settled.seq)) AS newest_seq
         FROM nodes CROSS JOIN LATERAL (SELECT coalesce(max(seq), 0) AS seq
             FROM commands_settled WHERE node = nodes.id) AS settled
         WHERE id = $1",
    )
    .bind(id.uuid())
    .fetch_optional(conn)
    .await?;
    row.map(Numbered::node).transpose()
}

/// The nodes with these ids that exist, locked in order of id until the transaction ends. Every
/// append holds these locks while it decides, on the nodes and on all their commands.
///
/// Their `seq` is not that of their newest command yet: whoever waited for a lock would see that of
/// before the wait. [`newest_seqs`] and [`crate::commands::before_enqueue`] say it.
pub async fn lock(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Node>, Error> {
    let rows: Vec<NodeRow> = sqlx::query_as(
        "SELECT id, tenant, deleted, applied_generation, allowed_kinds, gateway_lease, snapshot
         FROM nodes WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE",
    )
    .bind(ids)
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(NodeRow::node).collect()
}

/// The `seq` of the newest command of each of these nodes; 0 for none.
pub async fn newest_seqs(
    conn: &mut PgConnection,
    ids: &[Uuid],
) -> Result<Vec<(NodeId, u64)>, Error> {
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(
        "SELECT asked.node,
             greatest(settled.seq, (SELECT max(seq) FROM commands_live
                 WHERE node = asked.node AND seq > settled.seq))
         FROM unnest($1::uuid[]) AS asked (node)
         CROSS JOIN LATERAL (SELECT coalesce(max(seq), 0) AS seq
             FROM commands_settled WHERE node = asked.node) AS settled",
    )
    .bind(ids)
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|(node, seq)| {
            let seq = unsigned(seq, "commands_live", "seq", &node)?;
            Ok((NodeId::from_uuid(node), seq))
        })
        .collect()
}

/// The highest `seq` of each of these nodes that surely ended by the node's own word: the two ends
/// that nobody else can give. One look at an index for each.
pub async fn answered_seqs(
    conn: &mut PgConnection,
    ids: &[Uuid],
) -> Result<HashMap<NodeId, u64>, Error> {
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(
        "SELECT asked.node, greatest(
             coalesce((SELECT max(seq) FROM commands_settled
                 WHERE node = asked.node AND state = $2), 0),
             coalesce((SELECT max(seq) FROM commands_settled
                 WHERE node = asked.node AND state = $3), 0))
         FROM unnest($1::uuid[]) AS asked (node)",
    )
    .bind(ids)
    .bind(Outcome::Succeeded.as_str())
    .bind(Outcome::Rejected.as_str())
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|(node, seq)| {
            let seq = unsigned(seq, "commands_settled", "seq", &node)?;
            Ok((NodeId::from_uuid(node), seq))
        })
        .collect()
}

/// A page of a tenant's nodes, by id. Their `seq` is left out: a page shows none.
pub async fn list(
    conn: &mut PgConnection,
    tenant: TenantId,
    after: Option<NodeId>,
    limit: u32,
    include_deleted: bool,
) -> Result<Vec<Node>, Error> {
    let rows: Vec<NodeRow> = sqlx::query_as(
        "SELECT id, tenant, deleted, applied_generation, allowed_kinds, gateway_lease, snapshot
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

/// One of these nodes that the tenant does not have, or has no more; none when it has them all.
pub async fn not_in_tenant(
    conn: &mut PgConnection,
    tenant: TenantId,
    nodes: &[NodeId],
) -> Result<Option<NodeId>, Error> {
    let ids: Vec<Uuid> = nodes.iter().map(|node| node.uuid()).collect();
    let missing: Option<Uuid> = sqlx::query_scalar(
        "SELECT * FROM unnest($1::uuid[])
         EXCEPT SELECT id FROM nodes WHERE id = ANY($1) AND tenant = $2 AND NOT deleted
         ORDER BY 1 LIMIT 1",
    )
    .bind(ids)
    .bind(tenant.uuid())
    .fetch_optional(conn)
    .await?;
    Ok(missing.map(NodeId::from_uuid))
}

/// The node's newest desired state.
pub async fn spec(conn: &mut PgConnection, id: NodeId) -> Result<Option<NodeSpecSet>, Error> {
    let row: Option<(i64, Vec<u8>, Option<Vec<u8>>)> =
        sqlx::query_as("SELECT generation, spec, signed FROM node_specs WHERE node = $1")
            .bind(id.uuid())
            .fetch_optional(conn)
            .await?;
    let Some((generation, spec, signed)) = row else {
        return Ok(None);
    };
    let signed = signed.map(|bytes| canonical::decode(&bytes)).transpose();
    let signed = signed.map_err(|source| Error::Row {
        table: "node_specs",
        column: "signed",
        key: id.to_string(),
        source,
    })?;
    let generation = unsigned(generation, "node_specs", "generation", &id)?;
    Ok(Some(NodeSpecSet {
        generation,
        signed,
        spec,
    }))
}
