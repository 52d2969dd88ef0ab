//! Consistency proofs (RFC 6962, section 2.1.2; RFC 9162, section 2.1.4). The RFCs define none from
//! a tree without leaves; as C2SP tlog-witness says, that proof is empty.

use super::checkpoint::TreeHead;
use super::inclusion::InvalidProof;
use super::index::TileIndex;
use super::limits::TREE_SIZE_MAX;
use super::subtree::consistency;
use super::tile::{Tiles, Unreadable, tiles_of};
use crate::merkle::{Hash, Tree, node_hash};

/// The hashes that show one tree to be the beginning of another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsistencyProof {
    /// The hashes.
    pub hashes: Vec<Hash>,
}

impl ConsistencyProof {
    /// The tiles to read for [`Self::read`].
    pub fn tiles(from: u64, to: u64) -> Result<Vec<TileIndex>, Unreadable> {
        check(from, to)?;
        Ok(tiles_of(&ranges(from, to), to))
    }

    /// The proof that the tree of size `to` begins with that of size `from`.
    pub fn read(from: u64, to: u64, tiles: &Tiles) -> Result<Self, Unreadable> {
        check(from, to)?;
        let hashes = tiles.hashes(&ranges(from, to), to)?;
        Ok(Self { hashes })
    }

    /// Whether the second tree begins with the first.
    pub fn verify(&self, from: &TreeHead, to: &TreeHead) -> Result<(), InvalidProof> {
        if from.size > to.size {
            let (from, to) = (from.size, to.size);
            return Err(InvalidProof::Shrunk { from, to });
        }
        let (given, expected) = (self.hashes.len(), ranges(from.size, to.size).len());
        if given != expected {
            return Err(InvalidProof::Length { given, expected });
        }
        for tree in [from, to] {
            if tree.size == 0 && tree.root != Tree::new(Vec::new()).root() {
                return Err(InvalidProof::Root { size: 0 });
            }
        }
        if from.size == 0 {
            return Ok(());
        }
        let (first, second) = if from.size == to.size {
            (Some(to.root), Some(from.root))
        } else {
            self.roots(from, to.size)
        };
        for (made, tree) in [(first, from), (second, to)] {
            if made != Some(tree.root) {
                return Err(InvalidProof::Root { size: tree.size });
            }
        }
        Ok(())
    }

    /// The roots that the hashes make of both trees (RFC 9162, section 2.1.4.2), the smaller of one
    /// leaf or more. None when there are too few hashes or too many.
    fn roots(&self, from: &TreeHead, to: u64) -> (Option<Hash>, Option<Hash>) {
        // A smaller tree without a gap is a subtree of the larger: the proof begins with its root.
        let known = from.size.is_power_of_two().then_some(&from.root);
        let mut path = known.into_iter().chain(&self.hashes);
        let Some(start) = path.next() else {
            return (None, None);
        };
        let (mut at, mut last) = (from.size - 1, to - 1);
        while at & 1 == 1 {
            at >>= 1;
            last >>= 1;
        }
        let (mut first, mut second) = (*start, *start);
        for sibling in path {
            if last == 0 {
                return (None, None);
            }
            if at & 1 == 1 || at == last {
                first = node_hash(sibling, &first);
                second = node_hash(sibling, &second);
                while at & 1 == 0 && at != 0 {
                    at >>= 1;
                    last >>= 1;
                }
            } else {
                second = node_hash(&second, sibling);
            }
            at >>= 1;
            last >>= 1;
        }
        let whole = last == 0;
        (whole.then_some(first), whole.then_some(second))
    }
}

fn ranges(from: u64, to: u64) -> Vec<std::ops::Range<u64>> {
    if from == 0 || from == to {
        Vec::new()
    } else {
        consistency(from, to)
    }
}

fn check(from: u64, to: u64) -> Result<(), Unreadable> {
    if to > TREE_SIZE_MAX {
        return Err(Unreadable::Size { size: to });
    }
    if from > to {
        return Err(Unreadable::Shrunk { from, to });
    }
    Ok(())
}
