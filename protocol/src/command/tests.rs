//! The rules of SPEC section 2, given and then.

use std::collections::BTreeMap;

use proptest::prelude::*;

mod attested;
mod copied_journal;
mod lost_journal;

use super::*;
use crate::batch::{Batch, Inclusion, Place};
use crate::canonical;
use crate::event::{BatchCreated, Ending, NodeCertified, NodeRegistered, NodeSessionOpened};
use crate::frame::{EntryState, Update, UpdateState};
use crate::id::{BatchId, EventId, JournalId};
use crate::kind::{Registry, Role};
use crate::node::{Node, OpenSession};
use crate::refusal::Refusal;

const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);

fn later(seconds: u32) -> Timestamp {
    NOW.plus_seconds(seconds)
}

fn tenant() -> TenantId {
    TenantId::new(NOW, [1; 10])
}

fn node_id() -> NodeId {
    NodeId::new(NOW, [2; 10])
}

fn command_id() -> CommandId {
    CommandId::new(NOW, [3; 10])
}

fn event(stream: Stream, version: u64, at: Timestamp, body: Body) -> Event {
    let id = EventId::new(at, [4; 10]);
    Event {
        id,
        stream,
        version,
        at,
        actor: Actor::api("operator"),
        tenant: tenant(),
        body,
    }
}

/// A node with a certificate and an open session of epoch 1.
fn connected_node() -> Node {
    let stream = Stream::Node(node_id());
    let registered = NodeRegistered {
        labels: BTreeMap::new(),
        name: "n1".to_owned(),
        role: Role::Node,
    };
    let node = Node::evolve(
        None,
        &event(stream, 1, NOW, Body::NodeRegistered(registered)),
    )
    .unwrap();
    let node = attested::certify(node, &attested::key(1));
    open(node, JournalId::new(NOW, [5; 10]))
}

fn open(node: Node, journal_id: JournalId) -> Node {
    let opened = node
        .decide_open_session(hello(journal_id, "boot-1", 0), 0)
        .unwrap();
    let version = node.version + 1;
    let opened = Body::NodeSessionOpened(opened);
    Node::evolve(
        Some(node),
        &event(Stream::Node(node_id()), version, NOW, opened),
    )
    .unwrap()
}

fn hello(journal_id: JournalId, boot_id: &str, highest_seq: u64) -> OpenSession {
    OpenSession {
        agent_version: "1".to_owned(),
        applied_generation: 0,
        boot_id: boot_id.to_owned(),
        certificate: None,
        gateway: "g".to_owned(),
        gateway_lease: None,
        journal_id,
        highest_seq,
        role: Role::Node,
    }
}

fn enqueue(kind: &str) -> enqueue::Enqueue {
    enqueue::Enqueue {
        asked_at: NOW,
        id: command_id(),
        tenant: tenant(),
        node: node_id(),
        kind: Registry::builtin().get(kind).unwrap().clone(),
        payload: canonical::from_json(&serde_json::json!({})).unwrap(),
        idempotency_key: "api:k".to_owned(),
        not_after: later(600),
        not_before: None,
        min_generation: None,
        batch_id: None,
    }
}

fn batch(quorum: u32) -> Batch {
    let created = BatchCreated {
        approvers: Vec::new(),
        expires_at: later(3_600),
        idempotency_key: "api:b".to_owned(),
        leaf_count: 1,
        quorum,
        reason: "disks are to be returned".to_owned(),
        root: vec![0; 32],
    };
    let id = BatchId::new(NOW, [7; 10]);
    Batch::evolve(None, &event(Stream::Batch(id), 1, NOW, created.into())).unwrap()
}

/// A command and its history; what happens goes through `decide` and `evolve` as in the ledger.
struct Life {
    command: Command,
    node: Node,
    events: Vec<Event>,
    now: Timestamp,
}

impl Life {
    fn queued(request: &enqueue::Enqueue) -> Self {
        Self::queued_at(request, None)
    }

    /// A command that its batch holds.
    fn held(batch: &Batch, kind: &str) -> Self {
        let mut request = enqueue(kind);
        request.batch_id = Some(batch.id);
        let inclusion = Inclusion::new(0, &[]);
        let place = Place {
            inclusion,
            held: batch.holds(),
            expires_at: batch.created.expires_at,
        };
        Self::queued_at(&request, Some(place))
    }

    fn queued_at(request: &enqueue::Enqueue, place: Option<Place>) -> Self {
        let node = connected_node();
        let body = request.decide(&node, place, 0, 10, NOW).unwrap();
        let queued = event(Stream::Command(command_id()), 1, NOW, body);
        let command = Command::evolve(None, &queued).unwrap();
        let node = Node::evolve(Some(node), &queued).unwrap();
        Self {
            command,
            node,
            events: vec![queued],
            now: NOW,
        }
    }

    fn of(kind: &str) -> Self {
        Self::queued(&enqueue(kind))
    }

    fn happen(&mut self, bodies: impl IntoIterator<Item = Body>) {
        for body in bodies {
            let stream = Stream::Command(command_id());
            let event = event(stream, self.command.version + 1, self.now, body);
            self.command = Command::evolve(Some(self.command.clone()), &event).unwrap();
            self.events.push(event);
        }
    }

    fn dispatched(mut self) -> Self {
        let body = dispatch::decide(&self.command, &self.node, self.node.epoch, self.now).unwrap();
        self.happen([body]);
        self
    }

    fn report(&mut self, state: UpdateState) -> Result<(), Refusal> {
        let mut update = Update::bare(command_id(), state);
        if !matches!(
            state,
            UpdateState::Acked | UpdateState::Running | UpdateState::Busy
        ) {
            update.result = canonical::from_json(&serde_json::json!({ "ok": 1 })).ok();
        }
        self.report_update(&attested::signed(update))
    }

    fn report_update(&mut self, update: &Update) -> Result<(), Refusal> {
        let body = report::decide(
            &self.command,
            &self.node,
            self.node.epoch,
            update,
            self.now.plus_seconds(1),
        )?;
        self.happen(body);
        Ok(())
    }

    fn settled_count(&self) -> usize {
        self.events
            .iter()
            .filter(|e| matches!(e.body, Body::CommandSettled(_)))
            .count()
    }

    fn state(&self) -> &'static str {
        self.command.state_name().as_str()
    }

    fn end(&self) -> (&'static str, Option<&str>) {
        match &self.command.state {
            State::Settled(settled) => (settled.end.state.as_str(), settled.end.reason.as_deref()),
            _ => panic!("not settled: {:?}", self.command.state),
        }
    }
}

#[test]
fn s1_reports_may_skip_steps() {
    let mut life = Life::of("diag.nvml").dispatched();
    life.report(UpdateState::Succeeded).unwrap();
    assert_eq!(life.state(), "succeeded");
    assert_eq!(life.settled_count(), 1);
}

proptest! {
    #[test]
    fn s1_every_order_and_doubling_of_reports_gives_the_same_end(
        order in prop::collection::vec(0_usize..3, 0..12),
        end in 0_usize..4,
        place in 0_usize..12,
    ) {
        let ends = [
            UpdateState::Succeeded,
            UpdateState::Failed,
            UpdateState::Rejected,
            UpdateState::Cancelled,
        ];
        let mut reports: Vec<UpdateState> = order
            .into_iter()
            .map(|pick| [UpdateState::Acked, UpdateState::Running, ends[end]][pick])
            .collect();
        reports.insert(place.min(reports.len()), ends[end]);
        let mut life = Life::of("diag.nvml").dispatched();
        for state in reports {
            life.report(state).unwrap();
        }
        prop_assert_eq!(life.settled_count(), 1);
        prop_assert_eq!(life.end(), (["succeeded", "failed", "rejected", "cancelled"][end], None));
        let State::Settled(settled) = &life.command.state else { unreachable!() };
        prop_assert_eq!(&settled.late, &None);
    }

    #[test]
    fn l7_a_fold_of_the_same_events_is_the_same_command(
        steps in prop::collection::vec(0_usize..7, 0..20),
    ) {
        let mut life = Life::of("inventory.refresh");
        for step in steps {
            match step {
                0 => if let Ok(body) =
                    dispatch::decide(&life.command, &life.node, life.node.epoch, life.now) {
                    life.happen([body]);
                },
                1 => { let _ = life.report(UpdateState::Acked); }
                2 => { let _ = life.report(UpdateState::Running); }
                3 => { let _ = life.report(UpdateState::Busy); life.now = life.now.plus_seconds(2); }
                4 => { let _ = life.report(UpdateState::Failed); }
                5 => { let cancelled = cancel::decide(&life.command); life.happen(cancelled); }
                _ => {
                    life.now = life.now.plus_seconds(400);
                    if let Ok(body) = expire::decide(&life.command, 300, life.now) {
                        life.happen([body]);
                    }
                }
            }
        }
        let mut again = None;
        for event in &life.events {
            let bytes = event.encode().unwrap();
            let event = Event::decode(&bytes).unwrap();
            prop_assert_eq!(&event.encode().unwrap(), &bytes);
            again = Some(Command::evolve(again, &event).unwrap());
        }
        prop_assert_eq!(again.as_ref(), Some(&life.command));
        prop_assert!(life.settled_count() <= 1);
        let snapshot = canonical::encode(&life.command).unwrap();
        prop_assert_eq!(canonical::decode::<Command>(&snapshot).unwrap(), life.command);
    }
}

#[test]
fn s2_a_terminal_state_never_changes_and_the_late_word_is_kept() {
    let mut life = Life::of("diag.nvml").dispatched();
    life.now = later(600 + 301);
    let body = expire::decide(&life.command, 300, life.now).unwrap();
    life.happen([body]);
    assert_eq!(life.end(), ("failed", Some("timeout")));
    life.report(UpdateState::Succeeded).unwrap();
    life.report(UpdateState::Succeeded).unwrap();
    assert_eq!(life.end(), ("failed", Some("timeout")));
    let State::Settled(settled) = &life.command.state else {
        unreachable!()
    };
    assert_eq!(
        settled.late.as_ref().map(|late| late.word.state),
        Some(Outcome::Succeeded)
    );
    assert_eq!(life.settled_count(), 1);
    let late = life
        .events
        .iter()
        .filter(|e| matches!(e.body, Body::CommandLateResult(_)));
    assert_eq!(late.count(), 1);
}

#[test]
fn s3_a_timeout_says_how_far_the_command_came() {
    for (reports, phase) in [
        (&[][..], "delivered"),
        (&[UpdateState::Acked], "accepted"),
        (&[UpdateState::Running], "started"),
    ] {
        let mut life = Life::of("diag.nvml").dispatched();
        for report in reports {
            life.report(*report).unwrap();
        }
        life.now = later(600 + 301);
        let body = expire::decide(&life.command, 300, life.now).unwrap();
        let Body::CommandSettled(end) = &body else {
            panic!("{body:?}")
        };
        let details = canonical::to_json(end.details.as_ref().unwrap()).unwrap();
        assert_eq!(details["phase"], phase);
    }
}

#[test]
fn t2_a_sweep_with_an_old_view_loses() {
    let life = Life::of("diag.nvml").dispatched();
    let early = expire::decide(&life.command, 300, later(600 + 300));
    assert_eq!(early, Err(Refusal::NotOverdue { until: later(900) }));
    let mut life = life;
    life.report(UpdateState::Succeeded).unwrap();
    let state = StateName::Ended(Outcome::Succeeded);
    let late = expire::decide(&life.command, 300, later(100_000));
    assert_eq!(late, Err(Refusal::NotPending { state }));
}

#[test]
fn t2_a_pending_command_expires_only_after_its_deadline() {
    let life = Life::of("diag.nvml");
    assert!(expire::decide(&life.command, 300, later(600)).is_err());
    let body = expire::decide(&life.command, 300, later(601)).unwrap();
    let Body::CommandSettled(end) = body else {
        panic!()
    };
    assert_eq!(
        (end.state, end.reason.as_deref()),
        (Outcome::Expired, Some("not_after"))
    );
}

#[test]
fn t1_nothing_goes_out_early_or_late_or_held_or_ahead_of_its_generation() {
    let due = |change: fn(&mut enqueue::Enqueue), now| {
        let mut request = enqueue("node.reboot");
        change(&mut request);
        let life = Life::queued(&request);
        dispatch::decide(&life.command, &life.node, life.node.epoch, now).err()
    };
    assert_eq!(due(|_| {}, NOW), None);
    assert_eq!(
        due(|_| {}, later(601)),
        Some(Refusal::PastDeadline {
            not_after: later(600)
        })
    );
    assert_eq!(
        due(|r| r.not_before = Some(later(5)), NOW),
        Some(Refusal::NotDue { until: later(5) })
    );
    assert_eq!(due(|r| r.not_before = Some(later(5)), later(5)), None);
    let life = Life::held(&batch(1), "node.reboot");
    let held = dispatch::decide(&life.command, &life.node, life.node.epoch, NOW);
    assert_eq!(held.err(), Some(Refusal::Held));
    assert_eq!(
        due(|r| r.min_generation = Some(3), NOW),
        Some(Refusal::StaleGeneration {
            applied: 0,
            wanted: 3
        })
    );
}

#[test]
fn d2_an_older_epoch_neither_dispatches_nor_reports() {
    let life = Life::of("diag.nvml");
    let node = open(life.node.clone(), JournalId::new(NOW, [5; 10]));
    let stale = Some(Refusal::StaleEpoch {
        current: 2,
        given: 1,
    });
    assert_eq!(dispatch::decide(&life.command, &node, 1, NOW).err(), stale);
    let update = Update::bare(command_id(), UpdateState::Acked);
    let life = life.dispatched();
    assert_eq!(
        report::decide(&life.command, &node, 1, &update, NOW).err(),
        stale
    );
}

#[test]
fn d4_busy_puts_the_command_back_in_its_place() {
    let mut life = Life::of("diag.nvml").dispatched();
    life.report(UpdateState::Busy).unwrap();
    assert_eq!((life.state(), life.command.queued.seq), ("pending", 1));
    let early = dispatch::decide(&life.command, &life.node, 1, NOW);
    assert_eq!(early.err(), Some(Refusal::NotDue { until: later(1) }));
    life.now = later(1);
    let life = life.dispatched();
    assert_eq!(life.command.attempts, 2);
}

#[test]
fn s1_a_report_after_busy_still_counts() {
    let mut life = Life::of("diag.nvml").dispatched();
    life.report(UpdateState::Busy).unwrap();
    life.report(UpdateState::Running).unwrap();
    assert_eq!(life.state(), "running");
    let mut never = Life::of("diag.nvml");
    assert_eq!(
        never.report(UpdateState::Acked),
        Err(Refusal::NeverDispatched)
    );
}

#[test]
fn a5_cancel_ends_what_waits_and_asks_what_runs_once() {
    let mut life = Life::of("diag.nvml");
    let cancelled = cancel::decide(&life.command);
    life.happen(cancelled);
    assert_eq!(life.end(), ("cancelled", None));
    assert!(cancel::decide(&life.command).is_empty());

    let mut life = Life::of("diag.nvml").dispatched();
    let requested = cancel::decide(&life.command);
    assert_eq!(requested.len(), 1);
    life.happen(requested);
    assert_eq!(
        (life.state(), life.command.cancel_requested_at),
        ("dispatched", Some(NOW))
    );
    assert!(cancel::decide(&life.command).is_empty());
    life.report(UpdateState::Succeeded).unwrap();
    assert_eq!(life.state(), "succeeded");
}

#[test]
fn p3_a_command_expires_with_its_batch() {
    let mut batch = batch(1);
    batch.created.expires_at = later(60);
    let life = Life::held(&batch, "node.reboot");
    assert_eq!(life.command.queued.not_after, later(60));
    batch.created.expires_at = later(3_600);
    let life = Life::held(&batch, "node.reboot");
    assert_eq!(life.command.queued.not_after, later(600));
}

#[test]
fn p3_a_held_command_is_released_once_and_by_its_own_batch() {
    let mut batch = batch(1);
    let mut life = Life::held(&batch, "node.reboot");
    let refused = Err(Refusal::BatchNotApproved {
        batch: batch.id,
        given: 0,
        quorum: 1,
    });
    assert_eq!(release::decide(&life.command, &batch, NOW), refused);
    batch.approved_at = Some(NOW);
    let late = release::decide(&life.command, &batch, later(601));
    assert!(matches!(late, Err(Refusal::PastDeadline { .. })));
    let mut other = batch.clone();
    other.id = BatchId::new(NOW, [8; 10]);
    let stranger = release::decide(&life.command, &other, NOW);
    assert_eq!(stranger, Err(Refusal::UnknownBatch(other.id)));
    let mut expired = batch.clone();
    expired.created.expires_at = later(5);
    let late = release::decide(&life.command, &expired, later(6));
    assert!(matches!(late, Err(Refusal::BatchExpired { .. })));
    let released = release::decide(&life.command, &batch, NOW).unwrap();
    life.happen([released]);
    let again = release::decide(&life.command, &batch, NOW);
    assert_eq!(again, Err(Refusal::NotHeld));
    assert_eq!(dispatch::hindrance(&life.command, &life.node, NOW), None);
}

#[test]
fn a2_a_retry_that_differs_names_the_field() {
    let life = Life::of("diag.nvml");
    assert_eq!(enqueue("diag.nvml").is_retry_of(&life.command), Ok(()));
    let other = enqueue("node.reboot").is_retry_of(&life.command);
    assert_eq!(
        other,
        Err(Refusal::KeyConflict {
            field: "kind",
            command: command_id()
        })
    );
    let mut other = enqueue("diag.nvml");
    other.payload = canonical::from_json(&serde_json::json!({ "a": 1 })).unwrap();
    let other = other.is_retry_of(&life.command);
    assert_eq!(
        other,
        Err(Refusal::KeyConflict {
            field: "payload",
            command: command_id()
        })
    );
}

#[test]
fn k4_a_full_lane_takes_no_more() {
    let refusal = enqueue("logs.collect").decide(&connected_node(), None, 10, 10, NOW);
    let lane = crate::kind::Lane::Bulk;
    assert_eq!(refusal, Err(Refusal::PendingFull { lane, limit: 10 }));
}

#[test]
fn t3_a_deadline_lies_ahead_and_at_most_twelve_hours() {
    let decide = |change: &dyn Fn(&mut enqueue::Enqueue)| {
        let mut request = enqueue("diag.nvml");
        change(&mut request);
        match request.decide(&connected_node(), None, 0, 10, NOW) {
            Err(Refusal::Invalid { field, .. }) => Some(field),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    };
    assert_eq!(decide(&|r| r.not_after = NOW), Some("notAfter"));
    assert_eq!(decide(&|r| r.not_after = later(12 * 3_600)), None);
    assert_eq!(
        decide(&|r| r.not_after = later(12 * 3_600 + 1)),
        Some("notAfter")
    );
    assert_eq!(
        decide(&|r| r.not_before = Some(later(600))),
        Some("notBefore")
    );
    assert_eq!(decide(&|r| r.not_before = Some(later(599))), None);
    assert_eq!(
        decide(&|r| r.idempotency_key = "a\0".to_owned()),
        Some("idempotencyKey")
    );
}

#[test]
fn a11_s3_a_deleted_nodes_commands_end_by_what_is_known() {
    let ends = [
        (None, "cancelled", None),
        (Some(UpdateState::Busy), "failed", Some("delivered")),
        (Some(UpdateState::Acked), "failed", Some("accepted")),
        (Some(UpdateState::Running), "failed", Some("started")),
    ];
    for (word, state, phase) in ends {
        let mut life = Life::of("node.reboot");
        if let Some(word) = word {
            life = life.dispatched();
            if word != UpdateState::Busy {
                life.report(word).unwrap();
            }
        }
        let end = cancel::decide_node_deleted(&life.command);
        life.happen(end);
        assert_eq!(life.end(), (state, Some("node-deleted")));
        let State::Settled(settled) = &life.command.state else {
            unreachable!()
        };
        let details = settled.end.details.as_ref();
        let details = details.map(|details| canonical::to_json(details).unwrap());
        assert_eq!(
            details,
            phase.map(|phase| serde_json::json!({ "phase": phase }))
        );
        assert_eq!(cancel::decide_node_deleted(&life.command), None);
    }
}

#[test]
fn t1_a_request_that_waited_past_its_own_deadline_is_not_the_callers_fault() {
    let mut request = enqueue("diag.nvml");
    request.not_after = later(10);
    let node = connected_node();
    assert!(request.decide(&node, None, 0, 10, later(9)).is_ok());
    for now in [later(10), later(11)] {
        let not_after = later(10);
        let refused = request.decide(&node, None, 0, 10, now);
        assert_eq!(refused, Err(Refusal::WaitedTooLong { not_after }));
    }
}

#[test]
fn d8_a_lost_journal_never_wipes_twice() {
    let lost = rejoin::Rejoin {
        journal_lost: true,
        new_boot: true,
        entry: None,
    };
    let life = Life::of("disk.wipe").dispatched();
    let Some(Body::CommandSettled(end)) = rejoin::decide(&life.command, lost, 2) else {
        panic!()
    };
    assert_eq!(
        (end.state, end.reason.as_deref()),
        (Outcome::Failed, Some("journal-lost"))
    );
    let safe = Life::of("diag.nvml").dispatched();
    assert_eq!(rejoin::decide(&safe.command, lost, 2), None);
}

#[test]
fn d9_a_new_boot_completes_an_accepted_reboot_whose_journal_is_lost() {
    let lost = rejoin::Rejoin {
        journal_lost: true,
        new_boot: true,
        entry: None,
    };
    let mut life = Life::of("node.reboot").dispatched();
    let Some(Body::CommandSettled(end)) = rejoin::decide(&life.command, lost, 2) else {
        panic!()
    };
    assert_eq!(end.reason.as_deref(), Some("journal-lost"));
    life.report(UpdateState::Acked).unwrap();
    let Some(Body::CommandSettled(end)) = rejoin::decide(&life.command, lost, 2) else {
        panic!()
    };
    assert_eq!(end.state, Outcome::Succeeded);
    assert_eq!(
        canonical::to_json(&end.result.unwrap()).unwrap()["rebooted"],
        true
    );
    let same_boot = rejoin::Rejoin {
        new_boot: false,
        ..lost
    };
    let Some(Body::CommandSettled(end)) = rejoin::decide(&life.command, same_boot, 2) else {
        panic!()
    };
    assert_eq!(end.reason.as_deref(), Some("journal-lost"));
}

#[test]
fn d6_what_the_journal_holds_the_daemon_answers_for() {
    let held = rejoin::Rejoin {
        journal_lost: false,
        new_boot: true,
        entry: Some(EntryState::Started),
    };
    let mut life = Life::of("disk.wipe").dispatched();
    life.report(UpdateState::Running).unwrap();
    assert_eq!(rejoin::decide(&life.command, held, 2), None);
    let forgotten = rejoin::Rejoin {
        entry: None,
        ..held
    };
    assert!(rejoin::decide(&life.command, forgotten, 2).is_some());
    let unheard = Life::of("disk.wipe").dispatched();
    assert_eq!(rejoin::decide(&unheard.command, forgotten, 2), None);
}

#[test]
fn d11_a_restricted_identity_refuses_at_enqueue_and_at_dispatch() {
    let life = Life::of("node.reboot");
    let certified = NodeCertified {
        allowed_kinds: Some(vec!["inventory.refresh".to_owned()]),
        fingerprint: "ab".repeat(32),
        not_after: later(1_000),
        not_before: NOW,
        public_key: vec![0; 32],
        renews: None,
    };
    let version = life.node.version + 1;
    let stream = Stream::Node(node_id());
    let certified = event(stream, version, NOW, Body::NodeCertified(certified));
    let node = Node::evolve(Some(life.node.clone()), &certified).unwrap();
    let refusal = enqueue("node.reboot")
        .decide(&node, None, 0, 10, NOW)
        .unwrap_err();
    assert!(
        refusal
            .to_string()
            .contains("runs a restricted identity that does not accept node.reboot")
    );
    assert_eq!(
        dispatch::decide(&life.command, &node, 1, NOW).err(),
        Some(refusal)
    );
}

#[test]
fn d13_what_a_node_says_is_bounded() {
    let mut life = Life::of("diag.nvml").dispatched();
    let mut update = Update::bare(command_id(), UpdateState::Succeeded);
    update.result = Some(vec![0xc1]);
    assert!(matches!(
        life.report_update(&update),
        Err(Refusal::Invalid {
            field: "result",
            ..
        })
    ));
    update.result = None;
    for (bytes, sha256) in [
        (crate::limits::COUNT_MAX + 1, "0".repeat(64)),
        (1, "0".repeat(63)),
        (1, "A".repeat(64)),
    ] {
        let cut = crate::event::Truncated { bytes, sha256 };
        update.result_truncated = Some(cut);
        let refused = life.report_update(&update).unwrap_err().to_string();
        assert!(refused.contains("resultTruncated"), "{refused}");
    }
    update.result_truncated = None;
    let long = serde_json::json!("x".repeat(crate::limits::RESULT_BYTES_MAX));
    update.result = canonical::from_json(&long).ok();
    assert!(life.report_update(&update).is_err());
    update.result = None;
    update.reason = Some("a\0b".to_owned());
    assert!(life.report_update(&update).is_err());
    update.reason = Some("r".repeat(201));
    assert!(life.report_update(&update).is_err());
    assert_eq!(life.state(), "dispatched");
}

#[test]
fn l7_events_that_cannot_follow_are_refused() {
    let life = Life::of("diag.nvml").dispatched();
    let stream = Stream::Command(command_id());
    let again = event(stream, 3, NOW, life.events[1].body.clone());
    assert!(matches!(
        Command::evolve(Some(life.command.clone()), &again),
        Err(Corrupt::Transition { .. })
    ));
    let gap = event(stream, 4, NOW, life.events[1].body.clone());
    assert!(matches!(
        Command::evolve(Some(life.command.clone()), &gap),
        Err(Corrupt::Version {
            current: 2,
            given: 4,
            ..
        })
    ));
    let ending = Ending::because(Outcome::Failed, "x");
    let mut end = life.command.end(ending, None);
    end.seq = 9;
    let foreign = event(stream, 3, NOW, Body::CommandSettled(end));
    assert!(matches!(
        Command::evolve(Some(life.command), &foreign),
        Err(Corrupt::Mismatch { .. })
    ));
}

#[test]
fn l11_a_node_cannot_lift_seq_or_generation_beyond_reason() {
    let node = connected_node();
    let open = |highest_seq, applied_generation| {
        let hello = OpenSession {
            applied_generation,
            ..hello(JournalId::new(NOW, [5; 10]), "boot-1", highest_seq)
        };
        node.decide_open_session(hello, 0)
    };
    let lift = crate::limits::SEQ_LIFT_MAX;
    assert!(open(lift, 0).is_ok());
    for seq in [lift + 1, 1 << 53, u64::MAX >> 1, u64::MAX] {
        let refused = open(seq, 0);
        assert!(
            matches!(
                refused,
                Err(Refusal::Invalid {
                    field: "highestSeq",
                    ..
                })
            ),
            "{seq}"
        );
    }
    for generation in [1 << 53, u64::MAX] {
        let field = "appliedGeneration";
        for refused in [
            open(0, generation).err(),
            node.decide_apply_generation(node.epoch, generation).err(),
        ] {
            assert!(matches!(refused, Some(Refusal::Invalid { field: f, .. }) if f == field));
        }
    }
}

#[test]
fn l7_a_seq_at_the_end_of_numbers_is_refused_and_folds_without_overflow() {
    let mut node = connected_node();
    node.seq = u64::MAX;
    let refused = enqueue("diag.nvml").decide(&node, None, 0, 10, NOW);
    assert!(matches!(
        refused,
        Err(Refusal::Invalid {
            field: "nodeId",
            ..
        })
    ));
    let queued = Life::of("diag.nvml").events.remove(0);
    assert!(matches!(
        Node::evolve(Some(node), &queued),
        Err(Corrupt::Mismatch { .. })
    ));
}

#[test]
fn l11_a_journal_that_has_seen_more_lifts_seq() {
    let node = connected_node();
    let opened: NodeSessionOpened = node
        .decide_open_session(hello(JournalId::new(NOW, [5; 10]), "boot-1", 41), 0)
        .unwrap();
    assert_eq!(opened.seq_lifted, Some(41));
    let opened = event(
        Stream::Node(node_id()),
        node.version + 1,
        NOW,
        Body::NodeSessionOpened(opened),
    );
    let node = Node::evolve(Some(node), &opened).unwrap();
    let Ok(Body::CommandQueued(queued)) = enqueue("diag.nvml").decide(&node, None, 0, 10, NOW)
    else {
        panic!()
    };
    assert_eq!(queued.seq, 42);
}
