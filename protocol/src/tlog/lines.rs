//! What the text forms have in common: lines, numbers, base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::limits::{PROOF_HASHES_MAX, TREE_SIZE_MAX};
use crate::merkle::Hash;

/// Why a note, a checkpoint, a tlog-proof or an `add-checkpoint` body cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is too long.
    #[error("has {given} bytes; at most {max} are read")]
    Bytes {
        /// How many there are.
        given: usize,
        /// How many there may be.
        max: usize,
    },
    /// It is no text.
    #[error("is not UTF-8")]
    Utf8,
    /// It has a control character.
    #[error("has a control character that is no newline")]
    Control,
    /// A line is missing, or another than it must be.
    #[error("line {line} must be {expected}")]
    Line {
        /// Which, from 1, of the part that is read.
        line: usize,
        /// What it must be.
        expected: &'static str,
    },
    /// There is too much of something.
    #[error("has more than {max} {what}")]
    TooMany {
        /// What of.
        what: &'static str,
        /// How many there may be.
        max: usize,
    },
}

/// The text that `bytes` are, if they are not too many.
pub(super) fn text(bytes: &[u8], max: usize) -> Result<&str, Malformed> {
    let given = bytes.len();
    if given > max {
        return Err(Malformed::Bytes { given, max });
    }
    std::str::from_utf8(bytes).map_err(|_| Malformed::Utf8)
}

/// Lines that each end with a newline.
pub(super) struct Lines<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lines<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            line: 0,
        }
    }

    /// What has not been read yet.
    pub(super) const fn rest(&self) -> &'a str {
        self.rest
    }

    /// That the line that was just read is not what it must be.
    pub(super) const fn wrong(&self, expected: &'static str) -> Malformed {
        let line = self.line;
        Malformed::Line { line, expected }
    }

    /// Reads the next line as what `read` makes of it.
    pub(super) fn next<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, Malformed> {
        self.line += 1;
        let (line, rest) = self.rest.split_once('\n').ok_or(self.wrong(expected))?;
        let value = read(line).ok_or(self.wrong(expected))?;
        self.rest = rest;
        Ok(value)
    }

    /// Reads the hashes of a proof, up to and with the empty line after them.
    pub(super) fn hashes(&mut self) -> Result<Vec<Hash>, Malformed> {
        let expected = "a hash of 32 bytes in base64, or empty";
        let mut hashes = Vec::new();
        loop {
            let hash = self.next(expected, |line| {
                if line.is_empty() {
                    Some(None)
                } else {
                    hash(line).map(Some)
                }
            })?;
            let Some(hash) = hash else {
                return Ok(hashes);
            };
            if hashes.len() == PROOF_HASHES_MAX {
                return Err(Malformed::TooMany {
                    what: "hashes",
                    max: PROOF_HASHES_MAX,
                });
            }
            hashes.push(hash);
        }
    }
}

/// A size or an index: decimal, without leading zeros.
pub(super) fn decimal(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let short = text == "0" || !text.starts_with('0');
    let number = text.parse().ok().filter(|_| digits && short);
    number.filter(|number| *number <= TREE_SIZE_MAX)
}

/// A hash in base64.
pub(super) fn hash(text: &str) -> Option<Hash> {
    decode(text)?.try_into().ok()
}

/// Base64 (RFC 4648, section 4), padded, and in its one form.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Base64 (RFC 4648, section 4), padded.
pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
