//! The tables `tenants` and `api_tokens`. Each question is one statement, so no reader holds a
//! transaction.

use ledger_projections::join_tokens::secret_sha256;
use ledger_protocol::event::Actor;
use ledger_protocol::id::{TenantId, TokenId};
use ledger_protocol::limits::NAME_BYTES_MAX;
use ledger_protocol::text;
use ledger_protocol::time::Timestamp;
use serde_json::{Value, json};
use sqlx::types::Uuid;
use sqlx::{PgPool, Row, postgres::PgRow};

use super::{Caller, Grant, secret};
use crate::error::Error;
use crate::limits::GRANTS_MAX;

/// A token to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// The tenant whose view it opens.
    pub tenant: TenantId,
    /// Who acts with it, 1 to 200 bytes, of printable characters.
    pub identity: String,
    /// What it allows, at most 100 grants.
    pub grants: Vec<Grant>,
    /// From then on it is refused; never when absent.
    pub expires_at: Option<Timestamp>,
}

/// Writes a time as the database's own, exactly: `epoch + n microseconds`.
macro_rules! time_of {
    ($parameter:literal) => {
        concat!(
            "('epoch'::timestamptz + $",
            $parameter,
            "::bigint * interval '1 microsecond')"
        )
    };
}

/// Reads a time of the database as microseconds, exactly.
macro_rules! micros_of {
    ($column:literal) => {
        concat!("(extract(epoch from ", $column, ") * 1000000)::bigint")
    };
}

fn check_name(field: &'static str, name: &str) -> Result<(), Error> {
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
        let given = name.len();
        let problem = format!("must have 1 to {NAME_BYTES_MAX} bytes; it has {given}");
        return Err(Error::invalid(field, problem));
    }
    text::flaw(name).map_or(Ok(()), |flaw| Err(Error::invalid(field, flaw.to_string())))
}

/// Makes a tenant (SPEC A13). INVALID_INPUT when the name does not fit.
pub async fn create_tenant(pool: &PgPool, name: &str, now: Timestamp) -> Result<TenantId, Error> {
    check_name("name", name)?;
    let id = TenantId::new(now, secret::random()?);
    sqlx::query(concat!(
        "INSERT INTO tenants (id, name, created_at) VALUES ($1, $2, ",
        time_of!("3"),
        ")"
    ))
    .bind(id.uuid())
    .bind(name)
    .bind(now.as_micros())
    .execute(pool)
    .await?;
    Ok(id)
}

/// Makes an API token (SPEC A13). Answers its id and its text, which is to be shown once: the
/// secret in it is stored nowhere. NOT_FOUND when there is no such tenant, INVALID_INPUT when the
/// identity or the grants do not fit, or when it would have expired.
pub async fn create_token(
    pool: &PgPool,
    token: &NewToken,
    now: Timestamp,
) -> Result<(TokenId, String), Error> {
    check_name("identity", &token.identity)?;
    if token.grants.len() > GRANTS_MAX {
        let problem = format!("must be at most {GRANTS_MAX}");
        return Err(Error::invalid("grants", problem));
    }
    if let Some(at) = token.expires_at.filter(|at| *at <= now) {
        let problem = format!("must lie after now, {now}; {at} does not");
        return Err(Error::invalid("expiresAt", problem));
    }
    let id = TokenId::new(now, secret::random()?);
    let secret = secret::new()?;
    let grants: Vec<_> = token.grants.iter().map(Grant::to_json).collect();
    let inserted = sqlx::query(concat!(
        "INSERT INTO api_tokens
             (id, tenant, identity, secret_sha256, grants, created_at, expires_at)
         SELECT $1, id, $3, $4, $5::jsonb, ",
        time_of!("6"),
        ", ",
        time_of!("7"),
        " FROM tenants WHERE id = $2"
    ))
    .bind(id.uuid())
    .bind(token.tenant.uuid())
    .bind(&token.identity)
    .bind(secret_sha256(&secret))
    .bind(Value::Array(grants).to_string())
    .bind(now.as_micros())
    .bind(token.expires_at.map(Timestamp::as_micros))
    .execute(pool)
    .await?;
    if inserted.rows_affected() == 0 {
        return Err(Error::not_found(format!("tenant {}", token.tenant)));
    }
    Ok((id, format!("{id}.{secret}")))
}

/// A token as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) id: TokenId,
    pub(crate) tenant: TenantId,
    pub(crate) identity: String,
    pub(crate) secret_sha256: [u8; 32],
    pub(crate) grants: Vec<Grant>,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
}

const COLUMNS: &str = concat!(
    "id, tenant, identity, secret_sha256, grants::text, ",
    micros_of!("created_at"),
    " AS created_at, ",
    micros_of!("expires_at"),
    " AS expires_at, ",
    micros_of!("revoked_at"),
    " AS revoked_at"
);

impl Stored {
    fn read(row: &PgRow) -> Result<Self, Error> {
        let id = TokenId::from_uuid(row.try_get("id")?);
        let impossible = |column: &'static str, problem: String| {
            Error::internal(format!("api_tokens.{column} of row {id}: {problem}"))
        };
        let hash: Vec<u8> = row.try_get("secret_sha256")?;
        let secret_sha256 = <[u8; 32]>::try_from(hash)
            .map_err(|hash| impossible("secret_sha256", format!("has {} bytes", hash.len())))?;
        let grants: String = row.try_get("grants")?;
        let grants: Vec<Value> = serde_json::from_str(&grants)
            .map_err(|error| impossible("grants", error.to_string()))?;
        let grants = grants
            .iter()
            .map(Grant::from_json)
            .collect::<Result<_, _>>()
            .map_err(|problem| impossible("grants", problem))?;
        let time = |column| -> Result<Option<Timestamp>, Error> {
            let micros: Option<i64> = row.try_get(column)?;
            Ok(micros.map(Timestamp::from_micros))
        };
        Ok(Self {
            id,
            tenant: TenantId::from_uuid(row.try_get("tenant")?),
            identity: row.try_get("identity")?,
            secret_sha256,
            grants,
            created_at: Timestamp::from_micros(row.try_get("created_at")?),
            expires_at: time("expires_at")?,
            revoked_at: time("revoked_at")?,
        })
    }

    /// Who calls with it.
    pub(crate) fn into_caller(self) -> Caller {
        Caller {
            tenant: self.tenant,
            actor: Actor::api(&self.identity),
            identity: self.identity,
            grants: self.grants,
        }
    }

    /// What a token's owner may see of it.
    pub(crate) fn to_json(&self) -> Value {
        let grants: Vec<_> = self.grants.iter().map(Grant::to_json).collect();
        let mut token = json!({
            "id": self.id,
            "tenantId": self.tenant,
            "identity": self.identity,
            "grants": grants,
            "createdAt": self.created_at.to_string(),
        });
        for (field, at) in [
            ("expiresAt", self.expires_at),
            ("revokedAt", self.revoked_at),
        ] {
            if let Some(at) = at {
                token[field] = json!(at.to_string());
            }
        }
        token
    }
}

/// The token with this id.
pub(crate) async fn find(pool: &PgPool, id: TokenId) -> Result<Option<Stored>, Error> {
    let sql = format!("SELECT {COLUMNS} FROM api_tokens WHERE id = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.uuid())
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(Stored::read).transpose()
}

/// A tenant's tokens by id, from after `after` on.
pub(crate) async fn list(
    pool: &PgPool,
    tenant: TenantId,
    after: Option<TokenId>,
    limit: u32,
) -> Result<Vec<Stored>, Error> {
    let sql = format!(
        "SELECT {COLUMNS} FROM api_tokens WHERE tenant = $1 AND id > $2 ORDER BY id LIMIT $3"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(tenant.uuid())
        .bind(after.map_or(Uuid::nil(), TokenId::uuid))
        .bind(i64::from(limit))
        .fetch_all(pool)
        .await?;
    rows.iter().map(Stored::read).collect()
}

/// Revokes a tenant's token; one that is revoked keeps its time. `None` when there is none.
pub(crate) async fn revoke(
    pool: &PgPool,
    tenant: TenantId,
    id: TokenId,
    now: Timestamp,
) -> Result<Option<Stored>, Error> {
    let sql = format!(
        "UPDATE api_tokens SET revoked_at = coalesce(revoked_at, {now})
         WHERE id = $1 AND tenant = $2 RETURNING {COLUMNS}",
        now = time_of!("3")
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.uuid())
        .bind(tenant.uuid())
        .bind(now.as_micros())
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(Stored::read).transpose()
}
