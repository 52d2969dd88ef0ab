//! Proofs that somebody keeps (C2SP tlog-proof): an entry's place in the log, with the checkpoint
//! that binds it. They need nothing but the entry and a [`Policy`] to be verified.

use std::fmt;

use super::inclusion::{InclusionProof, InvalidProof};
use super::limits::{PROOF_BYTES_MAX, PROOF_EXTRA_BYTES_MAX};
use super::lines::{Lines, Malformed, decimal, decode, encode, text};
use super::note::Note;
use super::policy::{Policy, TrustedCheckpoint, Untrusted};
use crate::merkle::Hash;

const HEADER: &str = "c2sp.org/tlog-proof@v1";

/// Why a kept proof shows nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unproved {
    /// The checkpoint is not believed.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The proof does not lead to it.
    #[error("the inclusion proof: {0}")]
    Invalid(#[from] InvalidProof),
}

/// That a log has an entry. Its text, by `Display`, is the file's content; the file's name should
/// end with `.tlog-proof`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlogProof {
    /// What the application needs beside it. Nothing authenticates it.
    pub extra: Option<Vec<u8>>,
    /// The entry's index in the log.
    pub index: u64,
    /// The hashes that lead to the checkpoint's root.
    pub inclusion: InclusionProof,
    /// The log's checkpoint, with whatever cosignatures there are.
    pub checkpoint: Note,
}

impl TlogProof {
    /// Reads a proof. Whether it proves anything is for [`Self::verify`] to say.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut lines = Lines::new(text(bytes, PROOF_BYTES_MAX)?);
        lines.next("`c2sp.org/tlog-proof@v1`", |line| {
            (line == HEADER).then_some(())
        })?;
        let extra = if lines.rest().starts_with("extra ") {
            let expected = "`extra` and at most 1048576 bytes in base64";
            let extra = lines.next(expected, |line| decode(line.strip_prefix("extra ")?))?;
            if extra.len() > PROOF_EXTRA_BYTES_MAX {
                return Err(lines.wrong(expected));
            }
            Some(extra)
        } else {
            None
        };
        let expected = "`index` and a number without leading zeros";
        let index = lines.next(expected, |line| decimal(line.strip_prefix("index ")?))?;
        Ok(Self {
            extra,
            index,
            inclusion: InclusionProof {
                hashes: lines.hashes()?,
            },
            checkpoint: Note::parse_checkpoint(lines.rest())?,
        })
    }

    /// Whether the log that the policy trusts has the leaf with this hash at this index.
    pub fn verify<'p>(
        &self,
        leaf: &Hash,
        policy: &'p Policy,
    ) -> Result<TrustedCheckpoint<'p>, Unproved> {
        let trusted = policy.believe(&self.checkpoint)?;
        let head = trusted.checkpoint.head();
        self.inclusion.verify(leaf, self.index, head)?;
        Ok(trusted)
    }
}

impl fmt::Display for TlogProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        if let Some(extra) = &self.extra {
            writeln!(f, "extra {}", encode(extra))?;
        }
        writeln!(f, "index {}", self.index)?;
        for hash in &self.inclusion.hashes {
            writeln!(f, "{}", encode(hash))?;
        }
        write!(f, "\n{}", self.checkpoint)
    }
}
