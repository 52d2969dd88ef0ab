//! Two processes that may publish, of which one cannot.

use async_nats::jetstream::stream::Config;
use ledger_servers::{Nats, NatsOptions as ServerOptions};
use sqlx::PgPool;

use super::world::{World, until};
use crate::connection::{Address, Connection};
use crate::subject;

async fn another_nats(folder: &std::path::Path) -> Nats {
    let options = ServerOptions::new(folder.join("nats")).throwaway();
    Nats::start(options).await.unwrap()
}

async fn until_leads(world: &World, holder: &str) {
    until(&format!("{holder} leads"), async || {
        world.leader().await.as_deref() == Some(holder)
    })
    .await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_who_cannot_reach_nats_does_not_keep_another_from_publishing(pool: PgPool) {
    let world = World::new(pool).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("nats://{}", taken.local_addr().unwrap());
    drop(taken);
    world.publisher_to(&nowhere, "cut off");
    // Long enough for it to take a lease that is free.
    tokio::time::sleep(crate::limits::LEASE_RETRY).await;
    world.publisher("whole");
    world.enqueue_and_cancel("api:1").await;
    world.assert_whole().await;
    assert_eq!(world.leader().await.as_deref(), Some("whole"));
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_publisher_that_loses_its_nats_leaves_the_lease_to_another(pool: PgPool) {
    let world = World::new(pool).await;
    let folder = tempfile::tempdir().unwrap();
    let mut other = another_nats(folder.path()).await;
    world.publisher_to(&other.url(), "cut off");
    until_leads(&world, "cut off").await;
    world.publisher("whole");
    other.stop().await.unwrap();
    world.enqueue_and_cancel("api:1").await;
    world.assert_whole().await;
    assert_eq!(world.leader().await.as_deref(), Some("whole"));
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_publisher_whose_jetstream_refuses_leaves_the_lease_to_another(pool: PgPool) {
    let world = World::new(pool).await;
    let folder = tempfile::tempdir().unwrap();
    let mut other = another_nats(folder.path()).await;
    // A stream of somebody else has the subjects, so that the ledger's cannot be made.
    let address = Address::parse(&other.url()).unwrap();
    let connection = Connection::open(&address, "test").await.unwrap();
    let theirs = Config {
        name: "THEIRS".to_owned(),
        subjects: subject::patterns(),
        ..Config::default()
    };
    connection.jetstream.create_stream(theirs).await.unwrap();
    world.publisher_to(&other.url(), "refused");
    until_leads(&world, "refused").await;
    world.publisher("whole");
    world.enqueue_and_cancel("api:1").await;
    world.assert_whole().await;
    assert_eq!(world.leader().await.as_deref(), Some("whole"));
    world.end().await;
    other.stop().await.unwrap();
}
