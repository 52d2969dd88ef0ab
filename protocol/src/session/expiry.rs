//! The end of the certificate with which a session was opened (SPEC P7). TLS looks at it once, when
//! the connection begins; a session may last for months.

use std::time::Duration;

use crate::time::{MICROS_PER_SECOND, Timestamp};

use super::{Close, Peer};

/// When a session's certificate ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Expiry {
    /// The first moment at which TLS would refuse it; none without a certificate.
    ends: Option<Timestamp>,
    /// When to look next, on the session's own clock.
    look_at: Option<Duration>,
}

impl Expiry {
    pub(super) fn new(peer: &Peer) -> Self {
        let certificate = peer.certificate.as_ref();
        // X.509 counts whole seconds, and the last one still counts.
        let ends = |not_after: Timestamp| not_after.plus_micros(MICROS_PER_SECOND);
        Self {
            ends: certificate.map(|certificate| ends(certificate.not_after)),
            look_at: None,
        }
    }

    /// Looks at the time, which decides; the session's own clock only says when to look again.
    pub(super) fn look(&mut self, elapsed: Duration, now: Timestamp) -> Option<Close> {
        let left = self.ends?.micros_since(now);
        let left = u64::try_from(left).ok().filter(|left| *left > 0);
        self.look_at = left.map(|left| elapsed.saturating_add(Duration::from_micros(left)));
        left.is_none().then(Close::certificate_expired)
    }

    pub(super) fn look_at(&self) -> Option<Duration> {
        self.look_at
    }
}
