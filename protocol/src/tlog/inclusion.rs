//! Inclusion proofs (RFC 6962, section 2.1.1; RFC 9162, section 2.1.3).

use super::checkpoint::TreeHead;
use super::index::TileIndex;
use super::limits::TREE_SIZE_MAX;
use super::subtree::inclusion;
use super::tile::{Tiles, Unreadable, tiles_of};
use crate::merkle::{Hash, root_of_path};

/// Why a proof shows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProof {
    /// There is no such leaf.
    #[error("the log has no entry {index}: its size is {size}")]
    NoLeaf {
        /// The index that was claimed.
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
    /// The proof has too many hashes, or too few.
    #[error("has {given} hashes; this proof has exactly {expected}")]
    Length {
        /// How many there are.
        given: usize,
        /// How many there must be.
        expected: usize,
    },
    /// The hashes make another root.
    #[error("the hashes do not lead to the root of the log at size {size}")]
    Root {
        /// Of which tree.
        size: u64,
    },
}

/// The hashes that lead from a leaf to the root, from the leaf's sibling upwards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InclusionProof {
    /// The hashes.
    pub hashes: Vec<Hash>,
}

impl InclusionProof {
    /// The tiles to read for [`Self::read`].
    pub fn tiles(index: u64, size: u64) -> Result<Vec<TileIndex>, Unreadable> {
        check(index, size)?;
        Ok(tiles_of(&inclusion(index, size), size))
    }

    /// The proof that the tree of `size` has the leaf at `index`.
    pub fn read(index: u64, size: u64, tiles: &Tiles) -> Result<Self, Unreadable> {
        check(index, size)?;
        let hashes = tiles.hashes(&inclusion(index, size), size)?;
        Ok(Self { hashes })
    }

    /// Whether the tree has, at `index`, the leaf with this hash
    /// ([`leaf_hash`](crate::merkle::leaf_hash) of its bytes).
    pub fn verify(&self, leaf: &Hash, index: u64, tree: &TreeHead) -> Result<(), InvalidProof> {
        let size = tree.size;
        if index >= size {
            return Err(InvalidProof::NoLeaf { index, size });
        }
        let (given, expected) = (self.hashes.len(), inclusion(index, size).len());
        if given != expected {
            return Err(InvalidProof::Length { given, expected });
        }
        if root_of_path(*leaf, index, size, &self.hashes) != Some(tree.root) {
            return Err(InvalidProof::Root { size });
        }
        Ok(())
    }
}

fn check(index: u64, size: u64) -> Result<(), Unreadable> {
    if size > TREE_SIZE_MAX {
        return Err(Unreadable::Size { size });
    }
    if index >= size {
        return Err(Unreadable::NoLeaf { index, size });
    }
    Ok(())
}
