//! What has left the database, and what may leave it (SPEC section 10). Everything but the first
//! questions is for the schema's owner: the service's role has no right to it.

use ledger_protocol::canonical;
use ledger_protocol::command::Command;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::Error;
use crate::rows::{bigint, unsigned};

/// The last position that is in an archive and no longer in the log's table; 0 when all are there.
pub async fn archived_through(conn: &mut PgConnection) -> Result<u64, Error> {
    let through = "SELECT through FROM archivings ORDER BY through DESC LIMIT 1";
    let through: Option<i64> = sqlx::query_scalar(through).fetch_optional(conn).await?;
    unsigned(through.unwrap_or(0), "archivings", "through", &"last")
}

/// The last positions of the ranges that are in an archive alone, in order.
pub async fn archived_ranges(conn: &mut PgConnection) -> Result<Vec<u64>, Error> {
    let through = "SELECT through FROM archivings ORDER BY through";
    let through: Vec<i64> = sqlx::query_scalar(through).fetch_all(conn).await?;
    let numbers = through.into_iter();
    let number = |through| unsigned(through, "archivings", "through", &through);
    numbers.map(number).collect()
}

/// Commands that ended before this time, in microseconds since the epoch, may have left the read
/// tables.
pub async fn forgotten_before(conn: &mut PgConnection) -> Result<Option<i64>, Error> {
    let before = "SELECT ended_before FROM forgettings ORDER BY ended_before DESC LIMIT 1";
    Ok(sqlx::query_scalar(before).fetch_optional(conn).await?)
}

/// A partition of the log's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Name of its table.
    pub name: String,
    /// The first position that it may have.
    pub first: u64,
    /// The last one.
    pub last: u64,
}

/// The partitions of the log's table, in the order of their positions.
pub async fn partitions(conn: &mut PgConnection) -> Result<Vec<Partition>, Error> {
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(
        r"SELECT name, range[1]::bigint, range[2]::bigint - 1 FROM (
              SELECT part.relname::text AS name,
                     regexp_match(pg_get_expr(part.relpartbound, part.oid),
                                  'FROM \(''?(\d+)''?\) TO \(''?(\d+)''?\)') AS range
              FROM pg_inherits JOIN pg_class AS part ON part.oid = inhrelid
              WHERE inhparent = 'events'::regclass) AS parts
          WHERE range IS NOT NULL ORDER BY range[1]::bigint",
    )
    .fetch_all(conn)
    .await?;
    let partition = |(name, first, last): (String, i64, i64)| {
        Ok(Partition {
            first: unsigned(first, "events", "position", &name)?,
            last: unsigned(last, "events", "position", &name)?,
            name,
        })
    };
    rows.into_iter().map(partition).collect()
}

/// A command that has not ended, and has events between these positions.
pub async fn live_within(
    conn: &mut PgConnection,
    (first, last): (u64, u64),
) -> Result<Option<Uuid>, Error> {
    let live = sqlx::query_scalar(
        "SELECT id FROM commands_live WHERE EXISTS (
             SELECT FROM events WHERE shard = 0 AND stream = commands_live.id
                                  AND position BETWEEN $1 AND $2)
         ORDER BY id LIMIT 1",
    );
    let live = live.bind(bigint(first)).bind(bigint(last));
    Ok(live.fetch_optional(conn).await?)
}

/// Drops a partition, and notes that its events are in an archive alone, at once. `archive` and
/// `checkpoint` say where, and what that was held against.
pub async fn drop_partition(
    conn: &mut PgConnection,
    partition: &Partition,
    archive: &str,
    checkpoint: &str,
) -> Result<(), Error> {
    sqlx::query("INSERT INTO archivings (through, archive, checkpoint) VALUES ($1, $2, $3)")
        .bind(bigint(partition.last))
        .bind(archive)
        .bind(checkpoint)
        .execute(&mut *conn)
        .await?;
    let statement = sqlx::query_scalar("SELECT format('DROP TABLE %I', $1)");
    let statement: String = statement
        .bind(&partition.name)
        .fetch_one(&mut *conn)
        .await?;
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(conn)
        .await?;
    Ok(())
}

/// Up to where the log was published; nothing where it never was.
pub async fn published_through(conn: &mut PgConnection) -> Result<Option<u64>, Error> {
    let told = "SELECT position FROM publications WHERE name = 'LEDGER'";
    let through: Option<i64> = sqlx::query_scalar(told).fetch_optional(conn).await?;
    let number = |through| unsigned(through, "publications", "position", &"first");
    through.map(number).transpose()
}

/// Notes that commands which ended before this time may be missing from now on.
pub async fn note_forgetting(conn: &mut PgConnection, before: i64) -> Result<(), Error> {
    sqlx::query("INSERT INTO forgettings (ended_before) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(before)
        .execute(conn)
        .await?;
    Ok(())
}

/// Commands that have ended, after an id in the order of their ids, at most `limit`. A node's newest
/// command is not among them: its `seq` is the node's.
pub async fn ended(
    conn: &mut PgConnection,
    after: Uuid,
    limit: u32,
) -> Result<Vec<Command>, Error> {
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "SELECT id, snapshot FROM commands_settled AS old
         WHERE id > $1
           AND (EXISTS (SELECT FROM commands_settled WHERE node = old.node AND seq > old.seq)
                OR EXISTS (SELECT FROM commands_live WHERE node = old.node AND seq > old.seq))
         ORDER BY id LIMIT $2",
    )
    .bind(after)
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    let command = |(id, snapshot): (Uuid, Vec<u8>)| {
        canonical::decode(&snapshot).map_err(|source| Error::Row {
            table: "commands_settled",
            column: "snapshot",
            key: id.to_string(),
            source,
        })
    };
    rows.into_iter().map(command).collect()
}

/// Takes these commands out of the read tables, with their keys. The log has them still.
pub async fn forget(conn: &mut PgConnection, commands: &[&Command]) -> Result<(), Error> {
    let ids: Vec<Uuid> = commands.iter().map(|command| command.id.uuid()).collect();
    let nodes: Vec<Uuid> = commands
        .iter()
        .map(|command| command.queued.node_id.uuid())
        .collect();
    let keys: Vec<&str> = commands
        .iter()
        .map(|command| command.queued.idempotency_key.as_str())
        .collect();
    sqlx::query(
        "DELETE FROM command_keys USING unnest($1::uuid[], $2::text[]) AS old (node, key)
         WHERE command_keys.node = old.node AND command_keys.key = old.key",
    )
    .bind(nodes)
    .bind(keys)
    .execute(&mut *conn)
    .await?;
    sqlx::query("DELETE FROM commands_settled WHERE id = ANY($1)")
        .bind(ids)
        .execute(conn)
        .await?;
    Ok(())
}
