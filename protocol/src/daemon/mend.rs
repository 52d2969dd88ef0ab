//! A journal that cannot be written, because the disk is full or failed (SPEC D5).

use super::record::Record;
use super::{Daemon, Effect, Monotonic, Run, limits, update_frames};
use crate::frame::{Frame, Update, UpdateState};

impl Daemon {
    /// Says nothing more on any command until the journal is whole again: no word may leave that a
    /// crash could take back.
    ///
    /// What was accepted stays so and starts once the journal is whole. It is not given back as
    /// busy: the record may have reached the disk all the same, and a process that reads it would
    /// run what the ledger has cancelled meanwhile because it waited.
    pub(super) fn journal_failed(
        &mut self,
        unperformed: Vec<Effect>,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        self.broken_until = Some(now.plus_seconds(limits::JOURNAL_RETRY_SECONDS));
        let mut busy = Vec::new();
        for effect in &unperformed {
            let Effect::Journal(record) = effect else {
                continue;
            };
            let taken_back = match record {
                Record::Ended(ended) if !ended.accepted => ended.update.command_id,
                Record::Accepted(_)
                | Record::Ended(_)
                | Record::Started(_)
                | Record::Confirmed(_)
                | Record::Forgotten(_)
                | Record::Seen(_)
                | Record::Applied(_)
                | Record::Trusted(_)
                | Record::Unbatched(_) => continue,
            };
            self.book.take_back(taken_back);
            busy.push(Update::bare(taken_back, UpdateState::Busy));
        }
        for effect in unperformed {
            match effect {
                Effect::Journal(_) | Effect::Rewrite(_) | Effect::Send(Frame::CommandUpdate(_)) => {
                }
                Effect::Start(job) => {
                    if let Some(open) = self.book.find_open_mut(job.command_id) {
                        open.run = Run::Due;
                    }
                }
                Effect::Pin(_) => self.wanted.pin_again(),
                Effect::Stop(_)
                | Effect::Send(_)
                | Effect::Apply(_)
                | Effect::Secret { .. }
                | Effect::Doubt(_)
                | Effect::Close(_) => out.push(effect),
            }
        }
        if self.is_welcome() {
            out.extend(update_frames(busy).into_iter().map(Effect::Send));
        }
    }

    /// Writes the journal anew from the book, then does and says what had to wait for it.
    pub(super) fn mend(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        self.broken_until = None;
        self.book.forget(self.clock.now(now));
        out.push(Effect::Rewrite(self.book.snapshot()));
        self.pin(out);
        self.launch_due(now, out);
        self.say_what_is_due(None, now, out);
    }
}
