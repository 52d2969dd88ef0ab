//! Secrets on their way to a node (SPEC P6). A command names one, as `secretRef`, and never holds it.
//! When the command runs, its node asks for the value with a key that it makes for this one question;
//! the service seals the value to that key with HPKE (RFC 9180: base mode, DHKEM(X25519, HKDF-SHA256),
//! HKDF-SHA256, ChaCha20Poly1305).
//!
//! A gateway carries both, reads neither and can change neither. The node signs what it asks, so that
//! nobody else's one-time key is answered; the service signs what it answers, so that no other value
//! takes the place of the secret, which would be another intent than the one that was signed.

use std::fmt;

use ed25519_dalek::SigningKey;
use hpke::aead::ChaCha20Poly1305;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::rand_core::CryptoRng;
use hpke::{Deserializable as _, HpkeError, Kem, OpModeR, OpModeS, Serializable as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::attestation::Unproved;
use crate::canonical;
use crate::dsse::{self, PublicKey, Purpose, SIGNATURE_BYTES};
use crate::event::NodeCertified;
use crate::id::{CommandId, NodeId};
use crate::limits::{SECRET_BYTES_MAX, SECRET_NAME_BYTES_MAX};

/// HPKE's `info`: what all exchanges of this version have in common.
pub const INFO: &[u8] = b"command-ledger.v1 secret";

/// Size of a one-time key and of an encapsulated one, in bytes.
pub const KEY_BYTES: usize = 32;

/// Size of the authentication tag at the end of a ciphertext, in bytes.
const TAG_BYTES: usize = 16;

/// A name that no secret can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be 1 to {SECRET_NAME_BYTES_MAX} characters of a-z, 0-9, '.', '_', '-' and '/', with a letter \
     or a digit at both ends of each part between slashes"
)]
pub struct InvalidName;

/// Whether a secret can have this name.
pub fn check_name(name: &str) -> Result<(), InvalidName> {
    let bytes = name.as_bytes();
    let is_end = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let within = |byte: &u8| is_end(Some(byte)) || b"._-".contains(byte);
    // So no part is empty, `.` or `..`, which a store that has paths would take for something else.
    let is_part =
        |part: &[u8]| is_end(part.first()) && is_end(part.last()) && part.iter().all(within);
    let holds =
        bytes.len() <= SECRET_NAME_BYTES_MAX && bytes.split(|byte| *byte == b'/').all(is_part);
    holds.then_some(()).ok_or(InvalidName)
}

/// The value of a secret. It shows itself only where that is asked for by name, and is wiped when it
/// is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl SecretValue {
    /// Takes a value in.
    pub fn new(value: Vec<u8>) -> Self {
        Self(Zeroizing::new(value))
    }

    /// The value itself, for whoever it authenticates to.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

/// The public half of a key that is made for one question: X25519, 32 bytes (RFC 7748).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OneTimeKey([u8; KEY_BYTES]);

impl OneTimeKey {
    /// The key with these bytes; every string of that length is one.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl Serialize for OneTimeKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::bytes::opaque::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for OneTimeKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: Vec<u8> = crate::bytes::opaque::deserialize(deserializer)?;
        let given = bytes.len();
        let bytes = bytes.try_into().map_err(|_| {
            serde::de::Error::custom(format!("has {given} bytes; a one-time key has {KEY_BYTES}"))
        })?;
        Ok(Self(bytes))
    }
}

/// A value as it is sealed to a one-time key. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sealed {
    /// The value, encrypted, and its tag.
    #[serde(with = "crate::bytes::opaque")]
    pub ciphertext: Vec<u8>,
    /// HPKE's `enc`, 32 bytes.
    #[serde(with = "crate::bytes::opaque")]
    pub encapsulated_key: Vec<u8>,
}

/// Why a value cannot be sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It is too long.
    #[error("the secret has {bytes} bytes; the limit is {SECRET_BYTES_MAX}")]
    TooLong {
        /// Its size, in bytes.
        bytes: usize,
    },
    /// What binds it cannot be encoded.
    #[error("the exchange has no canonical form")]
    Encode(#[from] canonical::Error),
    /// The one-time key is none, such as a point of small order.
    #[error("the value cannot be sealed to this one-time key")]
    Key(#[source] HpkeError),
}

/// Why a sealed value cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is too long to hold a secret.
    #[error("the ciphertext has {bytes} bytes; a secret has at most {SECRET_BYTES_MAX}")]
    TooLong {
        /// Its size, in bytes.
        bytes: usize,
    },
    /// What binds it cannot be encoded.
    #[error("the exchange has no canonical form")]
    Encode(#[from] canonical::Error),
    /// It was sealed to another key or for another exchange, or was altered.
    #[error("it was not sealed to this key for this exchange")]
    Sealed(#[source] HpkeError),
}

/// Why the service gives no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// The node has no such command.
    UnknownCommand,
    /// The request is not signed with the key of the node's certificate.
    BadSignature,
    /// The command is not in flight.
    NotInFlight,
    /// The command's payload does not name this secret.
    NotNamed,
    /// The tenant has no secret of this name.
    UnknownSecret,
    /// The secret is not for this kind or this node.
    NotAllowed,
    /// The store cannot read the secret, or it cannot be sealed.
    Unreadable,
    /// Too many one-time keys were brought for one command.
    TooMany,
}

impl Refused {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::UnknownCommand,
        Self::BadSignature,
        Self::NotInFlight,
        Self::NotNamed,
        Self::UnknownSecret,
        Self::NotAllowed,
        Self::Unreadable,
        Self::TooMany,
    ];

    /// The reason as frames have it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::UnknownCommand => "UNKNOWN_COMMAND",
            Self::BadSignature => "BAD_SIGNATURE",
            Self::NotInFlight => "NOT_IN_FLIGHT",
            Self::NotNamed => "NOT_NAMED",
            Self::UnknownSecret => "UNKNOWN_SECRET",
            Self::NotAllowed => "NOT_ALLOWED",
            Self::Unreadable => "UNREADABLE",
            Self::TooMany => "TOO_MANY",
        }
    }
}

/// One question for a secret. Fields stand in the order of their wire names; canonical MessagePack of
/// it is what the node signs, purpose `secret-request`, and HPKE's associated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exchange<'a> {
    /// The command that needs it.
    pub command_id: CommandId,
    /// The key that was made for this question.
    pub key: OneTimeKey,
    /// The node.
    pub node_id: NodeId,
    /// The secret, as the command's payload names it.
    pub secret_ref: &'a str,
}

/// What the service signs of its answer, purpose `secret`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    #[serde(with = "serde_bytes")]
    ciphertext: &'a [u8],
    command_id: CommandId,
    #[serde(with = "serde_bytes")]
    encapsulated_key: &'a [u8],
    key: OneTimeKey,
    node_id: NodeId,
    secret_ref: &'a str,
}

impl Exchange<'_> {
    fn encode(&self) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(self)
    }

    /// The node's signature over the question.
    pub fn sign(&self, key: &SigningKey) -> Result<[u8; SIGNATURE_BYTES], canonical::Error> {
        Ok(dsse::sign(key, Purpose::SecretRequest, &self.encode()?))
    }

    /// Whether `signature` is that of the key in `certificate` over the question.
    pub fn verify(
        &self,
        certificate: Option<&NodeCertified>,
        signature: &[u8],
    ) -> Result<(), Unproved> {
        let certificate = certificate.ok_or(Unproved::NoCertificate)?;
        let key = PublicKey::from_bytes(&certificate.public_key);
        let (Ok(key), Ok(payload)) = (key, self.encode()) else {
            return Err(Unproved::NotSigned);
        };
        let holds = key.verifies(Purpose::SecretRequest, &payload, signature);
        holds.then_some(()).ok_or(Unproved::NotSigned)
    }

    /// Seals the value to the question's key, for this question alone.
    pub fn seal(&self, value: &SecretValue, rng: &mut impl CryptoRng) -> Result<Sealed, SealError> {
        let bytes = value.reveal().len();
        if bytes > SECRET_BYTES_MAX {
            return Err(SealError::TooLong { bytes });
        }
        let aad = self.encode()?;
        let key = <X25519HkdfSha256 as Kem>::PublicKey::from_bytes(&self.key.0);
        let key = key.map_err(SealError::Key)?;
        let (encapsulated, ciphertext) = hpke::single_shot_seal_with_rng::<
            ChaCha20Poly1305,
            HkdfSha256,
            X25519HkdfSha256,
        >(
            &OpModeS::Base, &key, INFO, value.reveal(), &aad, rng
        )
        .map_err(SealError::Key)?;
        Ok(Sealed {
            ciphertext,
            encapsulated_key: encapsulated.to_bytes().to_vec(),
        })
    }

    /// The bytes that the service signs of its answer, with purpose `secret`.
    pub fn statement(&self, sealed: &Sealed) -> Result<Vec<u8>, canonical::Error> {
        canonical::encode(&Answer {
            ciphertext: &sealed.ciphertext,
            command_id: self.command_id,
            encapsulated_key: &sealed.encapsulated_key,
            key: self.key,
            node_id: self.node_id,
            secret_ref: self.secret_ref,
        })
    }
}

/// The private half of a one-time key. It is never written anywhere, and wiped when it is dropped.
pub struct PrivateKey {
    private: <X25519HkdfSha256 as Kem>::PrivateKey,
    public: OneTimeKey,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.public).finish()
    }
}

impl PrivateKey {
    /// The key of a seed, which must be random and used for nothing else (RFC 9180, section 7.1.3).
    pub fn derive(seed: &Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let (private, public) = X25519HkdfSha256::derive_keypair(seed.as_ref());
        Self {
            private,
            public: OneTimeKey(public.to_bytes().into()),
        }
    }

    /// The public half.
    pub const fn public(&self) -> OneTimeKey {
        self.public
    }

    /// The value that was sealed to this key for this question.
    pub fn open(&self, exchange: &Exchange<'_>, sealed: &Sealed) -> Result<SecretValue, OpenError> {
        let bytes = sealed.ciphertext.len();
        if bytes > SECRET_BYTES_MAX + TAG_BYTES {
            return Err(OpenError::TooLong { bytes });
        }
        let aad = exchange.encode()?;
        let encapsulated =
            <X25519HkdfSha256 as Kem>::EncappedKey::from_bytes(&sealed.encapsulated_key);
        let encapsulated = encapsulated.map_err(OpenError::Sealed)?;
        let value = hpke::single_shot_open::<ChaCha20Poly1305, HkdfSha256, X25519HkdfSha256>(
            &OpModeR::Base,
            &self.private,
            &encapsulated,
            INFO,
            &sealed.ciphertext,
            &aad,
        );
        value.map(SecretValue::new).map_err(OpenError::Sealed)
    }
}

#[cfg(test)]
mod tests;
