//! The events, held against the rules that any log must keep, on a thread of their own.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::Receiver;

use ledger_protocol::dsse::PublicKey;
use ledger_protocol::event::Event;
use ledger_protocol::invariants::{Checker, Shelved};
use ledger_protocol::time::MICROS_PER_SECOND;
use ledger_protocol::tlog::EntryBundle;
use tempfile::SpooledTempFile;

use super::problem::{Defect, Place, Problem};
use crate::limits::{LOOK_SECONDS, SHELF_BLOCKS_HERE, VIOLATIONS_MAX};

/// What the rules are to look at next.
pub(super) enum Work {
    /// Roots that signatures are held against.
    Roots(BTreeSet<PublicKey>),
    /// Events of the log, in their order.
    Bundle(Events),
}

/// The first events of a bundle: all of them, or those before the one that is wrong.
pub(super) struct Events {
    /// The position before the first.
    pub(super) before: u64,
    /// The bundle's bytes.
    pub(super) bytes: Vec<u8>,
    /// How many of its events are looked at, which can be read.
    pub(super) count: u16,
}

/// What they say.
pub(super) struct Ruled {
    pub(super) commands: usize,
    pub(super) live: usize,
    pub(super) problems: Vec<Problem>,
    pub(super) problems_total: u64,
}

/// A checker of a log of any length. Its file is made when the first commands go there, and goes with
/// the process.
pub(crate) fn shelved() -> Shelved<SpooledTempFile> {
    let checker = Checker::new(i64::from(LOOK_SECONDS) * MICROS_PER_SECOND);
    Shelved::new(checker, SpooledTempFile::new(0), SHELF_BLOCKS_HERE)
}

pub(super) struct Rules {
    checker: Shelved<SpooledTempFile>,
    ruled: Ruled,
}

impl Rules {
    /// Looks at all that comes, until no more comes or something cannot be read. An error is that of
    /// a file for what does not stay in memory.
    pub(super) fn follow(work: &Receiver<Work>) -> io::Result<Ruled> {
        let mut rules = Self {
            checker: shelved(),
            ruled: Ruled {
                commands: 0,
                live: 0,
                problems: Vec::new(),
                problems_total: 0,
            },
        };
        for next in work {
            match next {
                Work::Roots(roots) => rules.checker.trust(roots),
                Work::Bundle(events) => {
                    if let Some(problem) = rules.observe(&events)? {
                        rules.add(problem);
                        break;
                    }
                }
            }
        }
        rules.ruled.commands = rules.checker.checker().commands();
        rules.ruled.live = rules.checker.checker().live();
        Ok(rules.ruled)
    }

    /// Folds go on after a broken rule; they cannot after an event that is none.
    fn observe(&mut self, events: &Events) -> io::Result<Option<Problem>> {
        let entries = EntryBundle::first(&events.bytes, events.count);
        for (position, entry) in (events.before + 1..).zip(entries) {
            let event = match Event::decode(entry) {
                Ok(event) => event,
                Err(error) => {
                    let place = Place::Position(position);
                    return Ok(Some(Problem::new(place, Defect::Event(error))));
                }
            };
            for broken in self.checker.observe(position, &event)? {
                let (stream, rule) = (broken.stream, broken.rule);
                let place = Place::Position(broken.position);
                self.add(Problem::new(place, Defect::Rule { stream, rule }));
            }
        }
        Ok(None)
    }

    fn add(&mut self, problem: Problem) {
        self.ruled.problems_total += 1;
        if self.ruled.problems.len() < VIOLATIONS_MAX {
            self.ruled.problems.push(problem);
        }
    }
}
