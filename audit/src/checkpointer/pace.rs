//! How far behind the log its newest checkpoint may be (SPEC U1).

use std::fs::File;
use std::io::Write as _;

use sqlx::PgPool;
use tokio::time::{Duration, Instant, sleep};

use super::tests::World;

/// Microseconds by the database's clock.
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
const SECOND: i64 = 1_000_000;
/// Steps from one checkpoint to the next, each of which waits for the disk or the database.
const STEPS: i64 = 12;

/// A commit and a flush, as the checkpointer makes them: when it ended, and how long it took.
async fn beat(world: &World) -> (i64, i64) {
    let began: i64 = sqlx::query_scalar(NOW)
        .fetch_one(&world.pool)
        .await
        .unwrap();
    let path = world.folder.path().join("beat");
    let flushed = tokio::task::spawn_blocking(move || {
        let mut file = File::create(path).unwrap();
        file.write_all(b"beat").unwrap();
        file.sync_all().unwrap();
    });
    flushed.await.unwrap();
    let ended: i64 = sqlx::query_scalar(NOW)
        .fetch_one(&world.pool)
        .await
        .unwrap();
    (ended, ended - began)
}

/// Events come that nobody tells the checkpointer of, as those of another process do.
#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_under_load_a_checkpoint_appears_at_least_each_second(pool: PgPool) {
    let world = World::new(pool.clone());
    world.append(1, "a").await;
    let working = world.start("one");
    world.published(1).await;
    let end = Instant::now() + Duration::from_secs(6);
    let appends = async {
        let mut size = 1;
        while Instant::now() < end {
            size += 20;
            world.append(size, "a").await;
            sleep(Duration::from_millis(25)).await;
        }
    };
    let beats = async {
        let mut beats = Vec::new();
        while Instant::now() < end {
            beats.push(beat(&world).await);
            sleep(Duration::from_millis(50)).await;
        }
        beats
    };
    let ((), beats) = tokio::join!(appends, beats);
    working.stop().await;
    let signed_at: Vec<i64> = sqlx::query_scalar(
        "SELECT (extract(epoch FROM signed_at) * 1000000)::bigint FROM checkpoints ORDER BY size",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let last = beats.last().unwrap().0;
    let moments: Vec<i64> = signed_at.iter().copied().chain([last]).collect();
    for pair in moments.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        // A machine that stands still holds up the heart as well.
        let near = |at: &&(i64, i64)| (from - SECOND..=to + SECOND).contains(&at.0);
        let slowest = beats.iter().filter(near).map(|(_, took)| *took).max();
        let allowed = SECOND + STEPS * slowest.unwrap_or(SECOND);
        assert!(to - from <= allowed, "{} after {signed_at:?}", to - from);
    }
}
