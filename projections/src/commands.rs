//! Questions about commands.

use ledger_protocol::canonical;
use ledger_protocol::command::{Command, StateName};
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::kind::Lane;
use ledger_protocol::limits::lane_credits;
use ledger_protocol::time::Timestamp;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;
use crate::rows::bigint;

/// A page of a node's commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// The node.
    pub node: NodeId,
    /// Only commands in this state.
    pub state: Option<StateName>,
    /// Most commands of the page.
    pub limit: u32,
    /// Only commands with a lower `seq`: the end of the page before.
    pub before_seq: Option<u64>,
}

pub(crate) fn decode(table: &'static str, id: Uuid, snapshot: &[u8]) -> Result<Command, Error> {
    canonical::decode(snapshot).map_err(|source| Error::Row {
        table,
        column: "snapshot",
        key: CommandId::from_uuid(id).to_string(),
        source,
    })
}

fn decode_all(table: &'static str, rows: Vec<(Uuid, Vec<u8>)>) -> Result<Vec<Command>, Error> {
    rows.into_iter()
        .map(|(id, snapshot)| decode(table, id, &snapshot))
        .collect()
}

/// The command with this id.
pub async fn get(conn: &mut PgConnection, id: CommandId) -> Result<Option<Command>, Error> {
    Ok(get_many(conn, &[id.uuid()]).await?.pop())
}

/// The commands with these ids that exist, in no order.
pub async fn get_many(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Command>, Error> {
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "SELECT id, snapshot FROM commands_live WHERE id = ANY($1)
         UNION ALL
         SELECT id, snapshot FROM commands_settled WHERE id = ANY($1)",
    )
    .bind(ids)
    .fetch_all(conn)
    .await?;
    decode_all("commands", rows)
}

/// A page of a node's commands, newest first by `seq`. A page costs the same wherever it lies
/// (SPEC A4): both tables are entered at the key.
pub async fn list(conn: &mut PgConnection, list: &List) -> Result<Vec<Command>, Error> {
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "SELECT id, snapshot FROM (
           (SELECT id, seq, snapshot FROM commands_live
            WHERE node = $1 AND seq < $2 AND ($3::text IS NULL OR state = $3)
            ORDER BY seq DESC LIMIT $4)
           UNION ALL
           (SELECT id, seq, snapshot FROM commands_settled
            WHERE $3::text IS NULL AND node = $1 AND seq < $2 ORDER BY seq DESC LIMIT $4)
           UNION ALL
           (SELECT id, seq, snapshot FROM commands_settled
            WHERE node = $1 AND state = $3 AND seq < $2 ORDER BY seq DESC LIMIT $4)
         ) AS page ORDER BY seq DESC LIMIT $4",
    )
    .bind(list.node.uuid())
    .bind(list.before_seq.map_or(i64::MAX, bigint))
    .bind(list.state.map(StateName::as_str))
    .bind(i64::from(list.limit))
    .fetch_all(conn)
    .await?;
    decode_all("commands", rows)
}

/// A node's commands that are with it, in `seq` order.
pub async fn in_flight(conn: &mut PgConnection, node: NodeId) -> Result<Vec<Command>, Error> {
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "SELECT id, snapshot FROM commands_live WHERE node = $1 AND in_flight ORDER BY seq",
    )
    .bind(node.uuid())
    .fetch_all(conn)
    .await?;
    decode_all("commands_live", rows)
}

/// Every command of these nodes that has not ended, in `seq` order per node.
pub async fn live_of(conn: &mut PgConnection, nodes: &[Uuid]) -> Result<Vec<Command>, Error> {
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "SELECT id, snapshot FROM commands_live WHERE node = ANY($1) ORDER BY node, seq",
    )
    .bind(nodes)
    .fetch_all(conn)
    .await?;
    decode_all("commands_live", rows)
}

/// What may go out now to these nodes: pending and due, in `seq` order per node, within each
/// lane's credits less what is in flight there (SPEC D3, K3). Held commands, those that back
/// off, and those that their node cannot take yet are passed over.
///
/// Each node is looked up by itself (`LIMIT` keeps Postgres from joining), because a join may read
/// every node that there is, connected or not.
pub async fn due(
    conn: &mut PgConnection,
    nodes: &[NodeId],
    now: Timestamp,
) -> Result<Vec<Command>, Error> {
    let nodes: Vec<Uuid> = nodes.iter().map(|node| node.uuid()).collect();
    let lanes: Vec<&str> = Lane::ALL.iter().map(|lane| lane.as_str()).collect();
    let credits: Vec<i64> = Lane::ALL
        .iter()
        .map(|lane| lane_credits(*lane).into())
        .collect();
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "SELECT due.id, due.snapshot
         FROM unnest($1::uuid[]) AS asked (node)
         CROSS JOIN LATERAL (
             SELECT applied_generation, allowed_kinds FROM nodes
             WHERE id = asked.node AND NOT deleted LIMIT 1
         ) AS nodes
         CROSS JOIN unnest($2::text[], $3::bigint[]) AS lanes (lane, credits)
         CROSS JOIN LATERAL (
             SELECT id, seq, snapshot FROM commands_live AS c
             WHERE c.node = asked.node AND c.lane = lanes.lane AND NOT c.in_flight
               AND c.due_at <= $4 AND c.not_after >= $4
               AND c.min_generation <= nodes.applied_generation
               AND (nodes.allowed_kinds IS NULL OR c.kind = ANY (nodes.allowed_kinds))
             ORDER BY c.seq
             LIMIT greatest(0, lanes.credits - (
                 SELECT count(*) FROM commands_live AS f
                 WHERE f.node = asked.node AND f.lane = lanes.lane AND f.in_flight))
         ) AS due
         ORDER BY asked.node, due.seq",
    )
    .bind(nodes)
    .bind(lanes)
    .bind(credits)
    .bind(now.as_micros())
    .fetch_all(conn)
    .await?;
    decode_all("commands_live", rows)
}

/// What an enqueue asks for: a node, a key that must be free there, the lane that it will wait in.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The node.
    pub node: NodeId,
    /// The idempotency key.
    pub key: &'a str,
    /// The lane.
    pub lane: Lane,
}

/// What stands in the way of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct Found {
    /// The command that has the key.
    pub command: Option<Uuid>,
    /// `seq` of the node's newest command; 0 for none.
    pub newest_seq: i64,
    /// Lowest `seq` that waits in the lane: with it, "at most so many wait" is known without
    /// counting them.
    pub oldest_pending_seq: Option<i64>,
}

/// What stands in the way of each of these, in their order. Asked after the nodes were locked.
///
/// The newest live `seq` is looked for above the newest settled one, because below it lie the
/// remains of deleted rows, which stay for as long as anybody's transaction is open. Each is looked
/// up by itself, as in [`due`].
pub async fn before_enqueue(
    conn: &mut PgConnection,
    asked: &[Asked<'_>],
) -> Result<Vec<Found>, Error> {
    let nodes: Vec<Uuid> = asked.iter().map(|asked| asked.node.uuid()).collect();
    let keys: Vec<&str> = asked.iter().map(|asked| asked.key).collect();
    let lanes: Vec<&str> = asked.iter().map(|asked| asked.lane.as_str()).collect();
    let rows = sqlx::query_as(
        "SELECT k.command, oldest.seq AS oldest_pending_seq,
             greatest(settled.seq, (SELECT max(seq) FROM commands_live
                 WHERE node = asked.node AND seq > settled.seq)) AS newest_seq
         FROM unnest($1::uuid[], $2::text[], $3::text[])
             WITH ORDINALITY AS asked (node, key, lane, place)
         LEFT JOIN LATERAL (SELECT command FROM command_keys
             WHERE node = asked.node AND key = asked.key LIMIT 1) AS k ON true
         CROSS JOIN LATERAL (SELECT coalesce(max(seq), 0) AS seq
             FROM commands_settled WHERE node = asked.node) AS settled
         LEFT JOIN LATERAL (
             SELECT seq FROM commands_live AS c
             WHERE c.node = asked.node AND c.lane = asked.lane AND NOT c.in_flight
             ORDER BY seq LIMIT 1) AS oldest ON true
         ORDER BY asked.place",
    )
    .bind(nodes)
    .bind(keys)
    .bind(lanes)
    .fetch_all(conn)
    .await?;
    Ok(rows)
}

/// How many commands wait in each of these lanes of nodes; lanes in which none waits are left out.
pub async fn count_pending(
    conn: &mut PgConnection,
    nodes: &[Uuid],
    lanes: &[&str],
) -> Result<Vec<(Uuid, String, i64)>, Error> {
    let rows = sqlx::query_as(
        "SELECT asked.node, asked.lane, pending.count
         FROM unnest($1::uuid[], $2::text[]) AS asked (node, lane)
         CROSS JOIN LATERAL (SELECT count(*) FROM commands_live AS c
             WHERE c.node = asked.node AND c.lane = asked.lane AND NOT c.in_flight) AS pending
         WHERE pending.count > 0",
    )
    .bind(nodes)
    .bind(lanes)
    .fetch_all(conn)
    .await?;
    Ok(rows)
}
