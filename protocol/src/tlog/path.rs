//! Where a log's resources are, below its URL prefix (C2SP tlog-tiles, "APIs").

use std::fmt;
use std::str::FromStr;

use super::index::{BundleIndex, InvalidIndex, TILE_WIDTH, TileIndex};

/// Longest path that is looked at, in bytes; the longest of a tile is shorter.
const PATH_BYTES_MAX: usize = 64;

/// A path that leads to nothing a log has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// Neither a checkpoint nor a tile.
    #[error("must be `checkpoint`, `tile/<level>/<index>` or `tile/entries/<index>`")]
    Unknown,
    /// The level is not written as it must be.
    #[error("the level must be a number from 0 to 63 without leading zeros")]
    Level,
    /// The index is not written as it must be.
    #[error(
        "the index must be groups of three digits, all but the last after an `x`, as few as possible"
    )]
    Index,
    /// The width is not written as it must be.
    #[error("the width of a partial tile must be a number from 1 to 255 without leading zeros")]
    Width,
    /// It is written well, and no tree has it.
    #[error(transparent)]
    Beyond(#[from] InvalidIndex),
}

/// What a log serves. Its text is the path below the log's URL prefix, without a slash in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The newest checkpoint; it alone changes.
    Checkpoint,
    /// A tile of hashes.
    Tile(TileIndex),
    /// A bundle of entries.
    Entries(BundleIndex),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint => f.write_str("checkpoint"),
            Self::Tile(tile) => tile.fmt(f),
            Self::Entries(bundle) => bundle.fmt(f),
        }
    }
}

impl fmt::Display for TileIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tile/{}/", self.level())?;
        write_index(f, self.index(), self.width())
    }
}

impl fmt::Display for BundleIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tile/entries/")?;
        write_index(f, self.index(), self.width())
    }
}

fn write_index(f: &mut fmt::Formatter<'_>, index: u64, width: u16) -> fmt::Result {
    let mut groups = vec![index % 1_000];
    let mut rest = index / 1_000;
    while rest > 0 {
        groups.push(rest % 1_000);
        rest /= 1_000;
    }
    for (place, group) in groups.iter().enumerate().rev() {
        let (mark, end) = if place > 0 { ("x", "/") } else { ("", "") };
        write!(f, "{mark}{group:03}{end}")?;
    }
    if width < TILE_WIDTH {
        write!(f, ".p/{width}")?;
    }
    Ok(())
}

impl FromStr for Resource {
    type Err = InvalidPath;

    fn from_str(path: &str) -> Result<Self, InvalidPath> {
        if path == "checkpoint" {
            return Ok(Self::Checkpoint);
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(InvalidPath::Unknown);
        }
        let below = path.strip_prefix("tile/").ok_or(InvalidPath::Unknown)?;
        let (kind, below) = below.split_once('/').ok_or(InvalidPath::Unknown)?;
        if kind == "entries" {
            let (index, width) = read_index(below)?;
            return Ok(Self::Entries(BundleIndex::new(index, width)?));
        }
        let level = number(kind).filter(|level| *level <= 63);
        let level = level.ok_or(InvalidPath::Level)?;
        let (index, width) = read_index(below)?;
        Ok(Self::Tile(TileIndex::new(level, index, width)?))
    }
}

/// A number of one to three digits, without leading zeros.
fn number(text: &str) -> Option<u8> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let short = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| digits && short)
}

fn read_index(text: &str) -> Result<(u64, u16), InvalidPath> {
    let (groups, width) = match text.split_once(".p/") {
        None => (text, TILE_WIDTH),
        Some((groups, width)) => {
            let width = number(width).filter(|width| *width > 0);
            (groups, width.ok_or(InvalidPath::Width)?.into())
        }
    };
    let (before, last) = groups.rsplit_once('/').unzip();
    let mut index = 0_u64;
    for group in before.into_iter().flat_map(|before| before.split('/')) {
        let group = group.strip_prefix('x').and_then(three_digits);
        let group = group.ok_or(InvalidPath::Index)?;
        // Without this, one tile would have many paths.
        if index == 0 && group == 0 {
            return Err(InvalidPath::Index);
        }
        index = append(index, group)?;
    }
    let last = three_digits(last.unwrap_or(groups)).ok_or(InvalidPath::Index)?;
    Ok((append(index, last)?, width))
}

fn three_digits(text: &str) -> Option<u64> {
    let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn append(index: u64, group: u64) -> Result<u64, InvalidPath> {
    let index = index.checked_mul(1_000);
    index
        .and_then(|index| index.checked_add(group))
        .ok_or(InvalidPath::Index)
}
