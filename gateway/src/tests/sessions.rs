use futures_util::future::join_all;
use ledger_protocol::canonical;
use ledger_protocol::command::{State, StateName};
use ledger_protocol::event::Outcome;
use ledger_protocol::frame::{CommandUpdate, EntryState, Frame, JournalEntry, Update, UpdateState};
use ledger_protocol::id::JournalId;
use ledger_protocol::node::Session;
use ledger_protocol::time::Timestamp;
use sqlx::PgPool;

use super::daemon::Daemon;
use super::world::{World, actor};
use crate::Options;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d1_a_command_is_dispatched_run_and_settled(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let id = world.run(daemon.node, "inventory.refresh").await;
    let sent = daemon.receive_command().await;
    assert_eq!(
        (sent.command_id, sent.seq, sent.kind.as_str()),
        (id, 1, "inventory.refresh")
    );
    assert!(sent.retry_safe && !sent.destructive);
    assert_eq!(
        world.command(id).await.state,
        State::Dispatched { epoch: 1 }
    );
    daemon.say(id, UpdateState::Acked).await;
    assert_eq!(world.command(id).await.state, State::Acked { epoch: 1 });
    daemon.say(id, UpdateState::Running).await;
    let result = canonical::from_json(&serde_json::json!({ "cpu": 2 })).unwrap();
    let done = Update {
        result: Some(result.clone()),
        ..Update::bare(id, UpdateState::Succeeded)
    };
    // A report may come twice; both times it is acknowledged.
    for _ in 0..2 {
        let ack = daemon.report(vec![done.clone()]).await;
        assert_eq!(ack.updates[0].refused, None);
    }
    let State::Settled(settled) = world.command(id).await.state else {
        panic!("not settled")
    };
    assert_eq!(settled.end.state, Outcome::Succeeded);
    assert_eq!(settled.end.result, Some(result));
    assert_eq!(settled.late, None);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_a_newer_session_closes_the_older_one_whose_reports_are_refused(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut old = world.open(&identity).await;
    let id = world.run(node, "inventory.refresh").await;
    assert_eq!(old.receive_command().await.command_id, id);
    let mut new = world.open(&identity).await;
    assert_eq!((old.epoch, new.epoch), (1, 2));
    let late = CommandUpdate {
        updates: vec![Update::bare(id, UpdateState::Succeeded)],
    };
    old.try_send(late).await;
    let (code, reason) = old.closed().await;
    assert_eq!(code, 1008, "{reason}");
    assert!(reason.contains("newer session"), "{reason}");
    // The end of the old session touches nothing of the new one.
    assert!(world.command(id).await.is_in_flight());
    assert!(matches!(
        world.node(node).await.session,
        Session::Open { .. }
    ));
    assert_eq!(new.receive_command().await.command_id, id);
    new.say(id, UpdateState::Succeeded).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_a_session_at_another_gateway_closes_the_one_here(pool: PgPool) {
    let world = World::start(pool).await;
    let second = world.serve("gw-2").await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut old = world.open(&identity).await;
    let mut new = Daemon::connect(&world, second.address, &identity).await;
    new.hello.journal_id = JournalId::new(Timestamp::from_micros(5), [5; 10]);
    assert_eq!(new.greet().await.epoch, 2);
    let (code, reason) = old.closed().await;
    assert_eq!(code, 1008, "{reason}");
    let Session::Open { gateway, .. } = world.node(node).await.session else {
        panic!("the new session is not open");
    };
    assert_eq!(gateway, "gw-2");
    let id = world.run(node, "diag.nvml").await;
    assert_eq!(new.receive_command().await.command_id, id);
    second.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d6_a_reconnect_replays_what_is_in_flight_in_order_and_then_cancels(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut daemon = world.open(&identity).await;
    let mut sent = Vec::new();
    for kind in [
        "inventory.refresh",
        "logs.collect",
        "node.reboot",
        "inventory.refresh",
    ] {
        world.run(node, kind).await;
        sent.push(daemon.receive_command().await.command_id);
    }
    daemon.say(sent[0], UpdateState::Running).await;
    daemon.say(sent[3], UpdateState::Succeeded).await;
    world.cancel(node, sent[1]).await;
    assert!(matches!(daemon.receive().await, Frame::Cancel(c) if c.command_id == sent[1]));
    drop(daemon);
    let reason = world.until_closed(node).await;
    assert!(reason.contains("connection"), "{reason}");

    // Its journal has the first as started, and the reboot as accepted.
    let entry = |index: usize, state| JournalEntry {
        command_id: sent[index],
        seq: index as u64 + 1,
        state,
    };
    let entries = vec![
        entry(0, EntryState::Started),
        entry(2, EntryState::Accepted),
    ];
    let mut daemon = Daemon::connect(&world, world.gateway.address, &identity)
        .await
        .with_entries(entries);
    daemon.hello.highest_seq = 4;
    daemon.greet().await;
    assert_eq!(daemon.receive_command().await.command_id, sent[0]);
    assert_eq!(daemon.receive_command().await.command_id, sent[1]);
    assert!(matches!(daemon.receive().await, Frame::Cancel(c) if c.command_id == sent[1]));
    daemon.assert_quiet().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d8_a_lost_journal_settles_what_it_cannot_answer_for(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut daemon = world.open(&identity).await;
    let reboot = world.run(node, "node.reboot").await;
    daemon.receive_command().await;
    drop(daemon);
    let mut daemon = Daemon::connect(&world, world.gateway.address, &identity).await;
    daemon.hello.journal_id = JournalId::new(Timestamp::from_micros(9), [9; 10]);
    daemon.greet().await;
    let State::Settled(settled) = world.command(reboot).await.state else {
        panic!("the reboot is still in flight");
    };
    assert_eq!(settled.end.reason.as_deref(), Some("journal-lost"));
    daemon.assert_quiet().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_deleted_nodes_session_is_closed_and_none_opens(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut daemon = world.open(&identity).await;
    world
        .ledger
        .delete_node(&actor(), world.tenant, node)
        .await
        .unwrap();
    assert_eq!(daemon.closed().await, (1008, "node-deleted".to_owned()));
    let mut daemon = Daemon::connect(&world, world.gateway.address, &identity).await;
    daemon.send(daemon.hello.clone()).await;
    let (code, reason) = daemon.closed().await;
    assert_eq!(code, 1008);
    assert!(reason.contains("deleted"), "{reason}");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h7_a_shutdown_ends_sessions_with_1001_and_records_it(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemons = Vec::new();
    for name in ["one", "two", "three"] {
        daemons.push(world.daemon(name).await);
    }
    world.gateway.shutdown.cancel();
    for daemon in &mut daemons {
        assert_eq!(daemon.closed().await.0, 1001);
        let reason = world.until_closed(daemon.node).await;
        assert!(reason.contains("shuts down"), "{reason}");
    }
    world.gateway.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d11_a_restricted_certificate_is_sent_its_kinds_only(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let allowed = vec!["diag.nvml".to_owned()];
    let mut daemon = world.open(&world.identity(node, Some(allowed))).await;
    let other = world.run(node, "inventory.refresh").await;
    let own = world.run(node, "diag.nvml").await;
    assert_eq!(daemon.receive_command().await.command_id, own);
    daemon.assert_quiet().await;
    assert_eq!(world.command(other).await.state_name(), StateName::Pending);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d14_more_nodes_than_are_admitted_at_once_wait_and_all_get_in(pool: PgPool) {
    let options = Options {
        admissions_max: 3,
        ..Options::default()
    };
    let world = World::start_with(pool, options).await;
    let mut identities = Vec::new();
    for number in 0..30 {
        let node = world.register(&format!("n{number}")).await;
        identities.push(world.identity(node, None));
    }
    let opening = identities.iter().map(|identity| world.open(identity));
    for daemon in join_all(opening).await {
        assert_eq!(daemon.epoch, 1);
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d14_a_full_gateway_turns_nodes_away_to_try_again(pool: PgPool) {
    let options = Options {
        sessions_max: 1,
        ..Options::default()
    };
    let world = World::start_with(pool, options).await;
    let mut first = world.daemon("first").await;
    let node = world.register("second").await;
    let identity = world.identity(node, None);
    let mut second = Daemon::connect(&world, world.gateway.address, &identity).await;
    second.send(second.hello.clone()).await;
    let (code, reason) = second.closed().await;
    assert_eq!(code, 1013, "{reason}");
    assert_eq!(world.node(node).await.epoch, 0);
    first.assert_quiet().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d1_a_silent_daemon_is_let_go(pool: PgPool) {
    let options = Options {
        ping_seconds: 1,
        ..Options::default()
    };
    let world = World::start_with(pool, options).await;
    let mut daemon = world.daemon("n").await;
    let (code, reason) = daemon.closed().await;
    assert_eq!(code, 1008, "{reason}");
    assert!(reason.contains("3 seconds"), "{reason}");
    assert!(reason.starts_with(&world.until_closed(daemon.node).await));
}
