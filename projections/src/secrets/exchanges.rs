//! Questions of nodes for secrets, and their answers (SPEC P6): what a gateway and the keeper say to
//! each other, who may be in different processes.

use ledger_protocol::canonical;
use ledger_protocol::frame;
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::secret::OneTimeKey;
use ledger_protocol::time::Timestamp;
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use crate::Error;

/// Questions that a node may ask for one command, each with a key of its own; a constraint of the table
/// holds it.
pub const PER_COMMAND_MAX: i64 = 8;
/// Questions of one node that are kept at a time, whatever commands they name.
pub const PER_NODE_MAX: i64 = 4_096;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The command, as the node named it.
    pub command: CommandId,
    /// The node whose session brought it.
    pub node: NodeId,
    /// The key that was made for it.
    pub key: OneTimeKey,
    /// The secret that is asked for.
    pub secret_ref: String,
    /// The node's signature.
    pub node_sig: Option<Vec<u8>>,
    /// When it came.
    pub asked_at: Timestamp,
}

/// What there is of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It was not asked yet.
    Nothing,
    /// It waits for its answer.
    Waiting,
    /// It has its answer.
    Answered(Box<frame::Secret>),
}

/// Asks. Answers `false` when the question is there already, when another took its place in the count,
/// or when the node has asked too often.
pub async fn ask(conn: &mut PgConnection, asked: &Asked) -> Result<bool, Error> {
    let done = sqlx::query(
        "INSERT INTO secret_exchanges
             (command, node, one_time_key, place, secret_ref, node_sig, asked_at)
         SELECT $1, $2, $3, coalesce(max(place), 0) + 1, $4, $5,
                'epoch'::timestamptz + $6 * interval '1 microsecond'
         FROM secret_exchanges WHERE node = $2 AND command = $1
         HAVING coalesce(max(place), 0) < $7 AND (SELECT count(*) FROM (
             SELECT 1 FROM secret_exchanges WHERE node = $2 LIMIT $8) AS kept) < $8
         ON CONFLICT DO NOTHING",
    )
    .bind(asked.command.uuid())
    .bind(asked.node.uuid())
    .bind(asked.key.as_bytes())
    .bind(&asked.secret_ref)
    .bind(&asked.node_sig)
    .bind(asked.asked_at.as_micros())
    .bind(PER_COMMAND_MAX)
    .bind(PER_NODE_MAX)
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What there is of a question.
pub async fn find(
    conn: &mut PgConnection,
    node: NodeId,
    command: CommandId,
    key: OneTimeKey,
) -> Result<Found, Error> {
    let answer: Option<Option<Vec<u8>>> = sqlx::query_scalar(
        "SELECT answer FROM secret_exchanges
         WHERE node = $1 AND command = $2 AND one_time_key = $3",
    )
    .bind(node.uuid())
    .bind(command.uuid())
    .bind(key.as_bytes())
    .fetch_optional(conn)
    .await?;
    match answer {
        None => Ok(Found::Nothing),
        Some(None) => Ok(Found::Waiting),
        Some(Some(bytes)) => {
            let answer = canonical::decode(&bytes).map_err(|source| Error::Row {
                table: "secret_exchanges",
                column: "answer",
                key: command.to_string(),
                source,
            })?;
            Ok(Found::Answered(Box::new(answer)))
        }
    }
}

#[derive(FromRow)]
struct Row {
    command: Uuid,
    node: Uuid,
    one_time_key: Vec<u8>,
    secret_ref: String,
    node_sig: Option<Vec<u8>>,
    asked_at: i64,
}

/// Questions without an answer that came after this one, the oldest first, locked until the transaction
/// ends; those that another has locked are passed over.
pub async fn take(
    conn: &mut PgConnection,
    (at, key): (Timestamp, OneTimeKey),
    limit: u32,
) -> Result<Vec<Asked>, Error> {
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT command, node, one_time_key, secret_ref, node_sig,
                (extract(epoch FROM asked_at) * 1000000)::bigint AS asked_at
         FROM secret_exchanges
         WHERE answer IS NULL
           AND (asked_at, one_time_key) > ('epoch'::timestamptz + $1 * interval '1 microsecond', $2)
         ORDER BY asked_at, one_time_key LIMIT $3
         FOR UPDATE SKIP LOCKED",
    )
    .bind(at.as_micros())
    .bind(key.as_bytes())
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    let asked = |row: Row| Asked {
        command: CommandId::from_uuid(row.command),
        node: NodeId::from_uuid(row.node),
        // A constraint of the table holds the length.
        key: OneTimeKey::from_bytes(row.one_time_key.try_into().unwrap_or_default()),
        secret_ref: row.secret_ref,
        node_sig: row.node_sig,
        asked_at: Timestamp::from_micros(row.asked_at),
    };
    Ok(rows.into_iter().map(asked).collect())
}

/// Answers a question that has no answer yet.
pub async fn answer(
    conn: &mut PgConnection,
    asked: &Asked,
    answer: &frame::Secret,
    now: Timestamp,
) -> Result<bool, Error> {
    let bytes = canonical::encode(answer).map_err(Error::Encode)?;
    let done = sqlx::query(
        "UPDATE secret_exchanges SET answer = $4,
             answered_at = 'epoch'::timestamptz + $5 * interval '1 microsecond'
         WHERE node = $1 AND command = $2 AND one_time_key = $3 AND answer IS NULL",
    )
    .bind(asked.node.uuid())
    .bind(asked.command.uuid())
    .bind(asked.key.as_bytes())
    .bind(bytes)
    .bind(now.as_micros())
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Forgets questions that came before a time, at most `limit`. Answers how many.
pub async fn forget(conn: &mut PgConnection, before: Timestamp, limit: u32) -> Result<u64, Error> {
    let done = sqlx::query(
        "DELETE FROM secret_exchanges WHERE (node, command, one_time_key) IN (
             SELECT node, command, one_time_key FROM secret_exchanges
             WHERE asked_at < 'epoch'::timestamptz + $1 * interval '1 microsecond'
             ORDER BY asked_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
    )
    .bind(before.as_micros())
    .bind(i64::from(limit))
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}
