//! What the daemon says of commands, and that it says it until the ledger has it (SPEC D5, D6).

use super::book::Word;
use super::limits::{RESEND_SECONDS, UPDATES_BYTES_MAX};
use super::record::{Confirmed, Record};
use super::{Daemon, Effect, Monotonic};
use crate::frame::{CommandUpdate, Frame, Update, UpdateAck, UpdateState};
use crate::limits::{REASON_BYTES_MAX, UPDATES_PER_FRAME_MAX};
use crate::time::MICROS_PER_SECOND;

impl Daemon {
    /// Sends updates that stand in the journal. Without a session, or while the journal cannot
    /// be written, they wait: the next `Welcome`, or the mended journal, sends all that is due.
    pub(super) fn say(&mut self, updates: Vec<Update>, now: Monotonic, out: &mut Vec<Effect>) {
        if !self.is_welcome() || self.broken_until.is_some() || updates.is_empty() {
            return;
        }
        for update in &updates {
            self.book
                .mark(update.command_id, update.state, Word::Said(now));
        }
        self.resend_at
            .get_or_insert(now.plus_seconds(RESEND_SECONDS));
        out.extend(update_frames(updates).into_iter().map(Effect::Send));
    }

    /// Says again what the ledger has not confirmed: all of it, or what was said at `since` or
    /// before.
    pub(super) fn say_what_is_due(
        &mut self,
        since: Option<Monotonic>,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        let due = self.book.due_updates(since);
        self.say(due, now, out);
    }

    /// Says again what the gateway has left unanswered for too long.
    pub(super) fn resend(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        let seconds = i64::from(RESEND_SECONDS);
        let since = now
            .as_micros()
            .saturating_sub(seconds.saturating_mul(MICROS_PER_SECOND));
        self.resend_at = None;
        self.say_what_is_due(Some(Monotonic::from_micros(since)), now, out);
        if self.book.unsettled_count() > 0 {
            self.resend_at
                .get_or_insert(now.plus_seconds(RESEND_SECONDS));
        }
    }

    /// The ledger has answered.
    pub(super) fn acknowledged(&mut self, ack: UpdateAck, out: &mut Vec<Effect>) {
        for answer in ack.updates {
            let id = answer.command_id;
            match answer.state {
                UpdateState::Busy => {}
                UpdateState::Acked | UpdateState::Running => {
                    self.book.mark(id, answer.state, Word::Confirmed);
                }
                UpdateState::Succeeded
                | UpdateState::Failed
                | UpdateState::Rejected
                | UpdateState::Cancelled => {
                    let awaited = self.book.find_closed(id).is_some_and(|closed| {
                        closed.confirmed.is_none() && closed.ended.update.state == answer.state
                    });
                    if awaited {
                        let refused = answer.refused.map(|why| {
                            let end = why.floor_char_boundary(REASON_BYTES_MAX);
                            why[..end].to_owned()
                        });
                        let confirmed = Confirmed {
                            command_id: id,
                            refused,
                        };
                        self.write(Record::Confirmed(confirmed), out);
                    }
                }
            }
        }
    }
}

/// The frames that carry these updates, in their order: at most 64 in each, and each below the
/// size that a frame may have (SPEC D6, D13).
pub fn update_frames(updates: Vec<Update>) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut batch = Vec::new();
    let mut batch_bytes = 0;
    for update in updates {
        let bytes = update_bytes(&update);
        if batch.len() == UPDATES_PER_FRAME_MAX || batch_bytes + bytes > UPDATES_BYTES_MAX {
            let updates = std::mem::take(&mut batch);
            frames.push(CommandUpdate { updates }.into());
            batch_bytes = 0;
        }
        batch_bytes += bytes;
        batch.push(update);
    }
    if !batch.is_empty() {
        frames.push(CommandUpdate { updates: batch }.into());
    }
    // The first update alone may be above the bound, which leaves nothing before it.
    frames.retain(|frame| !matches!(frame, Frame::CommandUpdate(body) if body.updates.is_empty()));
    frames
}

/// What an update takes in a frame, in bytes, at most.
fn update_bytes(update: &Update) -> usize {
    const FIXED: usize = 320;
    let bytes = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
    FIXED
        + bytes(&update.details)
        + bytes(&update.node_sig)
        + bytes(&update.result)
        + update.reason.as_ref().map_or(0, String::len)
}
