use proptest::prelude::*;

use super::super::*;
use super::{by_definition, collected, head, leaves};
use crate::merkle::{Hash, Tree};

/// `PROOF(m, D[n])` of RFC 6962, section 2.1.2, word for word.
fn proof(from: usize, leaves: &[Hash]) -> Vec<Hash> {
    subproof(from, leaves, true)
}

fn subproof(from: usize, leaves: &[Hash], whole: bool) -> Vec<Hash> {
    let root = |leaves: &[Hash]| Tree::new(leaves.to_vec()).root();
    if from == leaves.len() {
        return if whole {
            Vec::new()
        } else {
            vec![root(leaves)]
        };
    }
    let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
    let (mut proof, sibling) = if from <= left.len() {
        (subproof(from, left, whole), right)
    } else {
        (subproof(from - left.len(), right, false), left)
    };
    proof.push(root(sibling));
    proof
}

/// Reads a proof with only the tiles that it says it needs.
fn read(from: u64, to: u64, tiles: &[Tile]) -> ConsistencyProof {
    let named = ConsistencyProof::tiles(from, to).unwrap();
    let needed = tiles.iter().filter(|tile| named.contains(&tile.index()));
    let needed: Vec<Tile> = needed.cloned().collect();
    assert_eq!(needed.len(), named.len(), "{from} to {to}");
    ConsistencyProof::read(from, to, &collected(needed)).unwrap()
}

#[test]
fn u1_every_tree_begins_with_every_smaller_one() {
    let all = leaves(131);
    for to in 1..=130 {
        let tiles = by_definition(&all[..to]);
        let new = head(&all[..to]);
        for from in 1..=to {
            let old = head(&all[..from]);
            let made = read(from as u64, to as u64, &tiles);
            assert_eq!(made.hashes, proof(from, &all[..to]), "{from} to {to}");
            assert_eq!(made.verify(&old, &new), Ok(()), "{from} to {to}");
            // Neither with another history nor as a proof of something else.
            let mut forged = all[..from].to_vec();
            forged[from / 2][0] ^= 1;
            assert!(made.verify(&head(&forged), &new).is_err());
            assert!(made.verify(&old, &head(&all[..=to])).is_err());
            let mut other = all[..to].to_vec();
            other[to - 1][31] ^= 0x80;
            assert!(made.verify(&old, &head(&other)).is_err());
            if from < to {
                let shrunk = InvalidProof::Shrunk {
                    from: new.size,
                    to: old.size,
                };
                assert_eq!(made.verify(&new, &old), Err(shrunk));
                assert!(made.verify(&head(&all[..=from]), &new).is_err());
            }
            for at in 0..=made.hashes.len() {
                let mut changed = made.clone();
                changed.hashes.insert(at, all[0]);
                let (given, expected) = (made.hashes.len() + 1, made.hashes.len());
                let length = InvalidProof::Length { given, expected };
                assert_eq!(changed.verify(&old, &new), Err(length));
            }
            for at in 0..made.hashes.len() {
                let mut changed = made.clone();
                let bit = from * 31 + to * 7;
                changed.hashes[at][bit / 8 % 32] ^= 1 << (bit % 8);
                assert!(changed.verify(&old, &new).is_err(), "{from} to {to}");
                changed.hashes.remove(at);
                let (given, expected) = (made.hashes.len() - 1, made.hashes.len());
                let length = InvalidProof::Length { given, expected };
                assert_eq!(changed.verify(&old, &new), Err(length));
            }
        }
    }
}

#[test]
fn u1_the_proof_from_nothing_is_empty_and_so_is_that_to_the_same() {
    let (empty, five) = (head(&[]), head(&leaves(5)));
    let nothing = ConsistencyProof::default();
    assert_eq!(nothing.verify(&empty, &five), Ok(()));
    assert_eq!(nothing.verify(&empty, &empty), Ok(()));
    assert_eq!(nothing.verify(&five, &five), Ok(()));
    for to in [0, 5] {
        assert_eq!(ConsistencyProof::tiles(0, to), Ok(Vec::new()));
        assert_eq!(ConsistencyProof::tiles(to, to), Ok(Vec::new()));
        let read = ConsistencyProof::read(0, to, &Tiles::default());
        assert_eq!(read, Ok(nothing.clone()));
    }
    let something = ConsistencyProof {
        hashes: vec![five.root],
    };
    let length = InvalidProof::Length {
        given: 1,
        expected: 0,
    };
    assert_eq!(something.verify(&empty, &five), Err(length));
    assert_eq!(something.verify(&five, &five), Err(length));
    // A tree without leaves has one root, and equal sizes have equal roots.
    let wrong = TreeHead { size: 0, ..five };
    let root = |size| Err(InvalidProof::Root { size });
    assert_eq!(nothing.verify(&wrong, &five), root(0));
    assert_eq!(nothing.verify(&empty, &wrong), root(0));
    assert_eq!(nothing.verify(&wrong, &wrong), root(0));
    let other = TreeHead {
        root: [1; 32],
        ..five
    };
    assert_eq!(nothing.verify(&five, &other), root(5));
    let shrunk = InvalidProof::Shrunk { from: 5, to: 0 };
    assert_eq!(nothing.verify(&five, &empty), Err(shrunk));
    let shrunk = Unreadable::Shrunk { from: 5, to: 4 };
    assert_eq!(ConsistencyProof::tiles(5, 4), Err(shrunk));
    let size = limits::TREE_SIZE_MAX + 1;
    assert_eq!(
        ConsistencyProof::tiles(1, size),
        Err(Unreadable::Size { size })
    );
    for (from, to) in [(1, u64::MAX), (u64::MAX - 1, u64::MAX), (1 << 63, u64::MAX)] {
        let (old, new) = (
            TreeHead { size: from, ..five },
            TreeHead { size: to, ..five },
        );
        assert!(nothing.verify(&old, &new).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn u1_a_large_tree_begins_with_every_smaller_one(
        to in 130u64..20_000,
        from in any::<prop::sample::Index>(),
        bit in any::<prop::sample::Index>(),
    ) {
        let all = leaves(to);
        let from = from.index(all.len()) + 1;
        let (old, new) = (head(&all[..from]), head(&all));
        let made = read(from as u64, to, &by_definition(&all));
        prop_assert_eq!(&made.hashes, &proof(from, &all));
        prop_assert_eq!(made.verify(&old, &new), Ok(()));
        if !made.hashes.is_empty() {
            let bit = bit.index(made.hashes.len() * 256);
            let mut changed = made;
            changed.hashes[bit / 256][bit / 8 % 32] ^= 1 << (bit % 8);
            prop_assert!(changed.verify(&old, &new).is_err());
        }
    }

    #[test]
    fn u1_no_proof_panics(
        hashes in prop::collection::vec(any::<[u8; 32]>(), 0..70),
        sizes in any::<[u64; 2]>(),
        small in 0u64..300,
        root: [u8; 32],
    ) {
        for size in [sizes[0], sizes[0] >> 1, small] {
            for other in [sizes[1], small, size.wrapping_add(small)] {
                let (one, two) = (TreeHead { size, root }, TreeHead { size: other, root });
                let proof = ConsistencyProof { hashes: hashes.clone() };
                let _ = proof.verify(&one, &two);
                drop(ConsistencyProof::read(size, other, &Tiles::default()));
                let proof = InclusionProof { hashes: hashes.clone() };
                let _ = proof.verify(&root, size, &two);
                drop(InclusionProof::read(size, other, &Tiles::default()));
                drop(RightEdge::resume(size, &Tiles::default()));
                let _ = new_tiles(size.max(other) - small.min(other), other).count();
            }
        }
    }
}
