//! The subtrees whose hashes roots and proofs are made of (RFC 6962, section 2.1).

use std::ops::Range;

use super::index::{TILE_HEIGHT, TILE_WIDTH};
use crate::merkle::{Hash, Tree, node_hash};

/// A subtree without a gap: the leaves from `index << height` up to `(index + 1) << height`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subtree {
    height: u32,
    index: u64,
}

/// The place in a tile from which a subtree's hash is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) level: u8,
    pub(super) index: u64,
    pub(super) hashes: Range<usize>,
}

impl Subtree {
    /// Every subtree lies in one tile, because a tile spans eight levels and is aligned.
    pub(super) fn place(self) -> Place {
        let (level, above) = (self.height / TILE_HEIGHT, self.height % TILE_HEIGHT);
        let (first, width) = (self.index << above, u64::from(TILE_WIDTH));
        let within = usize::try_from(first % width).unwrap_or(usize::MAX);
        Place {
            // The height is below 64.
            level: u8::try_from(level).unwrap_or(u8::MAX),
            index: first / width,
            hashes: within..within.saturating_add(1 << above),
        }
    }
}

impl Place {
    /// The subtree's hash, out of the hashes of the tile. None when it has too few.
    pub(super) fn hash(&self, tile: &[Hash]) -> Option<Hash> {
        let hashes = tile.get(self.hashes.clone())?;
        Some(Tree::new(hashes.to_vec()).root())
    }
}

/// The subtrees without a gap that the leaves of a range of RFC 6962's definitions fall into, from
/// the left: its start is a multiple of a power of two that is no smaller than it is long.
pub(super) fn cover(range: &Range<u64>) -> impl DoubleEndedIterator<Item = Subtree> + use<> {
    let (start, leaves) = (range.start, range.end.saturating_sub(range.start));
    (0..u64::BITS)
        .rev()
        .filter(move |height| leaves >> height & 1 == 1)
        .map(move |height| {
            // What stands left of it within the range: the larger powers of two.
            let before = leaves.checked_shr(height + 1).unwrap_or(0) << 1;
            Subtree {
                height,
                index: (start >> height) + before,
            }
        })
}

/// The hash of a range's leaves, from the hashes of what covers it, which come from the right. That
/// of no leaves is the hash of nothing.
pub(super) fn fold<E>(from_right: impl Iterator<Item = Result<Hash, E>>) -> Result<Hash, E> {
    let mut folded = None;
    for left in from_right {
        let left = left?;
        folded = Some(folded.map_or(left, |right| node_hash(&left, &right)));
    }
    Ok(folded.unwrap_or_else(|| Tree::new(Vec::new()).root()))
}

/// The size of the left part of a tree of `leaves`, two or more: the largest power of two below.
fn split(leaves: u64) -> u64 {
    1 << (leaves - 1).ilog2()
}

/// What the hashes of an inclusion proof are of, from the leaf upwards: `PATH(m, D[n])` of section
/// 2.1.1, for an index below the size.
pub(super) fn inclusion(index: u64, size: u64) -> Vec<Range<u64>> {
    let mut whole = 0..size;
    let mut siblings = Vec::new();
    while whole.end - whole.start > 1 {
        let middle = whole.start + split(whole.end - whole.start);
        if index < middle {
            siblings.push(middle..whole.end);
            whole.end = middle;
        } else {
            siblings.push(whole.start..middle);
            whole.start = middle;
        }
    }
    siblings.reverse();
    siblings
}

/// What the hashes of a consistency proof are of, in its order: `PROOF(m, D[n])` of section 2.1.2,
/// for a smaller size that is neither 0 nor the larger.
pub(super) fn consistency(from: u64, to: u64) -> Vec<Range<u64>> {
    let mut whole = 0..to;
    let mut siblings = Vec::new();
    while from != whole.end {
        let middle = whole.start + split(whole.end - whole.start);
        if from <= middle {
            siblings.push(middle..whole.end);
            whole.end = middle;
        } else {
            siblings.push(whole.start..middle);
            whole.start = middle;
        }
    }
    // The smaller tree itself is known to who verifies.
    if whole.start > 0 {
        siblings.push(whole);
    }
    siblings.reverse();
    siblings
}
