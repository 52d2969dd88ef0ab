use ledger_protocol::frame::{JOIN_PATH, SESSION_PATH};
use ledger_protocol::id::NodeId;
use rcgen::{KeyPair, PKCS_ED25519};
use sqlx::PgPool;

use super::daemon::{Identity, connect_tls, request};
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
async fn a11_a_join_token_is_used_once_in_time_and_as_a_whole(pool: PgPool) {
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
    let (one, two) = tokio::join!(world.join(&token, &request), world.join(&token, &request));
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 401]);
    assert_eq!(world.join(&token, &request).await.status, 401);
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
