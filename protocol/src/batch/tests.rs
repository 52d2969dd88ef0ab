//! Batches: their scope, who approves them, what they let go.

use ed25519_dalek::SigningKey;
use proptest::prelude::*;

use super::create::{Create, Policy, Scope};
use super::*;
use crate::dsse::sign;
use crate::event::Approver;
use crate::id::EventId;
use crate::kind::Registry;
use crate::limits;

const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn node(number: usize) -> NodeId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    NodeId::new(NOW, random)
}

fn approver(number: u8) -> Approver {
    Approver {
        key: PublicKey::of(&key(number)),
        name: format!("approver-{number}"),
    }
}

fn policy(quorum: u32) -> Policy {
    Policy::new(vec![approver(2), approver(1), approver(3)], quorum).unwrap()
}

fn scope(leaves: Vec<Leaf>) -> Result<Scope, Refusal> {
    Scope::new(leaves, &Registry::builtin())
}

fn reboots(count: usize) -> Vec<Leaf> {
    (0..count)
        .map(|number| Leaf::of(node(number), "node.reboot", &[0x80]))
        .collect()
}

fn create(leaves: Vec<Leaf>) -> Create {
    Create {
        id: BatchId::new(NOW, [1; 10]),
        tenant: TenantId::new(NOW, [2; 10]),
        reason: "kernel update".to_owned(),
        scope: scope(leaves).unwrap(),
        idempotency_key: "api:k".to_owned(),
        expires_in_seconds: 600,
    }
}

fn event(version: u64, actor: &str, body: Body) -> Event {
    Event {
        id: EventId::new(NOW, [3; 10]),
        stream: Stream::Batch(BatchId::new(NOW, [1; 10])),
        version,
        at: NOW,
        actor: Actor::api(actor),
        tenant: TenantId::new(NOW, [2; 10]),
        body,
    }
}

fn proposed(quorum: u32) -> Batch {
    let policy = if quorum == 0 {
        Policy::default()
    } else {
        policy(quorum)
    };
    let created = create(reboots(3)).decide(&policy, NOW).unwrap();
    Batch::evolve(None, &event(1, "creator", created)).unwrap()
}

fn signature(batch: &Batch, number: u8) -> Vec<u8> {
    let payload = batch.statement().encode().unwrap();
    sign(&key(number), Purpose::BatchApproval, &payload).to_vec()
}

/// Somebody brings the signature of a key.
fn approve(batch: &mut Batch, by: &str, number: u8) -> Result<bool, Refusal> {
    let signature = signature(batch, number);
    let public = PublicKey::of(&key(number));
    let given = approve::decide(batch, &Actor::api(by), &public, &signature, NOW)?;
    let recorded = given.is_some();
    if let Some(body) = given {
        let event = event(batch.version + 1, by, body);
        *batch = Batch::evolve(Some(batch.clone()), &event).unwrap();
    }
    Ok(recorded)
}

#[test]
fn p3_a_quorum_is_so_many_people_with_so_many_keys() {
    let mut batch = proposed(2);
    assert_eq!(batch.standing(NOW), Standing::Proposed);
    assert_eq!(approve(&mut batch, "ada", 1), Ok(true));
    assert_eq!(approve(&mut batch, "ada", 1), Ok(false));
    assert_eq!(approve(&mut batch, "Ada", 1), Ok(false));
    let id = batch.id;
    let same_key = Err(Refusal::ApprovedWithSameKey { batch: id });
    assert_eq!(approve(&mut batch, "bob", 1), same_key);
    let same = Err(Refusal::ApprovedBySamePerson { batch: id });
    assert_eq!(approve(&mut batch, "ada", 2), same);
    assert_eq!(approve(&mut batch, "Ada", 2), same);
    let creator = Err(Refusal::ApprovedByCreator { batch: id });
    assert_eq!(approve(&mut batch, "creator", 2), creator);
    assert_eq!(approve(&mut batch, "Creator", 2), creator);
    assert_eq!(batch.standing(NOW), Standing::Proposed);
    assert_eq!(approve(&mut batch, "bob", 2), Ok(true));
    assert_eq!(batch.standing(NOW), Standing::Approved);
    assert_eq!(batch.approved_at, Some(NOW));
    assert_eq!(approve(&mut batch, "eve", 3), Ok(true));
    assert_eq!(batch.approvals.len(), 3);
}

#[test]
fn p3_the_proposers_own_key_does_not_count_whoever_brings_it() {
    let created = create(reboots(1)).decide(&policy(1), NOW).unwrap();
    let mut batch = Batch::evolve(None, &event(1, "approver-1", created)).unwrap();
    let id = batch.id;
    let creator = Err(Refusal::ApprovedByCreator { batch: id });
    assert_eq!(approve(&mut batch, "ada", 1), creator);
}

#[test]
fn p3_a_signature_for_anything_else_is_refused() {
    let batch = proposed(1);
    let public = PublicKey::of(&key(1));
    let by = Actor::api("ada");
    let refused = |signature: &[u8], public: &PublicKey| match approve::decide(
        &batch, &by, public, signature, NOW,
    ) {
        Err(Refusal::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let good = signature(&batch, 1);
    let mut other = batch.clone();
    let changes: [fn(&mut Batch); 6] = [
        |batch| batch.id = BatchId::new(NOW, [9; 10]),
        |batch| batch.tenant = TenantId::new(NOW, [9; 10]),
        |batch| batch.created.root[31] ^= 1,
        |batch| batch.created.leaf_count += 1,
        |batch| batch.created.reason.push('!'),
        |batch| batch.created.expires_at = NOW,
    ];
    for change in changes {
        change(&mut other);
        assert_eq!(refused(&signature(&other, 1), &public), "signature");
        other = batch.clone();
    }
    assert_eq!(refused(&signature(&batch, 2), &public), "signature");
    assert_eq!(
        refused(&signature(&batch, 9), &PublicKey::of(&key(9))),
        "publicKey"
    );
    let expired = batch.created.expires_at.plus_micros(1);
    let late = approve::decide(&batch, &by, &public, &good, expired);
    assert!(matches!(late, Err(Refusal::BatchExpired { .. })));
    assert!(approve::decide(&batch, &by, &public, &good, NOW).is_ok());
}

#[test]
fn p3_without_approvers_a_batch_is_recorded_only() {
    let mut batch = proposed(0);
    assert_eq!(batch.standing(NOW), Standing::Recorded);
    assert!(!batch.holds());
    let recorded = Err(Refusal::BatchRecordedOnly(batch.id));
    assert_eq!(approve(&mut batch, "ada", 1), recorded);
}

#[test]
fn p3_a_scope_is_frozen_and_bounded() {
    let refused = |leaves| match scope(leaves) {
        Err(Refusal::Invalid {
            field: "scope",
            problem,
        }) => problem,
        other => panic!("{other:?}"),
    };
    assert!(refused(Vec::new()).contains("1 to 10000 leaves"));
    assert!(refused(reboots(limits::SCOPE_LEAVES_MAX + 1)).contains("10001"));
    let mut twice = reboots(3);
    twice.push(twice[1].clone());
    assert!(refused(twice).starts_with("[3] stands"));
    let mut unknown = reboots(1);
    unknown[0].kind = "node.explode".to_owned();
    assert!(refused(unknown).contains("[0].kind `node.explode`"));
    let mut bound = reboots(1);
    bound[0].payload_sha256 = Some(Leaf::empty_payload_sha256().to_vec());
    assert!(refused(bound).contains("[0].payloadSha256"));
    let largest = scope(reboots(limits::SCOPE_LEAVES_MAX)).unwrap();
    let last = largest.proved().last().unwrap();
    assert_eq!(last.inclusion.index, 9_999);
    assert!(last.inclusion.path.len() <= 14 * HASH_BYTES);
}

#[test]
fn p3_a_retry_that_differs_names_the_field() {
    let first = create(reboots(3));
    let created = first.decide(&policy(1), NOW).unwrap();
    let batch = Batch::evolve(None, &event(1, "creator", created)).unwrap();
    assert_eq!(first.is_retry_of(&batch), Ok(()));
    let refused = |change: fn(&mut Create)| {
        let mut again = first.clone();
        change(&mut again);
        match again.is_retry_of(&batch) {
            Err(Refusal::BatchKeyConflict { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|again| again.reason.push('!')), "reason");
    let fewer = |again: &mut Create| again.scope = scope(reboots(2)).unwrap();
    assert_eq!(refused(fewer), "scope");
    let longer = |again: &mut Create| again.expires_in_seconds = 601;
    assert_eq!(refused(longer), "expiresInSeconds");
}

#[test]
fn p3_a_policy_has_each_key_and_name_once() {
    let all = || vec![approver(1), approver(2)];
    for (approvers, quorum) in [
        (all(), 0),
        (all(), 3),
        (Vec::new(), 1),
        (vec![approver(1), approver(1)], 1),
        (
            vec![
                approver(1),
                Approver {
                    name: "other".to_owned(),
                    ..approver(1)
                },
            ],
            1,
        ),
        (
            vec![
                approver(1),
                Approver {
                    name: "approver-1".to_owned(),
                    ..approver(2)
                },
            ],
            1,
        ),
        (
            vec![Approver {
                name: String::new(),
                ..approver(1)
            }],
            1,
        ),
        (
            vec![Approver {
                name: "a\u{202e}".to_owned(),
                ..approver(1)
            }],
            1,
        ),
        (
            [(1, "ada"), (2, "ADA")]
                .map(|(number, name)| Approver {
                    name: name.to_owned(),
                    ..approver(number)
                })
                .to_vec(),
            2,
        ),
    ] {
        assert!(
            Policy::new(approvers.clone(), quorum).is_err(),
            "{approvers:?} {quorum}"
        );
    }
    assert!(Policy::new(all(), 2).is_ok());
    assert!(Policy::new(Vec::new(), 0).is_ok());
}

#[test]
fn p4_a_command_outside_the_scope_is_refused() {
    let batch = proposed(1);
    let scope = scope(reboots(3)).unwrap();
    let inside = scope.proved().nth(1).unwrap();
    let leaf = Leaf::of(node(1), "node.reboot", &[0x80]);
    let place = batch.admit(&leaf, Some(&inside.inclusion), NOW).unwrap();
    assert!(place.held);
    assert!(place.inclusion.proves(&leaf, &batch.created));
    // A proof that is none, as whoever writes the rows could put there, is worth nothing.
    let other = scope.proved().next().unwrap().inclusion;
    for outside in [None, Some(&other), Some(&Inclusion::new(3, &[[7; 32]; 2]))] {
        let outside = batch.admit(&leaf, outside, NOW);
        assert!(matches!(outside, Err(Refusal::OutsideBatch { .. })));
    }
    let expired = batch.created.expires_at.plus_micros(1);
    let late = batch.admit(&leaf, Some(&inside.inclusion), expired);
    assert!(matches!(late, Err(Refusal::BatchExpired { .. })));
    for other in [
        Leaf::of(node(2), "node.reboot", &[0x80]),
        Leaf::of(node(1), "gpu.reset", &[0x80]),
        Leaf::of(node(1), "node.reboot", &[0x81, 0xa1, b'a', 1]),
    ] {
        assert!(
            !inside.inclusion.proves(&other, &batch.created),
            "{other:?}"
        );
    }
}

proptest! {
    #[test]
    fn p3_every_leaf_of_a_scope_is_proved_by_its_own_proof(count in 1usize..200) {
        let leaves = reboots(count);
        let scope = scope(leaves.clone()).unwrap();
        let created = create(leaves.clone()).decide(&policy(1), NOW).unwrap();
        let batch = Batch::evolve(None, &event(1, "creator", created)).unwrap();
        for (proved, leaf) in scope.proved().zip(&leaves) {
            prop_assert!(proved.inclusion.proves(leaf, &batch.created));
            prop_assert_eq!(&proved.leaf, &leaf.encode().unwrap());
            let mut moved = proved.inclusion.clone();
            moved.index = (moved.index + 1) % count as u64;
            prop_assert!(count == 1 || !moved.proves(leaf, &batch.created));
            let mut ragged = proved.inclusion;
            ragged.path.push(0);
            prop_assert!(!ragged.proves(leaf, &batch.created));
        }
    }
}
