//! Join tokens: what a new daemon shows, once, to get its certificate (SPEC A11, P7).
//!
//! They are no fold of events. They stand here because the API creates them, the gateway uses
//! them, and neither knows the other. A token's text is its id, a dot and its secret; only the
//! secret's hash is stored.

use std::str::FromStr;

use ledger_protocol::id::{JoinTokenId, NodeId, TenantId};
use ledger_protocol::time::Timestamp;
use sha2::{Digest, Sha256};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;

/// Letters of a secret: 32 random bytes as base64url without padding.
pub const SECRET_LETTERS: usize = 43;

/// A token's two parts, if the text has the form of one. Other tokens whose text is an id, a dot
/// and a secret are read the same way.
pub fn split<Id: FromStr>(text: &str) -> Option<(Id, &str)> {
    let (id, secret) = text.split_once('.')?;
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (secret.len() == SECRET_LETTERS && secret.bytes().all(letter))
        .then(|| id.parse().ok())
        .flatten()
        .map(|id| (id, secret))
}

/// What is stored of a secret. A secret has 256 random bits, so a fast hash is enough.
pub fn secret_sha256(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// A token to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Its id.
    pub id: JoinTokenId,
    /// The node's tenant.
    pub tenant: TenantId,
    /// The node that it is for.
    pub node: NodeId,
    /// Hash of its secret, from [`secret_sha256`].
    pub secret_sha256: [u8; 32],
    /// When it was made.
    pub created_at: Timestamp,
    /// Refused from then on.
    pub expires_at: Timestamp,
    /// The kinds that the certificate will allow; every kind when `None` (SPEC D11).
    pub allowed_kinds: Option<Vec<String>>,
}

/// Whom a token lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The node's tenant.
    pub tenant: TenantId,
    /// The node.
    pub node: NodeId,
    /// The kinds that its certificate is to allow; every kind when `None`.
    pub allowed_kinds: Option<Vec<String>>,
}

/// Stores a new token.
pub async fn create(conn: &mut PgConnection, token: &JoinToken) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO join_tokens
             (id, tenant, node, secret_sha256, created_at, expires_at, allowed_kinds)
         VALUES ($1, $2, $3, $4, 'epoch'::timestamptz + $5 * interval '1 microsecond',
                 'epoch'::timestamptz + $6 * interval '1 microsecond', $7)",
    )
    .bind(token.id.uuid())
    .bind(token.tenant.uuid())
    .bind(token.node.uuid())
    .bind(token.secret_sha256)
    .bind(token.created_at.as_micros())
    .bind(token.expires_at.as_micros())
    .bind(&token.allowed_kinds)
    .execute(conn)
    .await?;
    Ok(())
}

/// Uses a token up. Answers whom it was made for, to one key: of any number of attempts at the same
/// time one gets them, and after it whoever comes with its key again until the token expires, for
/// the answer to the first may have been lost. `None` when the text is no token, names none, has the
/// wrong secret, or the token is used by another or expired; a caller is not to be told which.
///
/// The hashes are compared by the database, in time that depends on them: what that could tell an
/// attacker is a prefix of a hash, from which no secret follows.
pub async fn consume(
    conn: &mut PgConnection,
    text: &str,
    public_key: &[u8],
    now: Timestamp,
) -> Result<Option<Admission>, Error> {
    let Some((id, secret)) = split::<JoinTokenId>(text) else {
        return Ok(None);
    };
    let used: Option<(Uuid, Uuid, Option<Vec<String>>)> = sqlx::query_as(
        "UPDATE join_tokens SET used_by = $4,
             used_at = 'epoch'::timestamptz + $3 * interval '1 microsecond'
         WHERE id = $1 AND secret_sha256 = $2 AND (used_at IS NULL OR used_by = $4)
           AND expires_at > 'epoch'::timestamptz + $3 * interval '1 microsecond'
         RETURNING tenant, node, allowed_kinds",
    )
    .bind(id.uuid())
    .bind(secret_sha256(secret))
    .bind(now.as_micros())
    .bind(public_key)
    .fetch_optional(conn)
    .await?;
    Ok(used.map(|(tenant, node, allowed_kinds)| Admission {
        tenant: TenantId::from_uuid(tenant),
        node: NodeId::from_uuid(node),
        allowed_kinds,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA0";
    const KEY: [u8; 32] = [1; 32];

    fn token(seconds: u32) -> (JoinToken, String) {
        let created_at = Timestamp::from_micros(1_764_490_000_000_001);
        let id = JoinTokenId::new(created_at, [7; 10]);
        let token = JoinToken {
            id,
            tenant: TenantId::new(created_at, [1; 10]),
            node: NodeId::new(created_at, [2; 10]),
            secret_sha256: secret_sha256(SECRET),
            created_at,
            expires_at: created_at.plus_seconds(seconds),
            allowed_kinds: Some(vec!["diag.nvml".to_owned()]),
        };
        (token, format!("{id}.{SECRET}"))
    }

    #[test]
    fn a11_only_an_id_a_dot_and_a_secret_is_a_token() {
        let (token, text) = token(60);
        assert_eq!(split::<JoinTokenId>(&text), Some((token.id, SECRET)));
        for bad in [
            String::new(),
            ".".to_owned(),
            SECRET.to_owned(),
            text[..text.len() - 1].to_owned(),
            format!("{text}A"),
            text.replace("join_", "token_"),
            text.replace("AA0", "A\u{0}0"),
            text.replace("AA0", "A+0"),
            text.replace("AAA0", "\u{e9}A0"),
        ] {
            assert!(split::<JoinTokenId>(&bad).is_none(), "{bad:?} was taken");
        }
    }

    #[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
    async fn a11_a_join_token_works_for_one_key(pool: sqlx::PgPool) {
        let (token, text) = token(60);
        let mut conn = pool.acquire().await.unwrap();
        create(&mut conn, &token).await.unwrap();
        let now = token.created_at.plus_seconds(1);
        let wrong = text.replace("AA0", "AA1");
        assert_eq!(consume(&mut conn, &wrong, &KEY, now).await.unwrap(), None);
        let expected = Some(Admission {
            tenant: token.tenant,
            node: token.node,
            allowed_kinds: token.allowed_kinds,
        });
        for (key, expected) in [
            (KEY, expected.clone()),
            ([2; 32], None),
            // The answer to the first was lost.
            (KEY, expected),
        ] {
            let used = consume(&mut conn, &text, &key, now).await.unwrap();
            assert_eq!(used, expected);
        }
        let late = consume(&mut conn, &text, &KEY, token.expires_at);
        assert_eq!(late.await.unwrap(), None);
    }

    #[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
    async fn a11_a_join_token_expires_to_the_microsecond(pool: sqlx::PgPool) {
        let (token, text) = token(60);
        let mut conn = pool.acquire().await.unwrap();
        create(&mut conn, &token).await.unwrap();
        let end = token.expires_at;
        assert_eq!(consume(&mut conn, &text, &KEY, end).await.unwrap(), None);
        let before = end.plus_micros(-1);
        assert!(
            consume(&mut conn, &text, &KEY, before)
                .await
                .unwrap()
                .is_some()
        );
    }

    #[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
    async fn a11_of_many_at_once_one_uses_a_join_token(pool: sqlx::PgPool) {
        let (token, text) = token(60);
        create(&mut pool.acquire().await.unwrap(), &token)
            .await
            .unwrap();
        let now = token.created_at;
        let attempt = async |key: u8| {
            let mut conn = pool.acquire().await.unwrap();
            let used = consume(&mut conn, &text, &[key; 32], now).await;
            used.unwrap().is_some()
        };
        let (a, b, c, d) = tokio::join!(attempt(1), attempt(2), attempt(3), attempt(4));
        let used = [a, b, c, d].into_iter().filter(|used| *used).count();
        assert_eq!(used, 1);
    }
}
