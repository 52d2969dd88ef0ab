//! Approve a batch (SPEC P3).

use crate::dsse::PublicKey;
use crate::event::{Actor, BatchApproved, Body};
use crate::refusal::Refusal;
use crate::time::Timestamp;

use super::Batch;

/// The event that records an approver's signature, brought by `by`; nothing when
/// they have brought it before. An approval counts once for a key and once for who brings it, and never for
/// who proposed the batch: two people are needed where the quorum is two.
pub fn decide(
    batch: &Batch,
    by: &Actor,
    key: &PublicKey,
    signature: &[u8],
    now: Timestamp,
) -> Result<Option<Body>, Refusal> {
    if batch.created.quorum == 0 {
        return Err(Refusal::BatchRecordedOnly(batch.id));
    }
    let approver = batch.approver(key).ok_or_else(|| Refusal::Invalid {
        field: "publicKey",
        problem: format!("is no approver's of batch {}", batch.id),
    })?;
    if !batch.statement().is_signed_by(key, signature) {
        return Err(Refusal::Invalid {
            field: "signature",
            problem: format!("is not that key's over batch {}", batch.id),
        });
    }
    match batch.approval_by(key) {
        Some(first) if first.by.may_be(by) => return Ok(None),
        Some(_) => return Err(Refusal::ApprovedWithSameKey { batch: batch.id }),
        None => {}
    }
    if now > batch.created.expires_at {
        let at = batch.created.expires_at;
        return Err(Refusal::BatchExpired {
            batch: batch.id,
            at,
        });
    }
    let creator = &batch.created_by;
    let own = creator.may_be(by) || creator.may_be(&Actor::api(&approver.name));
    if own {
        return Err(Refusal::ApprovedByCreator { batch: batch.id });
    }
    if batch
        .approvals
        .iter()
        .any(|approval| approval.by.may_be(by))
    {
        return Err(Refusal::ApprovedBySamePerson { batch: batch.id });
    }
    Ok(Some(Body::BatchApproved(BatchApproved {
        approver: approver.name.clone(),
        key: *key,
        signature: signature.to_vec(),
    })))
}
