use std::collections::BTreeMap;
use std::time::Duration;

use ledger_protocol::frame::{CommandUpdate, Frame, Update, UpdateState};
use ledger_protocol::id::CommandId;
use sqlx::PgPool;

use super::daemon::Daemon;
use super::world::World;

const COMMANDS: usize = 60;
const CUTS: u32 = 25;

/// Ends every other connection to the database, in the middle of whatever it does.
async fn cut(pool: &PgPool) {
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    // The connection that asks may have been cut itself.
    let _ = sqlx::query(cut).execute(pool).await;
}

/// Runs whatever comes, and says again what was not acknowledged, until all of it is.
async fn work(daemon: &mut Daemon) {
    let mut unconfirmed: BTreeMap<CommandId, Update> = BTreeMap::new();
    let mut confirmed = 0;
    while confirmed < COMMANDS {
        match daemon.receive_soon().await {
            Some(Frame::Command(command)) => {
                let update = Update::bare(command.command_id, UpdateState::Succeeded);
                unconfirmed.insert(command.command_id, update.clone());
                daemon
                    .send(CommandUpdate {
                        updates: vec![update],
                    })
                    .await;
            }
            Some(Frame::UpdateAck(ack)) => {
                for answer in ack.updates {
                    assert_eq!(answer.refused, None);
                    let was_open = unconfirmed.remove(&answer.command_id).is_some();
                    confirmed += usize::from(was_open);
                }
            }
            Some(other) => panic!("{other:?}"),
            None if unconfirmed.is_empty() => {}
            None => {
                let updates = unconfirmed.values().take(64).cloned().collect();
                daemon.send(CommandUpdate { updates }).await;
            }
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_a_database_link_that_is_cut_again_and_again_loses_no_command(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    let mut daemon = world.daemon("n").await;
    let node = daemon.node;
    let queueing = async {
        let mut queued = Vec::new();
        for _ in 0..COMMANDS {
            let order = world.order(node, "inventory.refresh");
            // The same key tells what became of an append without an answer.
            loop {
                match world
                    .ledger
                    .enqueue(&super::world::actor(), order.clone())
                    .await
                {
                    Ok(run) => break queued.push(run.command.id),
                    Err(ledger::Error::Refused(refusal)) => panic!("{refusal}"),
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        }
        queued
    };
    let cutting = async {
        let mut beat = tokio::time::interval(Duration::from_millis(40));
        for _ in 0..CUTS {
            beat.tick().await;
            cut(&pool).await;
        }
    };
    let (queued, (), ()) = tokio::join!(queueing, cutting, work(&mut daemon));
    for id in queued {
        let command = world.command(id).await;
        assert!(
            command.state_name().is_terminal(),
            "{id} is {}",
            command.state_name()
        );
    }
    daemon.assert_quiet().await;
}
