//! Signed notes (C2SP signed-note): a text, and the signatures of any number of keys.

use std::fmt;

use super::checkpoint::Checkpoint;
use super::cosignature::Cosignature;
use super::key::{Algorithm, KeyName, VerifierKey};
use super::limits::{NOTE_BYTES_MAX, NOTE_SIGNATURES_MAX};
use super::lines::{Lines, Malformed, decode, encode, text};

/// What a signature line begins with: an em dash and a space.
const MARK: &str = "— ";
/// What a signature line must be.
const SIGNATURE_LINE: &str = "a signature: an em dash, a key's name, base64 of 5 bytes or more";

/// Why a note is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    /// No known key signed it.
    #[error("has no signature by a key that is known")]
    Unknown,
    /// A signature carries the name and ID of a known key, and is not that key's.
    #[error("has a signature in the name of `{name}` that is not by its key")]
    Forged {
        /// The key's name.
        name: KeyName,
    },
}

/// A signature of a note, verified or not. Its text is its line, without the newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteSignature {
    name: KeyName,
    key_id: u32,
    signature: Vec<u8>,
}

impl NoteSignature {
    /// A signature that this key made.
    pub(super) fn by(key: &VerifierKey, signature: Vec<u8>) -> Self {
        Self {
            name: key.name().clone(),
            key_id: key.id(),
            signature,
        }
    }

    /// Reads lines of signatures, each with its newline: the end of a note, or what a witness
    /// answers (C2SP tlog-witness).
    pub fn parse_lines(lines: &[u8]) -> Result<Vec<Self>, Malformed> {
        let mut lines = Lines::new(text(lines, NOTE_BYTES_MAX)?);
        let mut signatures = Vec::new();
        while !lines.rest().is_empty() {
            check_count(signatures.len() + 1)?;
            signatures.push(lines.next(SIGNATURE_LINE, Self::parse)?);
        }
        Ok(signatures)
    }

    fn parse(line: &str) -> Option<Self> {
        let (name, bytes) = line.strip_prefix(MARK)?.split_once(' ')?;
        let bytes = decode(bytes)?;
        let (id, signature) = bytes.split_first_chunk()?;
        (!signature.is_empty()).then_some(Self {
            name: name.parse().ok()?,
            key_id: u32::from_be_bytes(*id),
            signature: signature.to_vec(),
        })
    }

    /// The name of the key that it says made it.
    pub const fn name(&self) -> &KeyName {
        &self.name
    }

    /// The ID of the key that it says made it.
    pub const fn key_id(&self) -> u32 {
        self.key_id
    }

    /// What follows the key's ID.
    pub fn bytes(&self) -> &[u8] {
        &self.signature
    }
}

impl fmt::Display for NoteSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&self.key_id.to_be_bytes(), self.signature.as_slice()].concat();
        write!(f, "{MARK}{} {}", self.name, encode(&bytes))
    }
}

/// A signature that was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified<'k> {
    /// The key that made it.
    pub key: &'k VerifierKey,
    /// When, in seconds since the epoch, for a cosignature.
    pub cosigned_at_seconds: Option<u64>,
}

/// A signed note. Its text, by `Display`, is the one form of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    text: String,
    signatures: Vec<NoteSignature>,
}

impl Note {
    /// A note of this text, which ends with a newline, and one signature or more.
    pub fn new(text: String, signatures: Vec<NoteSignature>) -> Result<Self, Malformed> {
        check_text(&text)?;
        if signatures.is_empty() {
            let line = text.matches('\n').count() + 2;
            let expected = SIGNATURE_LINE;
            return Err(Malformed::Line { line, expected });
        }
        check_count(signatures.len())?;
        let note = Self { text, signatures };
        let (given, max) = (note.to_string().len(), NOTE_BYTES_MAX);
        if given > max {
            return Err(Malformed::Bytes { given, max });
        }
        Ok(note)
    }

    /// Reads a note.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let whole = text(bytes, NOTE_BYTES_MAX)?;
        // The text may have empty lines; the last of the note is where it ends.
        let (text, signatures) = whole.rsplit_once("\n\n").ok_or(Malformed::Line {
            line: whole.matches('\n').count() + 1,
            expected: "empty, between the text and the signatures",
        })?;
        let before = text.matches('\n').count() + 2;
        let signatures = NoteSignature::parse_lines(signatures.as_bytes());
        let signatures = signatures.map_err(|error| match error {
            Malformed::Line { line, expected } => Malformed::Line {
                line: before + line,
                expected,
            },
            other => other,
        })?;
        Self::new(format!("{text}\n"), signatures)
    }

    /// Reads the note of a checkpoint, at the end of another form. There, an empty line too early
    /// would make the rest the text of some other note.
    pub(super) fn parse_checkpoint(text: &str) -> Result<Self, Malformed> {
        let note = Self::parse(text.as_bytes())?;
        Checkpoint::parse(note.text())?;
        Ok(note)
    }

    /// What was signed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// All its signatures.
    pub fn signatures(&self) -> &[NoteSignature] {
        &self.signatures
    }

    /// The note with more signatures after its own, such as those of witnesses.
    pub fn with(self, signatures: Vec<NoteSignature>) -> Result<Self, Malformed> {
        Self::new(self.text, [self.signatures, signatures].concat())
    }

    /// Verifies every signature of a known key, and gives each key once, in the order in which
    /// they signed. Signatures of others are ignored. One that carries a known key's name and ID
    /// and is not by it makes the whole note worthless.
    pub fn verify<'k>(&self, known: &'k [VerifierKey]) -> Result<Vec<Verified<'k>>, Unverified> {
        let mut verified: Vec<Verified<'k>> = Vec::new();
        for signature in &self.signatures {
            let mut named = known.iter().filter(|key| key.is_named_by(signature));
            let Some(first) = named.next() else {
                continue;
            };
            // Only keys that were made to collide share both name and ID.
            let mut found = std::iter::once(first).chain(named);
            let found = found.find_map(|key| self.verify_one(key, signature));
            let found = found.ok_or_else(|| Unverified::Forged {
                name: first.name().clone(),
            })?;
            if verified.iter().all(|before| before.key != found.key) {
                verified.push(found);
            }
        }
        if verified.is_empty() {
            return Err(Unverified::Unknown);
        }
        Ok(verified)
    }

    fn verify_one<'k>(&self, key: &'k VerifierKey, by: &NoteSignature) -> Option<Verified<'k>> {
        let cosigned_at_seconds = match key.algorithm() {
            Algorithm::Ed25519 => key
                .verifies(self.text.as_bytes(), by.bytes())
                .then_some(None)?,
            Algorithm::CosignatureV1 => {
                let checkpoint = Checkpoint::parse(&self.text).ok()?;
                let cosignature = Cosignature::decode(by.bytes())?;
                let holds = cosignature.verify(key, &checkpoint);
                holds.then_some(Some(cosignature.timestamp_seconds))?
            }
        };
        Some(Verified {
            key,
            cosigned_at_seconds,
        })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        for signature in &self.signatures {
            writeln!(f, "{signature}")?;
        }
        Ok(())
    }
}

/// That a text can be that of a note.
pub(super) fn check_text(text: &str) -> Result<(), Malformed> {
    if !text.ends_with('\n') {
        let line = text.matches('\n').count() + 1;
        let expected = "ended by a newline";
        return Err(Malformed::Line { line, expected });
    }
    let control = |character: char| character < '\u{20}' && character != '\n';
    if text.contains(control) {
        return Err(Malformed::Control);
    }
    Ok(())
}

fn check_count(signatures: usize) -> Result<(), Malformed> {
    if signatures > NOTE_SIGNATURES_MAX {
        return Err(Malformed::TooMany {
            what: "signatures",
            max: NOTE_SIGNATURES_MAX,
        });
    }
    Ok(())
}
