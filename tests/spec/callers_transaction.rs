//! A caller who thinks for long inside a transaction of its own (SPEC L4).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ledger_protocol::command::StateName;
use ledger_protocol::event::Outcome;
use ledger_tests::database;
use ledger_tests::ground::{Ground, events_of};
use ledger_tests::wait::in_time;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::sleep;

const HELD_FOR: Duration = Duration::from_secs(30);
/// How long the speed without a held transaction is measured, before and again afterwards.
const COMPARED_FOR: Duration = Duration::from_secs(5);
/// The parts of the time in which appends must have gone on.
const PART: Duration = Duration::from_secs(5);
const CALLERS: usize = 16;
/// A fleet: a single node that gets hundreds of commands a second would measure its own row.
const NODES: usize = 200;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l4_a_transaction_held_open_for_30_seconds_slows_no_other_append(pool: PgPool) {
    let connections = u32::try_from(CALLERS).unwrap() + 4;
    let own = ledger::connect(database::url(&pool).as_str(), connections)
        .await
        .unwrap();
    let ground = Ground::new(own);
    let mut nodes = Vec::new();
    for number in 0..NODES {
        nodes.push(ground.node(&format!("n{number}")).await);
    }
    let table = "CREATE TABLE own (value int); GRANT ALL ON own TO command_ledger_service";
    sqlx::raw_sql(table).execute(&pool).await.unwrap();
    let cancelled = ground.queue(nodes[0], "to be cancelled").await.id;

    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (ground, nodes) = (ground.clone(), nodes.clone());
        let (stop, done) = (stop.clone(), done.clone());
        callers.spawn(async move {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                let node = nodes[(caller + number * CALLERS) % NODES];
                // Queued and cancelled, so that no lane fills up.
                let id = ground
                    .queue(node, &format!("api:{caller}:{number}"))
                    .await
                    .id;
                let (ledger, actor) = (&ground.ledger, &ground.actor);
                ledger.cancel(actor, ground.tenant, node, id).await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
                number += 1;
            }
        });
    }
    let rate = async |time: Duration| {
        let (before, began) = (done.load(Ordering::Relaxed), Instant::now());
        sleep(time).await;
        let count = u32::try_from(done.load(Ordering::Relaxed) - before).unwrap();
        f64::from(count) / began.elapsed().as_secs_f64()
    };

    let before = rate(COMPARED_FOR).await;
    let mut transaction = ground
        .ledger
        .within(ground.ledger.pool().begin().await.unwrap());
    // Both for nodes that the others append to all the time.
    let order = ground.order(nodes[0], "wf:slow:1");
    let queued = transaction.enqueue(&ground.actor, order).unwrap();
    transaction
        .cancel(&ground.actor, ground.tenant, nodes[0], cancelled)
        .unwrap();
    sqlx::query("INSERT INTO own VALUES (1)")
        .execute(transaction.connection())
        .await
        .unwrap();
    let (began, mut held) = (Instant::now(), Vec::new());
    while began.elapsed() < HELD_FOR {
        held.push(rate(PART).await);
    }
    assert_eq!(events_of(&pool, queued).await, 0);
    in_time("the caller commits", transaction.commit())
        .await
        .unwrap();
    let after = rate(COMPARED_FOR).await;
    stop.store(true, Ordering::Relaxed);
    in_time("the others stop", callers.join_all()).await;

    let without = f64::midpoint(before, after);
    #[expect(clippy::cast_precision_loss, reason = "a handful of parts")]
    let with = held.iter().sum::<f64>() / held.len() as f64;
    let shown = format!("{before:.0}/s, held {held:.0?}/s, then {after:.0}/s");
    assert!(
        held.iter().all(|part| *part > 0.0),
        "appends stood still: {shown}"
    );
    // Other tests come and go meanwhile; appends that waited for the caller would be near none.
    assert!(with * 4.0 >= without, "appends were slowed: {shown}");

    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM own")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(rows, 1);
    assert_eq!(events_of(&pool, queued).await, 1);
    let mut conn = pool.acquire().await.unwrap();
    for (id, state) in [
        (queued, StateName::Pending),
        (cancelled, StateName::Ended(Outcome::Cancelled)),
    ] {
        let command = ledger_projections::commands::get(&mut conn, id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(command.state_name(), state);
    }
}
