//! What befalls commands in a fleet, one story for each test.

use std::time::Duration;

use ledger::{Clock, Ledger, Run, lease};
use ledger_protocol::command::{State, StateName};
use ledger_protocol::event::Outcome;
use ledger_protocol::frame::{EntryState, Frame, JournalEntry, Update, UpdateState};
use ledger_protocol::id::{CommandId, JournalId, NodeId};
use ledger_protocol::kind::Registry;
use ledger_protocol::time::Timestamp;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::daemon::{Daemon, Identity};
use super::world::{World, actor};

/// A node whose daemon was sent one command, and lost its connection then.
struct Cut {
    identity: Identity,
    node: NodeId,
    command: CommandId,
}

impl Cut {
    /// `acked` says whether the ledger got the daemon's first word.
    async fn after(world: &World, kind: &str, acked: bool) -> Self {
        let node = world.register("n").await;
        let identity = world.identity(node, None);
        let mut daemon = world.open(&identity).await;
        let command = world.run(node, kind).await;
        assert_eq!(daemon.receive_command().await.command_id, command);
        if acked {
            daemon.say(command, UpdateState::Acked).await;
        }
        drop(daemon);
        world.until_closed(node).await;
        Self {
            identity,
            node,
            command,
        }
    }

    /// The daemon comes back; its journal has the command as that.
    async fn back(&self, world: &World, entry: Option<EntryState>) -> Daemon {
        let entry = entry.map(|state| JournalEntry {
            command_id: self.command,
            seq: 1,
            state,
        });
        Daemon::connect(world, world.gateway.address, &self.identity)
            .await
            .with_entries(entry.into_iter().collect())
    }
}

fn ended(state: State) -> (Outcome, Option<String>) {
    match state {
        State::Settled(settled) => (settled.end.state, settled.end.reason),
        other => panic!("it has not ended: {other:?}"),
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d9_a_reboot_whose_ack_was_lost_is_completed_by_the_new_boot(pool: PgPool) {
    let world = World::start(pool).await;
    let cut = Cut::after(&world, "node.reboot", false).await;
    let mut daemon = cut.back(&world, Some(EntryState::Started)).await;
    daemon.hello.boot_id = "another boot".to_owned();
    daemon.greet().await;
    // The journal answers for it, so it is not sent again.
    daemon.assert_quiet().await;
    daemon.say(cut.command, UpdateState::Succeeded).await;
    let command = world.command(cut.command).await;
    assert_eq!(command.attempts, 1);
    assert_eq!(ended(command.state), (Outcome::Succeeded, None));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d9_a_reboot_that_comes_back_on_the_same_boot_stays_as_it_is(pool: PgPool) {
    let world = World::start(pool).await;
    let cut = Cut::after(&world, "node.reboot", true).await;
    let mut daemon = cut.back(&world, Some(EntryState::Started)).await;
    daemon.greet().await;
    daemon.assert_quiet().await;
    let command = world.command(cut.command).await;
    assert_eq!(command.state_name(), StateName::Acked);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d8_an_accepted_reset_whose_journal_died_never_starts_again(pool: PgPool) {
    let world = World::start(pool).await;
    let cut = Cut::after(&world, "gpu.reset", true).await;
    let mut daemon = cut.back(&world, None).await;
    daemon.hello.journal_id = JournalId::new(Timestamp::from_micros(7), [7; 10]);
    daemon.greet().await;
    daemon.assert_quiet().await;
    let lost = (Outcome::Failed, Some("journal-lost".to_owned()));
    assert_eq!(ended(world.command(cut.command).await.state), lost);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d12_a_cancel_that_was_sent_while_the_session_was_down_arrives_with_it(pool: PgPool) {
    let world = World::start(pool).await;
    let cut = Cut::after(&world, "logs.collect", true).await;
    world.cancel(cut.node, cut.command).await;
    let mut daemon = cut.back(&world, Some(EntryState::Started)).await;
    daemon.greet().await;
    assert_eq!(daemon.receive_command().await.command_id, cut.command);
    assert!(matches!(daemon.receive().await, Frame::Cancel(c) if c.command_id == cut.command));
    daemon.say(cut.command, UpdateState::Cancelled).await;
    assert_eq!(
        ended(world.command(cut.command).await.state),
        (Outcome::Cancelled, None)
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d12_a_cancel_by_another_process_arrives_without_nats(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    let mut daemon = world.daemon("n").await;
    let command = world.run(daemon.node, "logs.collect").await;
    daemon.receive_command().await;
    // Nothing connects this ledger with the gateway's but the database.
    let options = ledger::Options::new(Registry::builtin(), Clock::system());
    let elsewhere = Ledger::start(pool, options, &world.tasks, CancellationToken::new()).unwrap();
    elsewhere
        .cancel(&actor(), world.tenant, daemon.node, command)
        .await
        .unwrap();
    assert!(matches!(daemon.receive().await, Frame::Cancel(c) if c.command_id == command));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn s1_a_command_that_ends_before_its_first_word_is_answered_has_its_whole_history(
    pool: PgPool,
) {
    let world = World::start(pool.clone()).await;
    let mut daemon = world.daemon("n").await;
    let command = world.run(daemon.node, "inventory.refresh").await;
    daemon.receive_command().await;
    let states = [
        UpdateState::Acked,
        UpdateState::Running,
        UpdateState::Succeeded,
    ];
    let updates = states.map(|state| Update::bare(command, state)).to_vec();
    let answer = daemon.report(updates).await;
    let answered: Vec<_> = answer.updates.iter().map(|answer| answer.state).collect();
    assert_eq!(answered, states);
    assert!(answer.updates.iter().all(|answer| answer.refused.is_none()));
    let events: i64 = sqlx::query_scalar("SELECT count(*) FROM events WHERE stream = $1")
        .bind(command.uuid())
        .fetch_one(&pool)
        .await
        .unwrap();
    // Queued, dispatched, and the three words.
    assert_eq!(events, 5);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d3_whatever_ends_the_head_of_a_lane_the_next_one_goes_by_itself(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    let mut daemon = world.daemon("n").await;
    let node = daemon.node;
    let mut queued = Vec::new();
    for _ in 0..5 {
        queued.push(world.run(node, "logs.collect").await);
    }
    let short = Run {
        not_after: world.ledger.now().plus_micros(300_000),
        ..world.order(node, "logs.collect")
    };
    let short = world.queue(short).await;
    let last = world.run(node, "logs.collect").await;
    for expected in &queued[..2] {
        assert_eq!(daemon.receive_command().await.command_id, *expected);
    }
    daemon.assert_quiet().await;
    // The head of what waits is cancelled: the one behind it is next.
    world.cancel(node, queued[2]).await;
    let next = async |daemon: &mut Daemon, end: CommandId, state: UpdateState| {
        let update = Update::bare(end, state);
        daemon
            .send(ledger_protocol::frame::CommandUpdate {
                updates: vec![update],
            })
            .await;
        let mut came = None;
        for _ in 0..2 {
            match daemon.receive().await {
                Frame::UpdateAck(ack) => assert_eq!(ack.updates[0].refused, None),
                Frame::Command(command) => came = Some(command.command_id),
                other => panic!("{other:?}"),
            }
        }
        came.unwrap()
    };
    // One in flight is rejected, one fails.
    let came = next(&mut daemon, queued[0], UpdateState::Rejected).await;
    assert_eq!(came, queued[3]);
    let came = next(&mut daemon, queued[1], UpdateState::Failed).await;
    assert_eq!(came, queued[4]);
    // The head of what waits expires, by the sweeper's word.
    while world.ledger.now() <= world.command(short).await.queued.not_after {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let holder = lease::acquire(&pool, "sweeper", "test", Duration::from_secs(10)).await;
    let fence = holder.unwrap().unwrap();
    let command = world.command(short).await;
    world.ledger.expire(&fence, &command).await.unwrap();
    let came = next(&mut daemon, queued[3], UpdateState::Succeeded).await;
    assert_eq!(came, last);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn k3_behind_a_thousand_bulk_commands_a_control_command_goes_at_once(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let orders = (0..1_000).map(|_| world.run(daemon.node, "logs.collect"));
    futures_util::future::join_all(orders).await;
    for _ in 0..2 {
        assert_eq!(daemon.receive_command().await.kind, "logs.collect");
    }
    let control = world.run(daemon.node, "inventory.refresh").await;
    assert_eq!(daemon.receive_command().await.command_id, control);
}
