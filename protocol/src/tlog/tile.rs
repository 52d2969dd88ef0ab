//! Tiles with their hashes (C2SP tlog-tiles, "Merkle Tree"), and reading roots and proofs out of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::index::TileIndex;
use super::subtree::{cover, fold};
use crate::merkle::{HASH_BYTES, Hash, Tree};

/// Bytes that are not the tile that they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`{tile}` has {given} bytes; it must have {HASH_BYTES} for each of its {} hashes", tile.width())]
pub struct InvalidTile {
    /// Which tile was to be read.
    pub tile: TileIndex,
    /// How many bytes there were.
    pub given: usize,
}

/// Why a root or a proof cannot be read out of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// There is no such leaf.
    #[error("the log has no entry {index}: its size is {size}")]
    NoLeaf {
        /// The index that was asked for.
        index: u64,
        /// The size of the tree.
        size: u64,
    },
    /// No tree shrinks.
    #[error("a log of size {to} does not contain one of size {from}")]
    Shrunk {
        /// The size that should be the smaller.
        from: u64,
        /// The size that should be the larger.
        to: u64,
    },
    /// No tree is so large.
    #[error(
        "a size of {size} is more than a log can have: {}",
        super::limits::TREE_SIZE_MAX
    )]
    Size {
        /// The size that was asked for.
        size: u64,
    },
    /// A tile that is needed was not given.
    #[error("`{0}` is missing, or not as wide")]
    Missing(TileIndex),
}

/// A tile: consecutive hashes of one level of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tile {
    index: TileIndex,
    hashes: Vec<Hash>,
}

impl Tile {
    /// A tile of as many hashes as its index says.
    pub(super) fn of(index: TileIndex, hashes: Vec<Hash>) -> Self {
        Self { index, hashes }
    }

    /// Reads the bytes of a tile as they are served.
    pub fn decode(index: TileIndex, bytes: &[u8]) -> Result<Self, InvalidTile> {
        let (hashes, rest) = bytes.as_chunks();
        if hashes.len() != usize::from(index.width()) || !rest.is_empty() {
            return Err(InvalidTile {
                tile: index,
                given: bytes.len(),
            });
        }
        Ok(Self::of(index, hashes.to_vec()))
    }

    /// The bytes that are served.
    pub fn encode(&self) -> Vec<u8> {
        self.hashes.concat()
    }

    /// Where it is.
    pub const fn index(&self) -> TileIndex {
        self.index
    }

    /// Its hashes, from the left.
    pub fn hashes(&self) -> &[Hash] {
        &self.hashes
    }

    /// The hash of all that is below it. For a full tile, that is its hash in the tile above.
    pub fn root(&self) -> Hash {
        Tree::new(self.hashes.clone()).root()
    }
}

/// Tiles that were read, from which roots and proofs can be made.
#[derive(Debug, Clone, Default)]
pub struct Tiles(BTreeMap<(u8, u64), Tile>);

impl Tiles {
    /// Adds a tile. A wider one serves for a narrower: where a log has no partial tile any more, it
    /// has the full one.
    pub fn insert(&mut self, tile: Tile) {
        let place = (tile.index.level(), tile.index.index());
        let known = self.0.get(&place);
        if known.is_none_or(|known| known.index.width() < tile.index.width()) {
            self.0.insert(place, tile);
        }
    }

    /// The hashes of the tile, if one at least as wide was given.
    pub(super) fn get(&self, index: TileIndex) -> Result<&[Hash], Unreadable> {
        let tile = self.0.get(&(index.level(), index.index()));
        tile.and_then(|tile| tile.hashes.get(..index.width().into()))
            .ok_or(Unreadable::Missing(index))
    }

    /// The hash of a range's leaves in a tree of `size`.
    fn hash(&self, range: &Range<u64>, size: u64) -> Result<Hash, Unreadable> {
        fold(cover(range).rev().map(|subtree| {
            let place = subtree.place();
            let tile = TileIndex::in_tree(place.level, place.index, size);
            let tile = tile.ok_or(Unreadable::Size { size })?;
            let hash = place.hash(self.get(tile)?);
            hash.ok_or(Unreadable::Missing(tile))
        }))
    }

    /// The hashes of ranges in a tree of `size`.
    pub(super) fn hashes(&self, of: &[Range<u64>], size: u64) -> Result<Vec<Hash>, Unreadable> {
        of.iter().map(|range| self.hash(range, size)).collect()
    }
}

impl FromIterator<Tile> for Tiles {
    fn from_iter<T: IntoIterator<Item = Tile>>(tiles: T) -> Self {
        let mut collected = Self::default();
        for tile in tiles {
            collected.insert(tile);
        }
        collected
    }
}

/// The tiles of a tree of `size` from which the hashes of ranges are made, each once.
pub(super) fn tiles_of(ranges: &[Range<u64>], size: u64) -> Vec<TileIndex> {
    let subtrees = ranges.iter().flat_map(cover);
    let tiles = subtrees.filter_map(|subtree| {
        let place = subtree.place();
        TileIndex::in_tree(place.level, place.index, size)
    });
    tiles.collect::<BTreeSet<_>>().into_iter().collect()
}
