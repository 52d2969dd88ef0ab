//! Reports that the ledger did not take (SPEC P2, L11), for people to see.
//!
//! They are no fold of events: what was refused changes nothing. A node's newest few are kept, and
//! one that comes again is counted, so that a daemon that repeats itself, or a gateway that forges,
//! fills no table and pushes nobody else's out.

use ledger_protocol::event::Actor;
use ledger_protocol::frame::UpdateState;
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::time::Timestamp;
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use crate::Error;

/// How many different ones are kept of one node.
pub const KEPT_PER_NODE_MAX: i64 = 20;

/// A report that was refused just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The command that it named.
    pub command: CommandId,
    /// What it said.
    pub state: UpdateState,
    /// Why it was refused, for machines.
    pub code: &'static str,
    /// Why, for people.
    pub problem: String,
}

/// A kind of refused report, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedReport {
    /// The command that it named.
    pub command: CommandId,
    /// What it said.
    pub state: String,
    /// Why it was refused, for machines.
    pub code: String,
    /// Who brought the newest one.
    pub gateway: String,
    /// Why the newest one was refused, for people.
    pub problem: String,
    /// How often it came.
    pub reports: u64,
    /// When it came first.
    pub first_at: Timestamp,
    /// When it came last.
    pub last_at: Timestamp,
}

/// Keeps reports of one node that were refused, and lets its oldest go.
pub async fn record(
    conn: &mut PgConnection,
    node: NodeId,
    gateway: &Actor,
    refused: &[Refused],
    now: Timestamp,
) -> Result<(), Error> {
    let commands: Vec<Uuid> = refused.iter().map(|one| one.command.uuid()).collect();
    let states: Vec<&str> = refused.iter().map(|one| one.state.as_str()).collect();
    let codes: Vec<&str> = refused.iter().map(|one| one.code).collect();
    let problems: Vec<&str> = refused.iter().map(|one| one.problem.as_str()).collect();
    // In one order, so that two sessions of a node do not wait for each other.
    sqlx::query(
        "INSERT INTO refused_reports AS kept
             (node, command, state, code, gateway, problem, reports, first_at, last_at)
         SELECT $1, command, state, code, $2, max(problem), count(*),
                'epoch'::timestamptz + $3 * interval '1 microsecond',
                'epoch'::timestamptz + $3 * interval '1 microsecond'
         FROM unnest($4::uuid[], $5::text[], $6::text[], $7::text[])
              AS given (command, state, code, problem)
         GROUP BY command, state, code ORDER BY command, state, code
         ON CONFLICT (node, command, state, code) DO UPDATE
         SET gateway = excluded.gateway, problem = excluded.problem,
             reports = kept.reports + excluded.reports,
             last_at = greatest(kept.last_at, excluded.last_at)",
    )
    .bind(node.uuid())
    .bind(gateway.as_str())
    .bind(now.as_micros())
    .bind(commands)
    .bind(states)
    .bind(codes)
    .bind(problems)
    .execute(&mut *conn)
    .await?;
    sqlx::query(
        "DELETE FROM refused_reports WHERE node = $1 AND (command, state, code) IN (
             SELECT command, state, code FROM refused_reports WHERE node = $1
             ORDER BY last_at DESC, command DESC, state, code OFFSET $2)",
    )
    .bind(node.uuid())
    .bind(KEPT_PER_NODE_MAX)
    .execute(conn)
    .await?;
    Ok(())
}

#[derive(FromRow)]
struct Row {
    command: Uuid,
    state: String,
    code: String,
    gateway: String,
    problem: String,
    reports: i64,
    first_at: i64,
    last_at: i64,
}

/// What is kept of a node, the newest first.
pub async fn of_node(conn: &mut PgConnection, node: NodeId) -> Result<Vec<RefusedReport>, Error> {
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT command, state, code, gateway, problem, reports,
                (extract(epoch FROM first_at) * 1000000)::bigint AS first_at,
                (extract(epoch FROM last_at) * 1000000)::bigint AS last_at
         FROM refused_reports WHERE node = $1
         ORDER BY last_at DESC, command DESC, state, code LIMIT $2",
    )
    .bind(node.uuid())
    .bind(KEPT_PER_NODE_MAX)
    .fetch_all(conn)
    .await?;
    let report = |row: Row| RefusedReport {
        command: CommandId::from_uuid(row.command),
        state: row.state,
        code: row.code,
        gateway: row.gateway,
        problem: row.problem,
        reports: u64::try_from(row.reports).unwrap_or(0),
        first_at: Timestamp::from_micros(row.first_at),
        last_at: Timestamp::from_micros(row.last_at),
    };
    Ok(rows.into_iter().map(report).collect())
}
