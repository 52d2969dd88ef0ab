//! What a journal can say of commands that were sent to the one before it (SPEC D8).

use super::*;

impl Life {
    /// The node comes back with another journal, which is empty.
    fn with_a_fresh_journal(mut self) -> Self {
        self.node = open(self.node, JournalId::new(NOW, [6; 10]));
        self
    }

    fn details(&self) -> serde_json::Value {
        let State::Settled(settled) = &self.command.state else {
            panic!("it has not ended");
        };
        let details = settled.end.details.as_ref();
        details.map_or(serde_json::Value::Null, |details| {
            canonical::to_json(details).unwrap()
        })
    }
}

/// What the ledger may know of a command that an earlier journal was sent.
const KNOWN: [&[UpdateState]; 3] = [
    &[],
    &[UpdateState::Acked],
    &[UpdateState::Acked, UpdateState::Running],
];

#[test]
fn d8_a_fresh_journal_cannot_say_that_nothing_happened() {
    for known in KNOWN {
        for (state, reason) in [
            (UpdateState::Cancelled, None),
            (UpdateState::Rejected, Some("EXPIRED")),
            (UpdateState::Rejected, Some("UNSUPPORTED")),
        ] {
            let mut life = Life::of("logs.collect").dispatched();
            for word in known {
                life.report(*word).unwrap();
            }
            let mut life = life.with_a_fresh_journal();
            let update = Update {
                reason: reason.map(str::to_owned),
                ..Update::bare(command_id(), state)
            };
            life.report_update(&update).unwrap();
            assert_eq!(life.end(), ("failed", Some("journal-lost")), "{known:?}");
            let mut said = serde_json::json!({ "state": state });
            if let Some(reason) = reason {
                said["reason"] = reason.into();
            }
            assert_eq!(life.details(), said);
            // The same word again is nothing new.
            life.report_update(&update).unwrap();
            let State::Settled(settled) = &life.command.state else {
                unreachable!()
            };
            assert_eq!(settled.late, None);
        }
    }
}

#[test]
fn d8_what_a_fresh_journal_did_itself_it_can_say() {
    for (word, end) in [
        (UpdateState::Succeeded, "succeeded"),
        (UpdateState::Failed, "failed"),
    ] {
        for known in KNOWN {
            let mut life = Life::of("logs.collect").dispatched();
            for word in known {
                life.report(*word).unwrap();
            }
            let mut life = life.with_a_fresh_journal();
            life.report(UpdateState::Running).unwrap();
            life.report(word).unwrap();
            assert_eq!(life.end(), (end, None), "{known:?}");
        }
    }
}

#[test]
fn d8_what_was_sent_to_the_fresh_journal_it_can_refuse() {
    let mut life = Life::of("logs.collect").with_a_fresh_journal().dispatched();
    life.report(UpdateState::Rejected).unwrap();
    assert_eq!(life.end(), ("rejected", None));
    let mut life = Life::of("logs.collect").with_a_fresh_journal().dispatched();
    life.report(UpdateState::Acked).unwrap();
    life.report(UpdateState::Cancelled).unwrap();
    assert_eq!(life.end(), ("cancelled", None));
}

#[test]
fn d8_what_a_lost_journal_may_have_run_does_not_wait_as_if_nobody_had_it() {
    let mut life = Life::of("logs.collect").dispatched().with_a_fresh_journal();
    life.report(UpdateState::Busy).unwrap();
    assert_eq!(life.state(), "dispatched");
    life.report(UpdateState::Cancelled).unwrap();
    assert_eq!(life.end(), ("failed", Some("journal-lost")));
}

#[test]
fn d8_a_journal_that_comes_back_after_another_knows_nothing_of_that_one() {
    let mut life = Life::of("logs.collect").with_a_fresh_journal().dispatched();
    life.node = open(life.node, JournalId::new(NOW, [5; 10]));
    life.report(UpdateState::Rejected).unwrap();
    assert_eq!(life.end(), ("failed", Some("journal-lost")));
}

#[test]
fn d8_what_a_fresh_journal_takes_on_again_may_have_run_before() {
    let mut life = Life::of("logs.collect").dispatched().with_a_fresh_journal();
    life.report(UpdateState::Acked).unwrap();
    life.report(UpdateState::Running).unwrap();
    assert_eq!(life.state(), "running");
    life.report(UpdateState::Cancelled).unwrap();
    assert_eq!(life.end(), ("failed", Some("journal-lost")));
}
