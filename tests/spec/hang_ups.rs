//! Clients who go away at any moment of a request (SPEC L10).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ledger_tests::api::{self, Served};
use ledger_tests::database;
use ledger_tests::http::Caller;
use ledger_tests::wait::{in_time, until};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

const HANG_UPS: u64 = 10_000;
const CLIENTS: u64 = 40;
/// Connections of the API to its database.
const CONNECTIONS: u32 = 2;
/// After so many hang-ups, a client who stays must be served.
const SERVED_EVERY: u64 = 25;
/// What a client guesses that a request takes, before it knows.
const FIRST_GUESS: Duration = Duration::from_millis(5);
const NODES: usize = 24;
const SEED: u64 = 10;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_10000_clients_who_hang_up_leave_no_transaction_and_every_next_one_is_served(
    pool: PgPool,
) {
    let own = ledger::connect(database::url(&pool).as_str(), CONNECTIONS)
        .await
        .unwrap();
    let served = Served::start(own).await;
    let admin = api::admin(&pool, served.address).await;
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let node = admin
            .call("nodes.register", json!({"name": format!("n{number}")}))
            .await;
        let node = node.ok()["id"].clone();
        let input = json!({"nodeId": node, "kind": "diag.nvml", "idempotencyKey": "stays"});
        let command = admin.call("commands.run", input).await.ok()["id"].clone();
        nodes.push((node, command));
    }
    let world = Arc::new((admin, nodes, AtomicU64::new(0)));

    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (world, address) = (world.clone(), served.address);
        let mut random = StdRng::seed_from_u64(SEED + client);
        clients.spawn(async move {
            let (admin, nodes, answered) = &*world;
            let mut takes = FIRST_GUESS;
            for number in 0..HANG_UPS / CLIENTS {
                let (method, input) = request(&mut random, nodes, client, number);
                let bytes = admin.bytes(method, tenant(admin, input).to_string().as_bytes());
                let stream = TcpStream::connect(address).await.unwrap();
                // Somewhere between at once and well after the answer, however busy everybody is.
                let patience = takes.mul_f64(random.random_range(0.0..2.0));
                if hang_up(stream, &bytes, patience, &mut random).await {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                if number % SERVED_EVERY == 0 {
                    let (method, input) = request(&mut random, nodes, client, number);
                    let began = Instant::now();
                    admin.call(method, input).await.ok();
                    takes = began.elapsed();
                }
            }
        });
    }
    in_time("every client has gone", clients.join_all()).await;
    let (admin, nodes, answered) = &*world;
    let answered = answered.load(Ordering::Relaxed);
    // Some went before and some after their answer, or the moments were not random.
    assert!(
        (100..HANG_UPS - 100).contains(&answered),
        "{answered} were answered"
    );

    for (node, _) in nodes {
        let input = json!({"nodeId": node, "kind": "inventory.refresh", "idempotencyKey": "last"});
        admin.call("commands.run", input).await.ok();
        admin
            .call("commands.list", json!({"nodeId": node}))
            .await
            .ok();
    }
    until("nobody is inside a transaction", async || {
        database::transactions(&pool).await.0 == 0
    })
    .await;
    let idle = served.ledger.pool().num_idle();
    assert_eq!(
        idle,
        usize::try_from(CONNECTIONS).unwrap(),
        "a connection was lost"
    );
    served.stop().await;
    assert_eq!(database::transactions(&pool).await.0, 0);
}

fn tenant(admin: &Caller, mut input: Value) -> Value {
    input["tenantId"] = json!(admin.tenant);
    input
}

fn request(
    random: &mut StdRng,
    nodes: &[(Value, Value)],
    client: u64,
    number: u64,
) -> (&'static str, Value) {
    let (node, command) = &nodes[random.random_range(0..nodes.len())];
    match random.random_range(0..3) {
        0 => {
            let key = format!("{client}:{number}");
            let kind = "inventory.refresh";
            let input = json!({"nodeId": node, "kind": kind, "idempotencyKey": key});
            ("commands.run", input)
        }
        1 => (
            "commands.cancel",
            json!({"nodeId": node, "commandId": command}),
        ),
        _ => ("commands.list", json!({"nodeId": node, "limit": 5})),
    }
}

/// Sends a request, or a part of it, and goes; whether an answer had begun to come.
async fn hang_up(
    mut stream: TcpStream,
    bytes: &[u8],
    patience: Duration,
    random: &mut StdRng,
) -> bool {
    let part = if random.random_bool(0.2) {
        random.random_range(0..bytes.len())
    } else {
        bytes.len()
    };
    let rude = random.random_bool(0.5);
    stream.write_all(&bytes[..part]).await.unwrap();
    let mut answer = [0; 64];
    let answered = tokio::select! {
        read = stream.read(&mut answer) => read.is_ok_and(|read| read > 0),
        () = sleep(patience) => false,
    };
    if rude {
        // A reset in place of an orderly end.
        let _ = stream.set_zero_linger();
    }
    answered
}
