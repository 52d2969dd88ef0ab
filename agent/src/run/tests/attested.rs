//! What an agent signs (SPEC P2).

use ledger_protocol::attestation::Statement;
use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::frame::Update;

use super::*;

impl Fixture {
    /// The public key of the node, whose agent does not run.
    fn public_key(&self) -> PublicKey {
        let dir = StateDir::open(&self.options.state_dir).unwrap();
        let credentials = Credentials::load(&dir).unwrap().unwrap();
        PublicKey::of(&credentials.signing_key().unwrap())
    }
}

fn is_signed(update: &Update, key: &PublicKey) -> bool {
    let statement = Statement::of_update(node_id(), update).unwrap();
    let signature = update.node_sig.as_deref().unwrap();
    key.verifies(
        Purpose::CommandUpdate,
        &statement.encode().unwrap(),
        signature,
    )
}

#[tokio::test]
async fn p2_every_end_is_signed_and_nothing_else_is() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    session.send(command(1, "diag.nvml")).await;
    session.send(command(2, "inventory.refresh")).await;
    let mut refused = command(3, "logs.collect");
    refused.not_after = None;
    session.send(refused).await;
    let mut ends = Vec::new();
    while ends.len() < 3 {
        let update = session.update().await;
        session.acknowledge(&update).await;
        match update.state {
            UpdateState::Acked | UpdateState::Running => assert_eq!(update.node_sig, None),
            _ => ends.push(update),
        }
    }
    fixture.shutdown.cancel();
    fixture.ended().await.unwrap();
    let key = fixture.public_key();
    for end in &ends {
        assert!(is_signed(end, &key), "{end:?}");
    }
    assert!(ends.iter().any(|end| end.state == UpdateState::Rejected));
}

#[tokio::test]
async fn p2_an_end_that_is_said_again_after_a_new_join_has_the_new_keys_signature() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    session.send(command(1, "diag.nvml")).await;
    let mut first = session.update().await;
    while first.state != UpdateState::Succeeded {
        first = session.update().await;
    }
    drop(session);
    fixture.shutdown.cancel();
    fixture.ended().await.unwrap();
    let old = fixture.public_key();
    for file in ["key.pem", "identity.json"] {
        std::fs::remove_file(fixture.options.state_dir.join(file)).unwrap();
    }
    fixture.start();
    let mut session = fixture.gateway.session().await;
    let again = session.until(1, UpdateState::Succeeded).await;
    fixture.shutdown.cancel();
    fixture.ended().await.unwrap();
    let new = fixture.public_key();
    assert_ne!(old, new);
    assert!(is_signed(&first, &old) && is_signed(&again, &new));
    assert_eq!(first.result, again.result);
    assert!(!is_signed(&again, &old));
}
