//! Growing a log: the right edge of its tree, which is all that a writer must know.

use std::mem::take;

use super::checkpoint::TreeHead;
use super::index::{LEVELS, TILE_HEIGHT, TILE_WIDTH, TileIndex, hashes_at, new_tiles};
use super::limits::TREE_SIZE_MAX;
use super::subtree::{cover, fold};
use super::tile::{Tile, Tiles, Unreadable};
use crate::merkle::Hash;

/// The tree has as many leaves as a tree may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log has {TREE_SIZE_MAX} entries, the most that a log can have")]
pub struct TreeFull;

/// The partial tiles of a tree: what its next tiles, and its root, are made of. It holds at most
/// 255 hashes for each level of tiles, however large the tree is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RightEdge {
    size: u64,
    levels: [Vec<Hash>; LEVELS as usize],
}

impl RightEdge {
    /// The edge of a tree without leaves.
    pub fn new() -> Self {
        Self::default()
    }

    /// The tiles to read for [`Self::resume`]: all partial tiles of a tree of `size`.
    pub fn tiles(size: u64) -> Vec<TileIndex> {
        new_tiles(0, size).filter(|tile| !tile.is_full()).collect()
    }

    /// The edge of a tree of `size`, out of its tiles. Whether they are the right ones shows in
    /// [`Self::head`].
    pub fn resume(size: u64, tiles: &Tiles) -> Result<Self, Unreadable> {
        if size > TREE_SIZE_MAX {
            return Err(Unreadable::Size { size });
        }
        let mut edge = Self {
            size,
            ..Self::default()
        };
        for tile in Self::tiles(size) {
            if let Some(hashes) = edge.levels.get_mut(usize::from(tile.level())) {
                *hashes = tiles.get(tile)?.to_vec();
            }
        }
        Ok(edge)
    }

    /// Appends a leaf, and gives the tiles that are full now: none but for each 256th leaf.
    pub fn push(&mut self, leaf: Hash) -> Result<Vec<Tile>, TreeFull> {
        if self.size == TREE_SIZE_MAX {
            return Err(TreeFull);
        }
        self.size += 1;
        let mut full = Vec::new();
        let mut hash = leaf;
        for (level, hashes) in (0..).zip(&mut self.levels) {
            hashes.push(hash);
            if hashes.len() < TILE_WIDTH.into() {
                break;
            }
            let index = (hashes_at(level, self.size) >> TILE_HEIGHT) - 1;
            // A tile of the highest level is never full.
            let Ok(index) = TileIndex::new(level, index, TILE_WIDTH) else {
                break;
            };
            let tile = Tile::of(index, take(hashes));
            hash = tile.root();
            full.push(tile);
        }
        Ok(full)
    }

    /// The partial tiles that the tree has now and did not have at the size `from`. With the full
    /// ones that [`Self::push`] gave since, they are all that [`new_tiles`] names.
    pub fn partial_tiles_since(&self, from: u64) -> impl Iterator<Item = Tile> {
        let partial = new_tiles(from, self.size).filter(|tile| !tile.is_full());
        partial.filter_map(|tile| {
            let hashes = self.levels.get(usize::from(tile.level()))?;
            Some(Tile::of(tile, hashes.clone()))
        })
    }

    /// How many leaves the tree has.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Size and root of the tree: what a checkpoint says.
    pub fn head(&self) -> TreeHead {
        let hashes = cover(&(0..self.size)).rev().filter_map(|subtree| {
            let place = subtree.place();
            place.hash(self.levels.get(usize::from(place.level))?)
        });
        let Ok(root) = fold(hashes.map(Ok::<_, std::convert::Infallible>));
        TreeHead {
            size: self.size,
            root,
        }
    }
}
