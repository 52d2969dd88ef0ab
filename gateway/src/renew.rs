//! A renewal: the certificate that a daemon shows, and a certificate request for the same key,
//! against a certificate that lasts longer (SPEC P7).
//!
//! It is no join: no token, no other key, no other kinds, and nothing of the node changes. One whose
//! answer got lost is done once more.

use std::sync::Arc;

use hyper::body::Incoming;
use ledger_protocol::frame::{JoinResponse, RenewRequest};
use ledger_protocol::node::Presented;
use ledger_protocol::session::Peer;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::authority::requested_key;
use crate::gateway::Shared;
use crate::http::Failure;
use crate::{join, limits};

/// Reads the request and issues the certificate.
pub(crate) async fn renew(
    shared: &Arc<Shared>,
    peer: Peer,
    body: Incoming,
) -> Result<JoinResponse, Failure> {
    let body = join::read(body).await?;
    let request: RenewRequest = serde_json::from_slice(&body)
        .map_err(|error| Failure::invalid(&format!("the body is no renewal: {error}")))?;
    let public_key = requested_key(&request.csr);
    let public_key = public_key.map_err(|invalid| Failure::invalid(&invalid.to_string()))?;
    let shown = peer.certificate.clone().ok_or_else(Failure::internal)?;
    if public_key != shown.public_key {
        let message = "csr is for another key than the certificate that is shown; a certificate is \
                       renewed for its own key, and another key joins";
        return Err(Failure::invalid(message));
    }
    let issued = async {
        let turn = shared.renewals.acquire().await;
        let turn = turn.map_err(|_| unavailable())?;
        let issued = issue(shared, &peer, shown, &request.csr).await;
        drop(turn);
        issued
    };
    let issued = timeout(limits::JOIN_WITHIN, issued).await;
    issued.unwrap_or_else(|_| Err(Failure::unavailable("the ledger did not answer in time")))
}

fn unavailable() -> Failure {
    Failure::unavailable("the ledger is not available; try again later")
}

async fn issue(
    shared: &Shared,
    peer: &Peer,
    shown: Presented,
    csr: &str,
) -> Result<JoinResponse, Failure> {
    let (ledger, node) = (&shared.ledger, peer.node_id);
    let kinds = peer.allowed_kinds.clone();
    let issued = join::certificate(shared, node, csr, kinds, ledger.now())?;
    let recorded = ledger.renew(&shared.actor, node, shown, issued.certified);
    let role = match recorded.await {
        Ok(node) => node.role,
        Err(ledger::Error::Refused(refusal)) => {
            warn!(%node, %refusal, "a renewal was refused");
            return Err(Failure::invalid_state(&refusal.to_string()));
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            warn!(%node, error, "a renewal failed");
            return Err(unavailable());
        }
    };
    info!(%node, "a node renewed its certificate");
    Ok(JoinResponse {
        trust: None,
        ca_certificate: shared.authority.certificate_pem().to_owned(),
        certificate: issued.pem,
        node_id: node,
        role,
    })
}
