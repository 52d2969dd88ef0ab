//! What a log sends to a witness, and what the witness makes of it (C2SP tlog-witness,
//! "add-checkpoint").

use std::fmt;

use super::checkpoint::{Checkpoint, TreeHead};
use super::consistency::ConsistencyProof;
use super::inclusion::InvalidProof;
use super::limits::PROOF_BYTES_MAX;
use super::lines::{Lines, Malformed, decimal, encode, text};
use super::note::Note;
use crate::merkle::Tree;

/// Why a witness does not cosign a checkpoint that the log signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Uncosigned {
    /// The proof begins behind the checkpoint. Status 400.
    #[error("the proof begins at size {old}, and the checkpoint has size {size}")]
    Backwards {
        /// The size at which the proof begins.
        old: u64,
        /// The size of the checkpoint.
        size: u64,
    },
    /// The proof begins elsewhere than where the witness stands, or the witness cosigned another
    /// tree of that size. Status 409, with the size.
    #[error("the checkpoint that was cosigned last has size {size}, and is not where this begins")]
    Conflict {
        /// The size of what the witness cosigned last; 0 for nothing.
        size: u64,
    },
    /// The checkpoint is not shown to extend what the witness cosigned last. Status 422.
    #[error("the consistency proof: {0}")]
    Unproved(#[from] InvalidProof),
}

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

    /// Whether a witness that cosigned `last` of this log last, if anything, may cosign this
    /// checkpoint, which is that of the note. The log's signature is the caller's to verify.
    pub fn check(
        &self,
        checkpoint: &Checkpoint,
        last: Option<&TreeHead>,
    ) -> Result<(), Uncosigned> {
        let (old, size) = (self.old_size, checkpoint.head().size);
        if old > size {
            return Err(Uncosigned::Backwards { old, size });
        }
        let nothing = || TreeHead {
            size: 0,
            root: Tree::new(Vec::new()).root(),
        };
        let last = last.copied().unwrap_or_else(nothing);
        if old != last.size {
            return Err(Uncosigned::Conflict { size: last.size });
        }
        let is_other = old == size && last.root != checkpoint.head().root;
        if is_other && self.consistency.hashes.is_empty() {
            return Err(Uncosigned::Conflict { size });
        }
        self.consistency.verify(&last, checkpoint.head())?;
        Ok(())
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
