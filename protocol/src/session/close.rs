//! Why a session ends, as the WebSocket close frame and the ledger say it.

use std::fmt;

/// Longest reason in a close frame, in bytes (RFC 6455: 125 with the code).
const REASON_BYTES_MAX: usize = 123;

/// The end of a session: a close code of RFC 6455, and a reason for people and for the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    /// Close code of the WebSocket.
    pub code: u16,
    /// Why, at most 123 bytes.
    pub reason: String,
}

impl Close {
    /// The code that makes a daemon wait for a person.
    pub const CERTIFICATE_REVOKED: u16 = 4002;

    fn new(code: u16, reason: &str) -> Self {
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let reason = reason[..end].to_owned();
        Self { code, reason }
    }

    /// The daemon or its connection left.
    pub fn disconnected(reason: &str) -> Self {
        Self::new(1000, reason)
    }

    /// The gateway shuts down.
    pub fn going_away() -> Self {
        Self::new(1001, "the gateway shuts down; open a session elsewhere")
    }

    /// The daemon broke the protocol.
    pub fn protocol_error(reason: &str) -> Self {
        Self::new(1002, reason)
    }

    /// The daemon sent text; frames are binary.
    pub fn text() -> Self {
        Self::new(1003, "frames are binary messages; this was text")
    }

    /// The daemon may not go on: a bound, an identity, a newer session.
    pub fn policy(reason: &str) -> Self {
        Self::new(1008, reason)
    }

    /// A message above everything that is still read.
    pub fn too_large(reason: &str) -> Self {
        Self::new(1009, reason)
    }

    /// The gateway cannot go on now; a later try may work.
    pub fn try_again(reason: &str) -> Self {
        Self::new(1013, reason)
    }

    /// The ledger has closed the session, because its gateway gave no sign of life.
    pub fn gateway_lost() -> Self {
        Self::try_again("gateway-lost: the ledger has closed this session; open another")
    }

    /// The session of this epoch may not go on; `current` is the node's epoch. Either a newer one
    /// is open, or the ledger has closed this one itself.
    pub fn stale_epoch(current: u64, given: u64) -> Self {
        if current > given {
            Self::superseded()
        } else {
            Self::gateway_lost()
        }
    }

    /// A newer session of the same node is open (SPEC D2).
    pub fn superseded() -> Self {
        Self::policy("superseded by a newer session of this node")
    }

    /// The daemon does not read what it is sent; it is not waited for.
    pub fn slow() -> Self {
        Self::policy("too slow: the daemon does not read what it is sent")
    }

    /// The certificate is not the newest of its node (SPEC P7).
    pub fn certificate_replaced() -> Self {
        Self::policy("this certificate was replaced: the node has joined anew")
    }

    /// The certificate of the session has ended (SPEC P7): TLS would not let it in any more.
    pub fn certificate_expired() -> Self {
        let reason = "certificate-expired: come back with a newer one";
        Self::new(4001, reason)
    }

    /// The node's certificates were revoked (SPEC P7). Nothing that the daemon does by itself helps.
    pub fn certificate_revoked() -> Self {
        let reason = "certificate-revoked: the node must join anew, with a new token and a new key";
        Self::new(Self::CERTIFICATE_REVOKED, reason)
    }

    /// The node was deleted (SPEC A11).
    pub fn node_deleted() -> Self {
        Self::policy("node-deleted")
    }
}

impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::Close;

    #[test]
    fn d2_only_a_newer_session_supersedes_one() {
        assert_eq!(Close::stale_epoch(8, 7), Close::superseded());
        assert_eq!(Close::stale_epoch(7, 7), Close::gateway_lost());
    }

    #[test]
    fn d1_a_close_reason_fits_its_frame() {
        let close = Close::policy(&"\u{e9}".repeat(100));
        assert_eq!(close.reason, "\u{e9}".repeat(61));
    }
}
