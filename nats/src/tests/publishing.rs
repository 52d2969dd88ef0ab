//! Order, single publication, and the refusal to overwrite.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use sqlx::PgPool;
use std::time::Duration;
use tokio::task::JoinSet;

use super::world::{ID_MEMORY, World};
use crate::connection::Address;
use crate::error::Severity;
use crate::publisher::Publisher;
use crate::run::Link;
use crate::{Error, STREAM, stream};
use ledger_projections::retention;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_every_event_is_in_the_stream_once_and_its_sequence_is_its_position(pool: PgPool) {
    let world = World::new(pool).await;
    world.publisher("one");
    for number in 0..40 {
        world.enqueue_and_cancel(&format!("api:{number}")).await;
    }
    world.assert_whole().await;
    let config = {
        let connection = world.connection().await;
        let stream = connection.jetstream.get_stream(STREAM).await.unwrap();
        stream.cached_info().config.clone()
    };
    assert!(config.deny_delete && config.deny_purge);
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_two_publishers_at_once_store_each_event_once(pool: PgPool) {
    let world = World::new(pool).await;
    world.forget_ids().await;
    let address = Address::parse(&world.nats.url()).unwrap();
    let mut publishers = JoinSet::new();
    // Without a lease, so that both really publish.
    for holder in ["one", "two", "three"] {
        let (ledger, options) = (world.ledger.clone(), world.options(holder));
        let address = address.clone();
        publishers.spawn(async move {
            let mut link = Link::default();
            crate::run::publish(&ledger, &options, &address, &mut link).await
        });
    }
    for number in 0..150 {
        world.enqueue_and_cancel(&format!("api:{number}")).await;
    }
    world.assert_whole().await;
    publishers.abort_all();
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_publisher_that_slept_long_is_refused_and_stores_nothing_twice(pool: PgPool) {
    let world = World::new(pool).await;
    world.forget_ids().await;
    let connection = world.connection().await;
    let options = world.options("one");
    let mut sleeper = Publisher::open(&world.ledger, &connection, &options)
        .await
        .unwrap();
    world.publisher("two");
    world.enqueue_and_cancel("api:1").await;
    world.assert_whole().await;
    // It sleeps longer than JetStream remembers ids: time itself is what is tested here.
    tokio::time::sleep(ID_MEMORY * 8).await;
    let refusal = sleeper.tail(|| {}).await.err().unwrap();
    assert!(
        matches!(refusal, Error::Publish { position: 1, .. }),
        "{refusal}"
    );
    assert_eq!(refusal.severity(), Severity::Passing);
    world.assert_whole().await;
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_publisher_that_is_cut_off_50_times_leaves_no_gap_and_no_phantom(pool: PgPool) {
    const SEED: u64 = 20_261_130;
    let world = World::new(pool).await;
    world.forget_ids().await;
    let mut chance = StdRng::seed_from_u64(SEED);
    let cuts = async {
        for _ in 0..50 {
            let publisher = world.publisher("one");
            let lives = Duration::from_millis(chance.random_range(0..60));
            tokio::time::sleep(lives).await;
            publisher.abort();
        }
    };
    let appends = async {
        for number in 0..700 {
            world.enqueue_and_cancel(&format!("api:{number}")).await;
        }
    };
    tokio::join!(cuts, appends);
    world.publisher("one");
    world.assert_whole().await;
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_another_replica_takes_over_from_a_publisher_that_died(pool: PgPool) {
    let world = World::new(pool).await;
    let first = world.publisher("one");
    world.enqueue("api:1").await;
    world.assert_whole().await;
    world.publisher("two");
    first.abort();
    world.enqueue("api:2").await;
    world.assert_whole().await;
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l11_a_stream_that_holds_more_than_the_ledger_is_left_alone(pool: PgPool) {
    let world = World::new(pool).await;
    let connection = world.connection().await;
    let options = world.options("one");
    let made = stream::ensure(&connection, &options, world.ledger.pool())
        .await
        .unwrap();
    let lost = format!("node.deleted.{}.{}", world.tenant, world.node);
    for _ in 0..2 {
        let sent = connection
            .jetstream
            .publish(lost.clone(), "{}".into())
            .await
            .unwrap();
        sent.await.unwrap();
    }
    let refusal = Publisher::open(&world.ledger, &connection, &options)
        .await
        .err()
        .unwrap();
    assert!(
        matches!(refusal, Error::Ahead { stream: 2, head: 1 }),
        "{refusal}"
    );
    assert_eq!(refusal.severity(), Severity::Alarm);

    // As long as nobody acts, nothing is added, and the ledger goes on.
    let idle = world.publisher("one");
    world.enqueue("api:1").await;
    world.enqueue("api:2").await;
    let refusal = Publisher::open(&world.ledger, &connection, &options)
        .await
        .err()
        .unwrap();
    assert!(
        matches!(refusal, Error::Diverged { position: 2, .. }),
        "{refusal}"
    );
    assert_eq!(refusal.severity(), Severity::Alarm);
    assert_eq!(stream::info(&made).await.unwrap().state.last_sequence, 2);

    // Else both would write the first event.
    idle.abort();
    assert!(idle.await.unwrap_err().is_cancelled());
    connection.jetstream.delete_stream(STREAM).await.unwrap();
    let mut publisher = Publisher::open(&world.ledger, &connection, &options)
        .await
        .unwrap();
    tokio::select! {
        Err(error) = publisher.tail(|| {}) => panic!("{error}"),
        () = world.assert_whole() => {}
    }
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_a_stream_that_is_made_anew_begins_where_the_database_does(pool: PgPool) {
    // Partitions that a test can fill; where they lie is the schema owner's to say.
    for statement in [
        "DROP TABLE events_000000",
        "CREATE TABLE events_000000 PARTITION OF events FOR VALUES FROM (0) TO (30)",
        "CREATE TABLE events_rest PARTITION OF events FOR VALUES FROM (30) TO (10000000)",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    let world = World::new(pool.clone()).await;
    let (connection, options) = (world.connection().await, world.options("one"));
    for number in 0..30 {
        world.enqueue_and_cancel(&format!("api:{number}")).await;
    }
    // A stream that was put back to before what has left is not written to.
    let short = stream::ensure(&connection, &options, &pool).await.unwrap();
    drop(short);
    let mut owner = pool.acquire().await.unwrap();
    let mut parts = retention::partitions(&mut owner).await.unwrap().into_iter();
    let oldest = parts.next().unwrap();
    assert_eq!((oldest.first, oldest.last), (0, 29));
    retention::drop_partition(&mut owner, &oldest, "elsewhere", "a note")
        .await
        .unwrap();
    let refusal = Publisher::open(&world.ledger, &connection, &options).await;
    let refusal = refusal.err().unwrap();
    assert!(
        matches!(
            refusal,
            Error::Archived {
                stream: 0,
                through: 29
            }
        ),
        "{refusal}"
    );
    assert_eq!(refusal.severity(), Severity::Alarm);

    connection.jetstream.delete_stream(STREAM).await.unwrap();
    let mut publisher = Publisher::open(&world.ledger, &connection, &options)
        .await
        .unwrap();
    tokio::select! {
        Err(error) = publisher.tail(|| {}) => panic!("{error}"),
        () = world.assert_whole() => {}
    }
    drop(publisher);
    // Whoever opens it next goes on.
    world.publisher("two");
    world.enqueue_and_cancel("api:more").await;
    world.assert_whole().await;
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l9_the_mark_never_goes_back(pool: PgPool) {
    crate::mark::advance(&pool, crate::STREAM, 10)
        .await
        .unwrap();
    crate::mark::advance(&pool, crate::STREAM, 4).await.unwrap();
    assert_eq!(crate::mark::read(&pool, crate::STREAM).await.unwrap(), 10);
    let granted: bool = sqlx::query_scalar(
        "SELECT bool_and(has_table_privilege('command_ledger_service', 'publications', wanted))
         FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS wanted",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert!(granted);
}
