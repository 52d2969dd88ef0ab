//! Bad frames on a session, against a gateway process: that session closes with a reason, and
//! nobody else notices (SPEC D1, D13).

use ledger_gateway::CertificateAuthority;
use ledger_protocol::event::Body;
use ledger_protocol::frame::{Frame, Ping, Status, Update, UpdateState};
use ledger_protocol::limits::FRAME_BYTES_MAX;
use ledger_tests::daemon::{Daemon, Identity};
use ledger_tests::database;
use ledger_tests::ground::{Ground, events};
use ledger_tests::serve::gateway;
use ledger_tests::wait::until;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use sqlx::PgPool;
use tokio_tungstenite::tungstenite::Message;

const RANDOM_MESSAGES: usize = 150;
const SEED: u64 = 1;
/// Close codes of RFC 6455 that tell a client that it was wrong.
const BLAMING: [u16; 4] = [1002, 1003, 1008, 1009];

fn random_bytes(random: &mut StdRng, bytes_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.random_range(0..bytes_max)];
    random.fill_bytes(&mut bytes);
    bytes
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d1_bad_frames_close_their_own_session_with_a_reason_and_no_other(pool: PgPool) {
    let url = database::url(&pool);
    let ground = Ground::new(ledger::connect(url.as_str(), 4).await.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::load_or_generate(folder.path(), ground.ledger.now());
    let authority = authority.unwrap();
    let mut service = gateway(&url, folder.path().to_str().unwrap()).await;
    let at = service.address;
    let (good, bad) = (ground.node("good").await, ground.node("bad").await);
    let now = ground.ledger.now();
    let (good_identity, bad_identity) = (
        Identity::new(&authority, good, now),
        Identity::new(&authority, bad, now),
    );
    let mut other = Daemon::open(at, &good_identity).await;

    let command = ground.queue(good, "api:1").await.id;
    let Ok(Frame::Command(sent)) = other.next().await else {
        panic!("no command")
    };
    assert_eq!(sent.command_id, command);

    let mut random = StdRng::seed_from_u64(SEED);
    let cut = |bytes: Vec<u8>, random: &mut StdRng| {
        let keep = random.random_range(0..bytes.len());
        bytes[..keep].to_vec()
    };
    let hello: Frame = bad_identity.hello().into();
    let hello = hello.encode().unwrap();
    // As the first word of a session.
    let mut first = vec![
        Message::Text("hello".into()),
        Message::Binary(vec![0; 2 * FRAME_BYTES_MAX].into()),
        Message::Binary(Vec::new().into()),
        Message::Binary(vec![0x92, 1, 0x80].into()),
        Message::Binary(cut(hello.clone(), &mut random).into()),
    ];
    let status = Status {
        trust_version: 0,
        wants_trust: false,
        applied_generation: 0,
        wants_spec: true,
    };
    let update = Update::bare(command, UpdateState::Succeeded);
    for frame in [
        Frame::from(status),
        Frame::from(ledger_protocol::frame::CommandUpdate {
            updates: vec![update.clone()],
        }),
        Frame::from(good_identity.hello()),
    ] {
        first.push(Message::Binary(frame.encode().unwrap().into()));
    }
    for message in first {
        let shown: String = format!("{message:?}").chars().take(100).collect();
        let mut daemon = Daemon::connect(at, &bad_identity).await;
        daemon.send(message).await;
        let (code, reason) = daemon.ended().await;
        assert!(
            BLAMING.contains(&code) && !reason.is_empty(),
            "{shown}: {code} {reason}"
        );
    }

    // In the middle of a session: noise, noise that begins like a frame, and frames with a flaw.
    let mut later = vec![
        Message::Text("{}".into()),
        Message::Binary(vec![0x92, 127, 0x80].into()),
        Message::Binary(vec![0x92, 5, 0xdf, 0xff, 0xff, 0xff, 0xff].into()),
        Message::Binary([&[0x92, 5][..], &[0x91; 10_000]].concat().into()),
        Message::Binary(vec![0; 4 * FRAME_BYTES_MAX].into()),
        Message::Binary(hello.clone().into()),
    ];
    for _ in 0..RANDOM_MESSAGES {
        let mut bytes = match random.random_range(0..3) {
            0 => Vec::new(),
            1 => vec![0x92, random.random_range(0..12)],
            _ => cut(hello.clone(), &mut random),
        };
        bytes.extend(random_bytes(&mut random, 2_000));
        later.push(Message::Binary(bytes.into()));
    }
    let (mut closed, sent) = (0, later.len());
    let mut daemon = Daemon::open(at, &bad_identity).await;
    for message in later {
        let shown: String = format!("{message:?}").chars().take(100).collect();
        daemon.send(message).await;
        daemon
            .say(Ping {
                nonce: 7,
                reply: false,
                server_time: None,
            })
            .await;
        // Chance may have made a frame that may be sent.
        match daemon.next().await {
            Ok(_) => {}
            Err((code, reason)) => {
                assert!(
                    BLAMING.contains(&code) && !reason.is_empty(),
                    "{shown}: {code} {reason}"
                );
                closed += 1;
                daemon = Daemon::open(at, &bad_identity).await;
            }
        }
    }
    assert!(closed > sent / 2, "{closed} of {sent} closed their session");

    // Nobody else has noticed.
    other
        .say(Ping {
            nonce: 8,
            reply: false,
            server_time: None,
        })
        .await;
    let Ok(Frame::Ping(pong)) = other.next().await else {
        panic!("no answer")
    };
    assert_eq!(pong.nonce, 8);
    let command = ground.queue(good, "api:2").await.id;
    let Ok(Frame::Command(sent)) = other.next().await else {
        panic!("no command")
    };
    assert_eq!(sent.command_id, command);
    assert!(service.process.runs());
    let stderr = service.process.stderr();
    assert!(!stderr.contains("panicked"), "{stderr}");

    // Each session that was opened and closed is in the log, and nothing else of the bad node.
    drop(daemon);
    until("the last session is recorded as ended", async || {
        let events = events(&pool).await;
        let of_bad = events.iter().filter(|event| event.node_id() == Some(bad));
        let (mut opened, mut ended) = (0, 0);
        for event in of_bad {
            match &event.body {
                Body::NodeRegistered(_) => {}
                Body::NodeSessionOpened(_) => opened += 1,
                Body::NodeSessionClosed(closed) => {
                    assert!(!closed.reason.is_empty());
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        opened == ended && opened == closed + 1
    })
    .await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d13_refused_frames_are_told_in_the_log_and_not_one_by_one(pool: PgPool) {
    const REFUSED: usize = 60;
    let url = database::url(&pool);
    let ground = Ground::new(ledger::connect(url.as_str(), 4).await.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::load_or_generate(folder.path(), ground.ledger.now());
    let authority = authority.unwrap();
    let service = gateway(&url, folder.path().to_str().unwrap()).await;
    let node = ground.node("noisy").await;
    let identity = Identity::new(&authority, node, ground.ledger.now());
    let mut daemon = Daemon::open(service.address, &identity).await;
    for _ in 0..REFUSED {
        let noise = vec![0; FRAME_BYTES_MAX + 1];
        daemon.send(Message::Binary(noise.into())).await;
    }
    let ping = Ping {
        nonce: 7,
        reply: false,
        server_time: None,
    };
    daemon.say(ping).await;
    // The session lives on, and has read all of them by then.
    while !matches!(daemon.next().await, Ok(Frame::Ping(Ping { nonce: 7, .. }))) {}

    let text = service.process.stderr();
    let told: Vec<_> = text
        .lines()
        .filter(|line| line.contains("a frame was refused"))
        .collect();
    assert!((1..REFUSED / 4).contains(&told.len()), "{told:#?}");
    for part in [node.to_string(), (FRAME_BYTES_MAX + 1).to_string()] {
        assert!(told[0].contains(&part), "{}", told[0]);
    }
}
