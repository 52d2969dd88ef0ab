//! Names and keys of who signs notes (C2SP signed-note, "Signatures" and "Verifier keys").

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signer as _, SigningKey};
use sha2::{Digest, Sha256};

use super::cosignature::Cosignature;
use super::lines::{Malformed, decode, encode};
use super::note::{NoteSignature, check_text};
use crate::dsse::{InvalidKey, PublicKey};

/// Text that is no verifier key, or no name of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVerifierKey {
    /// The name.
    #[error("a key's name must have a character or more, and no space, `+` or control character")]
    Name,
    /// The parts.
    #[error("must be `<name>+<key ID>+<base64 of type and public key>`")]
    Form,
    /// The key ID is not written as it must be.
    #[error("the key ID must be 8 lower-case hexadecimal digits")]
    IdForm,
    /// The key ID is that of another name, type or key.
    #[error("the key ID is {given:08x}; that of this name, type and key is {expected:08x}")]
    Id {
        /// The one that was given.
        given: u32,
        /// The one that it must be.
        expected: u32,
    },
    /// Signatures of another type.
    #[error("signature type {given:#04x} is unknown; Ed25519 is 0x01, a cosignature with it 0x04")]
    Algorithm {
        /// The type's byte.
        given: u8,
    },
    /// The public key.
    #[error("the public key {0}")]
    Key(#[from] InvalidKey),
}

/// The name of a key: often a URL without its scheme.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyName(String);

impl KeyName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for KeyName {
    type Err = InvalidVerifierKey;

    fn from_str(name: &str) -> Result<Self, InvalidVerifierKey> {
        let bad =
            |character: char| character.is_whitespace() || character == '+' || character < '\u{20}';
        if name.is_empty() || name.contains(bad) {
            return Err(InvalidVerifierKey::Name);
        }
        Ok(Self(name.to_owned()))
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a key's signatures are over. Its number is signed-note's signature type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Ed25519 over the text of the note.
    Ed25519 = 0x01,
    /// Ed25519 over a time and a checkpoint (C2SP tlog-cosignature).
    CosignatureV1 = 0x04,
}

/// A public key with its name and what it signs. Its text is a "vkey".
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VerifierKey {
    name: KeyName,
    algorithm: Algorithm,
    key: PublicKey,
}

impl VerifierKey {
    /// A key with a name.
    pub const fn new(name: KeyName, algorithm: Algorithm, key: PublicKey) -> Self {
        Self {
            name,
            algorithm,
            key,
        }
    }

    /// Whose it is.
    pub const fn name(&self) -> &KeyName {
        &self.name
    }

    /// What it signs.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The key itself.
    pub const fn public_key(&self) -> &PublicKey {
        &self.key
    }

    /// The number that its signatures carry: it finds the key, and proves nothing.
    pub fn id(&self) -> u32 {
        let mut hash = Sha256::new();
        hash.update(self.name.as_str());
        hash.update(b"\n");
        hash.update(self.encode());
        let [first, second, third, fourth, ..] = <[u8; 32]>::from(hash.finalize());
        u32::from_be_bytes([first, second, third, fourth])
    }

    fn encode(&self) -> Vec<u8> {
        [&[self.algorithm as u8], self.key.as_bytes().as_slice()].concat()
    }

    /// Whether the signature carries this key's name and ID.
    pub(super) fn is_named_by(&self, signature: &NoteSignature) -> bool {
        self.name == *signature.name() && self.id() == signature.key_id()
    }

    /// Whether the signature is this key's over the message. Strict, as all signatures are
    /// (see [`crate::dsse`]).
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.key.has_signed(&[message], signature)
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}+{:08x}+{}",
            self.name,
            self.id(),
            encode(&self.encode())
        )
    }
}

impl FromStr for VerifierKey {
    type Err = InvalidVerifierKey;

    fn from_str(text: &str) -> Result<Self, InvalidVerifierKey> {
        let (name, rest) = text.split_once('+').ok_or(InvalidVerifierKey::Form)?;
        let (id, key) = rest.split_once('+').ok_or(InvalidVerifierKey::Form)?;
        let name = name.parse()?;
        let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let given = u32::from_str_radix(id, 16)
            .ok()
            .filter(|_| id.len() == 8 && id.bytes().all(digit))
            .ok_or(InvalidVerifierKey::IdForm)?;
        let key = decode(key).ok_or(InvalidVerifierKey::Form)?;
        let (algorithm, key) = key.split_first().ok_or(InvalidVerifierKey::Form)?;
        let algorithm = match *algorithm {
            0x01 => Algorithm::Ed25519,
            0x04 => Algorithm::CosignatureV1,
            given => return Err(InvalidVerifierKey::Algorithm { given }),
        };
        let key = Self::new(name, algorithm, PublicKey::from_bytes(key)?);
        let expected = key.id();
        if given != expected {
            return Err(InvalidVerifierKey::Id { given, expected });
        }
        Ok(key)
    }
}

/// Who signs notes with Ed25519: a log, its checkpoints.
pub struct Signer {
    name: KeyName,
    key: SigningKey,
}

impl Signer {
    /// A signer of this name.
    pub const fn new(name: KeyName, key: SigningKey) -> Self {
        Self { name, key }
    }

    /// What others verify its signatures with.
    pub fn verifier_key(&self) -> VerifierKey {
        let key = PublicKey::of(&self.key);
        VerifierKey::new(self.name.clone(), Algorithm::Ed25519, key)
    }

    /// Signs the text of a note. What begins as a cosignature's message is refused: whoever took
    /// it for one would believe a time that nobody stated.
    pub fn sign(&self, text: &str) -> Result<NoteSignature, Malformed> {
        check_text(text)?;
        if text.starts_with(Cosignature::HEADER) {
            let expected = "no header of a cosignature";
            return Err(Malformed::Line { line: 1, expected });
        }
        let signature = self.key.sign(text.as_bytes()).to_bytes();
        Ok(NoteSignature::by(&self.verifier_key(), signature.to_vec()))
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.verifier_key())
    }
}
