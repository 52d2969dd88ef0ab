//! Witnesses that cosign, and witnesses that do anything else, over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse as _;
use axum::routing::post;
use ed25519_dalek::SigningKey;
use ledger::Clock;
use ledger_protocol::tlog::{Checkpoint, Cosigner, Policy, Signer};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::super::tests::{World, key};
use super::*;
use crate::witness::{Witness, witness_router};

/// More than the bound of one look by what a busy machine may add.
const SLACK: Duration = Duration::from_secs(10);

fn cosigner(seed: u8) -> Cosigner {
    let name = format!("witness.example/{seed}").parse().unwrap();
    Cosigner::new(name, SigningKey::from_bytes(&[seed; 32]))
}

/// A listener that serves until this is dropped.
struct Serving {
    at: SocketAddr,
    _task: JoinSet<()>,
}

impl Serving {
    async fn start(router: Router) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), router).await
    }

    async fn start_at(at: SocketAddr, router: Router) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { at, _task: task }
    }

    /// As the log asks it, which takes it for the witness with this number.
    fn witness(&self, seed: u8) -> WitnessAt {
        witness(seed, self.at)
    }
}

fn witness(seed: u8, at: SocketAddr) -> WitnessAt {
    // The program installs it when it starts; a second time changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    WitnessAt::new(cosigner(seed).verifier_key(), &format!("http://{at}/")).unwrap()
}

fn honest(seed: u8, folder: &TempDir) -> Witness {
    let logs = vec![key().verifier_key()];
    Witness::open(cosigner(seed), logs, folder.path(), Clock::system()).unwrap()
}

/// Asks for a quorum of these witnesses.
fn believe(note: &str, seeds: &[u8]) {
    let witnesses: Vec<_> = seeds
        .iter()
        .map(|seed| cosigner(*seed).verifier_key())
        .collect();
    let log = key().verifier_key();
    let policy = Policy::new("log.example/1", vec![log], witnesses, seeds.len()).unwrap();
    let note = Note::parse(note.as_bytes()).unwrap();
    policy.believe(&note).unwrap();
}

fn signatures(note: &str) -> usize {
    Note::parse(note.as_bytes()).unwrap().signatures().len()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u4_what_witnesses_cosign_is_published_and_one_that_was_away_goes_on(pool: PgPool) {
    let world = World::new(pool);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = Serving::start(witness_router(honest(21, &folders[0]))).await;
    let two = Serving::start(witness_router(honest(22, &folders[1]))).await;
    let witnesses = vec![one.witness(21), two.witness(22)];
    let working = world.start_with("one", witnesses.clone());
    for size in [1, 300, 1_000] {
        world.append(size, "a").await;
        believe(&world.published(size).await, &[21, 22]);
    }
    let at = two.at;
    drop(two);
    world.append(1_200, "a").await;
    let note = world.published(1_200).await;
    believe(&note, &[21]);
    assert_eq!(signatures(&note), 2);
    // It comes back where it was, and what it had not seen is proved to it.
    let _two = Serving::start_at(at, witness_router(honest(22, &folders[1]))).await;
    let mut size = 1_200;
    loop {
        size += 300;
        world.append(size, "a").await;
        let note = world.published(size).await;
        believe(&note, &[21]);
        if signatures(&note) == 3 {
            believe(&note, &[21, 22]);
            break;
        }
        assert!(size < 60_000, "the witness is never asked again");
    }
    working.stop().await;
    // Another process begins without knowing how far they are.
    world.append(size + 1, "a").await;
    let working = world.start_with("two", witnesses);
    believe(&world.published(size + 1).await, &[21, 22]);
    working.stop().await;
    // One that died between memory and publication publishes the same with other cosignatures.
    let sql = format!("DELETE FROM checkpoints WHERE size = {}", size + 1);
    world.tamper(&sql).await;
    let working = world.start_with("three", vec![one.witness(21)]);
    believe(&world.published(size + 1).await, &[21]);
    working.stop().await;
}

/// Takes connections and never says anything.
async fn silent() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    (at, task)
}

/// Answers a head, and then bytes without end; counts what it could send.
async fn endless(sent: Arc<AtomicUsize>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let mut task = JoinSet::new();
    task.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 1024];
            let _ = stream.read(&mut asked).await;
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n";
            let mut bytes = &head[..];
            while tokio::io::AsyncWriteExt::write_all(&mut stream, bytes)
                .await
                .is_ok()
            {
                sent.fetch_add(bytes.len(), Ordering::Relaxed);
                bytes = &[b'x'; 4096];
            }
        }
    });
    (at, task)
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u4_a_witness_that_lies_hangs_or_floods_never_stops_the_log(pool: PgPool) {
    let world = World::new(pool);
    let folder = tempfile::tempdir().unwrap();
    let good = Serving::start(witness_router(honest(21, &folder))).await;
    let redirected = Arc::new(AtomicBool::new(false));
    let seen = redirected.clone();
    let answers = |answer: fn(Checkpoint) -> String| {
        let handler = async move |body: String| {
            let add = AddCheckpoint::parse(body.as_bytes()).unwrap();
            answer(Checkpoint::parse(add.checkpoint.text()).unwrap())
        };
        Router::new().route("/add-checkpoint", post(handler))
    };
    let other_tree = |checkpoint: Checkpoint| {
        let mut head = *checkpoint.head();
        head.root[0] ^= 1;
        let other = Checkpoint::new(checkpoint.origin(), head).unwrap();
        format!("{}\n", cosigner(31).cosign(&other, 1_800_000_000).unwrap())
    };
    let other_name = |checkpoint: Checkpoint| {
        format!(
            "{}\n",
            cosigner(99).cosign(&checkpoint, 1_800_000_000).unwrap()
        )
    };
    let plain_signature = |checkpoint: Checkpoint| {
        let name = "witness.example/33".parse().unwrap();
        let signer = Signer::new(name, SigningKey::from_bytes(&[33; 32]));
        format!("{}\n", signer.sign(&checkpoint.to_string()).unwrap())
    };
    let moves = async || {
        let to = [(header::LOCATION, "/elsewhere")];
        (StatusCode::TEMPORARY_REDIRECT, to, "elsewhere\n").into_response()
    };
    let elsewhere = async move || {
        seen.store(true, Ordering::Relaxed);
        "— x AAAAAAA=\n"
    };
    let routers = [
        (31, answers(other_tree)),
        (32, answers(other_name)),
        (33, answers(plain_signature)),
        (34, answers(|_| "\u{0}".to_owned())),
        (35, answers(|_| "7\n".to_owned())),
        (
            36,
            Router::new()
                .route("/add-checkpoint", post(moves))
                .route("/elsewhere", post(elsewhere)),
        ),
        (
            37,
            Router::new().route(
                "/add-checkpoint",
                post(async || (StatusCode::CONFLICT, "99999999999\n")),
            ),
        ),
        (
            38,
            Router::new().route(
                "/add-checkpoint",
                post(async || (StatusCode::UNPROCESSABLE_ENTITY, "no")),
            ),
        ),
    ];
    let mut serving = Vec::new();
    let mut witnesses = vec![good.witness(21)];
    for (seed, router) in routers {
        let one = Serving::start(router).await;
        witnesses.push(one.witness(seed));
        serving.push(one);
    }
    let sent = Arc::new(AtomicUsize::new(0));
    let (flood, _flooding) = endless(sent.clone()).await;
    let (hang, _hanging) = silent().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = closed.local_addr().unwrap();
    drop(closed);
    for (seed, at) in [(41, flood), (42, hang), (43, gone)] {
        witnesses.push(witness(seed, at));
    }
    let working = world.start_with("one", witnesses);
    let began = Instant::now();
    for size in [10, 20, 30] {
        world.append(size, "a").await;
        let note = world.published(size).await;
        believe(&note, &[21]);
        assert_eq!(signatures(&note), 2, "{note}");
    }
    let took = began.elapsed();
    assert!(took < 3 * limits::COSIGNED_WITHIN + SLACK, "{took:?}");
    working.stop().await;
    assert!(
        !redirected.load(Ordering::Relaxed),
        "it followed a redirect"
    );
    // What the system's own buffers hold beside what was read.
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent < 64 * 1024 * 1024, "{sent} bytes were taken");
}

#[test]
fn u4_who_can_be_no_witness_is_refused_with_what_is_wrong() {
    let at = |seed, url| WitnessAt::new(cosigner(seed).verifier_key(), url);
    for url in [
        "",
        "witness.example",
        "ftp://witness.example",
        "http://user:hunter2@witness.example",
        "http://witness.example/?a",
        "http://witness.example/#a",
    ] {
        let told = at(1, url).unwrap_err().to_string();
        assert!(
            told.contains("needs the URL") && !told.contains("hunter2"),
            "{told}"
        );
    }
    let log = key().verifier_key();
    let told = WitnessAt::new(log.clone(), "http://w.example").unwrap_err();
    assert!(told.to_string().contains("0x04"), "{told}");
    let endpoints = [
        "http://127.0.0.1:1",
        "http://127.0.0.1:1/",
        "http://127.0.0.1:1/a/",
    ];
    let endpoints = endpoints.map(|url| endpoint(url).unwrap().to_string());
    assert_eq!(endpoints[0], "http://127.0.0.1:1/add-checkpoint");
    assert_eq!(endpoints[1], endpoints[0]);
    assert_eq!(endpoints[2], "http://127.0.0.1:1/a/add-checkpoint");
}
