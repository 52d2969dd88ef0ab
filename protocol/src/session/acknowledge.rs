//! The answer to a `CommandUpdate`, from what the ledger said to each of its updates.

use crate::frame::{Acknowledgement, Frame, UpdateAck, UpdateState};
use crate::id::CommandId;

/// What the ledger said to one update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is in the ledger, or was known there.
    Recorded,
    /// It never will be.
    Refused(String),
    /// Nothing is known: the daemon sends it again.
    None,
}

/// The `UpdateAck` for these updates, in their order. Those without an answer are left out, so
/// that the daemon sends them again; without any answer there is no frame.
pub fn acknowledge(
    updates: impl IntoIterator<Item = (CommandId, UpdateState, Answer)>,
) -> Option<Frame> {
    let acknowledged = |(command_id, state, answer)| {
        let refused = match answer {
            Answer::Recorded => None,
            Answer::Refused(why) => Some(why),
            Answer::None => return None,
        };
        Some(Acknowledgement {
            command_id,
            refused,
            state,
        })
    };
    let updates: Vec<_> = updates.into_iter().filter_map(acknowledged).collect();
    (!updates.is_empty()).then_some(Frame::UpdateAck(UpdateAck { updates }))
}
