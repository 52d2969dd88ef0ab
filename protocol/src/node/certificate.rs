//! The certificates of a node: joined, renewed, replaced, revoked (SPEC P7).
//!
//! A join begins a line of certificates for one key; every renewal continues it. All of a line open
//! sessions, so that a renewal closes none; the next join, or a revocation, ends the line.

use serde::{Deserialize, Serialize};

use super::{Node, Session};
use crate::event::{Body, NodeCertificateRevoked, NodeCertified};
use crate::id::TenantId;
use crate::limits;
use crate::refusal::Refusal;
use crate::text;
use crate::time::Timestamp;

/// The certificate that a node shows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Presented {
    /// SHA-256 of its DER, in hex.
    pub fingerprint: String,
    /// End of its validity.
    pub not_after: Timestamp,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// The Ed25519 public key that it is for, 32 bytes.
    pub public_key: Vec<u8>,
}

/// The certificate with which a line began. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Joined {
    /// SHA-256 of its DER, in hex.
    pub fingerprint: String,
    /// Start of its validity.
    pub not_before: Timestamp,
}

/// A revocation. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revocation {
    /// When.
    pub at: Timestamp,
    /// The key whose certificates open nothing any more.
    #[serde(with = "crate::bytes::opaque")]
    pub public_key: Vec<u8>,
    /// Why.
    pub reason: String,
}

impl Node {
    /// Whether a certificate can come next: a renewal is for the key of the one that it renews.
    pub(super) fn may_hold(&self, certified: &NodeCertified) -> bool {
        let is_own = |held: &NodeCertified| held.public_key == certified.public_key;
        certified.renews.is_none()
            || (!self.is_revoked() && self.certificate.as_ref().is_some_and(is_own))
    }

    pub(super) fn hold(&mut self, certified: &NodeCertified) {
        let before = self.certificate.replace(certified.clone());
        if certified.renews.is_none() {
            self.enrolled = None;
        } else if self.enrolled.is_none() {
            self.enrolled = before.map(|joined| Joined {
                fingerprint: joined.fingerprint,
                not_before: joined.not_before,
            });
        }
    }

    pub(super) fn can_be_revoked(&self) -> bool {
        self.certificate.is_some() && !self.is_revoked()
    }

    pub(super) fn revoke(&mut self, revoked: &NodeCertificateRevoked, at: Timestamp) {
        self.revocation = self.certificate.as_ref().map(|held| Revocation {
            at,
            public_key: held.public_key.clone(),
            reason: revoked.reason.clone(),
        });
        if let Session::Open { .. } = self.session {
            let reason = "certificate-revoked".to_owned();
            self.session = Session::Closed { reason, since: at };
        }
    }

    /// Whether its certificates are revoked and it has not joined anew with another key.
    pub fn is_revoked(&self) -> bool {
        let held = self.certificate.as_ref();
        held.is_some_and(|held| self.is_revoked_key(&held.public_key))
    }

    fn is_revoked_key(&self, public_key: &[u8]) -> bool {
        let revoked = self.revocation.as_ref();
        revoked.is_some_and(|revoked| revoked.public_key == public_key)
    }

    /// Whether the node has joined anew since this certificate was given: then what shows it is not
    /// what the books name. A renewal replaces nothing. A certificate that is newer than the books,
    /// which a restored ledger may meet, is not replaced.
    fn has_replaced(&self, shown: &Presented) -> bool {
        let Some(held) = &self.certificate else {
            return false;
        };
        let joined = self.enrolled.as_ref();
        let (first, since) = joined.map_or((&held.fingerprint, held.not_before), |joined| {
            (&joined.fingerprint, joined.not_before)
        });
        let is_of_the_line = [&held.fingerprint, first].contains(&&shown.fingerprint)
            || (shown.public_key == held.public_key && shown.not_before >= since);
        !is_of_the_line && shown.not_before <= held.not_before
    }

    /// Refuses a certificate that was revoked, or that a later join has replaced.
    pub fn check_certificate(&self, shown: &Presented) -> Result<(), Refusal> {
        if self.is_revoked() || self.is_revoked_key(&shown.public_key) {
            Err(Refusal::CertificateRevoked(self.id))
        } else if self.has_replaced(shown) {
            Err(Refusal::CertificateReplaced(self.id))
        } else {
            Ok(())
        }
    }

    /// The event of a join that certifies the node's key, or why not. A key whose certificates were
    /// revoked gets no others, or the revoked ones could not be told from them.
    pub fn decide_certify(&self, certified: NodeCertified) -> Result<Body, Refusal> {
        self.check_present()?;
        if self.is_revoked_key(&certified.public_key) {
            return Err(Refusal::KeyRevoked(self.id));
        }
        let renews = None;
        Ok(Body::NodeCertified(NodeCertified {
            renews,
            ..certified
        }))
    }

    /// The event that renews the certificate which the node shows, or why not. It is no join: what
    /// the node does and has goes on.
    pub fn decide_renew(
        &self,
        shown: &Presented,
        certified: NodeCertified,
    ) -> Result<Body, Refusal> {
        self.check_present()?;
        self.check_certificate(shown)?;
        let held = self.certificate.as_ref();
        let is_own = held.is_some_and(|held| held.public_key == shown.public_key);
        if !is_own || certified.public_key != shown.public_key {
            return Err(Refusal::UnknownKey(self.id));
        }
        let renews = Some(shown.fingerprint.clone());
        Ok(Body::NodeCertified(NodeCertified {
            renews,
            ..certified
        }))
    }

    /// The event that revokes the node's certificates; none when that was done before.
    pub fn decide_revoke(&self, tenant: TenantId, reason: &str) -> Result<Option<Body>, Refusal> {
        if tenant != self.tenant || self.deleted_at.is_some() {
            return Err(Refusal::UnknownNode(self.id));
        }
        let max = limits::REASON_BYTES_MAX;
        let problem = if (1..=max).contains(&reason.len()) {
            text::flaw(reason).map(|flaw| flaw.to_string())
        } else {
            let given = reason.len();
            Some(format!("must have 1 to {max} bytes; it has {given}"))
        };
        if let Some(problem) = problem {
            let field = "reason";
            return Err(Refusal::Invalid { field, problem });
        }
        let held = self.certificate.as_ref();
        let held = held.ok_or(Refusal::NeverJoined(self.id))?;
        let revoked = NodeCertificateRevoked {
            fingerprint: held.fingerprint.clone(),
            reason: reason.to_owned(),
        };
        Ok((!self.is_revoked()).then_some(Body::NodeCertificateRevoked(revoked)))
    }
}

#[cfg(test)]
mod tests;
