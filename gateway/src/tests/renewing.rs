use ledger::Clock;
use ledger_protocol::command::{State, StateName};
use ledger_protocol::event::Outcome;
use ledger_protocol::frame::{RENEW_PATH, UpdateState};
use ledger_protocol::time::Timestamp;
use rcgen::{KeyPair, PKCS_ED25519};
use sqlx::PgPool;

use super::daemon::{Daemon, Identity, Response, connect_tls, request};
use super::joining::join;
use super::world::{World, actor, csr};
use crate::Options;

/// Life of certificates here.
const HOUR: u32 = 3_600;

/// A world whose clock the test sets, with certificates for an hour. Its sessions look at it often.
pub(super) async fn start(pool: PgPool) -> (World, Clock) {
    let now = Clock::system().now().as_micros();
    let clock = Clock::manual(Timestamp::from_micros(now - now % 1_000_000));
    let options = Options {
        certificate_seconds: HOUR,
        ping_seconds: 1,
        ..Options::default()
    };
    (World::start_by(clock.clone(), pool, options).await, clock)
}

/// Posts a renewal with a request for this key.
async fn renew_with(world: &World, identity: &Identity, key: &str) -> Response {
    let csr = csr(&KeyPair::from_pem(key).unwrap());
    let body = serde_json::json!({ "csr": csr }).to_string();
    request(world, "POST", RENEW_PATH, Some(identity), body.as_bytes()).await
}

/// Renews as a daemon does.
async fn renew(world: &World, identity: &Identity) -> Identity {
    let renewed = renew_with(world, identity, &identity.key).await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
    assert_eq!(renewed.body["nodeId"], identity.node.to_string());
    assert_eq!(renewed.body["role"], "node");
    let authority = world.authority.certificate_pem();
    assert_eq!(renewed.body["caCertificate"], authority);
    Identity {
        certificate: renewed.body["certificate"].as_str().unwrap().to_owned(),
        ..identity.clone()
    }
}

/// Whether TLS lets the identity in no more.
async fn is_shut_out(world: &World, identity: &Identity) -> bool {
    use tokio::io::AsyncReadExt as _;
    match connect_tls(world, world.gateway.address, Some(identity)).await {
        // TLS 1.3 lets the client believe for a moment that it is in.
        Ok(mut stream) => stream.read(&mut [0; 16]).await.is_err(),
        Err(_) => true,
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_renewal_changes_nothing_of_what_is_in_flight(pool: PgPool) {
    let (world, clock) = start(pool).await;
    let node = world.register("n").await;
    let first = join(&world, node, None).await;
    let mut daemon = world.open(&first).await;
    let reboot = world.run(node, "node.reboot").await;
    let collect = world.run(node, "logs.collect").await;
    for _ in 0..2 {
        let sent = daemon.receive_command().await.command_id;
        assert!([reboot, collect].contains(&sent));
    }
    for command in [reboot, collect] {
        daemon.say(command, UpdateState::Acked).await;
    }
    clock.advance_seconds(HOUR / 2);
    let before = world.node(node).await;
    let second = renew(&world, &first).await;
    // An answer got lost, and the daemon renews what it has once more.
    let third = renew(&world, &first).await;
    let after = world.node(node).await;
    assert_eq!(after.version, before.version + 2);
    assert_eq!(
        (after.epoch, &after.session),
        (before.epoch, &before.session)
    );
    assert_eq!(after.journal_id, before.journal_id);
    assert_eq!(
        world.command(collect).await.state,
        State::Acked { epoch: 1 }
    );
    assert!(world.command(reboot).await.is_in_flight());
    // The session of the first certificate goes on, and what it says counts.
    daemon.say(collect, UpdateState::Running).await;
    daemon.say(collect, UpdateState::Succeeded).await;
    world
        .until(collect, StateName::Ended(Outcome::Succeeded))
        .await;
    let refresh = world.run(node, "inventory.refresh").await;
    assert_eq!(daemon.receive_command().await.command_id, refresh);
    daemon.say(refresh, UpdateState::Succeeded).await;
    // Each of them opens the next one.
    for (epoch, identity) in [(2, &second), (3, &third), (4, &first)] {
        let mut daemon = world.open(identity).await;
        assert_eq!(daemon.epoch, epoch);
        daemon.assert_quiet().await;
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d11_a_renewal_keeps_the_kinds_of_a_restricted_identity(pool: PgPool) {
    let (world, clock) = start(pool).await;
    let node = world.register("n").await;
    let kinds = Some(vec!["inventory.refresh".to_owned()]);
    let first = join(&world, node, kinds.clone()).await;
    clock.advance_seconds(HOUR / 2);
    let second = renew(&world, &first).await;
    let held = world.node(node).await.certificate.unwrap();
    assert_eq!(held.allowed_kinds, kinds);
    let end = clock.now().plus_seconds(HOUR);
    assert_eq!(held.not_after, end);
    let (actor, reboot) = (actor(), world.order(node, "node.reboot"));
    let refused = world.ledger.enqueue(&actor, reboot).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("restricted identity"), "{refused}");
    let allowed = world.run(node, "inventory.refresh").await;
    let mut daemon = world.open(&second).await;
    assert_eq!(daemon.receive_command().await.command_id, allowed);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_renewal_is_for_the_own_key_and_for_a_certificate_that_counts(pool: PgPool) {
    let (world, _) = start(pool).await;
    let node = world.register("n").await;
    let other_node = world.register("o").await;
    let own = join(&world, node, None).await;
    let other = join(&world, other_node, None).await;
    let new_key = KeyPair::generate_for(&PKCS_ED25519)
        .unwrap()
        .serialize_pem();
    let version = world.node(node).await.version;
    // A new key, and the request of another node.
    for key in [&new_key, &other.key] {
        let refused = renew_with(&world, &own, key).await;
        assert_eq!((refused.status, refused.code()), (400, "INVALID_INPUT"));
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains("another key joins"), "{message}");
    }
    for (body, names) in [
        ("", "no renewal"),
        ("{}", "csr"),
        (r#"{"csr":"x"}"#, "PEM"),
        (r#"{"csr":"x","token":"y"}"#, "token"),
    ] {
        let refused = request(&world, "POST", RENEW_PATH, Some(&own), body.as_bytes()).await;
        assert_eq!((refused.status, refused.code()), (400, "INVALID_INPUT"));
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(names), "{message}");
    }
    let body = serde_json::json!({ "csr": csr(&KeyPair::from_pem(&own.key).unwrap()) });
    let body = body.to_string();
    let refused = request(&world, "POST", RENEW_PATH, None, body.as_bytes()).await;
    assert_eq!((refused.status, refused.code()), (401, "UNAUTHENTICATED"));
    assert_eq!(world.node(node).await.version, version);

    // One that a join has replaced, one that the ledger never saw, one of a deleted node.
    let new = join(&world, node, None).await;
    let unknown = world.identity(world.register("u").await, None);
    let actor = actor();
    let deleted = world.ledger.delete_node(&actor, world.tenant, other_node);
    deleted.await.unwrap();
    for (identity, names) in [
        (&own, "replaced"),
        (&unknown, "another key joins"),
        (&other, "was deleted"),
    ] {
        let refused = renew_with(&world, identity, &identity.key).await;
        assert_eq!((refused.status, refused.code()), (409, "INVALID_STATE"));
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(names), "{message}");
    }
    renew(&world, &new).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_session_ends_with_its_certificate_and_comes_back_with_a_renewed_one(pool: PgPool) {
    let (world, clock) = start(pool).await;
    let node = world.register("n").await;
    let first = join(&world, node, None).await;
    let mut daemon = world.open(&first).await;
    let refresh = world.run(node, "inventory.refresh").await;
    assert_eq!(daemon.receive_command().await.command_id, refresh);
    clock.advance_seconds(HOUR / 2);
    let second = renew(&world, &first).await;
    // The last second still counts.
    clock.advance_seconds(HOUR / 2);
    daemon.say(refresh, UpdateState::Acked).await;
    clock.advance_seconds(1);
    let (code, reason) = daemon.closed().await;
    assert_eq!(code, 4001, "{reason}");
    assert!(reason.starts_with("certificate-expired"), "{reason}");
    assert_eq!(world.until_closed(node).await, reason);
    assert!(is_shut_out(&world, &first).await);
    assert!(world.command(refresh).await.is_in_flight());
    let mut daemon = Daemon::connect(&world, world.gateway.address, &second).await;
    daemon.greet().await;
    assert_eq!(daemon.receive_command().await.command_id, refresh);
    daemon.say(refresh, UpdateState::Succeeded).await;
    // Once that one has ended too, the way back is a join.
    clock.advance_seconds(HOUR / 2);
    assert_eq!(daemon.closed().await.0, 4001);
    assert!(is_shut_out(&world, &second).await);
    let new = join(&world, node, None).await;
    world.open(&new).await;
}
