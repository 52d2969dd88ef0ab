//! Tailing the log by position while everybody writes (SPEC L5).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ledger_projections::log;
use ledger_protocol::event::Event;
use ledger_protocol::id::{CommandId, NodeId};
use ledger_tests::database;
use ledger_tests::ground::{Ground, events, head};
use ledger_tests::wait::in_time;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use sqlx::PgPool;
use tokio::task::JoinSet;

const WRITERS: u64 = 20;
const ROUNDS: u32 = 60;
const READERS: usize = 3;
const SEED: u64 = 5;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l5_who_tails_by_position_during_concurrent_appends_never_sees_a_gap(pool: PgPool) {
    let url = database::url(&pool);
    let own = async || ledger::connect(url.as_str(), 14).await.unwrap();
    let here = Ground::new(own().await);
    let there = here.beside(own().await);
    let mut nodes = Vec::new();
    for number in 0..5 {
        nodes.push(here.node(&format!("n{number}")).await);
    }
    let written = Arc::new(AtomicBool::new(false));

    let mut readers = JoinSet::new();
    for reader in 0..READERS {
        let (pool, written) = (pool.clone(), written.clone());
        // One reads event by event, one as others do, one all there is.
        let limit = [1, 100, 1_000_000][reader];
        readers.spawn(async move { tail(&pool, limit, &written).await });
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let ground = if writer % 2 == 0 {
            here.clone()
        } else {
            there.clone()
        };
        let random = StdRng::seed_from_u64(SEED + writer);
        writers.spawn(write(ground, nodes.clone(), writer, random));
    }
    let given_up = in_time("everybody has written", writers.join_all())
        .await
        .concat();
    written.store(true, Ordering::SeqCst);
    let head = head(&pool).await;
    assert!(head > WRITERS * u64::from(ROUNDS), "{head}");
    for seen in in_time("everybody has read", readers.join_all()).await {
        assert_eq!(seen, head);
    }

    assert!(!given_up.is_empty());
    let given_up: BTreeSet<CommandId> = given_up.into_iter().collect();
    // The versions of each stream stand in order, too, without a gap.
    let mut versions: BTreeMap<_, u64> = BTreeMap::new();
    for event in events(&pool).await {
        let last = versions.entry(event.stream).or_default();
        assert_eq!(event.version, *last + 1, "{}", event.stream);
        let exists = event.command_id().is_some_and(|id| given_up.contains(&id));
        assert!(!exists, "{event:?} was rolled back");
        *last = event.version;
    }
}

/// Writes by every way there is, and gives some transactions up: the commands that they would have
/// made.
async fn write(
    ground: Ground,
    nodes: Vec<NodeId>,
    writer: u64,
    mut random: StdRng,
) -> Vec<CommandId> {
    let mut given_up = Vec::new();
    let (ledger, actor, tenant) = (&ground.ledger, &ground.actor, ground.tenant);
    for round in 0..ROUNDS {
        let node = nodes[random.random_range(0..nodes.len())];
        let key = format!("api:{writer}:{round}");
        if random.random_bool(0.7) {
            let id = ground.queue(node, &key).await.id;
            ledger.cancel(actor, tenant, node, id).await.unwrap();
            continue;
        }
        let mut transaction = ledger.within(ledger.pool().begin().await.unwrap());
        let id = transaction
            .enqueue(actor, ground.order(node, &key))
            .unwrap();
        transaction.cancel(actor, tenant, node, id).unwrap();
        let other = nodes[random.random_range(0..nodes.len())];
        let order = ground.order(other, &format!("{key}:second"));
        let second = transaction.enqueue(actor, order).unwrap();
        transaction.cancel(actor, tenant, other, second).unwrap();
        if random.random_bool(0.3) {
            drop(transaction);
            given_up.extend([id, second]);
        } else {
            transaction.commit().await.unwrap();
        }
    }
    given_up
}

/// Reads what comes after the last position, again and again; the last position at the end.
async fn tail(pool: &PgPool, limit: u32, written: &AtomicBool) -> u64 {
    let (mut seen, mut conn) = (0, pool.acquire().await.unwrap());
    loop {
        // Asked before the read: what is there then was written before.
        let last = written.load(Ordering::SeqCst);
        let read = log::read(&mut conn, seen, limit).await.unwrap();
        for event in &read {
            assert_eq!(event.position, seen + 1, "an event was missed");
            Event::decode(&event.bytes).unwrap();
            seen = event.position;
        }
        if last && read.is_empty() {
            return seen;
        }
    }
}
