//! Trust bundles, and which of them each node believes (SPEC P1).
//!
//! They are no fold of events. They stand here because the ledger publishes bundles, gateways pass
//! them on and keep what nodes say of them, the API and the auditor read both, and none of these
//! knows the other.

use ledger_protocol::canonical;
use ledger_protocol::id::NodeId;
use ledger_protocol::trust::{Published, SignedBundle};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;
use crate::rows::{bigint, unsigned};

type Row = (i64, Vec<u8>, Vec<u8>);

fn decode((version, bundle, signatures): Row) -> Result<Published, Error> {
    let signatures = canonical::decode(&signatures).map_err(|source| Error::Row {
        table: "trust_bundles",
        column: "signatures",
        key: version.to_string(),
        source,
    })?;
    let signed = SignedBundle { bundle, signatures };
    let version = unsigned(version, "trust_bundles", "version", &version)?;
    Ok(Published { version, signed })
}

/// The newest bundle.
pub async fn newest(conn: &mut PgConnection) -> Result<Option<Published>, Error> {
    let row = sqlx::query_as(
        "SELECT version, bundle, signatures FROM trust_bundles ORDER BY version DESC LIMIT 1",
    )
    .fetch_optional(conn)
    .await?;
    row.map(decode).transpose()
}

/// Bundles above a version, the oldest first.
pub async fn above(
    conn: &mut PgConnection,
    version: u64,
    limit: u32,
) -> Result<Vec<Published>, Error> {
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT version, bundle, signatures FROM trust_bundles WHERE version > $1
         ORDER BY version LIMIT $2",
    )
    .bind(bigint(version))
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(decode).collect()
}

/// Publishes a bundle; `false` when there is another of this version already.
pub async fn publish(conn: &mut PgConnection, bundle: &Published) -> Result<bool, Error> {
    let signatures = canonical::encode(&bundle.signed.signatures).map_err(Error::Encode)?;
    let done = sqlx::query(
        "INSERT INTO trust_bundles (version, bundle, signatures) VALUES ($1, $2, $3)
         ON CONFLICT (version) DO NOTHING",
    )
    .bind(bigint(bundle.version))
    .bind(&bundle.signed.bundle)
    .bind(signatures)
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Keeps which versions nodes say that they believe; a row that says so already stays untouched.
pub async fn record(conn: &mut PgConnection, told: &[(NodeId, u64)]) -> Result<(), Error> {
    let (nodes, versions): (Vec<Uuid>, Vec<i64>) = told
        .iter()
        .map(|(node, version)| (node.uuid(), bigint(*version)))
        .unzip();
    sqlx::query(
        "INSERT INTO node_trust AS known (node, version)
         SELECT node, version FROM unnest($1::uuid[], $2::bigint[]) AS told (node, version)
         ORDER BY node
         ON CONFLICT (node) DO UPDATE SET version = excluded.version
             WHERE known.version <> excluded.version",
    )
    .bind(nodes)
    .bind(versions)
    .execute(conn)
    .await?;
    Ok(())
}

/// What a node believes, and the newest that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The version that the node believes; 0 for none, or when it never said.
    pub believed: u64,
    /// The newest version.
    pub newest: u64,
}

/// How far a node is; nothing where there are no bundles.
pub async fn standing(conn: &mut PgConnection, node: NodeId) -> Result<Option<Standing>, Error> {
    let (newest, believed): (Option<i64>, Option<i64>) = sqlx::query_as(
        "SELECT (SELECT max(version) FROM trust_bundles),
             (SELECT version FROM node_trust WHERE node = $1)",
    )
    .bind(node.uuid())
    .fetch_one(conn)
    .await?;
    let Some(newest) = newest else {
        return Ok(None);
    };
    Ok(Some(Standing {
        believed: unsigned(believed.unwrap_or(0), "node_trust", "version", &node)?,
        newest: unsigned(newest, "trust_bundles", "version", &newest)?,
    }))
}

/// Nodes that say that they believe what is published nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// How many they are.
    pub nodes: u64,
    /// The highest version that one of them claims.
    pub highest: u64,
}

/// The nodes that say that they believe a bundle above a version. It reads one small row for each
/// node that there is.
pub async fn ahead(conn: &mut PgConnection, version: u64) -> Result<Option<Ahead>, Error> {
    let (count, highest): (i64, Option<i64>) = sqlx::query_as(
        "SELECT count(*), max(told.version) FROM node_trust AS told
         JOIN nodes ON nodes.id = told.node
         WHERE told.version > $1 AND NOT nodes.deleted",
    )
    .bind(bigint(version))
    .fetch_one(conn)
    .await?;
    let Some(highest) = highest else {
        return Ok(None);
    };
    Ok(Some(Ahead {
        nodes: unsigned(count, "node_trust", "count", &"*")?,
        highest: unsigned(highest, "node_trust", "version", &highest)?,
    }))
}
