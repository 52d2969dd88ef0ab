//! Ask for a command to stop (SPEC A5, D12).

use crate::event::{Body, CommandCancelRequested, Ending, Outcome};

use super::{Command, State};

/// The events of a cancel: a pending command ends at once, one in flight is asked to stop once,
/// an ended one stays as it is.
pub fn decide(command: &Command) -> Vec<Body> {
    let requested = Body::CommandCancelRequested(CommandCancelRequested {
        kind: command.queued.kind.clone(),
        node_id: command.queued.node_id,
        seq: command.queued.seq,
    });
    match command.state {
        State::Pending { .. } => {
            let end = Ending {
                reason: None,
                ..Ending::because(Outcome::Cancelled, "")
            };
            vec![requested, command.settled(end, None)]
        }
        State::Dispatched { .. } | State::Acked { .. } | State::Running { .. } => {
            if command.cancel_requested_at.is_some() {
                Vec::new()
            } else {
                vec![requested]
            }
        }
        State::Settled(_) => Vec::new(),
    }
}

/// The end of a command whose node was deleted (SPEC A11): what waited is cancelled. What is in
/// flight may have had its effect, and its node has no session any more in which to say so.
pub fn decide_node_deleted(command: &Command) -> Option<Body> {
    match (&command.state, command.phase()) {
        (State::Settled(_), _) => None,
        (_, None) => {
            Some(command.settled(Ending::because(Outcome::Cancelled, "node-deleted"), None))
        }
        (_, Some(phase)) => Some(command.unheard(phase, "node-deleted")),
    }
}

/// The end of a command of a node that joined anew: what stands there now may be another machine,
/// whose boot and journal prove nothing of the old one. What is destructive and waited is cancelled;
/// what was in flight and is not safe to run again is lost (SPEC D8); the rest goes on.
pub fn decide_node_reenrolled(command: &Command) -> Option<Body> {
    let queued = &command.queued;
    match command.state {
        State::Pending { .. } => queued
            .destructive
            .then(|| command.settled(Ending::because(Outcome::Cancelled, "node-reenrolled"), None)),
        State::Dispatched { .. } | State::Acked { .. } | State::Running { .. } => {
            let end = || command.settled(Ending::because(Outcome::Failed, "journal-lost"), None);
            (!is_replayable(command)).then(end)
        }
        State::Settled(_) => None,
    }
}

/// The end of a command of a node whose certificates were revoked (SPEC P7): nobody can say any
/// more what became of it, and the next machine comes by a join. So the same commands end as by
/// that join, at once.
pub fn decide_certificate_revoked(command: &Command) -> Option<Body> {
    const REASON: &str = "certificate-revoked";
    match (&command.state, command.phase()) {
        (State::Settled(_), _) => None,
        (_, None) => command
            .queued
            .destructive
            .then(|| command.settled(Ending::because(Outcome::Cancelled, REASON), None)),
        (_, Some(phase)) => (!is_replayable(command)).then(|| command.unheard(phase, REASON)),
    }
}

/// Whether a command that was in flight may be sent to whoever comes next.
fn is_replayable(command: &Command) -> bool {
    command.queued.retry_safe && !command.queued.self_terminating
}
