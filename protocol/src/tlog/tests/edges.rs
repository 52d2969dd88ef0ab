//! Paths and coordinates, in their one form.

use proptest::prelude::*;

use super::super::*;

fn parse(path: &str) -> Result<Resource, InvalidPath> {
    path.parse()
}

proptest! {
    #[test]
    fn u1_every_path_comes_back(level in 0u8..8, shift in 0u32..64, seed: u64, width in 1u16..=256) {
        let index = seed >> shift;
        match TileIndex::new(level, index, width) {
            Ok(tile) => {
                prop_assert_eq!(parse(&tile.to_string()), Ok(Resource::Tile(tile)));
                let span = (u128::from(index) * 256 + u128::from(width)) << (8 * level);
                prop_assert!(span <= u128::from(limits::TREE_SIZE_MAX));
            }
            Err(error) => prop_assert_eq!(error, InvalidIndex::Beyond { level, index }),
        }
        if let Ok(bundle) = BundleIndex::new(index, width) {
            prop_assert_eq!(parse(&bundle.to_string()), Ok(Resource::Entries(bundle)));
        }
    }

    #[test]
    fn u1_what_is_read_is_in_its_one_form(path in "(tile/)?(entries|[0-9]{0,3})/(x?[0-9]{2,4}/?){0,4}(\\.p/[0-9]{0,4})?") {
        if let Ok(resource) = parse(&path) {
            prop_assert_eq!(resource.to_string(), path);
        }
    }

    #[test]
    fn u1_no_path_panics(path in any::<String>(), tail in "\\PC{0,50}") {
        let _ = parse(&path);
        let _ = parse(&format!("tile/{tail}"));
        let _ = parse(&format!("tile/0/{tail}"));
        let _ = parse(&format!("tile/entries/{tail}"));
    }
}

#[test]
fn u1_paths_are_those_of_the_specification() {
    let tile = |level, index, width| TileIndex::new(level, index, width).unwrap().to_string();
    assert_eq!(tile(0, 1_234_067, 256), "tile/0/x001/x234/067");
    assert_eq!(tile(0, 0, 1), "tile/0/000.p/1");
    assert_eq!(tile(2, 999, 255), "tile/2/999.p/255");
    assert_eq!(tile(1, 1_000, 256), "tile/1/x001/000");
    let bundle = BundleIndex::new(1_234_067, 17).unwrap();
    assert_eq!(bundle.to_string(), "tile/entries/x001/x234/067.p/17");
    assert_eq!(Resource::Entries(bundle).to_string(), bundle.to_string());
    assert_eq!(parse("checkpoint"), Ok(Resource::Checkpoint));
    assert_eq!(Resource::Checkpoint.to_string(), "checkpoint");
}

#[test]
fn u1_paths_that_are_written_otherwise_are_refused() {
    use InvalidPath::{Index, Level, Unknown, Width};
    let cases = [
        ("", Unknown),
        ("/checkpoint", Unknown),
        ("checkpoint/", Unknown),
        ("tile", Unknown),
        ("tile/0", Unknown),
        ("tiles/0/000", Unknown),
        ("/tile/0/000", Unknown),
        ("tile//000", Level),
        ("tile/00/000", Level),
        ("tile/+1/000", Level),
        ("tile/-1/000", Level),
        ("tile/64/000", Level),
        ("tile/256/000", Level),
        ("tile/a/000", Level),
        ("tile/data/000", Level),
        ("tile/0/", Index),
        ("tile/0/0", Index),
        ("tile/0/00", Index),
        ("tile/0/0000", Index),
        ("tile/0/000/", Index),
        ("tile/0//000", Index),
        ("tile/0/x000/000", Index),
        ("tile/0/x000/x001/000", Index),
        ("tile/0/001/000", Index),
        ("tile/0/x001", Index),
        ("tile/0/x001/x000", Index),
        ("tile/0/X001/000", Index),
        ("tile/0/xx01/000", Index),
        ("tile/0/+01", Index),
        ("tile/0/x018/x446/x744/x073/x709/x551/616", Index),
        ("tile/entries/x000/000", Index),
        ("tile/0/000.p", Index),
        ("tile/0/000.P/1", Index),
        ("tile/0/000.p/", Width),
        ("tile/0/000.p/0", Width),
        ("tile/0/000.p/01", Width),
        ("tile/0/000.p/256", Width),
        ("tile/0/000.p/+1", Width),
        ("tile/0/000.p/1/", Width),
        ("tile/0/000.p/1.p/1", Width),
        ("tile/entries/000.p/256", Width),
    ];
    for (path, error) in cases {
        assert_eq!(parse(path), Err(error), "{path}");
    }
    let long = format!("tile/0/{}000", "x001/".repeat(20));
    assert_eq!(parse(&long), Err(Unknown));
}

#[test]
fn u1_there_is_no_tile_beyond_the_largest_tree() {
    let beyond = |level, index| InvalidIndex::Beyond { level, index };
    let said = TileIndex::new(8, 0, 1);
    assert_eq!(said, Err(beyond(8, 0)));
    assert_eq!(TileIndex::new(255, 0, 1), Err(beyond(255, 0)));
    assert_eq!(parse("tile/63/000"), Err(beyond(63, 0).into()));
    assert!(TileIndex::new(7, 0, 127).is_ok());
    assert_eq!(TileIndex::new(7, 0, 128), Err(beyond(7, 0)));
    assert_eq!(TileIndex::new(7, 1, 1), Err(beyond(7, 1)));
    assert!(TileIndex::new(0, (1 << 55) - 1, 255).is_ok());
    let full = TileIndex::new(0, (1 << 55) - 1, 256);
    assert_eq!(full, Err(beyond(0, (1 << 55) - 1)));
    assert_eq!(TileIndex::new(0, u64::MAX, 1), Err(beyond(0, u64::MAX)));
    assert_eq!(
        TileIndex::new(0, 0, 0),
        Err(InvalidIndex::Width { width: 0 })
    );
    assert_eq!(
        TileIndex::new(0, 0, 257),
        Err(InvalidIndex::Width { width: 257 })
    );
    let last = new_tiles(limits::TREE_SIZE_MAX - 1, limits::TREE_SIZE_MAX);
    let last: Vec<String> = last.map(|tile| tile.to_string()).collect();
    assert_eq!(last, ["tile/0/x036/x028/x797/x018/x963/967.p/255"]);
}
