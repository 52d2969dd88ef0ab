//! Journals that are lost, and state folders that exist twice (SPEC D2, D8).

use ledger_protocol::command::State;
use ledger_protocol::event::Outcome;
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::{CommandId, JournalId};
use ledger_protocol::time::Timestamp;
use sqlx::PgPool;

use super::daemon::{Daemon, Identity};
use super::world::World;

async fn end(world: &World, command: CommandId) -> (Outcome, Option<String>) {
    match world.command(command).await.state {
        State::Settled(settled) => (settled.end.state, settled.end.reason),
        other => panic!("it has not ended: {other:?}"),
    }
}

fn lost() -> (Outcome, Option<String>) {
    (Outcome::Failed, Some("journal-lost".to_owned()))
}

/// A daemon with a copy of the state folder, on a machine of its own.
async fn copy(world: &World, identity: &Identity, boot: &str, highest_seq: u64) -> Daemon {
    let mut daemon = Daemon::connect(world, world.gateway.address, identity).await;
    daemon.hello.boot_id = boot.to_owned();
    daemon.hello.highest_seq = highest_seq;
    daemon
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d8_a_fresh_journal_does_not_undo_what_the_lost_one_ran(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut daemon = world.open(&identity).await;
    let (ran, stopped) = (
        world.run(node, "logs.collect").await,
        world.run(node, "logs.collect").await,
    );
    for command in [ran, stopped] {
        assert_eq!(daemon.receive_command().await.command_id, command);
    }
    for command in [ran, stopped] {
        daemon.say(command, UpdateState::Running).await;
    }
    drop(daemon);
    let mut daemon = Daemon::connect(&world, world.gateway.address, &identity).await;
    daemon.hello.journal_id = JournalId::new(Timestamp::from_micros(9), [9; 10]);
    daemon.greet().await;
    for command in [ran, stopped] {
        assert_eq!(daemon.receive_command().await.command_id, command);
    }
    let late = Update {
        reason: Some("EXPIRED".to_owned()),
        ..Update::bare(ran, UpdateState::Rejected)
    };
    let ack = daemon.report(vec![late]).await;
    assert_eq!(ack.updates[0].refused, None);
    daemon.say(stopped, UpdateState::Acked).await;
    daemon.say(stopped, UpdateState::Cancelled).await;
    for command in [ran, stopped] {
        assert_eq!(end(&world, command).await, lost());
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_copies_of_a_state_folder_that_live_at_once_run_no_reboot_twice(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut first = copy(&world, &identity, "boot-a", 0).await;
    first.greet().await;
    let accepted = world.run(node, "node.reboot").await;
    assert_eq!(first.receive_command().await.command_id, accepted);
    first.say(accepted, UpdateState::Acked).await;

    // The other knows nothing of it; that it has another boot id proves no reboot.
    let mut second = copy(&world, &identity, "boot-b", 0).await;
    second.greet().await;
    assert_eq!(end(&world, accepted).await, lost());
    assert!(world.node(node).await.journal_copied);
    let taken_on = world.run(node, "node.reboot").await;
    assert_eq!(second.receive_command().await.command_id, taken_on);

    // The second took that on, and nobody heard of it before the first came back.
    let mut first = copy(&world, &identity, "boot-a", 1).await;
    first.greet().await;
    first.assert_quiet().await;
    assert_eq!(end(&world, taken_on).await, lost());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d8_a_state_folder_that_was_put_back_is_a_lost_journal(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    let identity = world.identity(node, None);
    let mut daemon = world.open(&identity).await;
    let done = world.run(node, "node.reboot").await;
    assert_eq!(daemon.receive_command().await.command_id, done);
    daemon.say(done, UpdateState::Succeeded).await;
    let sent = world.run(node, "node.reboot").await;
    assert_eq!(daemon.receive_command().await.command_id, sent);
    drop(daemon);
    // By what this journal says, neither ever came.
    let mut daemon = copy(&world, &identity, "boot-1", 0).await;
    daemon.greet().await;
    daemon.assert_quiet().await;
    assert_eq!(end(&world, sent).await, lost());
    let next = world.run(node, "node.reboot").await;
    assert_eq!(daemon.receive_command().await.command_id, next);
}
