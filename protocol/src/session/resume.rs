//! What a daemon is sent when its session opens (SPEC D6): every command that is with it, in
//! `seq` order, then the cancels that are still owed.

use std::collections::BTreeSet;

use crate::command::{Command, State};
use crate::frame::{Cancel, Frame};
use crate::id::CommandId;

use super::{Batches, Peer};

/// The frames to send after `Welcome`. `accepted` is what the daemon's journal holds.
///
/// Left out are self-terminating commands that were accepted once (SPEC D9), and kinds that the
/// session's certificate does not allow (SPEC D11).
pub(super) fn frames(
    replay: &[Command],
    accepted: &BTreeSet<CommandId>,
    peer: &Peer,
    batches: &Batches,
) -> Vec<Frame> {
    let mut replay: Vec<_> = replay
        .iter()
        .filter(|command| command.is_in_flight())
        .collect();
    replay.sort_by_key(|command| command.queued.seq);
    let is_sent = |command: &&&Command| {
        let is_accepted = accepted.contains(&command.id)
            || matches!(command.state, State::Acked { .. } | State::Running { .. });
        let is_over = command.queued.self_terminating && is_accepted;
        !is_over && peer.accepts(&command.queued.kind)
    };
    let commands = replay
        .iter()
        .filter(is_sent)
        .map(|command| batches.command_frame(command));
    let cancels = replay
        .iter()
        .filter(|command| command.cancel_requested_at.is_some())
        .map(|command| {
            Frame::Cancel(Cancel {
                command_id: command.id,
            })
        });
    commands.chain(cancels).collect()
}
