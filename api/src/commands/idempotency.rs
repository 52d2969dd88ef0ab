//! The ledger's key of an API caller's idempotency key (SPEC A2, T4).

use ledger_protocol::id::TenantId;
use sha2::{Digest, Sha256};

/// Prefix of the keys that the API derives.
pub const PREFIX: &str = "api:";

/// The key under which the ledger knows a command that `commands.run` queued: [`PREFIX`] and 64
/// lower-case hex digits of the SHA-256 of three texts, each as its length in bytes (32 bits, big
/// endian) followed by its UTF-8: the tenant's id (`tenant_…`), the identity of the token, and the
/// caller's `idempotencyKey`. The lengths make the encoding unambiguous, so that no tenant and no
/// identity can meet another's key. The ledger keeps one command for a node and key, so the node
/// is not part of it. The digits alone also name a support bundle (SPEC section 8).
pub fn derived_key(tenant: TenantId, identity: &str, key: &str) -> String {
    let mut hash = Sha256::new();
    for text in [&tenant.to_string(), identity, key] {
        // Each of the three is far shorter than 4 GiB by its own limit.
        hash.update(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(text.as_bytes());
    }
    let mut derived = String::with_capacity(PREFIX.len() + 64);
    derived.push_str(PREFIX);
    derived.push_str(&hex::encode(hash.finalize()));
    derived
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: &str = "tenant_01h455vb4pex5vsknk084sn02q";

    #[test]
    fn a2_the_derived_key_follows_its_description() {
        // From Python: hashlib.sha256(b"".join(len(t).to_bytes(4, "big") + t for t in texts)).
        assert_eq!(
            derived_key(TENANT.parse().unwrap(), "admin", "demo-1"),
            "api:a8524d009dac94e438d6da97f5a5b572dbc93fc85721c217ec37393109c583bd"
        );
    }

    #[test]
    fn a2_no_two_scopes_share_a_key() {
        let tenant = TENANT.parse().unwrap();
        let other = "tenant_01h455vb4pex5vsknk084sn02r".parse().unwrap();
        let keys = [
            derived_key(tenant, "ab", "c"),
            derived_key(tenant, "a", "bc"),
            derived_key(tenant, "abc", ""),
            derived_key(other, "ab", "c"),
            derived_key(tenant, "ab", "C"),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key} stands twice");
        }
    }
}
