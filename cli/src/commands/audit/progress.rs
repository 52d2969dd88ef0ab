//! How far long work has come, on stderr.

use std::io::Write as _;
use std::time::Instant;

use crate::limits::PROGRESS_EVERY;

/// A line now and then; none for work that is done soon.
pub(in crate::commands) struct Progress {
    doing: &'static str,
    told: Instant,
}

impl Progress {
    pub(in crate::commands) fn of(doing: &'static str) -> Self {
        let told = Instant::now();
        Self { doing, told }
    }

    /// So many events of so many are done.
    pub(in crate::commands) fn tell(&mut self, done: u64, all: u64) {
        if self.told.elapsed() < PROGRESS_EVERY {
            return;
        }
        self.told = Instant::now();
        let percent = done.saturating_mul(100) / all.max(1);
        let doing = self.doing;
        // For people who wait; nobody reading it is fine.
        let _ = writeln!(
            std::io::stderr(),
            "{doing}: {done} of {all} events ({percent} %)"
        );
    }
}
