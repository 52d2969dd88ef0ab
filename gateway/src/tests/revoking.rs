use ledger_protocol::event::Outcome;
use ledger_protocol::frame::{CommandUpdate, RENEW_PATH, Update, UpdateState};
use ledger_protocol::id::NodeId;
use rcgen::KeyPair;
use sqlx::PgPool;

use super::daemon::{Daemon, Identity, request};
use super::joining::{end, join};
use super::world::{World, actor, csr};

async fn revoke(world: &World, node: NodeId) {
    let reason = "stolen".to_owned();
    let (ledger, actor) = (&world.ledger, actor());
    let revoked = ledger.revoke_certificate(&actor, world.tenant, node, reason);
    assert!(revoked.await.unwrap().is_revoked());
}

/// Tries to open a session; answers how it was refused.
async fn refused(world: &World, identity: &Identity) -> (u16, String) {
    let mut daemon = Daemon::connect(world, world.gateway.address, identity).await;
    daemon.send(daemon.hello.clone()).await;
    daemon.closed().await
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_revocation_closes_the_session_on_whichever_gateway(pool: PgPool) {
    let world = World::start(pool).await;
    let elsewhere = world.serve_elsewhere("gw-2").await;
    let mut sessions = Vec::new();
    for address in [world.gateway.address, elsewhere.address] {
        let node = world.register("n").await;
        let identity = join(&world, node, None).await;
        let mut daemon = Daemon::connect(&world, address, &identity).await;
        daemon.greet().await;
        sessions.push((daemon, identity));
    }
    for (mut daemon, identity) in sessions {
        revoke(&world, identity.node).await;
        let (code, reason) = daemon.closed().await;
        assert_eq!(code, 4002, "{reason}");
        assert!(reason.starts_with("certificate-revoked"), "{reason}");
        let closed = world.until_closed(identity.node).await;
        assert_eq!(closed, "certificate-revoked");
        let (code, reason) = refused(&world, &identity).await;
        assert_eq!(code, 4002, "{reason}");
        assert_eq!(world.node(identity.node).await.epoch, 1);
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_what_was_revoked_lets_nobody_in_and_a_join_with_another_key_does(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let old = join(&world, node, None).await;
    revoke(&world, node).await;
    let request_for = |identity: &Identity| csr(&KeyPair::from_pem(&identity.key).unwrap());
    let body = serde_json::json!({ "csr": request_for(&old) }).to_string();
    let renewal = request(&world, "POST", RENEW_PATH, Some(&old), body.as_bytes()).await;
    assert_eq!((renewal.status, renewal.code()), (409, "INVALID_STATE"));
    assert_eq!(refused(&world, &old).await.0, 4002);
    let soon = world.ledger.now().plus_seconds(60);
    let token = world.token(node, soon).await;
    let same_key = world.join(&token, &request_for(&old)).await;
    assert_eq!((same_key.status, same_key.code()), (409, "INVALID_STATE"));
    let message = same_key.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("join with a new key"), "{message}");
    let new = join(&world, node, None).await;
    let mut daemon = world.open(&new).await;
    // The old one does not even disturb the new one.
    assert_eq!(refused(&world, &old).await.0, 4002);
    daemon.assert_quiet().await;
    assert!(!world.node(node).await.is_revoked());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_revocation_ends_what_a_new_join_would_end(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let old = join(&world, node, None).await;
    let mut daemon = world.open(&old).await;
    let reset = world.run(node, "gpu.reset").await;
    let refresh = world.run(node, "inventory.refresh").await;
    let mut sent = [reset, refresh];
    let mut received = [
        daemon.receive_command().await.command_id,
        daemon.receive_command().await.command_id,
    ];
    sent.sort_unstable();
    received.sort_unstable();
    assert_eq!(received, sent);
    for command in sent {
        daemon.say(command, UpdateState::Acked).await;
    }
    revoke(&world, node).await;
    let done = Update::bare(reset, UpdateState::Succeeded);
    let updates = vec![done];
    daemon.try_send(CommandUpdate { updates }).await;
    assert_eq!(daemon.closed().await.0, 4002);
    let revoked = |outcome| (outcome, Some("certificate-revoked".to_owned()));
    assert_eq!(end(&world, reset).await, revoked(Outcome::Failed));
    assert!(world.command(refresh).await.is_in_flight());
    // What is queued meanwhile waits, as for any node that is away.
    let diagnosis = world.run(node, "diag.nvml").await;
    let new = join(&world, node, None).await;
    let mut daemon = world.open(&new).await;
    assert_eq!(daemon.receive_command().await.command_id, refresh);
    assert_eq!(daemon.receive_command().await.command_id, diagnosis);
    daemon.assert_quiet().await;
}
