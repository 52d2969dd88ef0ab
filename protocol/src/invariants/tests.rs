mod attested;
mod shelf;

use ed25519_dalek::SigningKey;

use super::*;
use crate::batch::create::Scope;
use crate::batch::{Inclusion, Leaf, Statement};
use crate::dsse::{PublicKey, Purpose, sign};
use crate::event::{
    Actor, Approver, BatchApproved, BatchCreated, CommandAcked, CommandDispatched, CommandQueued,
    CommandReleased, CommandReturned, CommandRunning, CommandSettled, Ending, NodeRegistered,
    NodeSessionOpened,
};
use crate::id::{EventId, JournalId, TenantId};
use crate::kind::Role;

const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);

fn node() -> NodeId {
    NodeId::new(NOW, [1; 10])
}

fn command(seq: u64) -> CommandId {
    CommandId::new(NOW, [u8::try_from(seq).unwrap(); 10])
}

fn later(seconds: u32) -> Timestamp {
    NOW.plus_seconds(seconds)
}

/// A log that is written by hand.
struct Log {
    checker: Checker,
    position: u64,
    versions: BTreeMap<Stream, u64>,
    at: Timestamp,
    actor: Actor,
    broken: Vec<Rule>,
}

fn batch() -> BatchId {
    BatchId::new(NOW, [9; 10])
}

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn registered() -> NodeRegistered {
    NodeRegistered {
        labels: BTreeMap::new(),
        name: "n".to_owned(),
        role: Role::Node,
    }
}

fn opened(epoch: u64) -> NodeSessionOpened {
    NodeSessionOpened {
        agent_version: "1".to_owned(),
        applied_generation: 0,
        boot_id: "boot".to_owned(),
        epoch,
        gateway: "gw".to_owned(),
        gateway_lease: None,
        journal_id: JournalId::new(NOW, [3; 10]),
        journal_lost: None,
        role: Role::Node,
        seq_lifted: None,
    }
}

fn queued(seq: u64) -> CommandQueued {
    CommandQueued {
        signed: None,
        attested: false,
        batch_id: None,
        batch_inclusion: None,
        bundle_key: None,
        destructive: false,
        held: false,
        idempotency_key: format!("key-{seq}"),
        kind: "logs.collect".to_owned(),
        kind_version: 1,
        lane: Lane::Bulk,
        min_generation: None,
        node_id: node(),
        not_after: later(100),
        not_before: None,
        payload: vec![0x80],
        retry_safe: true,
        self_terminating: false,
        seq,
        timeout_seconds: 10,
    }
}

fn dispatched(seq: u64, epoch: u64) -> CommandDispatched {
    CommandDispatched {
        attempt: 1,
        epoch,
        kind: "logs.collect".to_owned(),
        node_id: node(),
        seq,
    }
}

impl Log {
    /// A node with an open session of epoch 1.
    fn new() -> Self {
        let mut log = Self {
            checker: Checker::new(0),
            position: 0,
            versions: BTreeMap::new(),
            at: NOW,
            actor: Actor::sweeper(),
            broken: Vec::new(),
        };
        log.on_node(registered());
        log.open(1);
        assert_eq!(log.broken, []);
        log
    }

    fn event(&mut self, stream: Stream, body: Body) {
        self.position += 1;
        let version = self.versions.entry(stream).or_default();
        *version += 1;
        let event = Event {
            id: EventId::new(self.at, [0; 10]),
            stream,
            version: *version,
            at: self.at,
            actor: self.actor.clone(),
            tenant: TenantId::new(NOW, [2; 10]),
            body,
        };
        let broken = self.checker.observe(self.position, &event);
        self.broken.extend(broken.into_iter().map(|one| one.rule));
    }

    fn on_node(&mut self, body: impl Into<Body>) {
        self.event(Stream::Node(node()), body.into());
    }

    fn open(&mut self, epoch: u64) {
        self.on_node(opened(epoch));
    }

    /// A batch that needs so many approvals, with the proof of its only leaf.
    fn propose(&mut self, quorum: u32) -> (BatchId, Inclusion) {
        let leaf = Leaf::of(node(), "logs.collect", &[0x80]);
        let scope = Scope::new(vec![leaf], &Registry::builtin()).unwrap();
        let proved = scope.proved().next().unwrap();
        let approvers = (1..=3).map(|number| Approver {
            key: PublicKey::of(&key(number)),
            name: format!("approver-{number}"),
        });
        let created = BatchCreated {
            approvers: approvers.collect(),
            expires_at: later(150),
            idempotency_key: "k".to_owned(),
            leaf_count: 1,
            quorum,
            reason: "r".to_owned(),
            root: scope.root().to_vec(),
        };
        self.event(Stream::Batch(batch()), created.into());
        (batch(), proved.inclusion)
    }

    fn queue_in_batch(&mut self, seq: u64, inclusion: &Inclusion, held: bool) {
        self.queue(seq, |queued| {
            queued.batch_id = Some(batch());
            queued.batch_inclusion = Some(inclusion.clone());
            queued.held = held;
        });
    }

    /// An approver's word; `by` is who brings it.
    fn approve(&mut self, number: u8, by: &str) {
        let statement = Statement {
            batch_id: batch(),
            expires_at: later(150),
            leaf_count: 1,
            reason: "r",
            root: &Self::root(),
            tenant_id: TenantId::new(NOW, [2; 10]),
        };
        let payload = statement.encode().unwrap();
        let approved = BatchApproved {
            approver: format!("approver-{number}"),
            key: PublicKey::of(&key(number)),
            signature: sign(&key(number), Purpose::BatchApproval, &payload).to_vec(),
        };
        self.actor = Actor::api(by);
        self.event(Stream::Batch(batch()), approved.into());
        self.actor = Actor::sweeper();
    }

    fn root() -> Vec<u8> {
        let leaf = Leaf::of(node(), "logs.collect", &[0x80]);
        crate::merkle::leaf_hash(&leaf.encode().unwrap()).to_vec()
    }

    fn release(&mut self, seq: u64) {
        let released = CommandReleased {
            kind: "logs.collect".to_owned(),
            node_id: node(),
            not_before: self.at,
            seq,
        };
        self.event(Stream::Command(command(seq)), released.into());
    }

    fn queue(&mut self, seq: u64, change: impl FnOnce(&mut CommandQueued)) {
        let mut queued = queued(seq);
        change(&mut queued);
        self.event(Stream::Command(command(seq)), queued.into());
    }

    fn dispatch(&mut self, seq: u64, epoch: u64) {
        self.event(Stream::Command(command(seq)), dispatched(seq, epoch).into());
    }

    fn settle(&mut self, seq: u64, outcome: Outcome, reason: &str, epoch: Option<u64>) {
        let Ending {
            outcome, reason, ..
        } = Ending::because(outcome, reason);
        let settled = CommandSettled {
            details: None,
            epoch,
            kind: "logs.collect".to_owned(),
            node_id: node(),
            node_sig: None,
            reason,
            result: None,
            result_truncated: None,
            seq,
            state: outcome,
        };
        self.event(Stream::Command(command(seq)), settled.into());
    }
}

fn one(broken: &[Rule]) -> Rule {
    let [rule] = broken else {
        panic!("{broken:?} is not one broken rule")
    };
    rule.clone()
}

#[test]
fn s4_a_second_end_is_found() {
    let mut log = Log::new();
    log.queue(1, |_| {});
    log.dispatch(1, 1);
    log.settle(1, Outcome::Succeeded, "", Some(1));
    assert_eq!(log.broken, []);
    log.settle(1, Outcome::Failed, "x", Some(1));
    assert_eq!(one(&log.broken), Rule::SettledTwice { first: "succeeded" });
}

#[test]
fn s2_a_dispatch_after_the_end_is_found() {
    let mut log = Log::new();
    log.queue(1, |_| {});
    log.settle(1, Outcome::Cancelled, "node-deleted", None);
    log.dispatch(1, 1);
    assert!(matches!(
        one(&log.broken),
        Rule::AfterTheEnd {
            end: "cancelled",
            ..
        }
    ));
}

#[test]
fn d2_an_old_epoch_is_found() {
    let mut log = Log::new();
    log.queue(1, |_| {});
    log.open(2);
    log.dispatch(1, 1);
    let expected = Rule::OldEpoch {
        newest: 2,
        given: 1,
    };
    assert_eq!(one(&log.broken), expected);
}

#[test]
fn d3_what_was_due_is_not_passed_over_but_what_was_not_is() {
    let mut log = Log::new();
    let (batch, inclusion) = log.propose(1);
    log.queue(1, |queued| {
        queued.batch_id = Some(batch);
        queued.batch_inclusion = Some(inclusion);
        queued.held = true;
    });
    log.queue(2, |queued| queued.not_before = Some(later(5)));
    log.queue(3, |queued| queued.min_generation = Some(1));
    log.queue(4, |_| {});
    log.dispatch(4, 1);
    assert_eq!(log.broken, []);
    log.queue(5, |_| {});
    log.at = later(5);
    log.dispatch(5, 1);
    assert_eq!(one(&log.broken), Rule::OutOfOrder { passed_over: 2 });
}

#[test]
fn k3_a_dispatch_above_the_credits_is_found() {
    let mut log = Log::new();
    for seq in 1..=3 {
        log.queue(seq, |_| {});
    }
    log.dispatch(1, 1);
    log.dispatch(2, 1);
    assert_eq!(log.broken, []);
    assert_eq!(log.checker.in_flight(node(), Lane::Bulk), 2);
    log.dispatch(3, 1);
    let expected = Rule::AboveCredits {
        lane: Lane::Bulk,
        in_flight: 2,
    };
    assert_eq!(one(&log.broken), expected);
}

#[test]
fn k3_what_a_look_could_not_see_takes_no_credit_from_it() {
    let mut log = Log::new();
    log.checker = Checker::new(5_000_000);
    (log.position, log.versions) = (0, BTreeMap::new());
    log.on_node(registered());
    log.open(1);
    for seq in 1..=3 {
        log.queue(seq, |_| {});
        log.dispatch(seq, 1);
        if seq == 1 {
            let returned = CommandReturned {
                epoch: 1,
                kind: "logs.collect".to_owned(),
                node_id: node(),
                reason: "busy".to_owned(),
                retry_at: NOW,
                seq,
            };
            log.event(Stream::Command(command(seq)), returned.into());
        }
        if seq == 2 {
            // The look for the third was before this late word on the first.
            let (epoch, kind, node_id) = (1, "logs.collect".to_owned(), node());
            let acked = CommandAcked {
                epoch,
                kind: kind.clone(),
                node_id,
                sent_epoch: None,
                seq: 1,
            };
            log.event(Stream::Command(command(1)), acked.into());
            let running = CommandRunning {
                epoch,
                kind,
                node_id,
                sent_epoch: None,
                seq: 1,
            };
            log.event(Stream::Command(command(1)), running.into());
        }
    }
    assert_eq!(log.broken, []);
    log.at = later(6);
    log.queue(4, |_| {});
    log.dispatch(4, 1);
    let expected = Rule::AboveCredits {
        lane: Lane::Bulk,
        in_flight: 3,
    };
    assert_eq!(one(&log.broken), expected);
}

#[test]
fn t1_a_dispatch_before_or_after_its_time_is_found() {
    let mut log = Log::new();
    log.queue(1, |queued| queued.not_before = Some(later(5)));
    log.queue(2, |_| {});
    log.dispatch(1, 1);
    log.at = later(101);
    log.dispatch(2, 1);
    let expected = [
        Rule::DispatchedEarly { until: later(5) },
        Rule::DispatchedLate {
            not_after: later(100),
        },
    ];
    assert_eq!(log.broken, expected);
}

#[test]
fn t2_an_end_before_its_time_and_one_that_does_not_come_are_found() {
    let mut log = Log::new();
    log.queue(1, |_| {});
    log.queue(2, |_| {});
    log.at = later(100);
    log.settle(1, Outcome::Expired, "not_after", None);
    assert_eq!(one(&log.broken), Rule::EndedEarly { until: later(100) });
    let kinds = Registry::builtin();
    assert_eq!(log.checker.overdue(later(120), 0, &kinds), []);
    let overdue = log.checker.overdue(later(121), 0, &kinds);
    assert_eq!(overdue[0].rule, Rule::Overdue { until: later(120) });
    assert_eq!(overdue[0].stream, Stream::Command(command(2)));
}

#[test]
fn d12_only_the_node_cancels_what_is_in_flight() {
    let mut log = Log::new();
    log.queue(1, |_| {});
    log.queue(2, |_| {});
    log.dispatch(1, 1);
    log.dispatch(2, 1);
    log.settle(1, Outcome::Cancelled, "", Some(1));
    assert_eq!(log.broken, []);
    log.settle(2, Outcome::Cancelled, "", None);
    assert_eq!(one(&log.broken), Rule::CancelledInFlight);
}

#[test]
fn d3_what_could_go_out_and_does_not_is_found() {
    let mut log = Log::new();
    log.queue(1, |_| {});
    assert_eq!(log.checker.left_waiting(later(2), 2_000_000), []);
    let left = log.checker.left_waiting(later(3), 2_000_000);
    assert_eq!(left[0].rule, Rule::LeftWaiting { since: NOW });
}

#[test]
fn l1_a_gap_in_positions_versions_or_seq_is_found() {
    let mut log = Log::new();
    log.position += 1;
    log.queue(2, |_| {});
    log.versions.insert(Stream::Command(command(2)), 5);
    log.dispatch(2, 1);
    let expected = [
        Rule::Position { before: 2 },
        Rule::Seq {
            before: 0,
            given: 2,
        },
        Rule::Version {
            before: 1,
            given: 6,
        },
    ];
    assert_eq!(log.broken, expected);
}

#[test]
fn p3_a_batch_that_is_approved_by_two_lets_its_command_go() {
    let mut log = Log::new();
    let (_, inclusion) = log.propose(2);
    log.queue_in_batch(1, &inclusion, true);
    log.approve(1, "ada");
    log.approve(2, "bob");
    log.release(1);
    log.queue_in_batch(2, &inclusion, false);
    log.dispatch(1, 1);
    assert_eq!(log.broken, []);
}

#[test]
fn p3_a_release_without_the_quorum_is_found() {
    let mut log = Log::new();
    let (_, inclusion) = log.propose(2);
    log.queue_in_batch(1, &inclusion, true);
    log.approve(1, "ada");
    log.release(1);
    let (given, quorum) = (1, 2);
    assert_eq!(one(&log.broken), Rule::ReleasedEarly { given, quorum });
}

#[test]
fn p3_a_key_or_a_person_that_counts_twice_is_found() {
    for (key, by) in [(1, "bob"), (2, "ada"), (2, "approver-9")] {
        let mut log = Log::new();
        log.actor = Actor::api("approver-9");
        log.propose(2);
        log.approve(1, "ada");
        assert_eq!(log.broken, []);
        log.approve(key, by);
        assert_eq!(one(&log.broken), Rule::NotDistinct, "{key} by {by}");
    }
}

#[test]
fn p3_what_no_approver_has_signed_is_found() {
    let mut log = Log::new();
    log.propose(1);
    log.approve(4, "ada");
    assert_eq!(one(&log.broken), Rule::NotSigned);
    let mut log = Log::new();
    log.propose(1);
    let approved = BatchApproved {
        approver: "approver-1".to_owned(),
        key: PublicKey::of(&key(1)),
        signature: vec![1; 64],
    };
    log.event(Stream::Batch(batch()), approved.into());
    assert!(log.broken.contains(&Rule::NotSigned));
}

#[test]
fn p3_a_command_that_its_batch_does_not_allow_is_found() {
    let mut log = Log::new();
    let (_, inclusion) = log.propose(1);
    log.queue(1, |queued| {
        queued.batch_id = Some(batch());
        queued.batch_inclusion = Some(inclusion.clone());
        queued.held = true;
        queued.payload = vec![0x81, 0xa1, b'a', 1];
    });
    assert_eq!(one(&log.broken), Rule::OutsideBatch);
    log.broken.clear();
    log.queue_in_batch(2, &inclusion, false);
    let (held, given, quorum) = (false, 0, 1);
    let expected = Rule::WronglyHeld {
        held,
        given,
        quorum,
    };
    assert_eq!(one(&log.broken), expected);
    log.broken.clear();
    log.queue(3, |queued| queued.held = true);
    assert_eq!(one(&log.broken), Rule::UnknownBatch);
    log.broken.clear();
    log.at = later(151);
    log.queue_in_batch(4, &inclusion, true);
    assert_eq!(one(&log.broken), Rule::BatchExpired { at: later(150) });
    log.broken.clear();
    log.at = later(1);
    log.queue(5, |queued| {
        queued.batch_id = Some(batch());
        queued.batch_inclusion = Some(inclusion.clone());
        queued.held = true;
        queued.not_after = later(151);
    });
    assert_eq!(one(&log.broken), Rule::BatchExpired { at: later(150) });
}
