//! The publisher dies at any moment, and NATS loses everything (SPEC L9).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use ledger_protocol::event::Body;
use ledger_tests::ground::{Ground, events, head};
use ledger_tests::nats::{self, Message, Server, assert_whole, last_sequence};
use ledger_tests::serve::{Service, serve};
use ledger_tests::wait::{in_time, until};
use ledger_tests::{api, database};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::Url;
use serde_json::json;
use sqlx::PgPool;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

const COMMANDS: usize = 5_000;
const KILLS: usize = 50;
const NODES: usize = 8;
const CALLERS: usize = 32;
/// A publisher lives up to this long after it has begun to publish, in microseconds.
const LIFE_MICROS: u64 = 250_000;
const SEED: u64 = 9;
/// Copies that the subscriber may leave unread.
const COPIES_MAX: usize = 1_000_000;

async fn publisher(pool: &PgPool, url: &Url, nats: &str) -> Service {
    nats::end_lease(pool).await;
    serve(url, Some(nats)).await
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_publisher_killed_50_times_while_5000_commands_settle_misses_and_invents_nothing(
    pool: PgPool,
) {
    let (url, server) = (database::url(&pool), Server::start().await);
    let client = nats::connect(&server.nats.url()).await;
    let mut copies = client.subscribe("command.settled").await.unwrap();
    client.flush().await.unwrap();
    let (keep, mut kept) = mpsc::channel(COPIES_MAX);
    let mut listening = JoinSet::new();
    listening.spawn(async move {
        while let Some(copy) = copies.next().await {
            keep.send(Message::of(&copy)).await.unwrap();
        }
    });

    let own = ledger::connect(url.as_str(), 8).await.unwrap();
    let ground = Ground::new(own);
    let mut nodes = Vec::new();
    for number in 0..NODES {
        nodes.push(ground.connected(&format!("n{number}")).await);
    }
    // Each kill lets its share of the commands go, so that publishers die among appends.
    let shares = Arc::new(Semaphore::new(0));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (ground, shares, node) = (ground.clone(), shares.clone(), nodes[caller % NODES]);
        callers.spawn(async move {
            let mut settled = 0;
            while let Ok(share) = shares.acquire().await {
                share.forget();
                ground
                    .settle(node, &format!("api:{caller}:{settled}"))
                    .await;
                settled += 1;
            }
            settled
        });
    }

    let (mut random, mut in_the_middle) = (StdRng::seed_from_u64(SEED), 0);
    for kill in 0..KILLS {
        let before = last_sequence(&client).await;
        shares.add_permits(COMMANDS / KILLS);
        let mut service = publisher(&pool, &url, &server.nats.url()).await;
        if random.random_bool(0.7) {
            until("the new publisher has published", async || {
                assert!(service.process.runs(), "{}", service.process.tail());
                last_sequence(&client).await > before
            })
            .await;
        }
        // Not a wait for anything: the moment of the kill is what is random. Every other time it
        // comes so soon that hardly a machine has published everything by then.
        let life = if random.random_bool(0.5) {
            LIFE_MICROS
        } else {
            LIFE_MICROS / 50
        };
        sleep(Duration::from_micros(random.random_range(0..life))).await;
        service.process.kill().await;
        let (stored, committed) = (last_sequence(&client).await, head(&pool).await);
        assert!(
            stored <= committed,
            "a phantom at kill {kill}: {stored} of {committed}"
        );
        in_the_middle += usize::from(before < stored && stored < committed);
    }
    assert!(
        in_the_middle > KILLS / 10,
        "only {in_the_middle} died while they published"
    );
    until("every share was taken", async || {
        shares.available_permits() == 0
    })
    .await;
    shares.close();
    let settled = in_time("every command ends", callers.join_all()).await;
    assert_eq!(settled.into_iter().sum::<usize>(), COMMANDS);

    let last = publisher(&pool, &url, &server.nats.url()).await;
    assert_whole(&client, &pool).await;
    let events = events(&pool).await;
    let mut told = vec![false; events.len()];
    let missing = |told: &[bool]| {
        let settled = events.iter().zip(told);
        settled
            .filter(|(event, told)| matches!(event.body, Body::CommandSettled(_)) && !**told)
            .count()
    };
    until("every end was told to plain subscribers", async || {
        while let Ok(copy) = kept.try_recv() {
            let position: usize = copy.header("ce-sequence").parse().unwrap();
            nats::assert_is(&copy, position as u64, &events[position - 1]);
            assert_eq!(copy.subject, "command.settled");
            told[position - 1] = true;
        }
        missing(&told) == 0
    })
    .await;
    drop(last);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_commands_go_on_without_nats_and_a_wiped_stream_is_filled_again(pool: PgPool) {
    let (url, mut server) = (database::url(&pool), Server::start().await);
    let service = publisher(&pool, &url, &server.nats.url()).await;
    let admin = api::admin(&pool, service.address).await;
    let node = admin
        .call("nodes.register", json!({"name": "n"}))
        .await
        .ok();
    let run = async |key: &str| {
        let kind = "inventory.refresh";
        let input = json!({"nodeId": node["id"], "kind": kind, "idempotencyKey": key});
        let command = admin.call("commands.run", input).await.ok();
        let input = json!({"nodeId": node["id"], "commandId": command["id"]});
        assert_eq!(
            admin.call("commands.cancel", input.clone()).await.ok()["state"],
            "cancelled"
        );
        assert_eq!(
            admin.call("commands.get", input).await.ok()["state"],
            "cancelled"
        );
    };
    for number in 0..30 {
        run(&format!("before {number}")).await;
    }
    assert_whole(&nats::connect(&server.nats.url()).await, &pool).await;

    server.nats.kill().await.unwrap();
    for number in 0..30 {
        run(&format!("away {number}")).await;
    }
    server.lose_data();
    server.nats.restart().await.unwrap();
    for number in 0..30 {
        run(&format!("after {number}")).await;
    }
    assert_whole(&nats::connect(&server.nats.url()).await, &pool).await;
    assert!(head(&pool).await > 3 * 90);
}
