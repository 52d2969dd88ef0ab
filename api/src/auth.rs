//! Who calls, and what that caller may do (SPEC A13).
//!
//! A token belongs to one tenant and carries grants. A verified token is remembered for a few
//! seconds, so that the database is not asked on every request: `auth/cache.rs`.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use ledger_projections::join_tokens::{secret_sha256, split};
use ledger_protocol::event::Actor;
use ledger_protocol::id::{NodeId, TenantId, TokenId};

use crate::Api;
use crate::error::Error;

pub(crate) mod cache;
mod grant;
pub(crate) mod secret;
pub(crate) mod store;

pub use grant::{Grant, Permission, Resource};
pub use store::{NewToken, create_tenant, create_token};

/// Who calls, as the token says.
#[derive(Debug)]
pub(crate) struct Caller {
    /// Whose view it is.
    pub(crate) tenant: TenantId,
    /// Name of the identity, part of the scope of idempotency keys.
    pub(crate) identity: String,
    /// The identity as the actor of events.
    pub(crate) actor: Actor,
    /// What it may do.
    pub(crate) grants: Vec<Grant>,
}

impl Caller {
    /// A tenant that the token is not for does not exist for its holder (SPEC A6).
    pub(crate) fn check_tenant(&self, tenant: TenantId) -> Result<(), Error> {
        if tenant == self.tenant {
            Ok(())
        } else {
            Err(Error::not_found(format!("tenant {tenant}")))
        }
    }

    /// Whether a grant covers the permission on the resource, for this kind; with no kind, for
    /// every kind.
    pub(crate) fn may(
        &self,
        permission: Permission,
        resource: Resource,
        kind: Option<&str>,
    ) -> bool {
        self.grants
            .iter()
            .any(|grant| grant.covers(permission, resource, kind))
    }

    /// Asks for a permission on something that is no single node.
    pub(crate) fn require(&self, permission: Permission, resource: Resource) -> Result<(), Error> {
        if self.may(permission, resource, None) {
            Ok(())
        } else {
            let resource = resource.to_string();
            Err(Error::PermissionDenied {
                permission,
                resource,
            })
        }
    }

    /// Asks for a permission on a node. A node outside the tenant's view is NOT_FOUND, whatever
    /// the grants say (SPEC A6); so a refusal looks whether the node is in view.
    pub(crate) async fn require_node(
        &self,
        api: &Api,
        permission: Permission,
        node: NodeId,
        kind: Option<&str>,
    ) -> Result<(), Error> {
        let resource = Resource::Node(node);
        if self.may(permission, resource, kind) {
            return Ok(());
        }
        crate::nodes::in_view(api, self, node).await?;
        Err(Error::PermissionDenied {
            permission,
            resource: resource.to_string(),
        })
    }
}

const BAD_TOKEN: Error = Error::Unauthenticated {
    problem: "the token is not valid: unknown, expired or revoked",
};

/// The token's id and the hash of its secret, from the request's head.
fn shown_token(headers: &HeaderMap) -> Result<(TokenId, [u8; 32]), Error> {
    const MISSING: Error = Error::Unauthenticated {
        problem: "send the header `authorization: Bearer token_….…`, once",
    };
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(MISSING);
    };
    let value = value.to_str().map_err(|_| MISSING)?;
    let (scheme, token) = value.split_once(' ').ok_or(MISSING)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(MISSING);
    }
    let (id, secret) = split(token.trim_matches(' ')).ok_or(BAD_TOKEN)?;
    Ok((id, secret_sha256(secret)))
}

/// Who sends this request.
pub(crate) async fn authenticate(api: &Api, headers: &HeaderMap) -> Result<Arc<Caller>, Error> {
    let (id, hash) = shown_token(headers)?;
    let (ledger, tokens) = (&api.0.ledger, &api.0.tokens);
    match tokens.look(id, &hash, ledger.now()) {
        cache::Look::Known(caller) => Ok(caller),
        cache::Look::Refused => Err(BAD_TOKEN),
        cache::Look::Stale(caller) => match look_up(api, id, &hash).await {
            // What was verified a moment ago holds while the database is away.
            Err(Error::Unavailable { .. } | Error::LimitExceeded { .. }) => Ok(caller),
            looked_up => looked_up,
        },
        cache::Look::Unknown => look_up(api, id, &hash).await,
    }
}

/// Asks the database, on a task of its own: a client that hangs up must not leave a connection in
/// the middle of an answer (SPEC L10).
async fn look_up(api: &Api, id: TokenId, hash: &[u8; 32]) -> Result<Arc<Caller>, Error> {
    let permit = api.0.tokens.permit().await?;
    let (owned, hash) = (api.clone(), *hash);
    let looked_up = api.0.tasks.spawn(async move {
        let _permit = permit;
        let found = store::find(owned.0.ledger.pool(), id).await?;
        Ok(owned.0.tokens.keep(id, found, &hash, owned.0.ledger.now()))
    });
    match looked_up.await {
        Ok(Ok(Some(caller))) => Ok(caller),
        Ok(Ok(None)) => Err(BAD_TOKEN),
        Ok(Err(error)) => Err(error),
        Err(failed) => Err(Error::internal(failed)),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a13_only_one_bearer_token_in_the_header_is_read() {
        let token = "token_01h455vb4pex5vsknk084sn02q.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA0";
        let with = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                let value = HeaderValue::from_bytes(value).unwrap();
                headers.append(header::AUTHORIZATION, value);
            }
            shown_token(&headers).is_ok()
        };
        assert!(with(&[format!("Bearer {token}").as_bytes()]));
        assert!(with(&[format!("bearer  {token} ").as_bytes()]));
        for bad in [
            token.to_owned(),
            format!("Basic {token}"),
            format!("Bearer {token}x"),
            format!("Bearer {}", token.replace("token_", "join_")),
            "Bearer ".to_owned(),
            "Bearer".to_owned(),
            String::new(),
        ] {
            assert!(!with(&[bad.as_bytes()]), "{bad:?} was taken");
        }
        let good = format!("Bearer {token}");
        assert!(!with(&[]));
        assert!(!with(&[good.as_bytes(), good.as_bytes()]));
        assert!(!with(&[b"Bearer \xff"]));
    }
}
