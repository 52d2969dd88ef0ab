//! Everybody who can end a command tries to, at the same time, on two replicas (SPEC S2, S4).

use std::collections::BTreeMap;
use std::time::Duration;

use ledger::{Clock, Error, lease};
use ledger_projections::commands;
use ledger_protocol::event::Body;
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::CommandId;
use ledger_tests::database;
use ledger_tests::ground::{Connected, Ground, events};
use ledger_tests::wait::in_time;
use sqlx::PgPool;
use tokio::task::JoinSet;

const ROUNDS: usize = 60;
/// Past `notAfter` and timeout of every command, in seconds.
const LATER_SECONDS: u32 = 2 * 3_600;

/// A command that waits, and one each in dispatched, acked and running.
async fn commands_of(ground: &Ground, node: Connected, round: usize) -> Vec<CommandId> {
    let mut ids = Vec::new();
    for reached in 0..4 {
        let id = ground
            .queue(node.id, &format!("api:{round}:{reached}"))
            .await
            .id;
        let (ledger, gateway) = (&ground.ledger, &ground.gateway);
        if reached > 0 {
            ledger
                .dispatch(gateway, node.id, id, node.epoch)
                .await
                .unwrap();
        }
        for state in [UpdateState::Acked, UpdateState::Running]
            .into_iter()
            .take(reached.max(1) - 1)
        {
            let (update, now) = (Update::bare(id, state), ledger.now());
            ledger
                .report(gateway, node.id, node.epoch, update, now)
                .await
                .unwrap();
        }
        ids.push(id);
    }
    ids
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn s4_a_command_ends_once_however_many_try_to_end_it_at_the_same_time(pool: PgPool) {
    let url = database::url(&pool);
    let own = async || ledger::connect(url.as_str(), 10).await.unwrap();
    let clock = Clock::manual(Clock::system().now());
    let here = Ground::with_clock(own().await, clock.clone());
    let there = here.beside(own().await);
    let fence = lease::acquire(&pool, "sweeper", "test", Duration::from_mins(10)).await;
    let fence = fence.unwrap().unwrap();
    let mut ids = Vec::new();
    for round in 0..ROUNDS {
        let node = here.connected(&format!("n{round}")).await;
        let made = commands_of(&here, node, round).await;
        ids.extend(made.into_iter().map(|id| (node, id)));
    }
    clock.advance_seconds(LATER_SECONDS);

    let mut enders = JoinSet::new();
    for (node, id) in ids.iter().copied() {
        let mut conn = pool.acquire().await.unwrap();
        let command = commands::get(&mut conn, id).await.unwrap().unwrap();
        for ground in [&here, &there] {
            let (expiring, command, fence) = (ground.clone(), command.clone(), fence.clone());
            enders.spawn(async move { expiring.ledger.expire(&fence, &command).await.map(|_| ()) });
            let cancelling = ground.clone();
            enders.spawn(async move {
                let (ledger, actor) = (&cancelling.ledger, &cancelling.actor);
                ledger
                    .cancel(actor, cancelling.tenant, node.id, id)
                    .await
                    .map(|_| ())
            });
            for state in [
                UpdateState::Succeeded,
                UpdateState::Failed,
                UpdateState::Rejected,
            ] {
                let ground = ground.clone();
                enders.spawn(async move {
                    let (ledger, update) = (&ground.ledger, Update::bare(id, state));
                    let told =
                        ledger.report(&ground.gateway, node.id, node.epoch, update, ledger.now());
                    told.await.map(|_| ())
                });
            }
        }
        let deleting = there.clone();
        enders.spawn(async move {
            let (ledger, actor) = (&deleting.ledger, &deleting.actor);
            ledger
                .delete_node(actor, deleting.tenant, node.id)
                .await
                .map(|_| ())
        });
    }
    let mut ended = 0;
    for answer in in_time("everybody is answered", enders.join_all()).await {
        match answer {
            Ok(()) => ended += 1,
            Err(Error::Refused(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(ended > ids.len(), "{ended}");

    let mut ends: BTreeMap<CommandId, Vec<String>> = BTreeMap::new();
    for event in events(&pool).await {
        let Some(id) = event.command_id() else {
            continue;
        };
        let ends = ends.entry(id).or_default();
        if let Body::CommandSettled(end) = &event.body {
            ends.push(end.state.as_str().to_owned());
        } else if !ends.is_empty() {
            // After its end only the node's late word is kept.
            assert!(
                matches!(event.body, Body::CommandLateResult(_)),
                "{event:?}"
            );
        }
    }
    assert_eq!(ends.len(), ids.len());
    let mut conn = pool.acquire().await.unwrap();
    for (id, ends) in ends {
        let command = commands::get(&mut conn, id).await.unwrap().unwrap();
        assert_eq!(ends, [command.state_name().as_str()], "{id}");
    }
}
