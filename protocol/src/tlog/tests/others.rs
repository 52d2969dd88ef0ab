//! The same from programs that others wrote: `ct-merkle`, `tlog_tiles` and `signed_note`.

use std::cell::RefCell;

use ct_merkle::mem_backed_tree::MemoryBackedTree;
use ed25519_dalek::SigningKey;
use proptest::prelude::*;
use sha2::Sha256;
use tlog_tiles::HashReader;

use super::super::*;
use super::{by_definition, collected, head, leaves};
use crate::merkle::{Hash, leaf_hash};

/// Go's order of stored hashes, as `tlog_tiles` keeps it.
#[derive(Default)]
struct Stored(RefCell<Vec<tlog_tiles::Hash>>);

impl HashReader for Stored {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<tlog_tiles::Hash>, tlog_tiles::Error> {
        let stored = self.0.borrow();
        let at = |index: &u64| stored[usize::try_from(*index).unwrap()];
        Ok(indexes.iter().map(at).collect())
    }
}

fn stored(leaves: &[Hash]) -> Stored {
    let stored = Stored::default();
    for (number, leaf) in (0..).zip(leaves) {
        let leaf = tlog_tiles::Hash(*leaf);
        let new = tlog_tiles::stored_hashes_for_record_hash(number, leaf, &stored).unwrap();
        stored.0.borrow_mut().extend(new);
    }
    stored
}

/// `tlog_tiles` writes the paths of Go's checksum database: with the height, and `data`.
fn c2sp_path(tile: &tlog_tiles::Tile) -> String {
    let path = tile.path().replacen("tile/8/", "tile/", 1);
    path.replacen("tile/data/", "tile/entries/", 1)
}

#[test]
fn u1_ct_merkle_makes_the_same_roots_and_proofs() {
    let mut others = MemoryBackedTree::<Sha256, Vec<u8>>::new();
    let all = leaves(300);
    for size in 1..=300_usize {
        others.push((size as u64 - 1).to_be_bytes().to_vec());
        let root = others.root();
        assert_eq!(root.as_bytes()[..], head(&all[..size]).root);
        if size > 40 && size % 13 != 0 && size != 256 {
            continue;
        }
        let tiles = collected(by_definition(&all[..size]));
        let of = size as u64;
        for index in 0..size {
            let ours = InclusionProof::read(index as u64, of, &tiles).unwrap();
            let theirs = others.prove_inclusion(index);
            assert_eq!(ours.hashes.concat(), theirs.as_bytes(), "{index} of {size}");
        }
        for from in 1..size {
            let ours = ConsistencyProof::read(from as u64, of, &tiles).unwrap();
            let theirs = others.prove_consistency(size - from);
            assert_eq!(ours.hashes.concat(), theirs.as_bytes(), "{from} to {size}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn u1_tlog_tiles_makes_the_same_tiles_roots_and_proofs(
        from in 0u64..1_200,
        more in 1u64..1_200,
        index in any::<prop::sample::Index>(),
    ) {
        let size = from + more;
        let leaves = leaves(size);
        let theirs = stored(&leaves);
        let tiles = by_definition(&leaves);
        let new: Vec<_> = tlog_tiles::Tile::new_tiles(8, from, size);
        let ours: Vec<String> = new_tiles(from, size).map(|tile| tile.to_string()).collect();
        prop_assert_eq!(ours, new.iter().map(c2sp_path).collect::<Vec<_>>());
        for tile in new {
            let ours = tiles.iter().find(|one| one.index().to_string() == c2sp_path(&tile));
            prop_assert_eq!(ours.unwrap().encode(), tile.read_data(&theirs).unwrap());
            if tile.level() == 0 {
                let mut data = tile;
                data.set_is_data();
                let width = data.width().try_into().unwrap();
                let ours = BundleIndex::new(data.level_index(), width).unwrap();
                prop_assert_eq!(ours.to_string(), c2sp_path(&data));
            }
        }
        let root = tlog_tiles::tree_hash(size, &theirs).unwrap();
        prop_assert_eq!(root.0, head(&leaves).root);
        let hashes = |proof: Vec<tlog_tiles::Hash>| -> Vec<Hash> {
            proof.into_iter().map(|hash| hash.0).collect()
        };
        let read = collected(tiles);
        let index = index.index(leaves.len()) as u64;
        let ours = InclusionProof::read(index, size, &read).unwrap();
        let proof = tlog_tiles::prove_record(size, index, &theirs).unwrap();
        prop_assert_eq!(ours.hashes, hashes(proof));
        if from > 0 {
            let ours = ConsistencyProof::read(from, size, &read).unwrap();
            let proof = tlog_tiles::prove_tree(size, from, &theirs).unwrap();
            prop_assert_eq!(ours.hashes, hashes(proof));
        }
    }

    #[test]
    fn u1_tlog_tiles_writes_the_same_paths(level in 0u8..8, shift in 0u32..64, seed: u64, width in 1u16..=256) {
        let index = seed >> shift;
        if let Ok(ours) = TileIndex::new(level, index, width) {
            let theirs = tlog_tiles::Tile::new(8, level, index, width.into(), false);
            prop_assert_eq!(ours.to_string(), c2sp_path(&theirs));
        }
    }

    #[test]
    fn u1_tlog_tiles_writes_and_reads_the_same_checkpoints(
        origin in "[a-z./ +—]{1,20}",
        size in 0..=limits::TREE_SIZE_MAX,
        root: [u8; 32],
    ) {
        let ours = Checkpoint::new(&origin, TreeHead { size, root }).unwrap();
        let theirs = tlog_tiles::Checkpoint::new(&origin, size, tlog_tiles::Hash(root), "");
        let theirs = theirs.unwrap().to_bytes();
        prop_assert_eq!(ours.to_string().into_bytes(), theirs);
    }

    #[test]
    fn u1_signed_note_makes_and_believes_the_same_notes(
        seed: [u8; 32],
        name in "[a-z./—]{1,20}",
        text in "[a-z —]{0,20}\n{1,3}[a-z]{0,9}\n",
    ) {
        use signed_note::{Note as Theirs, StandardVerifier, VerifierList};

        let ours = Signer::new(name.parse().unwrap(), SigningKey::from_bytes(&seed));
        let vkey = ours.verifier_key();
        let note = Note::new(text.clone(), vec![ours.sign(&text).unwrap()]).unwrap();
        let bytes = note.to_string().into_bytes();
        // They sign the same bytes with the same key, believe ours, and we theirs.
        let skey = format!(
            "PRIVATE+KEY+{name}+{:08x}+{}",
            vkey.id(),
            lines::encode(&[&[1], seed.as_slice()].concat()),
        );
        let signer = signed_note::StandardSigner::new(&skey).unwrap();
        let mut theirs = Theirs::new(text.as_bytes(), &[]).unwrap();
        theirs.add_sigs(&[&signer]).unwrap();
        prop_assert_eq!(&theirs.to_bytes(), &bytes);
        let verifier = StandardVerifier::new(&vkey.to_string()).unwrap();
        let known = VerifierList::new(vec![Box::new(verifier)]);
        let (verified, _) = Theirs::from_bytes(&bytes).unwrap().verify(&known).unwrap();
        prop_assert_eq!(verified.len(), 1);
        let keys = [vkey];
        let read = Note::parse(&theirs.to_bytes()).unwrap();
        prop_assert_eq!(read.verify(&keys).unwrap().len(), 1);
    }

    #[test]
    fn u1_signed_note_reads_and_refuses_the_same(
        text in "([a-z]{0,4}\n){0,4}",
        lines in "((— |—|- )[a-z+\u{a0} ]{0,3} (AAAAAAA=|AAAAAA==|AAAAAAB=|AAAAAAA|AAAAAAA= )\n{1,2}){0,3}",
    ) {
        let whole = format!("{text}\n{lines}");
        let theirs = signed_note::Note::from_bytes(whole.as_bytes());
        let ours = Note::parse(whole.as_bytes());
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?}", whole);
        if let Ok(ours) = ours {
            prop_assert_eq!(ours.to_string(), whole);
        }
    }
}

#[test]
fn u1_ct_merkle_hashes_leaves_of_any_bytes_alike() {
    let mut others = MemoryBackedTree::<Sha256, Vec<u8>>::new();
    let mut edge = RightEdge::new();
    for length in 0..300_usize {
        let leaf = vec![length.to_be_bytes()[7]; length];
        edge.push(leaf_hash(&leaf)).unwrap();
        others.push(leaf);
        assert_eq!(edge.head().root, others.root().as_bytes()[..]);
    }
}
