//! The sweepers: two, as if none knew of the other, each with what it saw at its last look.

use ledger_protocol::command::{Command, State, expire};
use ledger_protocol::limits::SWEEP_SECONDS;
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};

use crate::bug::Bug;
use crate::world::World;

#[derive(Default)]
pub(crate) struct Sweeper {
    pub(crate) sweep_at: i64,
    candidates: Vec<Command>,
}

impl World {
    /// Reads what is overdue.
    pub(crate) fn sweeper_look(&mut self, s: usize) -> bool {
        if self.now < self.sweepers[s].sweep_at || !self.sweepers[s].candidates.is_empty() {
            return false;
        }
        let at = Timestamp::from_micros(self.now);
        let early = self.bug == Some(Bug::SweepsTooEarly);
        let forgets = self.bug == Some(Bug::SweepForgetsFlight);
        let live = self.ledger.commands.values();
        let decided = live.filter(|command| {
            let timeout = if early {
                0
            } else {
                command.queued.timeout_seconds
            };
            !matches!(command.state, State::Settled(_))
                && command.queued.not_after < at
                && !(forgets && command.is_in_flight())
                && expire::decide(command, timeout, at).is_ok()
        });
        let candidates: Vec<_> = decided.cloned().collect();
        let found = !candidates.is_empty();
        let sweeper = &mut self.sweepers[s];
        sweeper.candidates = candidates;
        sweeper.sweep_at = self.now + i64::from(SWEEP_SECONDS) * MICROS_PER_SECOND;
        found
    }

    /// Ends one of them, if it has not changed since.
    pub(crate) fn sweeper_end(&mut self, s: usize) -> bool {
        let Some(command) = self.sweepers[s].candidates.pop() else {
            return false;
        };
        let at = Timestamp::from_micros(self.now);
        if self.ledger.expire(&command, at).is_err() {
            self.tally.overtaken += 1;
        }
        true
    }
}
