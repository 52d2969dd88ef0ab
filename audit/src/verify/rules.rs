//! The events, held against the rules that any log must keep, on a thread of their own.

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;

use ledger_protocol::dsse::PublicKey;
use ledger_protocol::event::Event;
use ledger_protocol::invariants::Checker;
use ledger_protocol::time::MICROS_PER_SECOND;
use ledger_protocol::tlog::EntryBundle;

use super::problem::{Defect, Place, Problem};
use crate::limits::{LOOK_SECONDS, VIOLATIONS_MAX};

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

pub(super) struct Rules {
    checker: Checker,
    ruled: Ruled,
}

impl Rules {
    /// Looks at all that comes, until no more comes or something cannot be read.
    pub(super) fn follow(work: &Receiver<Work>) -> Ruled {
        let mut rules = Self {
            checker: Checker::new(i64::from(LOOK_SECONDS) * MICROS_PER_SECOND),
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
                    if let Err(problem) = rules.observe(&events) {
                        rules.add(problem);
                        break;
                    }
                }
            }
        }
        rules.ruled.commands = rules.checker.commands();
        rules.ruled.live = rules.checker.live();
        rules.ruled
    }

    /// Folds go on after a broken rule; they cannot after an event that is none.
    fn observe(&mut self, events: &Events) -> Result<(), Problem> {
        let entries = EntryBundle::first(&events.bytes, events.count);
        for (position, entry) in (events.before + 1..).zip(entries) {
            let event = Event::decode(entry)
                .map_err(|error| Problem::new(Place::Position(position), Defect::Event(error)))?;
            for broken in self.checker.observe(position, &event) {
                let (stream, rule) = (broken.stream, broken.rule);
                let place = Place::Position(broken.position);
                self.add(Problem::new(place, Defect::Rule { stream, rule }));
            }
        }
        Ok(())
    }

    fn add(&mut self, problem: Problem) {
        self.ruled.problems_total += 1;
        if self.ruled.problems.len() < VIOLATIONS_MAX {
            self.ruled.problems.push(problem);
        }
    }
}
