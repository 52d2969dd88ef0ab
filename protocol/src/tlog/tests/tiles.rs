use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::*;
use super::{by_definition, collected, head, leaves};
use crate::merkle::{Hash, leaf_hash};

/// Grows a log in steps, each by a writer that knows only the tiles that were written.
fn grown(steps: &[u64], leaves: &[Hash]) -> BTreeMap<String, Vec<u8>> {
    let mut written: BTreeMap<TileIndex, Tile> = BTreeMap::new();
    let mut rest = leaves.iter();
    let mut size = 0;
    for step in steps {
        let known = RightEdge::tiles(size);
        let known = known.iter().map(|tile| written[tile].clone()).collect();
        let mut edge = RightEdge::resume(size, &collected(known)).unwrap();
        let mut new = Vec::new();
        for leaf in rest.by_ref().take((*step).try_into().unwrap()) {
            new.extend(edge.push(*leaf).unwrap());
        }
        new.extend(edge.partial_tiles_since(size));
        let mut named: Vec<TileIndex> = new.iter().map(Tile::index).collect();
        named.sort_unstable();
        assert_eq!(named, new_tiles(size, edge.size()).collect::<Vec<_>>());
        size = edge.size();
        let so_far = &leaves[..size.try_into().unwrap()];
        assert_eq!(edge.head(), head(so_far), "{size}");
        written.extend(new.into_iter().map(|tile| (tile.index(), tile)));
    }
    // A partial tile may go once there is the full one, or the wider.
    let kept = |tile: &&Tile| {
        let place = tile.index();
        let wider = written.keys().any(|other| {
            (other.level(), other.index()) == (place.level(), place.index())
                && other.width() > place.width()
        });
        !wider
    };
    let kept = written.values().filter(kept);
    kept.map(|tile| (tile.index().to_string(), tile.encode()))
        .collect()
}

fn at_once(leaves: &[Hash]) -> BTreeMap<String, Vec<u8>> {
    let tiles = by_definition(leaves).into_iter();
    tiles
        .map(|tile| (tile.index().to_string(), tile.encode()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn u1_tiles_grown_in_steps_are_the_tiles_of_the_definition(
        steps in prop::collection::vec(0u64..700, 1..8),
    ) {
        let leaves = leaves(steps.iter().sum());
        prop_assert_eq!(grown(&steps, &leaves), at_once(&leaves));
    }

    #[test]
    fn u1_a_bundle_comes_back_and_has_the_hashes_of_its_tile(
        entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..=256),
    ) {
        let entries: Vec<&[u8]> = entries.iter().map(Vec::as_slice).collect();
        let bundle = EntryBundle::new(entries.clone()).unwrap();
        let bytes = bundle.encode();
        let width = entries.len().try_into().unwrap();
        let read = EntryBundle::decode(&bytes, width);
        prop_assert_eq!(read.as_ref(), Ok(&bundle));
        prop_assert_eq!(bundle.entries(), &entries);
        let hashes: Vec<Hash> = entries.iter().map(|entry| leaf_hash(entry)).collect();
        prop_assert_eq!(bundle.leaf_hashes().collect::<Vec<_>>(), hashes);
        // Cut short, or with more after it, or read as of another width, it is no bundle.
        for end in 0..bytes.len() {
            let cut = EntryBundle::decode(&bytes[..end], width);
            let truncated = matches!(cut, Err(InvalidBundle::Truncated { .. }));
            prop_assert!(truncated, "{:?}", cut);
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        let overrun = InvalidBundle::Overrun { excess: 1, width };
        prop_assert_eq!(EntryBundle::decode(&longer, width), Err(overrun));
        prop_assert!(EntryBundle::decode(&bytes, width - 1).is_err());
        prop_assert!(EntryBundle::decode(&bytes, width + 1).is_err());
    }
}

#[test]
fn u1_a_tree_has_the_tiles_that_the_specification_counts() {
    let count = |size| {
        let mut count: BTreeMap<(u8, u16), usize> = BTreeMap::new();
        for tile in new_tiles(0, size) {
            *count.entry((tile.level(), tile.width())).or_default() += 1;
        }
        count
    };
    let of_70_000 = [
        ((0, 256), 273),
        ((0, 112), 1),
        ((1, 256), 1),
        ((1, 17), 1),
        ((2, 1), 1),
    ];
    assert_eq!(count(70_000), of_70_000.into());
    assert_eq!(count(256), [((0, 256), 1), ((1, 1), 1)].into());
    assert_eq!(count(0), [].into());
    let leaves = leaves(70_000);
    assert_eq!(grown(&[69_999, 1], &leaves), at_once(&leaves));
}

#[test]
fn u1_only_what_changed_is_new() {
    let shown = |from, to| -> Vec<String> {
        let tiles = new_tiles(from, to);
        tiles.map(|tile| tile.to_string()).collect()
    };
    assert_eq!(shown(0, 1), ["tile/0/000.p/1"]);
    assert_eq!(shown(1, 1), [""; 0]);
    assert_eq!(shown(2, 1), [""; 0]);
    assert_eq!(shown(600, 300), [""; 0]);
    assert_eq!(shown(255, 256), ["tile/0/000", "tile/1/000.p/1"]);
    assert_eq!(shown(256, 257), ["tile/0/001.p/1"]);
    let across = [
        "tile/0/000",
        "tile/0/001",
        "tile/0/002.p/1",
        "tile/1/000.p/2",
    ];
    assert_eq!(shown(255, 513), across);
    let bundles: Vec<String> = new_bundles(255, 513).map(|one| one.to_string()).collect();
    let across = [
        "tile/entries/000",
        "tile/entries/001",
        "tile/entries/002.p/1",
    ];
    assert_eq!(bundles, across);
    let last = new_bundles(255, 513).last().unwrap();
    assert_eq!(
        (last.first_entry(), last.width(), last.index()),
        (512, 1, 2)
    );
    assert_eq!(last.tile(), TileIndex::new(0, 2, 1).unwrap());
}

#[test]
fn u1_a_bundle_has_1_to_256_entries_of_up_to_65535_bytes() {
    let none = InvalidBundle::Width { entries: 0 };
    assert_eq!(EntryBundle::new(Vec::new()), Err(none));
    assert_eq!(EntryBundle::decode(&[], 0), Err(none));
    let many = InvalidBundle::Width { entries: 257 };
    assert_eq!(EntryBundle::new(vec![b"".as_slice(); 257]), Err(many));
    let zeros = [0; 514];
    assert_eq!(EntryBundle::decode(&zeros, 257), Err(many));
    let largest = vec![7; limits::ENTRY_BYTES_MAX + 1];
    let largest_that_fits = vec![&largest[1..]; 256];
    let bundle = EntryBundle::new(largest_that_fits).unwrap();
    let bytes = bundle.encode();
    assert_eq!(bytes.len(), 256 * 65_537);
    assert_eq!(EntryBundle::decode(&bytes, 256), Ok(bundle));
    let too_large = InvalidBundle::Entry {
        entry: 1,
        given: 65_536,
    };
    let entries = vec![b"".as_slice(), &largest];
    assert_eq!(EntryBundle::new(entries), Err(too_large));
}

#[test]
fn u1_a_tile_has_exactly_the_bytes_of_its_hashes() {
    let index = TileIndex::new(0, 0, 2).unwrap();
    for given in [0, 32, 63, 65, 96] {
        let invalid = InvalidTile { tile: index, given };
        assert_eq!(Tile::decode(index, &vec![0; given]), Err(invalid));
    }
    let tile = Tile::decode(index, &[9; 64]).unwrap();
    assert_eq!(
        (tile.hashes(), tile.encode()),
        ([[9; 32]; 2].as_slice(), vec![9; 64])
    );
}

#[test]
fn u1_a_full_tile_stands_with_its_root_in_the_tile_above() {
    let tiles = by_definition(&leaves(600));
    let above = tiles.iter().find(|tile| tile.index().level() == 1).unwrap();
    for (tile, hash) in tiles.iter().zip(above.hashes()) {
        assert!(tile.index().is_full());
        assert_eq!(tile.root(), *hash);
    }
}

#[test]
fn u1_an_edge_resumes_from_wider_tiles_and_names_what_it_lacks() {
    let leaves = leaves(1_000);
    let all = collected(by_definition(&leaves));
    for size in (0..=1_000_u16).step_by(37) {
        let edge = RightEdge::resume(size.into(), &all).unwrap();
        assert_eq!(edge.head(), head(&leaves[..size.into()]));
    }
    let missing = RightEdge::tiles(1_000)[0];
    let lacks = RightEdge::resume(1_000, &Tiles::default()).unwrap_err();
    assert_eq!(lacks, Unreadable::Missing(missing));
    assert_eq!(
        lacks.to_string(),
        "`tile/0/003.p/232` is missing, or not as wide"
    );
    let narrower = collected(by_definition(&leaves[..999]));
    let lacks = RightEdge::resume(1_000, &narrower).unwrap_err();
    assert_eq!(lacks, Unreadable::Missing(missing));
}

#[test]
fn u1_a_tree_ends_at_the_largest_size() {
    let size = limits::TREE_SIZE_MAX;
    let mut edge = Tiles::default();
    for index in RightEdge::tiles(size) {
        let bytes = vec![1; usize::from(index.width()) * 32];
        edge.insert(Tile::decode(index, &bytes).unwrap());
    }
    let mut last = RightEdge::resume(size - 1, &edge).unwrap();
    assert_eq!(last.push([1; 32]), Ok(Vec::new()));
    assert_eq!(last, RightEdge::resume(size, &edge).unwrap());
    let head = last.head();
    assert_eq!(last.push([1; 32]), Err(TreeFull));
    assert_eq!(last.head(), head);
    let beyond = Unreadable::Size { size: size + 1 };
    assert_eq!(RightEdge::resume(size + 1, &edge), Err(beyond));
    // And every leaf of it can be proved.
    for index in [0, 255, size / 2, size - 1] {
        let tiles = InclusionProof::tiles(index, size).unwrap();
        assert!(tiles.len() <= 8 + 7, "{tiles:?}");
        let made = tiles.iter().map(|tile| {
            let bytes = vec![1; usize::from(tile.width()) * 32];
            Tile::decode(*tile, &bytes).unwrap()
        });
        let made = collected(made.collect());
        let proof = InclusionProof::read(index, size, &made).unwrap();
        assert!(proof.hashes.len() <= limits::PROOF_HASHES_MAX);
    }
}
