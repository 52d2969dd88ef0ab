//! What only shows on a real connection: sizes, slowness, rudeness and the end.

use std::net::SocketAddr;
use std::time::Duration;

use ledger_api::Options;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::harness::{Answer, World, service};

/// Longest time that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    served: JoinHandle<()>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test owns the task and awaits it"
)]
async fn serve(world: &World) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let served = ledger_api::serve("the API", listener, world.router.clone(), shutdown.clone());
    Server {
        address,
        shutdown,
        served: tokio::spawn(served),
    }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.served)
            .await
            .expect("it still serves")
            .unwrap();
    }
}

/// The head of a request with further headers, each ended by CRLF.
fn head(world: &World, method: &str, more: &str) -> String {
    let path = method.replace('.', "/");
    let token = &world.token;
    format!(
        "POST /api/compute/{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\n{more}\r\n"
    )
}

fn whole(world: &World, method: &str, mut body: Value) -> String {
    body["tenantId"] = json!(world.tenant);
    let body = body.to_string();
    let length = format!("content-length: {}\r\n", body.len());
    head(world, method, &length) + &body
}

/// Reads one response: its head, and the answer.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> (String, Answer) {
    let reading = async {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            bytes.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(bytes).unwrap().to_ascii_lowercase();
        let header = |name: &str| {
            let line = head
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_else(|| panic!("no {name} in {head}"))
                .to_owned()
        };
        assert_eq!(header("content-type"), "application/json");
        let mut body = vec![0; header("content-length").parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_slice(&body).unwrap();
        (head, Answer { status, body })
    };
    timeout(PATIENCE, reading).await.expect("no response")
}

async fn assert_closed(stream: &mut (impl AsyncRead + Unpin)) {
    let mut byte = [0];
    let end = timeout(PATIENCE, stream.read(&mut byte))
        .await
        .expect("it stays open");
    assert!(matches!(end, Ok(0) | Err(_)), "more was sent");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_one_connection_serves_many_requests(pool: PgPool) {
    let world = World::start(pool).await;
    let server = serve(&world).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        let request = whole(&world, "nodes.list", json!({}));
        stream.write_all(request.as_bytes()).await.unwrap();
        read(&mut stream).await.1.ok();
        let request = whole(&world, "nodes.list", json!({"limit": 0}));
        stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(read(&mut stream).await.1.field(), "limit");
    }
    server.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_a_body_that_announces_too_much_is_refused_before_it_is_sent(pool: PgPool) {
    let world = World::start(pool).await;
    let server = serve(&world).await;
    let mut stream = server.connect().await;
    let request = head(&world, "nodes.list", "content-length: 1048577\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (head, answer) = read(&mut stream).await;
    assert_eq!((answer.code(), answer.field()), ("INVALID_INPUT", "body"));
    assert_eq!(answer.body["error"]["details"]["limitBytes"], 1_048_576);
    assert!(head.contains("connection: close"), "{head}");
    assert_closed(&mut stream).await;
    server.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_a_body_without_end_is_refused_while_it_streams(pool: PgPool) {
    let world = World::start(pool).await;
    let server = serve(&world).await;
    let mut stream = server.connect().await;
    let request = head(&world, "nodes.list", "transfer-encoding: chunked\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x1_0000));
    let (mut responses, mut requests) = stream.into_split();
    let flood = async {
        while requests.write_all(chunk.as_bytes()).await.is_ok() {}
        // The server has closed; its response is still to be read.
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        (_, answer) = read(&mut responses) => answer,
        () = flood => unreachable!(),
    };
    assert_eq!((answer.code(), answer.field()), ("INVALID_INPUT", "body"));
    assert_closed(&mut responses).await;
    server.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_a_body_of_exactly_the_limit_is_read(pool: PgPool) {
    let world = World::start(pool).await;
    let server = serve(&world).await;
    let mut stream = server.connect().await;
    let mut body = json!({"tenantId": world.tenant}).to_string();
    body.push_str(&" ".repeat(1_048_576 - body.len()));
    let request = head(&world, "nodes.list", "content-length: 1048576\r\n") + &body;
    stream.write_all(request.as_bytes()).await.unwrap();
    read(&mut stream).await.1.ok();
    server.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_a_slow_body_is_refused_and_costs_the_others_nothing(pool: PgPool) {
    let world = World::start(pool).await;
    let server = serve(&world).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = server.connect().await;
        let request = head(&world, "nodes.list", "content-length: 100\r\n") + "{\"tenantId\":";
        stream.write_all(request.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let mut quick = server.connect().await;
    let request = whole(&world, "nodes.list", json!({}));
    quick.write_all(request.as_bytes()).await.unwrap();
    read(&mut quick).await.1.ok();
    for mut stream in slow {
        let (_, answer) = read(&mut stream).await;
        assert_eq!((answer.code(), answer.field()), ("INVALID_INPUT", "body"));
        assert_eq!(answer.body["error"]["details"]["limitSeconds"], 10);
        assert_closed(&mut stream).await;
    }
    server.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_a_head_that_cannot_be_read_gets_an_error_of_the_api(pool: PgPool) {
    let world = World::start(pool).await;
    let server = serve(&world).await;
    let many = "x: y\r\n".repeat(200);
    for request in [
        "nonsense\r\n\r\n".to_owned(),
        "POST / HTTP/9.9\r\n\r\n".to_owned(),
        "\u{0}\u{1}\u{2}\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nbad header\r\n\r\n".to_owned(),
        head(&world, "nodes.list", "content-length: x\r\n"),
        head(
            &world,
            "nodes.list",
            "content-length: 1\r\ncontent-length: 2\r\n",
        ),
        head(&world, "nodes.list", &many),
        head(
            &world,
            "nodes.list",
            &format!("x: {}\r\n", "y".repeat(100_000)),
        ),
        format!("POST /{} HTTP/1.1\r\n\r\n", "p".repeat(80_000)),
    ] {
        let shown: String = request.chars().take(80).collect();
        let mut stream = server.connect().await;
        // The server may have answered and closed before all of it is sent.
        let _ = stream.write_all(request.as_bytes()).await;
        let (_, answer) = read(&mut stream).await;
        assert_eq!(answer.code(), "INVALID_INPUT", "{shown:?}");
        assert_closed(&mut stream).await;
    }
    server.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_clients_that_hang_up_leave_no_connection_in_a_transaction(pool: PgPool) {
    const DROPPED: u64 = 1_000;
    let two = service(&pool, 2).await;
    let world = World::start_on(two, Options::default()).await;
    let server = serve(&world).await;
    let node = world.node().await;
    let command = world.run(node, "first").await["id"].clone();
    let mut clients = JoinSet::new();
    for seed in 0..DROPPED {
        let mut chance = SmallRng::seed_from_u64(seed);
        let request = match chance.random_range(0..3) {
            0 => {
                let key = format!("key {seed}");
                let kind = "inventory.refresh";
                let body = json!({"nodeId": node, "kind": kind, "idempotencyKey": key});
                whole(&world, "commands.run", body)
            }
            1 => whole(
                &world,
                "commands.cancel",
                json!({"nodeId": node, "commandId": command}),
            ),
            _ => whole(&world, "commands.list", json!({"nodeId": node})),
        };
        let sent = chance.random_range(1..=request.len());
        let sent = if chance.random_bool(0.8) {
            request.len()
        } else {
            sent
        };
        let patience = Duration::from_micros(chance.random_range(0..20_000));
        let address = server.address;
        clients.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(&request.as_bytes()[..sent]).await;
            // How long the client waits before it hangs up is what the test varies.
            let _ = timeout(patience, stream.read_u8()).await;
        });
        if clients.len() >= 64 {
            clients.join_next().await.unwrap().unwrap();
        }
    }
    clients.join_all().await;
    for number in 0..20 {
        world.run(node, &format!("after {number}")).await;
        world
            .call("commands.list", json!({"nodeId": node}))
            .await
            .ok();
    }
    let mut outside = pool.acquire().await.unwrap();
    let quiet = async {
        loop {
            let left: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()
                   AND (state LIKE 'idle in transaction%' OR state = 'active')",
            )
            .fetch_one(&mut *outside)
            .await
            .unwrap();
            if left == 0 {
                break;
            }
        }
    };
    timeout(PATIENCE, quiet)
        .await
        .expect("a connection stays inside a transaction");
    server.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h7_a_shutdown_ends_idle_connections_and_lets_requests_finish(pool: PgPool) {
    let world = World::start(pool).await;
    let server = serve(&world).await;
    let mut idle = server.connect().await;
    let request = whole(&world, "nodes.list", json!({}));
    idle.write_all(request.as_bytes()).await.unwrap();
    read(&mut idle).await.1.ok();
    // Half of a body is there, so the request is in progress.
    let mut busy = server.connect().await;
    let (first, rest) = request.split_at(request.len() - 5);
    busy.write_all(first.as_bytes()).await.unwrap();
    let mut probe = server.connect().await;
    probe.write_all(request.as_bytes()).await.unwrap();
    read(&mut probe).await.1.ok();
    server.shutdown.cancel();
    assert_closed(&mut idle).await;
    busy.write_all(rest.as_bytes()).await.unwrap();
    read(&mut busy).await.1.ok();
    assert_closed(&mut busy).await;
    drop((idle, busy, probe));
    server.stop().await;
}
