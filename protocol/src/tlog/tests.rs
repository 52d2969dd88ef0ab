//! What the log's parts promise together; each is also put to programs that others wrote.

use super::index::hashes_at;
use super::*;
use crate::merkle::{Hash, Tree, leaf_hash};

mod consistency;
mod edges;
mod forms;
mod inclusion;
mod notes;
mod others;
mod published;
mod receipts;
mod tiles;
mod witnessing;

/// The hashes of leaves that are each another.
fn leaves(count: u64) -> Vec<Hash> {
    (0..count)
        .map(|number| leaf_hash(&number.to_be_bytes()))
        .collect()
}

/// The tree's size and root, not read from tiles.
fn head(leaves: &[Hash]) -> TreeHead {
    TreeHead {
        size: leaves.len() as u64,
        root: Tree::new(leaves.to_vec()).root(),
    }
}

/// The tiles of a tree, each hash made by the definition of tlog-tiles:
/// `MTH(D[(n * 256 + i) * 256**l : (n * 256 + i + 1) * 256**l])`.
fn by_definition(leaves: &[Hash]) -> Vec<Tile> {
    let size = leaves.len() as u64;
    let mut tiles = Vec::new();
    for level in 0..3 {
        let span = 256_usize.pow(level.into());
        let hashes: Vec<Hash> = leaves
            .chunks_exact(span)
            .map(|below| Tree::new(below.to_vec()).root())
            .collect();
        assert_eq!(hashes.len() as u64, hashes_at(level, size));
        for (index, hashes) in (0..).zip(hashes.chunks(256)) {
            let width = hashes.len().try_into().unwrap();
            let index = TileIndex::new(level, index, width).unwrap();
            tiles.push(Tile::decode(index, &hashes.concat()).unwrap());
        }
    }
    tiles
}

fn collected(tiles: Vec<Tile>) -> Tiles {
    tiles.into_iter().collect()
}
