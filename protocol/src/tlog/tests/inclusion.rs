use proptest::prelude::*;

use super::super::*;
use super::{by_definition, collected, head, leaves};
use crate::merkle::{Hash, Tree};

/// `PATH(m, D[n])` of RFC 6962, section 2.1.1, word for word.
fn path(index: usize, leaves: &[Hash]) -> Vec<Hash> {
    if leaves.len() == 1 {
        return Vec::new();
    }
    let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
    let (mut path, sibling) = if index < left.len() {
        (path(index, left), right)
    } else {
        (path(index - left.len(), right), left)
    };
    path.push(Tree::new(sibling.to_vec()).root());
    path
}

fn as_index(index: usize) -> u64 {
    index as u64
}

#[test]
fn u1_every_leaf_of_every_tree_is_proved_and_nothing_else_is() {
    let all = leaves(1_026);
    for size in 1..=1_025 {
        let leaves = &all[..size];
        let tree = Tree::new(leaves.to_vec());
        let (right, larger) = (head(leaves), head(&all[..=size]));
        for (index, leaf) in leaves.iter().enumerate() {
            let hashes = tree.path(index).unwrap();
            let mut proof = InclusionProof { hashes };
            let at = as_index(index);
            assert_eq!(proof.verify(leaf, at, &right), Ok(()));
            // Another tree's root, another place, another leaf.
            assert!(proof.verify(leaf, at, &larger).is_err());
            assert!(proof.verify(leaf, at ^ 1, &right).is_err());
            let beside = &all[index + 1];
            let root = InvalidProof::Root { size: right.size };
            assert_eq!(proof.verify(beside, at, &right), Err(root));
            // Every bit of every hash, in turn over the leaves.
            let bit = index * 37 + size * 101;
            if let Some(count) = proof.hashes.len().checked_sub(1) {
                let hash = &mut proof.hashes[bit / 256 % (count + 1)];
                hash[bit / 8 % 32] ^= 1 << (bit % 8);
                assert_eq!(proof.verify(leaf, at, &right), Err(root));
            }
        }
    }
}

#[test]
fn u1_every_bit_of_a_proof_matters() {
    for size in [2, 3, 7, 8, 200, 257] {
        let leaves = leaves(size);
        let (tree, right) = (Tree::new(leaves.clone()), head(&leaves));
        for index in [0, leaves.len() / 2, leaves.len() - 1] {
            let proof = InclusionProof {
                hashes: tree.path(index).unwrap(),
            };
            for bit in 0..proof.hashes.len() * 256 {
                let mut changed = proof.clone();
                changed.hashes[bit / 256][bit / 8 % 32] ^= 1 << (bit % 8);
                let said = changed.verify(&leaves[index], as_index(index), &right);
                assert_eq!(said, Err(InvalidProof::Root { size }));
            }
            for bit in 0..256 {
                let mut leaf = leaves[index];
                leaf[bit / 8] ^= 1 << (bit % 8);
                let said = proof.verify(&leaf, as_index(index), &right);
                assert_eq!(said, Err(InvalidProof::Root { size }));
            }
        }
    }
}

#[test]
fn u1_proofs_read_from_tiles_are_those_of_the_definition() {
    let all = leaves(1_025);
    // Whole trees while they are small, then those around whole tiles.
    for size in (1..=130).chain([255, 256, 257, 511, 512, 513, 1_023, 1_024, 1_025]) {
        let leaves = &all[..size];
        let tiles = by_definition(leaves);
        let step = if size > 130 { 7 } else { 1 };
        for index in (0..size).step_by(step).chain([size - 1]) {
            let (at, of) = (as_index(index), as_index(size));
            // What is named is enough, and what is there.
            let named = InclusionProof::tiles(at, of).unwrap();
            let mut read = Tiles::default();
            for tile in &named {
                let tile = tiles.iter().find(|one| one.index() == *tile);
                read.insert(tile.unwrap().clone());
            }
            let proof = InclusionProof::read(at, of, &read).unwrap();
            assert_eq!(proof.hashes, path(index, leaves), "{index} of {size}");
            assert_eq!(proof.verify(&leaves[index], at, &head(leaves)), Ok(()));
            // And none of it is too much.
            for left_out in &named {
                let others = tiles.iter().filter(|one| one.index() != *left_out);
                let others = collected(others.cloned().collect());
                let said = InclusionProof::read(at, of, &others);
                assert_eq!(said, Err(Unreadable::Missing(*left_out)));
            }
        }
    }
}

#[test]
fn u1_a_leaf_is_no_node_and_a_node_no_leaf() {
    let four = leaves(4);
    let right = head(&four);
    let nodes = [head(&four[..2]).root, head(&four[2..]).root];
    // The root is also that of a tree of two leaves with these hashes; but at another size.
    let proof = InclusionProof {
        hashes: vec![nodes[1]],
    };
    let length = InvalidProof::Length {
        given: 1,
        expected: 2,
    };
    assert_eq!(proof.verify(&nodes[0], 0, &right), Err(length));
    let as_entry = crate::merkle::leaf_hash(&[four[0], four[1]].concat());
    let two = TreeHead { size: 2, ..right };
    let root = InvalidProof::Root { size: 2 };
    assert_eq!(proof.verify(&as_entry, 0, &two), Err(root));
}

#[test]
fn u1_what_is_not_in_the_tree_is_neither_proved_nor_read() {
    let tree = head(&leaves(5));
    let empty = head(&[]);
    let proof = InclusionProof::default();
    for (index, tree) in [(5, tree), (6, tree), (u64::MAX, tree), (0, empty)] {
        let size = tree.size;
        let said = proof.verify(&[0; 32], index, &tree);
        assert_eq!(said, Err(InvalidProof::NoLeaf { index, size }));
        let none = Unreadable::NoLeaf { index, size };
        assert_eq!(InclusionProof::tiles(index, size), Err(none));
        let said = InclusionProof::read(index, size, &Tiles::default());
        assert_eq!(said, Err(none));
    }
    let size = limits::TREE_SIZE_MAX + 1;
    assert_eq!(
        InclusionProof::tiles(0, size),
        Err(Unreadable::Size { size })
    );
    for size in [size, u64::MAX] {
        let beyond = TreeHead { size, ..tree };
        let said = proof.verify(&[0; 32], 0, &beyond);
        assert!(matches!(said, Err(InvalidProof::Length { .. })));
    }
}

proptest! {
    #[test]
    fn u1_a_proof_of_another_length_proves_nothing(
        size in 1u64..1_025,
        index in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
    ) {
        let leaves = leaves(size);
        let (index, right) = (index.index(leaves.len()), head(&leaves));
        let hashes = Tree::new(leaves.clone()).path(index).unwrap();
        let expected = hashes.len();
        let mut longer = hashes.clone();
        longer.insert(at.index(expected + 1), leaves[0]);
        let mut others = vec![longer, Vec::new()];
        if expected > 0 {
            let mut shorter = hashes;
            shorter.remove(at.index(expected));
            others.push(shorter);
        }
        for hashes in others {
            let given = hashes.len();
            let said = InclusionProof { hashes }.verify(&leaves[index], as_index(index), &right);
            if given == expected {
                prop_assert_eq!(said, Ok(()));
            } else {
                prop_assert_eq!(said, Err(InvalidProof::Length { given, expected }));
            }
        }
    }
}
