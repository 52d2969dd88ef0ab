//! Where the events of a stream are in an archive: a node, command or batch has few events among
//! many, and the log is ordered by position alone.
//!
//! Written when a range of the log leaves the database, in portions of at most 2²⁰ positions, each as
//! 16 files of sorted pairs. Nothing is proved by them: whoever finds an event holds it against the
//! tree, and versions without a gap show that none is missing.

use uuid::Uuid;

use super::{Archive, ArchiveError};

/// Positions of one portion.
const PORTION: u64 = 1 << 20;
/// Files of one portion; the low bits of a UUIDv7 are random (RFC 9562, section 5.7).
const SHARDS: u8 = 16;
/// A stream and a position, both big-endian.
const PAIR_BYTES: usize = 16 + 8;
/// A portion that is one stream's alone.
const BYTES_MAX: usize = PAIR_BYTES << 20;

/// A range of positions, both ends in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
}

impl Range {
    fn file(self, shard: u8) -> String {
        format!("streams/{}-{}/{shard:x}", self.first, self.last)
    }

    fn has(self, position: u64) -> bool {
        (self.first..=self.last).contains(&position)
    }
}

/// The portions of a range.
fn portions(first: u64, last: u64) -> impl DoubleEndedIterator<Item = Range> {
    let first = first.max(1);
    (first / PORTION..=last / PORTION)
        .map(move |number| Range {
            first: first.max(number * PORTION),
            last: last.min(number * PORTION + PORTION - 1),
        })
        .filter(|range| range.first <= range.last)
}

fn shard(stream: Uuid) -> u8 {
    stream.as_bytes()[15] % SHARDS
}

/// What is gathered while a range is read in the order of its positions.
#[derive(Debug)]
pub(crate) struct Gathered {
    portions: Vec<Range>,
    pairs: Vec<(Uuid, u64)>,
}

impl Gathered {
    /// Nothing of this range yet.
    pub(crate) fn new(first: u64, last: u64) -> Self {
        let mut portions: Vec<Range> = portions(first, last).collect();
        portions.reverse();
        Self {
            portions,
            pairs: Vec::new(),
        }
    }

    /// Takes in the next event, and writes a portion that is over.
    pub(crate) async fn add(
        &mut self,
        archive: &Archive,
        stream: Uuid,
        position: u64,
    ) -> Result<(), ArchiveError> {
        let Some(portion) = self.portions.last().copied() else {
            return Ok(());
        };
        if !portion.has(position) {
            return Ok(());
        }
        self.pairs.push((stream, position));
        if position < portion.last {
            return Ok(());
        }
        self.portions.pop();
        self.pairs.sort_unstable();
        for number in 0..SHARDS {
            let own = self.pairs.iter().filter(|(of, _)| shard(*of) == number);
            let bytes = own
                .flat_map(|(of, at)| of.into_bytes().into_iter().chain(at.to_be_bytes()))
                .collect();
            archive
                .write_file(portion.file(number), bytes, BYTES_MAX)
                .await?;
        }
        self.pairs.clear();
        Ok(())
    }
}

/// The positions of a stream in these ranges, as [`Gathered`] wrote them, the newest first.
#[derive(Debug)]
pub(crate) struct Positions {
    stream: Uuid,
    /// Portions that were not looked at yet, the newest last.
    portions: Vec<Range>,
    /// Positions of the portion at hand, the newest last.
    found: Vec<u64>,
}

impl Positions {
    /// `ends` are the last positions of the ranges, in order; the first begins at 1.
    pub(crate) fn of(stream: Uuid, ends: &[u64]) -> Self {
        let mut first = 1;
        let mut ranges = Vec::new();
        for last in ends {
            ranges.extend(portions(first, *last));
            first = last + 1;
        }
        Self {
            stream,
            portions: ranges,
            found: Vec::new(),
        }
    }

    /// The next one.
    pub(crate) async fn next(&mut self, archive: &Archive) -> Result<Option<u64>, ArchiveError> {
        loop {
            if let Some(position) = self.found.pop() {
                return Ok(Some(position));
            }
            let Some(portion) = self.portions.pop() else {
                return Ok(None);
            };
            let file = portion.file(shard(self.stream));
            let bytes = archive.read_file(file.clone(), BYTES_MAX).await?;
            let bytes = bytes.ok_or(ArchiveError::Missing { file })?;
            let pairs = bytes.as_chunks::<PAIR_BYTES>().0;
            let own = |pair: &&[u8; PAIR_BYTES]| pair.starts_with(self.stream.as_bytes());
            let position = |pair: &[u8; PAIR_BYTES]| {
                let (_, number) = pair.split_last_chunk().unwrap_or((&[], &[0; 8]));
                u64::from_be_bytes(*number)
            };
            let own = pairs.iter().filter(own).map(position);
            self.found = own.filter(|position| portion.has(*position)).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u2_portions_cover_a_range_once() {
        for (first, last) in [
            (0, 1),
            (1, PORTION - 1),
            (1, PORTION),
            (5, 3 * PORTION + 7),
            (PORTION, 2 * PORTION - 1),
            (9_999_999, 20_000_000),
        ] {
            let mut next = first.max(1);
            for portion in portions(first, last) {
                assert_eq!(portion.first, next);
                assert!(portion.last - portion.first < PORTION);
                next = portion.last + 1;
            }
            assert_eq!(next, last + 1, "{first} to {last}");
        }
    }
}
