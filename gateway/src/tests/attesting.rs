//! Who may say how an attested command ended (SPEC P2). The daemon of these tests has a real
//! certificate, and what it sends may have been changed on its way.

use ledger_projections::refused_reports;
use ledger_protocol::attestation::Statement;
use ledger_protocol::canonical;
use ledger_protocol::command::State;
use ledger_protocol::dsse::Purpose;
use ledger_protocol::event::{Actor, Outcome};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::CommandId;
use rcgen::{KeyPair, SigningKey as _};
use sqlx::PgPool;

use super::daemon::{Daemon, Identity};
use super::joining::join;
use super::world::World;

/// What the node signs, as it leaves the node.
fn signed(identity: &Identity, update: Update) -> Update {
    let key = KeyPair::from_pem(&identity.key).unwrap();
    let statement = Statement::of_update(identity.node, &update).unwrap();
    let bytes = Purpose::CommandUpdate.encode(&statement.encode().unwrap());
    let signature = key.sign(&bytes).unwrap();
    Update {
        node_sig: Some(signature),
        ..update
    }
}

fn end(command: CommandId, state: UpdateState) -> Update {
    let result = serde_json::json!({ "passed": state == UpdateState::Succeeded });
    Update {
        result: canonical::from_json(&result).ok(),
        ..Update::bare(command, state)
    }
}

async fn code(daemon: &mut Daemon, update: Update) -> Option<String> {
    let ack = daemon.report(vec![update]).await;
    let [answer] = ack.updates.as_slice() else {
        panic!("{ack:?}")
    };
    assert_eq!(answer.code.is_some(), answer.refused.is_some());
    answer.code.clone()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p2_a_forged_stripped_altered_or_replayed_end_is_refused_and_shown(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    let node = world.register("n").await;
    let identity = join(&world, node, None).await;
    let mut daemon = world.open(&identity).await;
    let command = world.run(node, "diag.nvml").await;
    let other = world.run(node, "diag.nvml").await;
    for _ in 0..2 {
        daemon.receive_command().await;
    }
    let failed = signed(&identity, end(command, UpdateState::Failed));

    let stranger = Identity {
        key: KeyPair::generate_for(&rcgen::PKCS_ED25519)
            .unwrap()
            .serialize_pem(),
        ..identity.clone()
    };
    let bad = [
        signed(&stranger, end(command, UpdateState::Succeeded)),
        Update {
            state: UpdateState::Succeeded,
            ..failed.clone()
        },
        Update {
            result: canonical::from_json(&serde_json::json!({ "passed": true })).ok(),
            ..failed.clone()
        },
        Update {
            reason: Some("gpu-busy".to_owned()),
            ..failed.clone()
        },
        Update {
            command_id: command,
            ..signed(&identity, end(other, UpdateState::Failed))
        },
    ];
    for forged in bad {
        let answer = code(&mut daemon, forged).await;
        assert_eq!(answer.as_deref(), Some("BAD_ATTESTATION"));
    }
    for _ in 0..3 {
        let stripped = end(command, UpdateState::Succeeded);
        let answer = code(&mut daemon, stripped).await;
        assert_eq!(answer.as_deref(), Some("UNATTESTED"));
    }
    assert!(world.command(command).await.is_in_flight());

    // A gateway that does not go through the daemon's session gets no further.
    let gateway = Actor::gateway("a liar");
    let forged = end(command, UpdateState::Succeeded);
    let now = world.ledger.now();
    let told = world
        .ledger
        .report(&gateway, node, daemon.epoch, forged, now)
        .await;
    assert!(told.is_err(), "{told:?}");

    let mut conn = pool.acquire().await.unwrap();
    let mut kept = refused_reports::of_node(&mut conn, node).await.unwrap();
    kept.sort_by_key(|report| (report.code.clone(), report.state.clone()));
    let shown: Vec<_> = kept
        .iter()
        .map(|report| (report.code.as_str(), report.state.as_str(), report.reports))
        .collect();
    assert_eq!(
        shown,
        [
            ("BAD_ATTESTATION", "failed", 3),
            ("BAD_ATTESTATION", "succeeded", 2),
            ("UNATTESTED", "succeeded", 3),
        ]
    );
    assert!(kept.iter().all(|report| report.command == command));
    assert!(kept[2].problem.contains("diag.nvml"), "{:?}", kept[2]);

    // The node's own word still counts, and is kept as it came.
    assert_eq!(code(&mut daemon, failed.clone()).await, None);
    let State::Settled(settled) = world.command(command).await.state else {
        panic!("not settled")
    };
    assert_eq!(settled.end.state, Outcome::Failed);
    assert_eq!(settled.end.node_sig, failed.node_sig);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l11_a_report_on_a_command_that_the_ledger_does_not_know_is_shown(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    let mut daemon = world.daemon("n").await;
    let lost = CommandId::new(world.ledger.now(), [9; 10]);
    let answer = code(&mut daemon, Update::bare(lost, UpdateState::Succeeded)).await;
    assert_eq!(answer.as_deref(), Some("UNKNOWN_COMMAND"));
    let mut conn = pool.acquire().await.unwrap();
    let kept = refused_reports::of_node(&mut conn, daemon.node)
        .await
        .unwrap();
    let [report] = kept.as_slice() else {
        panic!("{kept:?}")
    };
    assert_eq!(
        (report.command, report.code.as_str()),
        (lost, "UNKNOWN_COMMAND")
    );
}
