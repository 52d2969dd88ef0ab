//! Release a held command once its batch is approved (SPEC P3).

use crate::batch::Batch;
use crate::event::{Body, CommandReleased};
use crate::refusal::Refusal;
use crate::time::Timestamp;

use super::{Command, State};

/// The event that lets a held command go, or why not. `batch` is the one that holds it.
pub fn decide(command: &Command, batch: &Batch, now: Timestamp) -> Result<Body, Refusal> {
    if command.queued.batch_id != Some(batch.id) || command.tenant != batch.tenant {
        return Err(Refusal::UnknownBatch(batch.id));
    }
    match command.state {
        State::Pending { held: true, .. } if batch.holds() => Err(Refusal::BatchNotApproved {
            batch: batch.id,
            given: batch.approvals.len(),
            quorum: batch.created.quorum,
        }),
        State::Pending { held: true, .. } if now > batch.created.expires_at => {
            let at = batch.created.expires_at;
            Err(Refusal::BatchExpired {
                batch: batch.id,
                at,
            })
        }
        State::Pending { held: true, .. } if now > command.queued.not_after => {
            Err(Refusal::PastDeadline {
                not_after: command.queued.not_after,
            })
        }
        State::Pending { held: true, .. } => Ok(Body::CommandReleased(CommandReleased {
            kind: command.queued.kind.clone(),
            node_id: command.queued.node_id,
            not_before: now,
            seq: command.queued.seq,
        })),
        State::Pending { held: false, .. } => Err(Refusal::NotHeld),
        State::Dispatched { .. }
        | State::Acked { .. }
        | State::Running { .. }
        | State::Settled(_) => Err(Refusal::NotPending {
            state: command.state_name(),
        }),
    }
}
