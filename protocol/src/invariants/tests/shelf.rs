//! A checker with a shelf says what one without says.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::event::CommandLateResult;

/// A part of a log that concerns one command.
#[derive(Debug, Clone, Copy)]
enum Step {
    Queue(u16),
    Dispatch(u16),
    End(u16),
    Late(u16),
}

impl Step {
    fn event(self) -> (CommandId, Body) {
        match self {
            Self::Queue(number) => (command(number), queued(seq(number)).into()),
            Self::Dispatch(number) => (command(number), dispatched(seq(number), 1).into()),
            Self::End(number) => (command(number), settled(number).into()),
            Self::Late(number) => (command(number), CommandLateResult(settled(number)).into()),
        }
    }
}

fn command(number: u16) -> CommandId {
    let [high, low] = number.to_be_bytes();
    CommandId::new(NOW, [0, 0, 0, 0, 0, 0, 0, 0, high, low])
}

fn seq(number: u16) -> u64 {
    u64::from(number) + 1
}

fn settled(number: u16) -> CommandSettled {
    CommandSettled {
        details: None,
        epoch: Some(1),
        kind: "logs.collect".to_owned(),
        node_id: node(),
        node_sig: None,
        reason: None,
        result: None,
        result_truncated: None,
        seq: seq(number),
        state: Outcome::Failed,
    }
}

/// The same log, twice.
struct Both {
    plain: Checker,
    shelved: Shelved<Cursor<Vec<u8>>>,
    position: u64,
    versions: BTreeMap<Stream, u64>,
}

impl Both {
    fn new(blocks_max: usize) -> Self {
        let mut both = Self {
            plain: Checker::new(0),
            shelved: Shelved::new(Checker::new(0), Cursor::new(Vec::new()), blocks_max),
            position: 0,
            versions: BTreeMap::new(),
        };
        for body in [registered().into(), opened(1).into()] {
            assert_eq!(both.observe(Stream::Node(node()), body).unwrap(), []);
        }
        both
    }

    /// What both say of the next event, told apart by nothing.
    fn observe(&mut self, stream: Stream, body: Body) -> std::io::Result<Vec<Violation>> {
        self.position += 1;
        let version = self.versions.entry(stream).or_default();
        *version += 1;
        let event = Event {
            id: EventId::new(NOW, [0; 10]),
            stream,
            version: *version,
            at: NOW,
            actor: Actor::sweeper(),
            tenant: TenantId::new(NOW, [2; 10]),
            body,
        };
        let found = self.shelved.observe(self.position, &event)?;
        assert_eq!(self.plain.observe(self.position, &event), found);
        assert!(self.shelved.checker().ended.blocks() <= self.shelved.blocks_max);
        Ok(found)
    }

    fn step(&mut self, step: Step) -> std::io::Result<Vec<Violation>> {
        let (id, body) = step.event();
        self.observe(Stream::Command(id), body)
    }

    /// Commands that begin and end as they should.
    fn whole(&mut self, numbers: std::ops::Range<u16>) {
        for number in numbers {
            for step in [
                Step::Queue(number),
                Step::Dispatch(number),
                Step::End(number),
            ] {
                assert_eq!(self.step(step).unwrap(), [], "{step:?}");
            }
        }
        assert_eq!(self.shelved.checker().commands(), self.plain.commands());
        assert_eq!(self.shelved.checker().live(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn u2_a_shelf_changes_nothing_that_is_found(
        strewn in proptest::collection::vec((0..4_096_u16, 0..4_u8), 0..4_000),
        blocks_max in 1..4_usize,
    ) {
        let mut both = Both::new(blocks_max);
        both.whole(0..3_000);
        for (number, step) in strewn {
            let step = match step {
                0 => Step::Queue(number),
                1 => Step::Dispatch(number),
                2 => Step::End(number),
                _ => Step::Late(number),
            };
            both.step(step).unwrap();
        }
    }
}

#[test]
fn u2_what_comes_long_after_the_end_is_judged_by_the_end() {
    let mut both = Both::new(2);
    both.whole(0..10_000);
    assert!(!both.shelved.shelf.get_ref().is_empty());
    assert_eq!(both.step(Step::Late(3)).unwrap(), []);
    let again = both.step(Step::End(4)).unwrap();
    assert_eq!(again[0].rule, Rule::SettledTwice { first: "failed" });
    let sent = both.step(Step::Dispatch(5)).unwrap();
    assert!(matches!(sent[0].rule, Rule::AfterTheEnd { .. }), "{sent:?}");
    let begun = both.step(Step::Queue(6)).unwrap();
    assert!(!begun.is_empty());
    both.whole(10_000..12_000);
}

#[test]
fn u2_the_shelf_is_no_larger_than_what_is_on_it() {
    let mut both = Both::new(2);
    both.whole(0..10_000);
    let before = both.shelved.shelf.get_ref().len();
    assert!(before <= 10_000 * 40, "{before}");
    for number in (0..10_000_u32).map(|n| n * 997 % 10_000) {
        both.step(Step::Late(number.try_into().unwrap())).unwrap();
    }
    let after = both.shelved.shelf.get_ref().len();
    assert!(
        after <= before + 2 * super::super::ended::BLOCK_BYTES,
        "{after}"
    );
}

#[test]
fn u2_a_shelf_that_was_changed_or_fails_is_an_error() {
    let mut both = Both::new(1);
    both.whole(0..2_000);
    both.shelved.shelf.get_mut().fill(0xff);
    let changed = both.step(Step::Late(1)).unwrap_err();
    assert_eq!(changed.kind(), std::io::ErrorKind::InvalidData);
    both.shelved.shelf.get_mut().clear();
    let cut = both.step(Step::Late(1)).unwrap_err();
    assert_eq!(cut.kind(), std::io::ErrorKind::UnexpectedEof);
}
