//! The answer to a `CommandUpdate`, from what the ledger said to each of its updates.

use crate::frame::{Acknowledgement, Frame, UpdateAck, UpdateState};
use crate::id::CommandId;
use crate::refusal::Refusal;

/// What the ledger said to one update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is in the ledger, or was known there.
    Recorded,
    /// It never will be.
    Refused {
        /// Why, for machines.
        code: &'static str,
        /// Why, for people.
        why: String,
    },
    /// Nothing is known: the daemon sends it again.
    None,
}

impl Answer {
    /// The answer to an update that the ledger refuses.
    pub fn refused(refusal: &Refusal) -> Self {
        Self::Refused {
            code: code(refusal),
            why: refusal.to_string(),
        }
    }
}

/// What a refusal of a report is called between machines. Those of other requests do not come.
fn code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::UnknownNode(_) | Refusal::UnknownCommand(_) => "UNKNOWN_COMMAND",
        Refusal::NeverDispatched => "NEVER_SENT",
        Refusal::Invalid { .. } => "OUT_OF_BOUNDS",
        Refusal::Unattested { .. } => "UNATTESTED",
        Refusal::BadAttestation(_) => "BAD_ATTESTATION",
        Refusal::NodeDeleted(_)
        | Refusal::NodeExists(_)
        | Refusal::StaleEpoch { .. }
        | Refusal::NotPending { .. }
        | Refusal::NotDue { .. }
        | Refusal::Held
        | Refusal::NotHeld
        | Refusal::PastDeadline { .. }
        | Refusal::WaitedTooLong { .. }
        | Refusal::StaleGeneration { .. }
        | Refusal::NotOverdue { .. }
        | Refusal::RestrictedIdentity { .. }
        | Refusal::KeyConflict { .. }
        | Refusal::PendingFull { .. }
        | Refusal::StaleSpec { .. }
        | Refusal::CertificateReplaced(_)
        | Refusal::CertificateRevoked(_)
        | Refusal::KeyRevoked(_)
        | Refusal::UnknownKey(_)
        | Refusal::NeverJoined(_)
        | Refusal::UnknownBatch(_)
        | Refusal::BatchKeyConflict { .. }
        | Refusal::BatchExpired { .. }
        | Refusal::OutsideBatch { .. }
        | Refusal::BatchRequired { .. }
        | Refusal::BatchNotApproved { .. }
        | Refusal::BatchRecordedOnly(_)
        | Refusal::ApprovedByCreator { .. }
        | Refusal::ApprovedBySamePerson { .. }
        | Refusal::ApprovedWithSameKey { .. } => "REFUSED",
    }
}

/// The `UpdateAck` for these updates, in their order. Those without an answer are left out, so
/// that the daemon sends them again; without any answer there is no frame.
pub fn acknowledge(
    updates: impl IntoIterator<Item = (CommandId, UpdateState, Answer)>,
) -> Option<Frame> {
    let acknowledged = |(command_id, state, answer)| {
        let (code, refused) = match answer {
            Answer::Recorded => (None, None),
            Answer::Refused { code, why } => (Some(code.to_owned()), Some(why)),
            Answer::None => return None,
        };
        Some(Acknowledgement {
            code,
            command_id,
            refused,
            state,
        })
    };
    let updates: Vec<_> = updates.into_iter().filter_map(acknowledged).collect();
    (!updates.is_empty()).then_some(Frame::UpdateAck(UpdateAck { updates }))
}
