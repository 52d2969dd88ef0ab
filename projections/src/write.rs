//! Writing the read tables. Called by the append alone, inside its transaction.

use ledger_protocol::event::NodeSpecSet;
use ledger_protocol::id::{CommandId, NodeId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;
use crate::rows::{
    BatchRow, CommandRow, LeafRow, LiveRow, NodeRow, SettledRow, bigint, signed_column,
};

/// What one append changes, each row once.
#[derive(Debug, Default)]
pub struct Changes {
    /// Nodes that are new.
    pub nodes_new: Vec<NodeRow>,
    /// Nodes of which more than `seq` changed.
    pub nodes_changed: Vec<NodeRow>,
    /// Desired states that were set.
    pub specs: Vec<(NodeId, NodeSpecSet)>,
    /// Keys that were taken: node, key, command.
    pub keys: Vec<(NodeId, String, CommandId)>,
    /// Commands that are new and have not ended.
    pub live_new: Vec<LiveRow>,
    /// Commands that changed and have not ended.
    pub live_changed: Vec<LiveRow>,
    /// Commands that ended and had a live row.
    pub live_ended: Vec<CommandId>,
    /// Commands that ended.
    pub settled_new: Vec<SettledRow>,
    /// Ended commands that changed.
    pub settled_changed: Vec<SettledRow>,
    /// Batches that are new.
    pub batches_new: Vec<BatchRow>,
    /// Batches that changed.
    pub batches_changed: Vec<BatchRow>,
    /// Leaves of new batches.
    pub leaves: Vec<LeafRow>,
}

impl Changes {
    /// Puts a command's new row where it belongs. `before` tells where its row was.
    pub fn command(&mut self, before: Before, row: CommandRow, id: CommandId) {
        match (before, row) {
            // The fold never undoes an end, so a settled row does not become a live one.
            (Before::None | Before::Settled, CommandRow::Live(row)) => self.live_new.push(row),
            (Before::Live, CommandRow::Live(row)) => self.live_changed.push(row),
            (Before::None, CommandRow::Settled(row)) => self.settled_new.push(row),
            (Before::Live, CommandRow::Settled(row)) => {
                self.live_ended.push(id);
                self.settled_new.push(row);
            }
            (Before::Settled, CommandRow::Settled(row)) => self.settled_changed.push(row),
        }
    }

    /// Writes everything. What every command does, being queued and moving on, takes one
    /// statement each, because an append waits for the database with its nodes locked.
    pub async fn write(self, conn: &mut PgConnection) -> Result<(), Error> {
        insert_nodes(conn, self.nodes_new).await?;
        update_nodes(conn, self.nodes_changed).await?;
        upsert_specs(conn, self.specs).await?;
        queue(conn, self.keys, self.live_new).await?;
        advance(conn, self.live_changed, self.live_ended, self.settled_new).await?;
        update_settled(conn, self.settled_changed).await?;
        insert_batches(conn, self.batches_new).await?;
        insert_leaves(conn, self.leaves).await?;
        update_batches(conn, self.batches_changed).await
    }
}

/// Where a command's row was before the append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Nowhere: it is new.
    None,
    /// In `commands_live`.
    Live,
    /// In `commands_settled`.
    Settled,
}

/// Columns of rows, as the parallel arrays that `unnest` takes.
macro_rules! columns {
    ($query:expr, $rows:expr, $($field:ident),+) => {{
        let (query, rows) = ($query, $rows);
        $(let query = query.bind(rows.iter().map(|row| row.$field.clone()).collect::<Vec<_>>());)+
        query
    }};
}

async fn insert_nodes(conn: &mut PgConnection, rows: Vec<NodeRow>) -> Result<(), Error> {
    // Registration is rare, and an array of arrays would need all of one length.
    for row in rows {
        sqlx::query(
            "INSERT INTO nodes
                 (id, tenant, deleted, applied_generation, allowed_kinds, gateway_lease, snapshot)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(row.id)
        .bind(row.tenant)
        .bind(row.deleted)
        .bind(row.applied_generation)
        .bind(row.allowed_kinds)
        .bind(row.gateway_lease)
        .bind(row.snapshot)
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

async fn update_nodes(conn: &mut PgConnection, rows: Vec<NodeRow>) -> Result<(), Error> {
    for row in rows {
        sqlx::query(
            "UPDATE nodes SET deleted = $2, applied_generation = $3,
                 allowed_kinds = $4, gateway_lease = $5, snapshot = $6
             WHERE id = $1",
        )
        .bind(row.id)
        .bind(row.deleted)
        .bind(row.applied_generation)
        .bind(row.allowed_kinds)
        .bind(row.gateway_lease)
        .bind(row.snapshot)
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

async fn upsert_specs(
    conn: &mut PgConnection,
    rows: Vec<(NodeId, NodeSpecSet)>,
) -> Result<(), Error> {
    for (node, set) in rows {
        let signed = signed_column(&set)?;
        sqlx::query(
            "INSERT INTO node_specs (node, generation, spec, signed) VALUES ($1, $2, $3, $4)
             ON CONFLICT (node) DO UPDATE SET generation = excluded.generation,
                 spec = excluded.spec, signed = excluded.signed",
        )
        .bind(node.uuid())
        .bind(bigint(set.generation))
        .bind(set.spec)
        .bind(signed)
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

/// New commands: the keys, the live rows.
async fn queue(
    conn: &mut PgConnection,
    keys: Vec<(NodeId, String, CommandId)>,
    live: Vec<LiveRow>,
) -> Result<(), Error> {
    if keys.is_empty() && live.is_empty() {
        return Ok(());
    }
    let mut key_nodes = Vec::with_capacity(keys.len());
    let mut key_texts = Vec::with_capacity(keys.len());
    let mut key_commands = Vec::with_capacity(keys.len());
    for (node, key, command) in keys {
        key_nodes.push(node.uuid());
        key_texts.push(key);
        key_commands.push(command.uuid());
    }
    let query = columns!(
        sqlx::query(
            "WITH keyed AS (
             INSERT INTO command_keys (node, key, command)
             SELECT * FROM unnest($13::uuid[], $14::text[], $15::uuid[])
         )
         INSERT INTO commands_live
             (id, node, seq, lane, kind, state, in_flight, due_at, not_after, min_generation,
              held_by, snapshot)
         SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::text[],
             $6::text[], $7::boolean[], $8::bigint[], $9::bigint[], $10::bigint[], $11::uuid[],
             $12::bytea[])"
        ),
        &live,
        id,
        node,
        seq,
        lane,
        kind,
        state,
        in_flight,
        due_at,
        not_after,
        min_generation,
        held_by,
        snapshot
    );
    query
        .bind(key_nodes)
        .bind(key_texts)
        .bind(key_commands)
        .execute(conn)
        .await?;
    Ok(())
}

/// Commands that move on: live rows that change, live rows that end, settled rows.
///
/// The rows to be changed are named once more by `ANY`, so that whatever join Postgres chooses
/// reads these and not the whole table.
async fn advance(
    conn: &mut PgConnection,
    changed: Vec<LiveRow>,
    ended: Vec<CommandId>,
    settled: Vec<SettledRow>,
) -> Result<(), Error> {
    if changed.is_empty() && ended.is_empty() && settled.is_empty() {
        return Ok(());
    }
    let ended: Vec<Uuid> = ended.into_iter().map(CommandId::uuid).collect();
    let query = columns!(
        sqlx::query(
            "WITH changed AS (
             UPDATE commands_live AS c
             SET state = new.state, in_flight = new.in_flight, due_at = new.due_at,
                 held_by = new.held_by, snapshot = new.snapshot
             FROM unnest($1::uuid[], $2::text[], $3::boolean[], $4::bigint[], $5::uuid[],
                     $6::bytea[])
                 AS new (id, state, in_flight, due_at, held_by, snapshot)
             WHERE c.id = new.id AND c.id = ANY($1)
         ), ended AS (
             DELETE FROM commands_live WHERE id = ANY($7)
         )
         INSERT INTO commands_settled (id, node, seq, state, snapshot)
         SELECT * FROM unnest($8::uuid[], $9::uuid[], $10::bigint[], $11::text[], $12::bytea[])"
        ),
        &changed,
        id,
        state,
        in_flight,
        due_at,
        held_by,
        snapshot
    );
    let query = query.bind(ended);
    columns!(query, &settled, id, node, seq, state, snapshot)
        .execute(conn)
        .await?;
    Ok(())
}

async fn update_settled(conn: &mut PgConnection, rows: Vec<SettledRow>) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    columns!(
        sqlx::query(
            "UPDATE commands_settled AS c SET snapshot = new.snapshot
         FROM unnest($1::uuid[], $2::bytea[]) AS new (id, snapshot)
         WHERE c.id = new.id AND c.id = ANY($1)"
        ),
        &rows,
        id,
        snapshot
    )
    .execute(conn)
    .await?;
    Ok(())
}

async fn insert_batches(conn: &mut PgConnection, rows: Vec<BatchRow>) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    columns!(
        sqlx::query(
            "INSERT INTO batches (id, tenant, key, approved, snapshot)
             SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::boolean[], $5::bytea[])"
        ),
        &rows,
        id,
        tenant,
        key,
        approved,
        snapshot
    )
    .execute(conn)
    .await?;
    Ok(())
}

async fn insert_leaves(conn: &mut PgConnection, rows: Vec<LeafRow>) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    columns!(
        sqlx::query(
            "INSERT INTO batch_leaves (batch, place, hash, leaf, path)
             SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bytea[], $4::bytea[], $5::bytea[])"
        ),
        &rows,
        batch,
        place,
        hash,
        leaf,
        path
    )
    .execute(conn)
    .await?;
    Ok(())
}

async fn update_batches(conn: &mut PgConnection, rows: Vec<BatchRow>) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    columns!(
        sqlx::query(
            "UPDATE batches AS b SET approved = new.approved, snapshot = new.snapshot
             FROM unnest($1::uuid[], $2::boolean[], $3::bytea[]) AS new (id, approved, snapshot)
             WHERE b.id = new.id AND b.id = ANY($1)"
        ),
        &rows,
        id,
        approved,
        snapshot
    )
    .execute(conn)
    .await?;
    Ok(())
}
