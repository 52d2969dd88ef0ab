//! A join: a token and a certificate request against a certificate (SPEC A11, P7).
//!
//! The token is used up in a transaction that commits only after the certificate is in the
//! ledger: a daemon whose join failed half-way may use its token again, also one that never got the
//! answer, with the same key. Of two joins with one token and two keys one waits for the other and
//! is refused.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use ledger_projections::{join_tokens, nodes, trust};
use ledger_protocol::frame::{JoinRequest, JoinResponse};
use ledger_protocol::id::NodeId;
use ledger_protocol::time::Timestamp;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::authority::{NodeCertificate, NodeCertificateTerms, requested_key};
use crate::gateway::Shared;
use crate::http::Failure;
use crate::{Error, limits};

/// Reads a body, as large and as slow as it may be.
pub(crate) async fn read(body: Incoming) -> Result<Bytes, Failure> {
    let body = Limited::new(body, limits::JOIN_BODY_BYTES_MAX).collect();
    match timeout(limits::HTTP_BODY_WITHIN, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => {
            let max = limits::JOIN_BODY_BYTES_MAX;
            let message = format!("the body ends early or has more than {max} bytes");
            Err(Failure::invalid(&message))
        }
        Err(_) => {
            let seconds = limits::HTTP_BODY_WITHIN.as_secs();
            let message = format!("the body did not arrive within {seconds} seconds");
            Err(Failure::invalid(&message))
        }
    }
}

/// Reads the request and issues the certificate.
pub(crate) async fn join(shared: &Arc<Shared>, body: Incoming) -> Result<JoinResponse, Failure> {
    let body = read(body).await?;
    let request: JoinRequest = serde_json::from_slice(&body)
        .map_err(|error| Failure::invalid(&format!("the body is no join request: {error}")))?;
    let issued = async {
        let turn = shared.joins.clone().acquire_owned().await;
        let turn = turn.map_err(|error| unavailable(&error))?;
        // A task of its own: a client that hangs up must not drop a transaction half-way.
        let task = shared.tasks.spawn({
            let shared = shared.clone();
            async move {
                let issued = issue(&shared, &request).await;
                drop(turn);
                issued
            }
        });
        task.await.map_err(|_| Failure::internal())?
    };
    let issued = timeout(limits::JOIN_WITHIN, issued).await;
    issued.unwrap_or_else(|_| Err(Failure::unavailable("the ledger did not answer in time")))
}

fn unavailable(error: &(dyn std::error::Error + 'static)) -> Failure {
    warn!(error, "a join failed");
    Failure::unavailable("the ledger is not available; try again with the same token")
}

/// A certificate for the key of this request, which a node may show from `now` on.
pub(crate) fn certificate(
    shared: &Shared,
    node: NodeId,
    csr: &str,
    allowed_kinds: Option<Vec<String>>,
    now: Timestamp,
) -> Result<NodeCertificate, Failure> {
    let terms = NodeCertificateTerms {
        allowed_kinds,
        backdated_seconds: shared.options.certificate_backdated_seconds,
        now,
        serial: shared.ledger.new_id_random(),
        valid_seconds: shared.options.certificate_seconds,
    };
    let issued = shared.authority.issue_node(node, csr, &terms);
    issued.map_err(|error| match error {
        Error::Request(invalid) => Failure::invalid(&invalid.to_string()),
        error => {
            let error = &error as &dyn std::error::Error;
            warn!(%node, error, "a certificate could not be made");
            Failure::internal()
        }
    })
}

async fn issue(shared: &Shared, request: &JoinRequest) -> Result<JoinResponse, Failure> {
    let ledger = &shared.ledger;
    let public_key = requested_key(&request.csr);
    let public_key = public_key.map_err(|invalid| Failure::invalid(&invalid.to_string()))?;
    let mut transaction = ledger
        .pool()
        .begin()
        .await
        .map_err(|error| unavailable(&error))?;
    let now = ledger.now();
    let used = join_tokens::consume(&mut transaction, &request.token, &public_key, now)
        .await
        .map_err(|error| unavailable(&error))?;
    let Some(admission) = used else {
        let message = "the join token is unknown, used or expired; ask for a new one";
        return Err(Failure::unauthenticated(message));
    };
    let node = admission.node;
    let role = nodes::get(&mut transaction, node)
        .await
        .map_err(|error| unavailable(&error))?
        .map(|node| node.role);
    let Some(role) = role else {
        return Err(Failure::invalid_state(
            "the node of this join token does not exist",
        ));
    };
    let issued = certificate(shared, node, &request.csr, admission.allowed_kinds, now)?;
    match ledger.certify(&shared.actor, node, issued.certified).await {
        Ok(_) => {}
        Err(ledger::Error::Refused(refusal)) => {
            return Err(Failure::invalid_state(&refusal.to_string()));
        }
        Err(error) => return Err(unavailable(&error)),
    }
    let trust = trust::newest(&mut transaction)
        .await
        .map_err(|error| unavailable(&error))?
        .map(|newest| newest.signed);
    transaction
        .commit()
        .await
        .map_err(|error| unavailable(&error))?;
    info!(%node, "a node joined");
    Ok(JoinResponse {
        trust,
        ca_certificate: shared.authority.certificate_pem().to_owned(),
        certificate: issued.pem,
        node_id: node,
        role,
    })
}
