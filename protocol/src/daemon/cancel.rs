//! A request to stop (SPEC D12): before the start it ends the command, after the start it is
//! passed on to the executor, and after the end it changes nothing.

use super::{Daemon, Effect, End, Monotonic, Report, Run};
use crate::frame::{Update, UpdateState};
use crate::id::CommandId;

impl Daemon {
    /// A gateway asks for a command to stop. One that is not known is not there yet, or not any
    /// more, and the gateway asks again until it has a terminal report.
    pub(super) fn cancel(&mut self, id: CommandId, now: Monotonic, out: &mut Vec<Effect>) {
        let waiting = self.waiting.remove(&id);
        if let Some(command) = waiting.or_else(|| self.wanted.take(id)) {
            let update = Update::bare(id, UpdateState::Cancelled);
            return self.end_unaccepted(&command, update, now, out);
        }
        let Some(open) = self.book.find_open_mut(id) else {
            return;
        };
        let first = !std::mem::replace(&mut open.cancel_requested, true);
        match open.run {
            Run::Due => {
                let report = Report {
                    end: End::Cancelled,
                    reason: None,
                    details: None,
                    result: None,
                };
                self.end(id, UpdateState::Cancelled, &report, now, out);
            }
            Run::Launched if first => out.push(Effect::Stop(id)),
            Run::Launched | Run::Underway => {}
        }
    }
}
