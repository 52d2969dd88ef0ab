//! Bundles of entries (C2SP tlog-tiles, "Log entries").

use super::index::TILE_WIDTH;
use super::limits::ENTRY_BYTES_MAX;
use crate::merkle::{Hash, leaf_hash};

/// Bytes before each entry: its length, big-endian.
const LENGTH_BYTES: usize = 2;

/// Entries that are no bundle, or bytes that are not the bundle that they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBundle {
    /// The number of entries.
    #[error("has {entries} entries; a bundle has 1 to {TILE_WIDTH}")]
    Width {
        /// How many were given.
        entries: usize,
    },
    /// An entry is too large.
    #[error("entry {entry} has {given} bytes; at most {ENTRY_BYTES_MAX} fit")]
    Entry {
        /// Which, from 0.
        entry: usize,
        /// Its size.
        given: usize,
    },
    /// The bytes end before the last entry does.
    #[error("ends within entry {entry}, or before it; it must have {width} entries")]
    Truncated {
        /// Which, from 0.
        entry: usize,
        /// How many there must be.
        width: u16,
    },
    /// Bytes come after the last entry.
    #[error("has {excess} bytes after its {width} entries")]
    Overrun {
        /// How many.
        excess: usize,
        /// How many entries there must be.
        width: u16,
    },
}

/// The leaves of one tile of level 0, as they were appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryBundle<'a> {
    entries: Vec<&'a [u8]>,
}

impl<'a> EntryBundle<'a> {
    /// A bundle of these entries.
    pub fn new(entries: Vec<&'a [u8]>) -> Result<Self, InvalidBundle> {
        if entries.is_empty() || entries.len() > TILE_WIDTH.into() {
            let entries = entries.len();
            return Err(InvalidBundle::Width { entries });
        }
        let lengths = entries.iter().map(|entry| entry.len());
        let too_large = lengths.enumerate().find(|(_, len)| *len > ENTRY_BYTES_MAX);
        if let Some((entry, given)) = too_large {
            return Err(InvalidBundle::Entry { entry, given });
        }
        Ok(Self { entries })
    }

    /// Reads a bundle of exactly `width` entries.
    pub fn decode(bytes: &'a [u8], width: u16) -> Result<Self, InvalidBundle> {
        let mut entries = Vec::with_capacity(width.min(TILE_WIDTH).into());
        let mut rest = bytes;
        for entry in 0..width.into() {
            let truncated = InvalidBundle::Truncated { entry, width };
            let (length, after) = rest.split_first_chunk().ok_or(truncated)?;
            let length = u16::from_be_bytes(*length).into();
            let (body, after) = after.split_at_checked(length).ok_or(truncated)?;
            entries.push(body);
            rest = after;
        }
        if !rest.is_empty() {
            let excess = rest.len();
            return Err(InvalidBundle::Overrun { excess, width });
        }
        Self::new(entries)
    }

    /// The entries of bytes that may be no bundle, up to `width` and to where they end: for who wants
    /// to know which entry is not what it should be.
    pub fn first(bytes: &'a [u8], width: u16) -> FirstEntries<'a> {
        let (left, rest) = (width, bytes);
        FirstEntries { left, rest }
    }

    /// The bytes that are served.
    pub fn encode(&self) -> Vec<u8> {
        let size = self.entries.iter().map(|entry| LENGTH_BYTES + entry.len());
        let mut bytes = Vec::with_capacity(size.sum());
        for entry in &self.entries {
            // `new` let no longer entry in.
            let length = u16::try_from(entry.len()).unwrap_or(u16::MAX);
            bytes.extend(length.to_be_bytes());
            bytes.extend_from_slice(entry);
        }
        bytes
    }

    /// The entries, from the left.
    pub fn entries(&self) -> &[&'a [u8]] {
        &self.entries
    }

    /// The hashes that the tile of level 0 has in the same place.
    pub fn leaf_hashes(&self) -> impl Iterator<Item = Hash> {
        self.entries.iter().map(|entry| leaf_hash(entry))
    }
}

/// Entries, read one by one.
#[derive(Debug, Clone)]
pub struct FirstEntries<'a> {
    left: u16,
    rest: &'a [u8],
}

impl<'a> FirstEntries<'a> {
    /// What was not read.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for FirstEntries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (length, after) = self.rest.split_first_chunk()?;
        let length = u16::from_be_bytes(*length).into();
        let (body, after) = after.split_at_checked(length)?;
        self.rest = after;
        Some(body)
    }
}
