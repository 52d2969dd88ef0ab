//! Which tiles and bundles there are (C2SP tlog-tiles, "Merkle Tree" and "Log entries").

use super::limits::TREE_SIZE_MAX;

/// Hashes of a full tile, and entries of a full bundle.
pub const TILE_WIDTH: u16 = 256;
/// Levels of the tree that one tile spans.
pub(super) const TILE_HEIGHT: u32 = 8;
/// Levels of tiles that the largest tree has.
pub(super) const LEVELS: u8 = 8;

/// Coordinates that no tile has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIndex {
    /// The width.
    #[error("is {width} wide; a tile is 1 to {TILE_WIDTH} wide")]
    Width {
        /// What was given.
        width: u16,
    },
    /// The level or the index.
    #[error("is tile {index} of level {level}, which no tree of up to {TREE_SIZE_MAX} leaves has")]
    Beyond {
        /// What was given.
        level: u8,
        /// What was given.
        index: u64,
    },
}

/// Where a tile is, and how many hashes it has. Ordered by level, then from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileIndex {
    level: u8,
    index: u64,
    width: u16,
}

impl TileIndex {
    /// The tile `index` of `level`, `width` hashes wide.
    pub fn new(level: u8, index: u64, width: u16) -> Result<Self, InvalidIndex> {
        if !(1..=TILE_WIDTH).contains(&width) {
            return Err(InvalidIndex::Width { width });
        }
        let hashes = u128::from(index) * u128::from(TILE_WIDTH) + u128::from(width);
        // Beyond that level already one hash spans more leaves than there can be.
        let leaves = hashes << (TILE_HEIGHT * u32::from(level.min(LEVELS)));
        if leaves > u128::from(TREE_SIZE_MAX) {
            return Err(InvalidIndex::Beyond { level, index });
        }
        Ok(Self {
            level,
            index,
            width,
        })
    }

    /// The tile as a tree of `size` leaves has it: full, partial, or not at all.
    pub(super) fn in_tree(level: u8, index: u64, size: u64) -> Option<Self> {
        let before = index.checked_mul(TILE_WIDTH.into())?;
        let width = hashes_at(level, size).checked_sub(before)?;
        let width = u16::try_from(width).map_or(TILE_WIDTH, |width| width.min(TILE_WIDTH));
        Self::new(level, index, width).ok()
    }

    /// How many tiles lie between it and the leaves: at 0 it has the hashes of leaves, above that
    /// the hashes of full tiles.
    pub const fn level(self) -> u8 {
        self.level
    }

    /// How many tiles of its level are left of it.
    pub const fn index(self) -> u64 {
        self.index
    }

    /// How many hashes it has.
    pub const fn width(self) -> u16 {
        self.width
    }

    /// Whether nothing can be added to it.
    pub const fn is_full(self) -> bool {
        self.width == TILE_WIDTH
    }
}

/// Where a bundle of entries is, and how many it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleIndex(TileIndex);

impl BundleIndex {
    /// The bundle `index`, with `width` entries.
    pub fn new(index: u64, width: u16) -> Result<Self, InvalidIndex> {
        TileIndex::new(0, index, width).map(Self)
    }

    /// The tile with the hashes of its entries.
    pub const fn tile(self) -> TileIndex {
        self.0
    }

    /// How many bundles are left of it.
    pub const fn index(self) -> u64 {
        self.0.index
    }

    /// How many entries it has.
    pub const fn width(self) -> u16 {
        self.0.width
    }

    /// The index in the log of its first entry.
    pub const fn first_entry(self) -> u64 {
        self.0.index << TILE_HEIGHT
    }
}

/// How many hashes a level has in a tree of `size` leaves.
pub(super) fn hashes_at(level: u8, size: u64) -> u64 {
    size.checked_shr(TILE_HEIGHT * u32::from(level))
        .unwrap_or(0)
}

/// The tiles of a tree of `to` leaves that a tree of `from` leaves does not have, in order. A full
/// tile is among them when the smaller tree had part of it. None when the tree did not grow.
pub fn new_tiles(from: u64, to: u64) -> impl Iterator<Item = TileIndex> {
    (0..LEVELS).flat_map(move |level| {
        let (from, to) = (hashes_at(level, from), hashes_at(level, to));
        let width = u64::from(TILE_WIDTH);
        let first = if from < to { from / width } else { to / width };
        let full = (first..to / width).map(|index| (index, TILE_WIDTH));
        // A remainder by 256 fits.
        let rest = u16::try_from(to % width).unwrap_or(0);
        let partial = (from < to && rest > 0).then_some((to / width, rest));
        full.chain(partial)
            .filter_map(move |(index, width)| TileIndex::new(level, index, width).ok())
    })
}

/// The bundles of a log of `to` entries that a log of `from` entries does not have, in order.
pub fn new_bundles(from: u64, to: u64) -> impl Iterator<Item = BundleIndex> {
    new_tiles(from, to)
        .take_while(|tile| tile.level == 0)
        .map(BundleIndex)
}
