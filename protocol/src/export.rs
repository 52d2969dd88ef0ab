//! The form of the file that `audit export` writes and `audit verify` reads (SPEC U2).
//!
//! [`MAGIC`], then records: a byte for the [`Kind`], four for the length (big-endian), the payload.
//! What follows what, and why, is in `docs/export-format.md`. Nothing here reads or writes.

use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::limits::{EVENT_BYTES_MAX, ROOTS_MAX, TRUST_BUNDLE_BYTES_MAX};
use crate::merkle::{HASH_BYTES, Hash};
use crate::tlog::TILE_WIDTH;
use crate::tlog::limits::NOTE_BYTES_MAX;
use crate::trust::{Published, RootSignature, SignedBundle};

/// What the file begins with.
pub const MAGIC: &[u8; 25] = b"command-ledger export v1\n";
/// Bytes before each payload: kind and length.
pub const FRAME_BYTES: usize = 5;
/// Most trust bundles in one file: one for each change of roots or approvers.
pub const TRUST_BUNDLES_MAX: u64 = 100_000;

/// Largest header, end, and frame of a trust bundle's signatures, in bytes.
const SMALL_BYTES_MAX: usize = 16 * 1024;
/// A root, its signature, and their field names.
const SIGNATURE_RECORD_BYTES: usize = 256;
const TILE_HASHES_MAX: usize = TILE_WIDTH as usize;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`Header`], once, first.
    Header = 1,
    /// [`Trust`], oldest first.
    Trust = 2,
    /// An entry bundle (C2SP tlog-tiles).
    Entries = 3,
    /// The tile of level 0 over the bundle before it: what the log had hashed of each entry.
    Hashes = 4,
    /// An older checkpoint, a signed note.
    Checkpoint = 5,
    /// The checkpoint of the whole file, with its cosignatures.
    Last = 6,
    /// [`End`], once, last.
    End = 7,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Header,
        Self::Trust,
        Self::Entries,
        Self::Hashes,
        Self::Checkpoint,
        Self::Last,
        Self::End,
    ];

    /// The largest payload, in bytes.
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Header | Self::End => SMALL_BYTES_MAX,
            Self::Trust => {
                TRUST_BUNDLE_BYTES_MAX + 2 * ROOTS_MAX * SIGNATURE_RECORD_BYTES + SMALL_BYTES_MAX
            }
            Self::Entries => TILE_HASHES_MAX * (2 + EVENT_BYTES_MAX),
            Self::Hashes => TILE_HASHES_MAX * HASH_BYTES,
            Self::Checkpoint | Self::Last => NOTE_BYTES_MAX,
        }
    }

    /// What people call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Trust => "trust bundle",
            Self::Entries => "bundle of events",
            Self::Hashes => "tile of hashes",
            Self::Checkpoint => "checkpoint",
            Self::Last => "last checkpoint",
            Self::End => "end",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Five bytes before which no payload can stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// No such kind.
    #[error("a record has the unknown type {given}")]
    Kind {
        /// The byte.
        given: u8,
    },
    /// Longer than such a payload can be.
    #[error("a {kind} has {given} bytes; at most {} are allowed", kind.bytes_max())]
    Length {
        /// What it is.
        kind: Kind,
        /// Its length.
        given: usize,
    },
}

/// What stands before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is.
    pub kind: Kind,
    /// Its length, in bytes, which the kind allows.
    pub length: usize,
}

impl Frame {
    /// The frame of a payload.
    pub fn of(kind: Kind, payload: &[u8]) -> Result<Self, BadFrame> {
        Self::checked(kind, payload.len())
    }

    fn checked(kind: Kind, length: usize) -> Result<Self, BadFrame> {
        if length > kind.bytes_max() {
            return Err(BadFrame::Length {
                kind,
                given: length,
            });
        }
        Ok(Self { kind, length })
    }

    /// Reads a frame.
    pub fn decode(bytes: [u8; FRAME_BYTES]) -> Result<Self, BadFrame> {
        let [given, length @ ..] = bytes;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == given);
        let kind = kind.ok_or(BadFrame::Kind { given })?;
        let length = u32::from_be_bytes(length);
        Self::checked(kind, usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// The bytes of the frame.
    pub fn encode(self) -> [u8; FRAME_BYTES] {
        // Every kind's largest payload is far below 4 GiB.
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        let [first, second, third, fourth] = length.to_be_bytes();
        [self.kind as u8, first, second, third, fourth]
    }
}

/// What the file holds. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Which log it is of. Only the checkpoints' signatures prove it.
    pub origin: String,
    /// How many events follow; the last checkpoint is of this size.
    pub size: u64,
}

/// A trust bundle as it was published. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trust {
    /// The bundle's bytes as they were signed.
    #[serde(with = "crate::bytes::opaque")]
    pub bundle: Vec<u8>,
    /// The roots' signatures.
    pub signatures: Vec<RootSignature>,
    /// The version under which it was published.
    pub version: u64,
}

impl From<Published> for Trust {
    fn from(published: Published) -> Self {
        let Published { version, signed } = published;
        let SignedBundle { bundle, signatures } = signed;
        Self {
            bundle,
            signatures,
            version,
        }
    }
}

impl From<Trust> for Published {
    fn from(trust: Trust) -> Self {
        let Trust {
            bundle,
            signatures,
            version,
        } = trust;
        Self {
            version,
            signed: SignedBundle { bundle, signatures },
        }
    }
}

/// What the file held. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct End {
    /// Checkpoints, with the last one.
    pub checkpoints: u64,
    /// SHA-256 over every byte before this record, but for the payloads of bundles of events, which
    /// their hashes cover: that nothing was damaged, not that nobody altered it.
    #[serde(with = "crate::bytes::opaque")]
    pub digest: Vec<u8>,
    /// Events.
    pub events: u64,
    /// Trust bundles.
    pub trust_bundles: u64,
}

impl End {
    /// The end of a file with this digest.
    pub fn new(digest: Hash, events: u64, checkpoints: u64, trust_bundles: u64) -> Self {
        Self {
            checkpoints,
            digest: digest.to_vec(),
            events,
            trust_bundles,
        }
    }
}

/// Frame and payload of a value.
pub fn record<T: Serialize>(kind: Kind, value: &T) -> Result<(Frame, Vec<u8>), Unwritable> {
    let payload = canonical::encode(value)?;
    Ok((Frame::of(kind, &payload)?, payload))
}

/// A value that fits no record.
#[derive(Debug, thiserror::Error)]
pub enum Unwritable {
    /// It cannot be encoded.
    #[error("cannot be encoded")]
    Encode(#[from] canonical::Error),
    /// It is too large.
    #[error(transparent)]
    Frame(#[from] BadFrame),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u2_a_frame_comes_back_and_never_asks_for_more_than_its_kind_allows() {
        for kind in Kind::ALL {
            for length in [0, 1, kind.bytes_max()] {
                let frame = Frame { kind, length };
                assert_eq!(Frame::decode(frame.encode()), Ok(frame));
            }
            let given = kind.bytes_max() + 1;
            let frame = Frame {
                kind,
                length: given,
            };
            assert_eq!(
                Frame::decode(frame.encode()),
                Err(BadFrame::Length { kind, given })
            );
        }
        for given in [0, 8, 255] {
            let bad = Frame::decode([given, 0, 0, 0, 0]);
            assert_eq!(bad, Err(BadFrame::Kind { given }));
        }
    }
}
