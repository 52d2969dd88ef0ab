use ledger_protocol::command::{State, StateName};
use ledger_protocol::event::Outcome;
use ledger_protocol::frame::{JOIN_PATH, SESSION_PATH, UpdateState};
use ledger_protocol::id::{CommandId, JournalId, NodeId};
use ledger_protocol::time::Timestamp;
use rcgen::{KeyPair, PKCS_ED25519};
use sqlx::PgPool;

use super::daemon::{Daemon, Identity, connect_tls, request};
use super::world::{World, actor, csr};
use crate::CertificateAuthority;

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).unwrap()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_join_token_gives_a_certificate_that_opens_a_session(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let token = world.token(node, world.ledger.now().plus_seconds(60)).await;
    let key = key();
    let joined = world.join(&token, &csr(&key)).await;
    assert_eq!(joined.status, 200, "{joined:?}");
    assert_eq!(joined.body["nodeId"], node.to_string());
    assert_eq!(joined.body["role"], "node");
    assert_eq!(
        joined.body["caCertificate"],
        world.authority.certificate_pem()
    );
    let certificate = world.node(node).await.certificate.unwrap();
    assert_eq!(certificate.public_key, key.public_key_raw());

    let pem = joined.body["certificate"].as_str().unwrap().to_owned();
    let identity = Identity {
        certificate: pem,
        key: key.serialize_pem(),
        node,
    };
    let daemon = world.open(&identity).await;
    assert_eq!(daemon.epoch, 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_join_token_is_used_by_one_key_in_time_and_as_a_whole(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let now = world.ledger.now();
    let token = world.token(node, now.plus_seconds(60)).await;
    let expired = world.token(node, now.plus_micros(-1)).await;
    let wrong = format!("{}A", &token[..token.len() - 1]);
    let request = csr(&key());
    // A bad request does not use the token up.
    let bad = world.join(&token, "garbage").await;
    assert_eq!((bad.status, bad.code()), (400, "INVALID_INPUT"), "{bad:?}");
    for token in [expired.as_str(), wrong.as_str(), "", "join_", "\0", "a.b.c"] {
        let refused = world.join(token, &request).await;
        assert_eq!(
            (refused.status, refused.code()),
            (401, "UNAUTHENTICATED"),
            "{token:?}"
        );
    }
    let other = csr(&key());
    let (one, two) = tokio::join!(world.join(&token, &request), world.join(&token, &other));
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 401]);
    assert_eq!(world.join(&token, &csr(&key())).await.status, 401);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_daemon_that_did_not_get_the_answer_joins_again_with_the_same_key(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let token = world.token(node, world.ledger.now().plus_seconds(60)).await;
    let key = key();
    assert_eq!(world.join(&token, &csr(&key)).await.status, 200);
    let joined = world.join(&token, &csr(&key)).await;
    assert_eq!(joined.status, 200, "{joined:?}");
    let pem = joined.body["certificate"].as_str().unwrap().to_owned();
    let identity = Identity {
        certificate: pem,
        key: key.serialize_pem(),
        node,
    };
    assert_eq!(world.open(&identity).await.epoch, 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_the_token_of_a_deleted_node_gives_nothing(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let token = world.token(node, world.ledger.now().plus_seconds(60)).await;
    world
        .ledger
        .delete_node(&actor(), world.tenant, node)
        .await
        .unwrap();
    let refused = world.join(&token, &csr(&key())).await;
    assert_eq!(
        (refused.status, refused.code()),
        (409, "INVALID_STATE"),
        "{refused:?}"
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_what_is_no_join_request_is_refused_by_name(pool: PgPool) {
    let world = World::start(pool).await;
    let large = vec![b' '; crate::limits::JOIN_BODY_BYTES_MAX + 1];
    let deep = "[".repeat(10_000);
    for (body, names) in [
        (&large[..], "65536 bytes"),
        (b"", "no join request"),
        (b"{}", "csr"),
        (deep.as_bytes(), "invalid type"),
        (br#"{"csr":"x","token":"y","extra":1}"#, "extra"),
        (br#"{"csr":1,"token":"y"}"#, "string"),
        (b"{\"csr\":\"\xff\",\"token\":\"y\"}", "unicode"),
    ] {
        let refused = request(&world, "POST", JOIN_PATH, None, body).await;
        assert_eq!(
            (refused.status, refused.code()),
            (400, "INVALID_INPUT"),
            "{names}"
        );
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(names), "{message}");
    }
    for (method, path) in [("GET", JOIN_PATH), ("POST", SESSION_PATH), ("GET", "/")] {
        let refused = request(&world, method, path, None, b"").await;
        assert_eq!(
            (refused.status, refused.code()),
            (404, "NOT_FOUND"),
            "{method} {path}"
        );
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d1_a_session_needs_a_certificate_of_our_authority(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let refused = request(&world, "GET", SESSION_PATH, None, b"").await;
    assert_eq!((refused.status, refused.code()), (401, "UNAUTHENTICATED"));
    // With a certificate, but no WebSocket.
    let own = world.identity(node, None);
    let refused = request(&world, "GET", SESSION_PATH, Some(&own), b"").await;
    assert_eq!((refused.status, refused.code()), (400, "INVALID_INPUT"));

    let foreign = foreign_identity(&world, node);
    let connected = connect_tls(&world, world.gateway.address, Some(&foreign)).await;
    // TLS 1.3 lets the client believe for a moment that it is in.
    if let Ok(mut stream) = connected {
        use tokio::io::AsyncReadExt;
        assert!(
            stream.read(&mut [0; 16]).await.is_err(),
            "a foreign certificate was taken"
        );
    }
}

fn foreign_identity(world: &World, node: NodeId) -> Identity {
    let authority = CertificateAuthority::generate(world.ledger.now()).unwrap();
    let key = key();
    let terms = crate::NodeCertificateTerms {
        allowed_kinds: None,
        backdated_seconds: 300,
        now: world.ledger.now(),
        serial: [1; 10],
        valid_seconds: 3_600,
    };
    let issued = authority.issue_node(node, &csr(&key), &terms).unwrap();
    Identity {
        certificate: issued.pem,
        key: key.serialize_pem(),
        node,
    }
}

/// Joins as a new daemon does.
pub(super) async fn join(
    world: &World,
    node: NodeId,
    allowed_kinds: Option<Vec<String>>,
) -> Identity {
    let soon = world.ledger.now().plus_seconds(60);
    let token = world.restricted_token(node, soon, allowed_kinds).await;
    let key = key();
    let joined = world.join(&token, &csr(&key)).await;
    assert_eq!(joined.status, 200, "{joined:?}");
    Identity {
        certificate: joined.body["certificate"].as_str().unwrap().to_owned(),
        key: key.serialize_pem(),
        node,
    }
}

/// How a command has ended.
pub(super) async fn end(world: &World, command: CommandId) -> (Outcome, Option<String>) {
    match world.command(command).await.state {
        State::Settled(settled) => (settled.end.state, settled.end.reason),
        other => panic!("it has not ended: {other:?}"),
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d11_a_restricted_join_token_gives_a_restricted_identity(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let kinds = vec!["inventory.refresh".to_owned()];
    let identity = join(&world, node, Some(kinds.clone())).await;
    let certified = world.node(node).await.certificate.unwrap();
    assert_eq!(certified.allowed_kinds, Some(kinds));
    let refused = world
        .ledger
        .enqueue(&actor(), world.order(node, "node.reboot"))
        .await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("runs a restricted identity that does not accept node.reboot"),
        "{refused}"
    );
    let allowed = world.run(node, "inventory.refresh").await;
    let mut daemon = world.open(&identity).await;
    assert_eq!(daemon.receive_command().await.command_id, allowed);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d8_a_node_that_joins_anew_gets_nothing_destructive_that_was_meant_for_the_old_one(
    pool: PgPool,
) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    // Queued before the first join: no daemon was here before, so they are meant for this one.
    let early = world.run(node, "node.reboot").await;
    let old = join(&world, node, None).await;
    let mut daemon = world.open(&old).await;
    assert_eq!(daemon.receive_command().await.command_id, early);
    daemon.say(early, UpdateState::Failed).await;
    world.until(early, StateName::Ended(Outcome::Failed)).await;

    let reset = world.run(node, "gpu.reset").await;
    let refresh = world.run(node, "inventory.refresh").await;
    let started = world.run(node, "node.reboot").await;
    let sent = [
        daemon.receive_command().await.command_id,
        daemon.receive_command().await.command_id,
        daemon.receive_command().await.command_id,
    ];
    for command in sent {
        daemon.say(command, UpdateState::Acked).await;
    }
    drop(daemon);
    world.until_closed(node).await;
    let reboot = world.run(node, "node.reboot").await;
    let diagnosis = world.run(node, "diag.nvml").await;

    let new = join(&world, node, None).await;
    let mut daemon = Daemon::connect(&world, world.gateway.address, &old).await;
    daemon.send(daemon.hello.clone()).await;
    let (code, reason) = daemon.closed().await;
    assert_eq!(code, 1008);
    assert!(reason.contains("was replaced"), "{reason}");
    let reenrolled = (Outcome::Cancelled, Some("node-reenrolled".to_owned()));
    assert_eq!(end(&world, reboot).await, reenrolled);
    // Before any session of the new daemon, whose boot and journal would prove nothing of it.
    let lost = (Outcome::Failed, Some("journal-lost".to_owned()));
    assert_eq!(end(&world, reset).await, lost);
    assert_eq!(end(&world, started).await, lost);
    let mut daemon = Daemon::connect(&world, world.gateway.address, &new).await;
    daemon.hello.journal_id = JournalId::new(Timestamp::from_micros(9), [9; 10]);
    daemon.hello.boot_id = "another machine".to_owned();
    daemon.greet().await;
    // What does no harm twice is replayed, and what waited is dispatched.
    assert_eq!(daemon.receive_command().await.command_id, refresh);
    assert_eq!(daemon.receive_command().await.command_id, diagnosis);
    daemon.assert_quiet().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_join_closes_the_session_of_the_certificate_that_it_replaces(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let old = join(&world, node, None).await;
    let mut daemon = world.open(&old).await;
    let new = join(&world, node, None).await;
    let (code, reason) = daemon.closed().await;
    assert_eq!(code, 1008);
    assert!(reason.contains("was replaced"), "{reason}");
    world.open(&new).await;
}
