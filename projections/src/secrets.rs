//! Secrets as they are at rest, encrypted (SPEC P6). What encrypts them is the ledger's business.
//!
//! They are no fold of events: what is in the log stays there. They stand here because the ledger puts
//! them, the API lists and deletes them, and neither shall know how rows look.

use ledger_protocol::id::{NodeId, TenantId};
use ledger_protocol::time::Timestamp;
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use crate::Error;
use crate::rows::{bigint, unsigned};

pub mod exchanges;

/// Size of a master key's id, in bytes.
pub const KEY_ID_BYTES: usize = 8;

/// Which master key encrypts a secret.
pub type KeyId = [u8; KEY_ID_BYTES];

/// Everything about a secret but its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its name.
    pub name: String,
    /// 1 for the first value that was put under the name, and one more with each.
    pub version: u64,
    /// The master key that encrypts it.
    pub key_id: KeyId,
    /// Only commands of these kinds get it; all when `None`.
    pub kinds: Option<Vec<String>>,
    /// Only these nodes get it; all of the tenant when `None`.
    pub nodes: Option<Vec<NodeId>>,
    /// When this version was put.
    pub put_at: Timestamp,
    /// The actor who put it.
    pub put_by: String,
}

/// A secret as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What it is.
    pub described: Described,
    /// Its value, encrypted.
    pub sealed: Vec<u8>,
}

#[derive(FromRow)]
struct DescribedRow {
    tenant: Uuid,
    name: String,
    version: i64,
    key_id: Vec<u8>,
    kinds: Option<Vec<String>>,
    nodes: Option<Vec<Uuid>>,
    put_at: i64,
    put_by: String,
}

#[derive(FromRow)]
struct StoredRow {
    #[sqlx(flatten)]
    described: DescribedRow,
    sealed: Vec<u8>,
}

impl DescribedRow {
    fn described(self) -> Result<Described, Error> {
        let nodes = self.nodes.map(|nodes| {
            let nodes = nodes.into_iter().map(NodeId::from_uuid);
            nodes.collect()
        });
        Ok(Described {
            tenant: TenantId::from_uuid(self.tenant),
            version: unsigned(self.version, "secrets", "version", &self.name)?,
            // A constraint of the table holds the length.
            key_id: self.key_id.try_into().unwrap_or_default(),
            kinds: self.kinds,
            nodes,
            put_at: Timestamp::from_micros(self.put_at),
            put_by: self.put_by,
            name: self.name,
        })
    }
}

impl StoredRow {
    fn stored(self) -> Result<Stored, Error> {
        Ok(Stored {
            described: self.described.described()?,
            sealed: self.sealed,
        })
    }
}

/// The secret of this name.
pub async fn get(
    conn: &mut PgConnection,
    tenant: TenantId,
    name: &str,
) -> Result<Option<Stored>, Error> {
    let row: Option<StoredRow> = sqlx::query_as(
        "SELECT tenant, name, version, key_id, kinds, nodes, sealed, put_by,
                (extract(epoch FROM put_at) * 1000000)::bigint AS put_at
         FROM secrets WHERE tenant = $1 AND name = $2",
    )
    .bind(tenant.uuid())
    .bind(name)
    .fetch_optional(conn)
    .await?;
    row.map(StoredRow::stored).transpose()
}

/// A page of a tenant's secrets, by name.
pub async fn list(
    conn: &mut PgConnection,
    tenant: TenantId,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Described>, Error> {
    let rows: Vec<DescribedRow> = sqlx::query_as(
        "SELECT tenant, name, version, key_id, kinds, nodes, put_by,
                (extract(epoch FROM put_at) * 1000000)::bigint AS put_at
         FROM secrets WHERE tenant = $1 AND name > $2 ORDER BY name LIMIT $3",
    )
    .bind(tenant.uuid())
    .bind(after.unwrap_or_default())
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(DescribedRow::described).collect()
}

/// Puts a version in the place of the one before it, or as the first. Answers `false` when another came
/// first, or the one before is gone: then nothing is changed.
pub async fn put(conn: &mut PgConnection, secret: &Stored) -> Result<bool, Error> {
    let described = &secret.described;
    let sql = if described.version == 1 {
        "INSERT INTO secrets (tenant, name, version, key_id, sealed, kinds, nodes, put_at, put_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7, 'epoch'::timestamptz + $8 * interval '1 microsecond', $9)
         ON CONFLICT (tenant, name) DO NOTHING"
    } else {
        "UPDATE secrets SET version = $3, key_id = $4, sealed = $5, kinds = $6, nodes = $7,
             put_at = 'epoch'::timestamptz + $8 * interval '1 microsecond', put_by = $9
         WHERE tenant = $1 AND name = $2 AND version = $3 - 1"
    };
    let nodes = described.nodes.as_ref();
    let nodes = nodes.map(|nodes| nodes.iter().map(|node| node.uuid()).collect::<Vec<_>>());
    let done = sqlx::query(sql)
        .bind(described.tenant.uuid())
        .bind(&described.name)
        .bind(bigint(described.version))
        .bind(described.key_id)
        .bind(&secret.sealed)
        .bind(&described.kinds)
        .bind(nodes)
        .bind(described.put_at.as_micros())
        .bind(&described.put_by)
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Deletes a secret; answers what it was.
pub async fn delete(
    conn: &mut PgConnection,
    tenant: TenantId,
    name: &str,
) -> Result<Option<Described>, Error> {
    let row: Option<DescribedRow> = sqlx::query_as(
        "DELETE FROM secrets WHERE tenant = $1 AND name = $2
         RETURNING tenant, name, version, key_id, kinds, nodes, put_by,
                (extract(epoch FROM put_at) * 1000000)::bigint AS put_at",
    )
    .bind(tenant.uuid())
    .bind(name)
    .fetch_optional(conn)
    .await?;
    row.map(DescribedRow::described).transpose()
}

/// Secrets of whatever tenant that one of these master keys encrypts, by tenant and name.
pub async fn under(
    conn: &mut PgConnection,
    keys: &[KeyId],
    after: Option<(TenantId, &str)>,
    limit: u32,
) -> Result<Vec<Stored>, Error> {
    let (tenant, name) = after.map_or((Uuid::nil(), ""), |(tenant, name)| (tenant.uuid(), name));
    let keys: Vec<&[u8]> = keys.iter().map(<[u8; KEY_ID_BYTES]>::as_slice).collect();
    let rows: Vec<StoredRow> = sqlx::query_as(
        "SELECT tenant, name, version, key_id, kinds, nodes, sealed, put_by,
                (extract(epoch FROM put_at) * 1000000)::bigint AS put_at
         FROM secrets WHERE key_id = ANY($1) AND (tenant, name) > ($2, $3)
         ORDER BY tenant, name LIMIT $4",
    )
    .bind(keys)
    .bind(tenant)
    .bind(name)
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(StoredRow::stored).collect()
}

/// Puts the same version under another master key. Answers `false` when the row is no longer `known`.
pub async fn rekey(
    conn: &mut PgConnection,
    known: &Stored,
    key_id: KeyId,
    sealed: &[u8],
) -> Result<bool, Error> {
    // The bytes tell it from every other, also from one of the same version that came after a delete.
    let done = sqlx::query(
        "UPDATE secrets SET key_id = $4, sealed = $5
         WHERE tenant = $1 AND name = $2 AND sealed = $3",
    )
    .bind(known.described.tenant.uuid())
    .bind(&known.described.name)
    .bind(&known.sealed)
    .bind(key_id)
    .bind(sealed)
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Under which other master keys there are secrets, and how many under each.
pub async fn under_others(
    conn: &mut PgConnection,
    known: &[KeyId],
) -> Result<Vec<(KeyId, u64)>, Error> {
    let known: Vec<&[u8]> = known.iter().map(<[u8; KEY_ID_BYTES]>::as_slice).collect();
    let rows: Vec<(Vec<u8>, i64)> = sqlx::query_as(
        "SELECT key_id, count(*) FROM secrets WHERE key_id <> ALL($1)
         GROUP BY key_id ORDER BY key_id",
    )
    .bind(known)
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|(key, secrets)| {
            // A constraint of the table holds the length.
            let key = key.try_into().unwrap_or_default();
            Ok((key, unsigned(secrets, "secrets", "count", &"key_id")?))
        })
        .collect()
}
