//! The keys that encrypt secrets at rest. They stand in no database.

use std::fmt;

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use ledger_projections::secrets::{Described, KEY_ID_BYTES, KeyId, Stored};
use ledger_protocol::canonical;
use ledger_protocol::id::{NodeId, TenantId};
use ledger_protocol::secret::SecretValue;
use rand::TryRng as _;
use rand::rngs::{SysError, SysRng};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// Size of a master key, in bytes.
pub const MASTER_KEY_BYTES: usize = 32;
/// Random bytes at the head of what is stored. So many that they need not be counted.
const NONCE_BYTES: usize = 24;
/// What a key's id is a hash of, before the key itself: the id shall be worth nothing elsewhere.
const ID_LABEL: &[u8] = b"command-ledger.v1 master key id";

/// 32 random bytes. It shows itself nowhere and is wiped when it is dropped.
pub struct MasterKey(Zeroizing<[u8; MASTER_KEY_BYTES]>);

impl MasterKey {
    /// The key with these bytes, which must be random.
    pub const fn new(bytes: Zeroizing<[u8; MASTER_KEY_BYTES]>) -> Self {
        Self(bytes)
    }

    /// What tells it from others: the first bytes of a hash.
    pub fn id(&self) -> KeyId {
        let hash = Sha256::new()
            .chain_update(ID_LABEL)
            .chain_update(self.0.as_ref());
        let hash: [u8; 32] = hash.finalize().into();
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&hash[..KEY_ID_BYTES]);
        id
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.0).into())
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MasterKey").field(&self.id()).finish()
    }
}

/// The key that encrypts, and those that what is stored may still be under.
#[derive(Debug)]
pub struct MasterKeys {
    first: MasterKey,
    others: Vec<MasterKey>,
}

/// Why a secret was not encrypted.
#[derive(Debug, thiserror::Error)]
pub enum SealFailure {
    /// The system gave no random bytes.
    #[error("the system gave no random bytes")]
    Random(#[source] SysError),
    /// What it is bound to has no canonical form.
    #[error("what the secret is bound to cannot be encoded")]
    Encode(#[source] canonical::Error),
    /// The cipher took it not.
    #[error("the secret cannot be encrypted")]
    Cipher,
}

/// Why a stored secret cannot be decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// It is under a key that is not here.
    #[error("it is encrypted under a master key that this service was not given")]
    UnknownKey,
    /// It is not what was stored.
    #[error("it was altered or moved, or is not of the master key that it names")]
    Altered,
}

/// What a ciphertext is bound to, so that it cannot stand elsewhere, nor be given to others. Fields
/// stand in the order of their wire names.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Bound<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<&'a [String]>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_ids: Option<&'a [NodeId]>,
    tenant_id: TenantId,
    version: u64,
}

impl<'a> Bound<'a> {
    fn encode(described: &'a Described) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(&Self {
            kinds: described.kinds.as_deref(),
            name: &described.name,
            node_ids: described.nodes.as_deref(),
            tenant_id: described.tenant,
            version: described.version,
        })
    }
}

impl MasterKeys {
    /// The first encrypts; all decrypt.
    pub const fn new(first: MasterKey, others: Vec<MasterKey>) -> Self {
        Self { first, others }
    }

    /// Id of the key that encrypts.
    pub(crate) fn first_id(&self) -> KeyId {
        self.first.id()
    }

    /// Ids of the keys that only decrypt.
    pub(crate) fn old_ids(&self) -> Vec<KeyId> {
        let first = self.first_id();
        let others = self.others.iter().map(MasterKey::id);
        others.filter(|id| *id != first).collect()
    }

    /// The value as it is stored under [`first_id`](Self::first_id).
    pub(crate) fn seal(
        &self,
        described: &Described,
        value: &SecretValue,
    ) -> Result<Vec<u8>, SealFailure> {
        let aad = Bound::encode(described).map_err(SealFailure::Encode)?;
        let mut nonce = [0; NONCE_BYTES];
        SysRng
            .try_fill_bytes(&mut nonce)
            .map_err(SealFailure::Random)?;
        let payload = Payload {
            msg: value.reveal(),
            aad: &aad,
        };
        let sealed = self.first.cipher().encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| SealFailure::Cipher)?;
        Ok([nonce.as_slice(), &sealed].concat())
    }

    /// The value of a stored secret.
    pub(crate) fn open(&self, stored: &Stored) -> Result<SecretValue, Unreadable> {
        let mut keys = std::iter::once(&self.first).chain(&self.others);
        let key = keys.find(|key| key.id() == stored.described.key_id);
        let key = key.ok_or(Unreadable::UnknownKey)?;
        let aad = Bound::encode(&stored.described).map_err(|_| Unreadable::Altered)?;
        let (nonce, sealed) = stored
            .sealed
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or(Unreadable::Altered)?;
        let payload = Payload {
            msg: sealed,
            aad: &aad,
        };
        let value = key.cipher().decrypt(&XNonce::from(*nonce), payload);
        value.map(SecretValue::new).map_err(|_| Unreadable::Altered)
    }
}

#[cfg(test)]
mod tests {
    use ledger_protocol::time::Timestamp;

    use super::*;

    const VALUE: &[u8] = b"Bearer hunter2";

    fn key(number: u8) -> MasterKey {
        MasterKey::new(Zeroizing::new([number; MASTER_KEY_BYTES]))
    }

    fn keys(first: u8, others: &[u8]) -> MasterKeys {
        MasterKeys::new(
            key(first),
            others.iter().map(|number| key(*number)).collect(),
        )
    }

    fn stored(keys: &MasterKeys) -> Stored {
        let at = Timestamp::from_micros(1_764_490_000_000_000);
        let described = Described {
            tenant: TenantId::new(at, [1; 10]),
            name: "site/bmc".to_owned(),
            version: 2,
            key_id: keys.first_id(),
            kinds: Some(vec!["bmc.power".to_owned()]),
            nodes: Some(vec![NodeId::new(at, [2; 10])]),
            put_at: at,
            put_by: "api:ada".to_owned(),
        };
        let value = SecretValue::new(VALUE.to_vec());
        let sealed = keys.seal(&described, &value).unwrap();
        Stored { described, sealed }
    }

    #[test]
    fn p6_a_stored_secret_comes_back_and_never_looks_the_same() {
        let keys = keys(1, &[]);
        let (one, two) = (stored(&keys), stored(&keys));
        assert_eq!(keys.open(&one).unwrap().reveal(), VALUE);
        assert_ne!(one.sealed, two.sealed);
        let holds = |bytes: &[u8]| bytes.windows(7).any(|part| part == b"hunter2");
        assert!(!holds(&one.sealed));
        // As long as the value, with the nonce before it and the tag behind.
        assert_eq!(one.sealed.len(), NONCE_BYTES + VALUE.len() + 16);
    }

    #[test]
    fn p6_a_stored_secret_is_opened_by_its_master_key_alone() {
        let one = stored(&keys(1, &[]));
        assert_eq!(keys(2, &[1]).open(&one).unwrap().reveal(), VALUE);
        let refused = keys(2, &[3]).open(&one).unwrap_err();
        assert_eq!(refused, Unreadable::UnknownKey);
        // A row that names another key than its own.
        let mut renamed = one;
        renamed.described.key_id = key(2).id();
        let refused = keys(2, &[1]).open(&renamed).unwrap_err();
        assert_eq!(refused, Unreadable::Altered);
        assert!(!refused.to_string().contains("hunter2"));
        let shown = format!("{:?}", keys(1, &[2]));
        assert!(!shown.contains("1, 1, 1"), "{shown}");
    }

    #[test]
    fn p6_a_stored_secret_bears_no_change_and_no_move() {
        let keys = keys(1, &[]);
        let one = stored(&keys);
        let refused = |stored: &Stored| keys.open(stored).err() == Some(Unreadable::Altered);
        for bit in 0..one.sealed.len() * 8 {
            let mut altered = one.clone();
            altered.sealed[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&altered), "bit {bit}");
        }
        for bytes in 0..one.sealed.len() {
            let mut cut = one.clone();
            cut.sealed.truncate(bytes);
            assert!(refused(&cut), "{bytes} bytes");
        }
        let other = Timestamp::from_micros(0);
        let moves: [fn(&mut Described, Timestamp); 8] = [
            |it, _| it.name = "site/bmd".to_owned(),
            |it, at| it.tenant = TenantId::new(at, [3; 10]),
            |it, _| it.version = 1,
            |it, _| it.version = 3,
            |it, _| it.kinds = None,
            |it, _| it.kinds = Some(vec!["site.httpProxy".to_owned()]),
            |it, _| it.nodes = None,
            |it, at| it.nodes = Some(vec![NodeId::new(at, [3; 10])]),
        ];
        for (place, change) in moves.into_iter().enumerate() {
            let mut elsewhere = one.clone();
            change(&mut elsewhere.described, other);
            assert!(refused(&elsewhere), "move {place}");
        }
    }

    #[test]
    fn p6_ids_of_master_keys_tell_them_apart_and_nothing_more() {
        let (one, two) = (key(1), key(2));
        assert_ne!(one.id(), two.id());
        assert_eq!(one.id(), key(1).id());
        let bare: [u8; 32] = Sha256::digest([1; 32]).into();
        assert_ne!(one.id(), bare[..KEY_ID_BYTES], "a hash of the key alone");
        assert_eq!(keys(1, &[1, 2]).old_ids(), [two.id()]);
    }
}
