//! What a log sends to a witness (C2SP tlog-witness, "add-checkpoint").

use std::fmt;

use super::consistency::ConsistencyProof;
use super::limits::PROOF_BYTES_MAX;
use super::lines::{Lines, Malformed, decimal, encode, text};
use super::note::Note;

/// The body of an `add-checkpoint` request; its text, by `Display`, is that body. A witness
/// answers with lines for [`NoteSignature::parse_lines`](super::NoteSignature::parse_lines), or,
/// with status 409, the size that it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddCheckpoint {
    /// The size of the checkpoint that the witness cosigned last, as far as the log knows.
    pub old_size: u64,
    /// From that size to the checkpoint's.
    pub consistency: ConsistencyProof,
    /// The checkpoint to cosign.
    pub checkpoint: Note,
}

impl AddCheckpoint {
    /// Reads a body.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut lines = Lines::new(text(bytes, PROOF_BYTES_MAX)?);
        let expected = "`old` and a size without leading zeros";
        let old_size = lines.next(expected, |line| decimal(line.strip_prefix("old ")?))?;
        Ok(Self {
            old_size,
            consistency: ConsistencyProof {
                hashes: lines.hashes()?,
            },
            checkpoint: Note::parse_checkpoint(lines.rest())?,
        })
    }
}

impl fmt::Display for AddCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "old {}", self.old_size)?;
        for hash in &self.consistency.hashes {
            writeln!(f, "{}", encode(hash))?;
        }
        write!(f, "\n{}", self.checkpoint)
    }
}
