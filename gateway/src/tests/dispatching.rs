use std::collections::BTreeSet;

use ledger::Run;
use ledger_protocol::canonical;
use ledger_protocol::command::{State, StateName};
use ledger_protocol::event::Outcome;
use ledger_protocol::frame::{CommandUpdate, Frame, Status, Update, UpdateState};
use ledger_protocol::kind::Lane;
use ledger_protocol::limits::lane_credits;
use sqlx::PgPool;

use super::world::World;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn k3_of_20_control_commands_8_are_in_flight_and_each_end_lets_one_more_go(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let mut queued = Vec::new();
    for _ in 0..20 {
        queued.push(world.run(node, "inventory.refresh").await);
    }
    let mut daemon = world.open(&world.identity(node, None)).await;
    let credits = usize::try_from(lane_credits(Lane::Control)).unwrap();
    for expected in &queued[..credits] {
        assert_eq!(daemon.receive_command().await.command_id, *expected);
    }
    daemon.assert_quiet().await;
    for (ended, next) in queued.iter().zip(&queued[credits..]) {
        let update = Update::bare(*ended, UpdateState::Succeeded);
        daemon
            .send(CommandUpdate {
                updates: vec![update],
            })
            .await;
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            match daemon.receive().await {
                Frame::UpdateAck(ack) => assert_eq!(ack.updates[0].command_id, *ended),
                Frame::Command(command) => assert_eq!(command.command_id, *next),
                other => panic!("{other:?}"),
            }
            seen.insert(seen.len());
        }
        daemon.assert_quiet().await;
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn k3_a_full_bulk_lane_does_not_delay_control(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let mut bulk = Vec::new();
    for _ in 0..6 {
        bulk.push(world.run(daemon.node, "logs.collect").await);
    }
    for expected in &bulk[..2] {
        assert_eq!(daemon.receive_command().await.command_id, *expected);
    }
    let control = world.run(daemon.node, "inventory.refresh").await;
    assert_eq!(daemon.receive_command().await.command_id, control);
    daemon.assert_quiet().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d12_a_cancel_reaches_the_node_once_per_period_until_the_command_ends(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let id = world.run(daemon.node, "logs.collect").await;
    daemon.receive_command().await;
    world.cancel(daemon.node, id).await;
    // Asked twice, sent once; the next comes by itself.
    world.cancel(daemon.node, id).await;
    for _ in 0..2 {
        assert!(matches!(daemon.receive().await, Frame::Cancel(c) if c.command_id == id));
    }
    daemon.say(id, UpdateState::Cancelled).await;
    world.until(id, StateName::Ended(Outcome::Cancelled)).await;
    // A pending command ends without the node.
    let order = Run {
        not_before: Some(world.ledger.now().plus_seconds(60)),
        ..world.order(daemon.node, "inventory.refresh")
    };
    let pending = world.queue(order).await;
    world.cancel(daemon.node, pending).await;
    daemon.assert_quiet().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t1_a_command_waits_for_its_not_before_and_delays_no_other(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let not_before = world.ledger.now().plus_micros(1_500_000);
    let order = Run {
        not_before: Some(not_before),
        ..world.order(daemon.node, "inventory.refresh")
    };
    let later = world.queue(order).await;
    let now = world.run(daemon.node, "inventory.refresh").await;
    assert_eq!(daemon.receive_command().await.command_id, now);
    assert_eq!(daemon.receive_command().await.command_id, later);
    let dispatched_at = world.command(later).await.dispatched_at.unwrap();
    let late = dispatched_at.micros_since(not_before);
    assert!((0..2_500_000).contains(&late), "{late} microseconds late");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d4_a_busy_node_gets_its_command_again_after_a_backoff(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let id = world.run(daemon.node, "inventory.refresh").await;
    daemon.receive_command().await;
    daemon.say(id, UpdateState::Busy).await;
    let State::Pending {
        retry_at: Some(retry_at),
        ..
    } = world.command(id).await.state
    else {
        panic!("it is not waiting");
    };
    assert_eq!(daemon.receive_command().await.command_id, id);
    let command = world.command(id).await;
    assert_eq!(command.attempts, 2);
    assert!(command.dispatched_at.unwrap() >= retry_at);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t1_a_desired_state_reaches_the_node_and_lets_go_what_waited_for_it(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let order = Run {
        min_generation: Some(1),
        ..world.order(daemon.node, "inventory.refresh")
    };
    let id = world.queue(order).await;
    daemon.assert_quiet().await;
    let spec = canonical::from_json(&serde_json::json!({ "motd": "hello" })).unwrap();
    world.set_spec(daemon.node, 1, spec.clone()).await;
    match daemon.receive().await {
        Frame::Spec(sent) => assert_eq!((sent.generation, sent.spec), (1, spec)),
        other => panic!("{other:?}"),
    }
    daemon
        .send(Status {
            trust_version: 0,
            wants_trust: false,
            applied_generation: 1,
            wants_spec: true,
        })
        .await;
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        match daemon.receive().await {
            Frame::Spec(spec) => seen.insert(format!("spec {}", spec.generation)),
            Frame::Command(command) if command.command_id == id => {
                seen.insert("command".to_owned())
            }
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(seen.len(), 2);
    assert_eq!(world.node(daemon.node).await.applied_generation, 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d3_many_nodes_get_every_command_once_and_in_order(pool: PgPool) {
    const NODES: usize = 20;
    const COMMANDS: u64 = 15;
    let world = World::start(pool).await;
    let mut daemons = Vec::new();
    for number in 0..NODES {
        daemons.push(world.daemon(&format!("n{number}")).await);
    }
    let nodes: Vec<_> = daemons.iter().map(|daemon| daemon.node).collect();
    let queueing = async {
        for _ in 0..COMMANDS {
            let runs = nodes
                .iter()
                .map(|node| world.run(*node, "inventory.refresh"));
            futures_util::future::join_all(runs).await;
        }
    };
    let working = daemons.iter_mut().map(|daemon| async {
        let mut next = 1;
        let mut settled = 0;
        while settled < COMMANDS {
            match daemon.receive().await {
                Frame::Command(command) => {
                    assert_eq!(command.seq, next);
                    next += 1;
                    let states = [
                        UpdateState::Acked,
                        UpdateState::Running,
                        UpdateState::Succeeded,
                    ];
                    let update = |state| Update::bare(command.command_id, state);
                    daemon
                        .send(CommandUpdate {
                            updates: states.map(update).to_vec(),
                        })
                        .await;
                }
                Frame::UpdateAck(ack) => {
                    assert!(ack.updates.iter().all(|update| update.refused.is_none()));
                    settled += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        daemon.assert_quiet().await;
    });
    let working = futures_util::future::join_all(working);
    tokio::join!(queueing, working);
}
