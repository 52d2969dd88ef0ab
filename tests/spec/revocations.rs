//! A machine that is not to be trusted any more is locked out at once, whichever process holds its
//! session (SPEC P7).

use ledger_gateway::CertificateAuthority;
use ledger_protocol::event::NodeCertified;
use ledger_protocol::time::Timestamp;
use ledger_tests::daemon::{Daemon, Identity};
use ledger_tests::ground::Ground;
use ledger_tests::serve::gateway;
use ledger_tests::{database, wait};
use sqlx::PgPool;

/// Close code of a session whose node must wait for a person.
const REVOKED: u16 = 4002;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_revocation_closes_a_session_that_another_process_holds(pool: PgPool) {
    let url = database::url(&pool);
    let ground = Ground::new(ledger::connect(url.as_str(), 4).await.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::load_or_generate(folder.path(), ground.ledger.now());
    let authority = authority.unwrap();
    let path = folder.path().to_str().unwrap();
    let (here, there) = tokio::join!(gateway(&url, path), gateway(&url, path));
    let (node, other) = (ground.node("n").await, ground.node("o").await);
    for joined in [node, other] {
        let certified = NodeCertified {
            allowed_kinds: None,
            fingerprint: "ab".repeat(32),
            not_after: ground.ledger.now().plus_seconds(3_600),
            not_before: Timestamp::from_micros(0),
            public_key: vec![7; 32],
            renews: None,
        };
        let recorded = ground.ledger.certify(&ground.gateway, joined, certified);
        recorded.await.unwrap();
    }
    let now = ground.ledger.now();
    let [identity, bystander] = [node, other].map(|node| Identity::new(&authority, node, now));
    let mut daemon = Daemon::open(there.address, &identity).await;
    let mut bystander = Daemon::open(there.address, &bystander).await;
    let reason = "stolen".to_owned();
    let (actor, tenant) = (&ground.actor, ground.tenant);
    let revoked = ground
        .ledger
        .revoke_certificate(actor, tenant, node, reason);
    revoked.await.unwrap();
    let (code, reason) = daemon.ended().await;
    assert_eq!(code, REVOKED, "{reason}");
    for gateway in [&here, &there] {
        let mut daemon = Daemon::connect(gateway.address, &identity).await;
        daemon.say(identity.hello()).await;
        assert_eq!(daemon.ended().await.0, REVOKED);
    }
    // The other node is not disturbed.
    let command = ground.queue(other, "api:1").await.id;
    let sent = wait::in_time("the command", bystander.next()).await;
    let Ok(ledger_protocol::frame::Frame::Command(sent)) = sent else {
        panic!("{sent:?} is no command")
    };
    assert_eq!(sent.command_id, command);
}
