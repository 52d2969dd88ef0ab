//! Batches on a real Postgres (SPEC P3, P4).

use ed25519_dalek::SigningKey;
use ledger_projections::batches as read;
use ledger_protocol::batch::create::Policy;
use ledger_protocol::batch::{Batch, Leaf, Standing};
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::event::{Approver, Body};
use ledger_protocol::id::CommandId;

use crate::{Propose, Proposed, Queued};

use super::*;

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

/// Two of three approvers must approve.
pub(super) fn with_approvers(options: &mut Options) {
    let approvers = (1..=3).map(|number| Approver {
        key: PublicKey::of(&key(number)),
        name: format!("approver-{number}"),
    });
    options.approval = Policy::new(approvers.collect(), 2).unwrap();
}

fn propose(ground: &Ground, kinds: &[&str]) -> Propose {
    let leaf = |kind: &&str| Leaf::of(ground.node, kind, &[0x80]);
    Propose {
        tenant: ground.tenant,
        reason: "kernel update".to_owned(),
        scope: kinds.iter().map(leaf).collect(),
        idempotency_key: format!("api:{}", kinds.join(",")),
        expires_in_seconds: 600,
    }
}

async fn propose_as(ground: &Ground, by: &str, propose: Propose) -> Result<Proposed, Error> {
    ground.ledger.propose_batch(&Actor::api(by), propose).await
}

/// A batch that allows one kind on the node.
pub(super) async fn proposed(ground: &Ground, kind: &str) -> Batch {
    let propose = propose(ground, &[kind]);
    propose_as(ground, "creator", propose).await.unwrap().batch
}

fn signature(batch: &Batch, number: u8) -> Vec<u8> {
    let payload = batch.statement().encode().unwrap();
    sign(&key(number), Purpose::BatchApproval, &payload).to_vec()
}

async fn approve(ground: &Ground, batch: &Batch, by: &str, number: u8) -> Result<Batch, Error> {
    let key = PublicKey::of(&key(number));
    let signature = signature(batch, number);
    ground
        .ledger
        .approve_batch(&Actor::api(by), ground.tenant, batch.id, key, signature)
        .await
}

pub(super) async fn queue_in(
    ground: &Ground,
    batch: &Batch,
    kind: &str,
    key: &str,
) -> Result<Queued, Error> {
    let mut run = ground.run(kind, key);
    run.batch_id = Some(batch.id);
    ground.ledger.enqueue(&ground.actor, run).await
}

fn is_held(command: &Command) -> bool {
    matches!(
        command.state,
        ledger_protocol::command::State::Pending { held: true, .. }
    )
}

async fn current(ground: &Ground, id: CommandId) -> Command {
    let mut conn = ground.ledger.pool().acquire().await.unwrap();
    commands::get(&mut conn, id).await.unwrap().unwrap()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p3_a_batch_holds_its_commands_until_two_people_have_approved(pool: PgPool) {
    let ground = Ground::on(start(&pool, with_approvers)).await;
    let batch = proposed(&ground, "node.reboot").await;
    let held = queue_in(&ground, &batch, "node.reboot", "api:1").await;
    let held = held.unwrap().command;
    assert!(is_held(&held));
    let early = ground
        .ledger
        .release(&ground.actor, ground.tenant, ground.node, held.id);
    let refused = Refusal::BatchNotApproved {
        batch: batch.id,
        given: 0,
        quorum: 2,
    };
    assert!(matches!(early.await, Err(Error::Refused(refusal)) if refusal == refused));

    assert!(approve(&ground, &batch, "ada", 1).await.unwrap().holds());
    assert!(approve(&ground, &batch, "ada", 1).await.unwrap().holds());
    assert!(approve(&ground, &batch, "ada", 2).await.is_err());
    assert!(approve(&ground, &batch, "creator", 2).await.is_err());
    let release = || {
        ground
            .ledger
            .release_approved(&ground.actor, Some(batch.id))
    };
    assert_eq!(release().await.unwrap().released, 0);
    let approved = approve(&ground, &batch, "bob", 2).await.unwrap();
    assert_eq!(approved.standing(NOW), Standing::Approved);
    assert!(is_held(&current(&ground, held.id).await));
    assert_eq!(release().await.unwrap().released, 1);
    assert_eq!(release().await.unwrap().released, 0);
    let released = current(&ground, held.id).await;
    assert!(!is_held(&released));
    let later = queue_in(&ground, &batch, "node.reboot", "api:2").await;
    assert!(!is_held(&later.unwrap().command));
    let mut conn = pool.acquire().await.unwrap();
    let due = commands::due(&mut conn, &[ground.node], NOW).await.unwrap();
    assert_eq!(due.len(), 2);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p4_a_command_outside_its_batch_is_refused(pool: PgPool) {
    let ground = Ground::on(start(&pool, with_approvers)).await;
    let batch = proposed(&ground, "node.reboot").await;
    let refused = |answer: Result<Queued, Error>| match answer {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let outside = refused(queue_in(&ground, &batch, "diag.nvml", "api:1").await);
    assert!(matches!(outside, Refusal::OutsideBatch { .. }));
    let mut other = ground.run("inventory.refresh", "api:2");
    other.payload = json!({"rescan": true});
    let mut scoped = propose(&ground, &["inventory.refresh"]);
    scoped.reason = "inventory".to_owned();
    let scoped = propose_as(&ground, "creator", scoped).await.unwrap().batch;
    other.batch_id = Some(scoped.id);
    let changed = refused(ground.ledger.enqueue(&ground.actor, other).await);
    assert!(matches!(changed, Refusal::OutsideBatch { .. }));
    let stranger = Ground::on(ground.ledger.clone()).await;
    let hidden = refused(queue_in(&stranger, &batch, "node.reboot", "api:3").await);
    assert_eq!(hidden, Refusal::UnknownBatch(batch.id));
    let hidden = approve(&stranger, &batch, "ada", 1).await;
    assert!(matches!(
        hidden,
        Err(Error::Refused(Refusal::UnknownBatch(_)))
    ));
    assert_eq!(ground.head().await, stranger.head().await);
    ground.ledger.clock().set(NOW.plus_seconds(601));
    let mut late = ground.run("node.reboot", "api:4");
    late.batch_id = Some(batch.id);
    late.not_after = NOW.plus_seconds(900);
    let late = refused(ground.ledger.enqueue(&ground.actor, late).await);
    assert!(matches!(late, Refusal::BatchExpired { .. }));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p3_retries_of_one_key_on_two_replicas_make_one_batch(pool: PgPool) {
    let ground = Ground::on(start(&pool, with_approvers)).await;
    let other = start(&pool, with_approvers);
    let mut asked = tokio::task::JoinSet::new();
    for number in 0..40 {
        let ledger = [&ground.ledger, &other][number % 2].clone();
        let propose = propose(&ground, &["node.reboot"]);
        asked.spawn(async move { ledger.propose_batch(&Actor::api("creator"), propose).await });
    }
    let answers = asked.join_all().await;
    let answers: Vec<Proposed> = answers.into_iter().map(Result::unwrap).collect();
    let new: Vec<_> = answers.iter().filter(|answer| !answer.replayed).collect();
    assert_eq!(new.len(), 1);
    assert!(answers.iter().all(|answer| answer.batch == new[0].batch));
    let mut changed = propose(&ground, &["node.reboot"]);
    changed.reason = "another".to_owned();
    let conflict = propose_as(&ground, "creator", changed).await;
    let expected = Refusal::BatchKeyConflict {
        field: "reason",
        batch: new[0].batch.id,
    };
    assert!(matches!(conflict, Err(Error::Refused(refusal)) if refusal == expected));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p3_nothing_stays_held_whatever_runs_beside_the_approval(pool: PgPool) {
    let ground = Ground::on(start(&pool, with_approvers)).await;
    let other = Ground {
        ledger: start(&pool, with_approvers),
        actor: ground.actor.clone(),
        ..ground
    };
    for round in 0..10 {
        let mut propose = propose(&ground, &["logs.collect"]);
        propose.idempotency_key = format!("api:{round}");
        let batch = propose_as(&ground, "creator", propose).await.unwrap().batch;
        approve(&ground, &batch, "ada", 1).await.unwrap();
        let queue = async {
            let mut queued = Vec::new();
            for number in 0..10 {
                let key = format!("api:{round}-{number}");
                let answer = queue_in(&other, &batch, "logs.collect", &key).await;
                queued.push(answer.unwrap().command.id);
            }
            queued
        };
        let let_go = async {
            approve(&ground, &batch, "bob", 2).await.unwrap();
            let release = ground
                .ledger
                .release_approved(&ground.actor, Some(batch.id));
            release.await.unwrap();
        };
        let (queued, ()) = tokio::join!(queue, let_go);
        // What was queued before the approval was released by it; what came after was not held.
        for id in queued {
            assert!(!is_held(&current(&ground, id).await), "round {round}");
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p3_the_largest_scope_is_kept_and_each_of_its_commands_carries_its_proof(pool: PgPool) {
    let ground = Ground::on(start(&pool, with_approvers)).await;
    let mut propose = propose(&ground, &["node.reboot"]);
    for number in 1..10_000_u64 {
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        let node = NodeId::new(NOW, random);
        propose.scope.push(Leaf::of(node, "node.reboot", &[0x80]));
    }
    propose.scope.swap(0, 9_876);
    let batch = propose_as(&ground, "creator", propose).await.unwrap().batch;
    let mut conn = pool.acquire().await.unwrap();
    let page = read::leaves(&mut conn, batch.id, 9_876, 3).await.unwrap();
    assert_eq!(page.len(), 3);
    assert_eq!(page[0].subject, ground.node.to_string());
    let queued = queue_in(&ground, &batch, "node.reboot", "api:1")
        .await
        .unwrap();
    let stream = Stream::Command(queued.command.id);
    let stored = log::stream(&mut conn, stream).await.unwrap();
    let event = Event::decode(&stored[0].bytes).unwrap();
    let Body::CommandQueued(body) = event.body else {
        panic!("{event:?}")
    };
    let inclusion = body.batch_inclusion.unwrap();
    assert_eq!(inclusion.index, 9_876);
    assert!(inclusion.proves(&page[0], &batch.created));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p3_without_approvers_a_batch_holds_nothing(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let batch = proposed(&ground, "node.reboot").await;
    assert_eq!(batch.standing(NOW), Standing::Recorded);
    let queued = queue_in(&ground, &batch, "node.reboot", "api:1").await;
    assert!(!is_held(&queued.unwrap().command));
    let refused = approve(&ground, &batch, "ada", 1).await;
    let expected = Refusal::BatchRecordedOnly(batch.id);
    assert!(matches!(refused, Err(Error::Refused(refusal)) if refusal == expected));
}
