//! Signatures: Ed25519 (RFC 8032) over DSSE's pre-authentication encoding, so that what was signed
//! for one purpose is worth nothing for another (SPEC section 7).

use std::cell::RefCell;
use std::fmt;
use std::sync::LazyLock;

use curve25519_dalek::constants::EIGHT_TORSION;
use ed25519_dalek::ed25519::signature::MultipartVerifier as _;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Size of a public key, in bytes.
pub const PUBLIC_KEY_BYTES: usize = 32;
/// Size of a signature, in bytes.
pub const SIGNATURE_BYTES: usize = 64;

/// Keys that each thread remembers as the points that they are. Finding the point costs a tenth of a
/// signature's check, and a log names the same few keys again and again.
const KNOWN_KEYS: usize = 1_024;

/// The points of small order, as a signature would write them.
static SMALL_ORDER: LazyLock<[[u8; 32]; 8]> =
    LazyLock::new(|| EIGHT_TORSION.map(|point| point.compress().to_bytes()));

thread_local! {
    /// Keys that are points, each at the place that its bytes give; a key that comes to a taken
    /// place takes it.
    static KNOWN: RefCell<Vec<Option<VerifyingKey>>> = const { RefCell::new(Vec::new()) };
}

/// The point that is a key, whatever its order.
fn point(bytes: &[u8; PUBLIC_KEY_BYTES]) -> Result<VerifyingKey, InvalidKey> {
    let [low, high, ..] = *bytes;
    let place = usize::from(u16::from_le_bytes([low, high])) % KNOWN_KEYS;
    KNOWN.with_borrow_mut(|known| {
        if known.is_empty() {
            known.resize(KNOWN_KEYS, None);
        }
        let there = known.get(place).copied().flatten();
        if let Some(key) = there.filter(|key| key.as_bytes() == bytes) {
            return Ok(key);
        }
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| InvalidKey::NotCanonical)?;
        if let Some(place) = known.get_mut(place) {
            *place = Some(key);
        }
        Ok(key)
    })
}

/// What a signature is for: DSSE's payload type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// An approver's word on a batch (SPEC P3).
    BatchApproval,
    /// A command, as the service means it (SPEC P1).
    Command,
    /// A node's word on how a command ended (SPEC P2).
    CommandUpdate,
    /// A node's desired state (SPEC P5).
    DesiredState,
    /// The service's answer to a node that needs a secret (SPEC P6).
    Secret,
    /// A node's question for a secret (SPEC P6).
    SecretRequest,
    /// What nodes are to trust (SPEC P1).
    TrustBundle,
    /// A key that signs commands for a day (SPEC P1).
    WorkerKey,
}

impl Purpose {
    /// The payload type that is signed with the payload.
    pub const fn payload_type(self) -> &'static str {
        match self {
            Self::BatchApproval => "application/vnd.command-ledger.batch-approval.v1+msgpack",
            Self::Command => "application/vnd.command-ledger.command.v1+msgpack",
            Self::CommandUpdate => "application/vnd.command-ledger.command-update.v1+msgpack",
            Self::DesiredState => "application/vnd.command-ledger.desired-state.v1+msgpack",
            Self::Secret => "application/vnd.command-ledger.secret.v1+msgpack",
            Self::SecretRequest => "application/vnd.command-ledger.secret-request.v1+msgpack",
            Self::TrustBundle => "application/vnd.command-ledger.trust-bundle.v1+msgpack",
            Self::WorkerKey => "application/vnd.command-ledger.worker-key.v1+msgpack",
        }
    }

    /// The bytes that are signed: DSSE's pre-authentication encoding of type and payload.
    pub fn encode(self, payload: &[u8]) -> Vec<u8> {
        [self.head(payload).as_bytes(), payload].concat()
    }

    /// What stands before the payload.
    fn head(self, payload: &[u8]) -> String {
        let kind = self.payload_type();
        format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len())
    }
}

/// A public key that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The bytes have another length.
    #[error("has {given} bytes; an Ed25519 public key has {PUBLIC_KEY_BYTES}")]
    Length {
        /// How many bytes were given.
        given: usize,
    },
    /// The bytes are no point of the curve, or not the one way to write it.
    #[error("is no Ed25519 public key in its canonical form")]
    NotCanonical,
    /// Signatures by it would hold for any message.
    #[error("is an Ed25519 key of small order, which proves nothing")]
    SmallOrder,
}

/// An Ed25519 public key in its one canonical form, of full order: two keys are the same person's
/// exactly when their bytes are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; PUBLIC_KEY_BYTES]);

impl PublicKey {
    /// Reads a key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidKey> {
        let given = bytes.len();
        let bytes = bytes.try_into().map_err(|_| InvalidKey::Length { given })?;
        let key = point(&bytes)?;
        if key.is_weak() {
            return Err(InvalidKey::SmallOrder);
        }
        // The field has 2^255 - 19 elements; a larger number is another way to write a small one.
        let [low, middle @ .., high] = bytes;
        let too_large = low >= 0xed && middle == [0xff; 30] && high & 0x7f == 0x7f;
        if too_large {
            return Err(InvalidKey::NotCanonical);
        }
        Ok(Self(bytes))
    }

    /// The key of this private key.
    pub fn of(key: &SigningKey) -> Self {
        Self(key.verifying_key().to_bytes())
    }

    /// The canonical bytes.
    pub const fn as_bytes(&self) -> &[u8; PUBLIC_KEY_BYTES] {
        &self.0
    }

    /// Whether `signature` is this key's over the payload for the purpose. Strict: a signature has
    /// one form, and no key or point of small order is taken.
    pub fn verifies(&self, purpose: Purpose, payload: &[u8], signature: &[u8]) -> bool {
        self.has_signed(&[purpose.head(payload).as_bytes(), payload], signature)
    }

    /// Whether `signature` is this key's over a message in parts.
    ///
    /// It takes what `VerifyingKey::verify_strict` takes, without finding the point that R is, which
    /// is a tenth of the work: R is held bytewise against the one form of what it must be, so that it
    /// is of small order exactly when it is written as one of the eight such points. A [`PublicKey`]
    /// never is.
    pub fn has_signed(&self, message: &[&[u8]], signature: &[u8]) -> bool {
        let key = point(&self.0);
        let signature = Signature::from_slice(signature);
        let (Ok(key), Ok(signature)) = (key, signature) else {
            return false;
        };
        !SMALL_ORDER.contains(signature.r_bytes())
            && key.multipart_verify(message, &signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::bytes::opaque::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: Vec<u8> = crate::bytes::opaque::deserialize(deserializer)?;
        Self::from_bytes(&bytes).map_err(serde::de::Error::custom)
    }
}

/// Signs a payload for a purpose.
pub fn sign(key: &SigningKey, purpose: Purpose, payload: &[u8]) -> [u8; SIGNATURE_BYTES] {
    key.sign(&purpose.encode(payload)).to_bytes()
}

#[cfg(test)]
mod tests {
    use curve25519_dalek::{EdwardsPoint, Scalar};
    use ed25519_dalek::Verifier as _;
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha512};

    use super::*;

    fn key(number: u8) -> SigningKey {
        SigningKey::from_bytes(&[number; 32])
    }

    #[test]
    fn p_the_encoding_is_that_of_the_dsse_specification() {
        // Its example: type `http://example.com/HelloWorld`, payload `hello world`.
        let purpose = Purpose::BatchApproval;
        let kind = purpose.payload_type();
        let expected = format!("DSSEv1 {} {kind} 11 hello world", kind.len());
        assert_eq!(purpose.encode(b"hello world"), expected.as_bytes());
    }

    #[test]
    fn p_a_signature_holds_for_its_payload_and_key_alone() {
        let (purpose, one) = (Purpose::BatchApproval, key(1));
        let public = PublicKey::of(&one);
        let signature = sign(&one, purpose, b"payload");
        assert!(public.verifies(purpose, b"payload", &signature));
        assert!(!public.verifies(purpose, b"payloae", &signature));
        assert!(!PublicKey::of(&key(2)).verifies(purpose, b"payload", &signature));
        assert!(!public.verifies(purpose, b"payload", &signature[..63]));
        for bit in 0..SIGNATURE_BYTES * 8 {
            let mut changed = signature;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!public.verifies(purpose, b"payload", &changed), "bit {bit}");
        }
    }

    #[test]
    fn p_a_signature_has_one_form() {
        // S + L is the same number to the group, and another signature to a lenient reader.
        const L: [u8; 32] = [
            0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9,
            0xde, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
        ];
        let purpose = Purpose::BatchApproval;
        let mut signature = sign(&key(1), purpose, b"payload");
        let mut carry = 0;
        for (byte, add) in signature[32..].iter_mut().zip(L) {
            let sum = u16::from(*byte) + u16::from(add) + carry;
            *byte = sum.to_le_bytes()[0];
            carry = sum >> 8;
        }
        assert!(!PublicKey::of(&key(1)).verifies(purpose, b"payload", &signature));
    }

    proptest! {
        /// Signatures by keys and over points with every part of small order, each as true as its
        /// maker can make it, taken exactly as the library's strict reader takes them.
        #[test]
        fn p_small_orders_are_taken_as_the_strict_reader_takes_them(
            secret in any::<[u8; 32]>(),
            nonce in prop_oneof![Just(0), any::<u64>()],
            of_key in 0..8_usize,
            of_point in 0..8_usize,
            is_canonical in any::<bool>(),
            payload in any::<[u8; 8]>(),
        ) {
            let secret = SigningKey::from_bytes(&secret).to_scalar();
            let nonce = Scalar::from(nonce);
            let key = EdwardsPoint::mul_base(&secret) + EIGHT_TORSION[of_key];
            let key = key.compress().to_bytes();
            let mut point = (EdwardsPoint::mul_base(&nonce) + EIGHT_TORSION[of_point])
                .compress()
                .to_bytes();
            if !is_canonical && point[0] < 19 && point[1..31] == [0; 30] {
                // y + p: another way to write 0 or 1.
                point = [0xff; 32];
                point[0] = 0xed + u8::from(of_point == 0);
                point[31] = 0x7f;
            }
            let purpose = Purpose::Command;
            let message = purpose.encode(&payload);
            let hash = Sha512::new().chain_update(point).chain_update(key);
            let hash = hash.chain_update(&message).finalize();
            let challenge = Scalar::from_bytes_mod_order_wide(&hash.into());
            let response = nonce + challenge * secret;
            let signature = Signature::from_components(point, response.to_bytes());
            let strict = VerifyingKey::from_bytes(&key)
                .is_ok_and(|key| key.verify_strict(&message, &signature).is_ok());
            let ours = PublicKey::from_bytes(&key).unwrap();
            prop_assert_eq!(ours.verifies(purpose, &payload, &signature.to_bytes()), strict);
        }
    }

    #[test]
    fn p_a_point_of_small_order_signs_nothing() {
        let secret = key(1);
        let public = PublicKey::of(&secret);
        let purpose = Purpose::Command;
        let message = purpose.encode(b"payload");
        let mut identity = [0; 32];
        identity[0] = 1;
        let hash = Sha512::new()
            .chain_update(identity)
            .chain_update(public.as_bytes())
            .chain_update(&message)
            .finalize();
        let response = Scalar::from_bytes_mod_order_wide(&hash.into()) * secret.to_scalar();
        let signature = Signature::from_components(identity, response.to_bytes());
        // The equation holds, so a lenient reader takes it.
        assert!(secret.verifying_key().verify(&message, &signature).is_ok());
        assert!(!public.verifies(purpose, b"payload", &signature.to_bytes()));
    }

    #[test]
    fn p_keys_that_share_a_place_are_told_apart() {
        let first = key(0);
        let public = |key: &SigningKey| PublicKey::of(key);
        let place = |key: &SigningKey| {
            let [low, high, ..] = *public(key).as_bytes();
            usize::from(u16::from_le_bytes([low, high])) % KNOWN_KEYS
        };
        let numbered = |number: u16| {
            let mut seed = [9; 32];
            seed[..2].copy_from_slice(&number.to_be_bytes());
            SigningKey::from_bytes(&seed)
        };
        let mut others = (0..u16::MAX).map(numbered);
        let second = others.find(|other| place(other) == place(&first)).unwrap();
        let purpose = Purpose::Command;
        let by_first = sign(&first, purpose, b"payload");
        for _ in 0..3 {
            assert!(public(&first).verifies(purpose, b"payload", &by_first));
            assert!(!public(&second).verifies(purpose, b"payload", &by_first));
            assert!(PublicKey::from_bytes(public(&second).as_bytes()).is_ok());
        }
    }

    #[test]
    fn p_keys_that_prove_nothing_are_refused() {
        let mut identity = [0; 32];
        identity[0] = 1;
        assert_eq!(
            PublicKey::from_bytes(&identity),
            Err(InvalidKey::SmallOrder)
        );
        assert_eq!(PublicKey::from_bytes(&[0; 32]), Err(InvalidKey::SmallOrder));
        // y = p + 3 is another way to write y = 3, a point of full order.
        let mut three = [0; 32];
        three[0] = 3;
        assert!(PublicKey::from_bytes(&three).is_ok());
        let mut again = [0xff; 32];
        again[0] = 0xf0;
        again[31] = 0x7f;
        assert_eq!(PublicKey::from_bytes(&again), Err(InvalidKey::NotCanonical));
        let mut two = [0; 32];
        two[0] = 2;
        assert_eq!(PublicKey::from_bytes(&two), Err(InvalidKey::NotCanonical));
        let short = PublicKey::from_bytes(&[1; 31]);
        assert_eq!(short, Err(InvalidKey::Length { given: 31 }));
    }
}
