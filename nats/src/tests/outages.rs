//! NATS away, slow to come, or without its data.

use std::time::Duration;

use sqlx::PgPool;
use tokio::time::timeout;

use super::world::{World, another_ledger, header, next, until};
use crate::{NatsOptions, mark};

fn lose_data(world: &World) {
    std::fs::remove_dir_all(world.nats.store_folder()).unwrap();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_nats_that_lost_its_data_is_filled_again_and_tells_nobody_twice(pool: PgPool) {
    let mut world = World::new(pool).await;
    world.publisher("one");
    for number in 0..20 {
        world.enqueue_and_cancel(&format!("api:{number}")).await;
    }
    world.assert_whole().await;
    let before = world.events().await.len() as u64;
    until("the copies were sent", async || {
        mark::read(world.ledger.pool(), crate::STREAM)
            .await
            .unwrap()
            == before
    })
    .await;

    world.nats.kill().await.unwrap();
    lose_data(&world);
    for number in 20..40 {
        world.enqueue_and_cancel(&format!("api:{number}")).await;
    }
    world.nats.restart().await.unwrap();
    let subscribed = world.connection().await;
    let mut copies = subscribed
        .client
        .subscribe("node.command.queued")
        .await
        .unwrap();
    subscribed.client.flush().await.unwrap();
    world.assert_whole().await;
    world.enqueue("api:last").await;
    let last = world.events().await.len() as u64;
    loop {
        let copy = next(&mut copies).await;
        let position: u64 = header(copy.headers.as_ref().unwrap(), "ce-sequence")
            .parse()
            .unwrap();
        assert!(position > before, "{position} was told before");
        if position == last {
            break;
        }
    }
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_nats_that_lost_its_data_while_nothing_happens_is_filled_again(pool: PgPool) {
    let mut world = World::new(pool).await;
    world.publisher("one");
    world.enqueue_and_cancel("api:1").await;
    world.assert_whole().await;
    world.nats.stop().await.unwrap();
    lose_data(&world);
    world.nats.restart().await.unwrap();
    world.assert_whole().await;
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_publisher_waits_for_a_nats_that_comes_later(pool: PgPool) {
    let mut world = World::new(pool).await;
    world.nats.stop().await.unwrap();
    world.publisher("one");
    world.enqueue_and_cancel("api:1").await;
    world.nats.restart().await.unwrap();
    world.assert_whole().await;
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t4_a_wake_makes_another_process_look_before_its_poll(pool: PgPool) {
    const ROUNDS: u32 = 12;
    let world = World::new(pool.clone()).await;
    world.publisher("one");
    let other = another_ledger(pool, &world.tasks, &world.shutdown);
    let (url, looks, shutdown) = (world.nats.url(), other.clone(), world.shutdown.clone());
    world
        .tasks
        .spawn(async move { crate::wakes(looks, &url, shutdown).await.unwrap() });
    let mut news = other.subscribe();
    // The other ledger sees what comes after it has read its head, which may not be so yet.
    for number in 0.. {
        world.enqueue(&format!("api:first-{number}")).await;
        if timeout(Duration::from_secs(2), news.recv()).await.is_ok() {
            break;
        }
    }
    let began = tokio::time::Instant::now();
    for round in 0..ROUNDS {
        world.enqueue(&format!("api:{round}")).await;
        until("the other process sees the event", async || {
            news.try_recv().is_ok()
        })
        .await;
    }
    // The poll alone would take about a second for each.
    assert!(
        began.elapsed().as_secs() < u64::from(ROUNDS) / 2,
        "{:?}",
        began.elapsed()
    );
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn n_a_url_that_is_none_ends_the_worker_at_once(pool: PgPool) {
    let world = World::new(pool).await;
    let options = NatsOptions::new("http://localhost", "one", "/ledger");
    let ended = crate::run(world.ledger.clone(), options, world.shutdown.clone()).await;
    assert!(ended.is_err());
    world.end().await;
}
