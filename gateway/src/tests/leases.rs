//! A gateway that was taken for lost and lives (SPEC D2).

use std::time::Duration;

use ledger::lease;
use ledger_protocol::node::Session;
use sqlx::PgPool;

use super::daemon::Daemon;
use super::world::World;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_a_gateway_lets_go_a_session_that_was_closed_for_it(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut daemon = world.open(&identity).await;
    let Session::Open {
        lease: Some(lease), ..
    } = world.node(node).await.session
    else {
        panic!("the session names no lease");
    };
    let known: i64 = sqlx::query_scalar("SELECT count(*) FROM leases WHERE name = $1")
        .bind(&lease)
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(known, 1);
    let sweeper = lease::acquire(&pool, "sweeper", "test", Duration::from_mins(1)).await;
    let fence = sweeper.unwrap().unwrap();
    world
        .ledger
        .close_lost_session(&fence, node, daemon.epoch)
        .await
        .unwrap();
    let (code, reason) = daemon.closed().await;
    assert_eq!(code, 1013, "{reason}");
    assert!(reason.starts_with("gateway-lost"), "{reason}");
    let mut again = Daemon::connect(&world, world.gateway.address, &identity).await;
    assert_eq!(again.greet().await.epoch, 2);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_a_gateway_that_stops_gives_its_lease_up(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    world.daemon("n").await;
    world.gateway.stop().await;
    let lapsed = lease::lapsed_gateways(&pool, 9).await.unwrap();
    assert_eq!(lapsed.len(), 1, "{lapsed:?}");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_a_renewal_that_was_cut_short_keeps_no_lease(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    world.daemon("n").await;
    // As a renewal leaves it that was written and whose answer nobody waited for.
    sqlx::query("UPDATE leases SET term = term + 1")
        .execute(&pool)
        .await
        .unwrap();
    world.gateway.stop().await;
    let lapsed = lease::lapsed_gateways(&pool, 9).await.unwrap();
    assert_eq!(lapsed.len(), 1, "{lapsed:?}");
}
