//! Send a pending command to its node (SPEC D2, D3, T1). Lane credits are counted by who asks,
//! from the commands in flight.

use crate::event::{Body, CommandDispatched};
use crate::node::Node;
use crate::refusal::Refusal;
use crate::time::Timestamp;

use super::{Command, State};

/// What keeps a command from going out now, epoch and credits apart; nothing when it is due.
pub fn hindrance(command: &Command, node: &Node, now: Timestamp) -> Option<Refusal> {
    let queued = &command.queued;
    let State::Pending {
        held,
        not_before,
        retry_at,
    } = command.state
    else {
        return Some(Refusal::NotPending {
            state: command.state_name(),
        });
    };
    if held {
        return Some(Refusal::Held);
    }
    if now > queued.not_after {
        return Some(Refusal::PastDeadline {
            not_after: queued.not_after,
        });
    }
    if let Some(until) = not_before.max(retry_at).filter(|until| *until > now) {
        return Some(Refusal::NotDue { until });
    }
    if let Some(wanted) = queued.min_generation
        && wanted > node.applied_generation
    {
        return Some(Refusal::StaleGeneration {
            applied: node.applied_generation,
            wanted,
        });
    }
    if !node.accepts(&queued.kind) {
        return Some(Refusal::RestrictedIdentity {
            node: node.id,
            kind: queued.kind.clone(),
        });
    }
    None
}

/// The event that sends the command under `epoch`, or why not.
pub fn decide(command: &Command, node: &Node, epoch: u64, now: Timestamp) -> Result<Body, Refusal> {
    node.check_epoch(epoch)?;
    if let Some(refusal) = hindrance(command, node, now) {
        return Err(refusal);
    }
    Ok(Body::CommandDispatched(CommandDispatched {
        attempt: command.attempts + 1,
        epoch,
        kind: command.queued.kind.clone(),
        node_id: command.queued.node_id,
        seq: command.queued.seq,
    }))
}
