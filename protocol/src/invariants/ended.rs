//! Commands that have ended, in as few bytes as the rules allow: 32 for each, in blocks that are
//! nearly full.
//!
//! Nothing can be forgotten without a rule becoming weaker: an end must stay the only one (SPEC S4),
//! nothing but one late result may follow (SPEC S2), its version, node, kind and `seq` must fit, and
//! its id may never begin another stream. Deadlines, lane and batch are asked of live commands alone.

use std::collections::BTreeMap;

use super::command::{Phase, Tracked};
use crate::event::Outcome;
use crate::id::{CommandId, NodeId};
use crate::kind::Lane;
use crate::time::Timestamp;

/// Entries of a block. Ids begin with the time, so nearly all come in at the end of the last one.
const BLOCK: usize = 512;

/// An ended command. What does not fit these widths, which no honest log has, is left as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    id: [u8; 16],
    node: u32,
    seq: u32,
    version: u16,
    kind: u16,
    end: Outcome,
    flags: u8,
}

const SENT: u8 = 1;
const ATTESTED: u8 = 2;
const LATE: u8 = 4;

/// Size of an entry on the shelf.
pub(super) const ENTRY_BYTES: usize = 30;
/// Largest block on the shelf.
pub(super) const BLOCK_BYTES: usize = BLOCK * ENTRY_BYTES;

type Id = [u8; 16];

/// The ended commands by id. Each block has a lower bound, and holds what lies between that and the
/// next one's. Blocks that have not been asked for in a while may be on a shelf ([`super::Shelved`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ended {
    here: BTreeMap<Id, Block>,
    shelved: BTreeMap<Id, Shelf>,
    count: usize,
    nodes: Names<NodeId>,
    kinds: Names<String>,
}

/// Entries in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Block {
    entries: Vec<Entry>,
    /// The event that asked for it last, where there is a shelf.
    used: u64,
}

/// Where a block is that is not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shelf {
    /// Number of its place.
    pub(super) place: u64,
    /// Its size.
    pub(super) bytes: usize,
}

/// Each name once, by a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Names<T> {
    numbers: BTreeMap<T, usize>,
    names: Vec<T>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            names: Vec::new(),
        }
    }
}

impl<T: Ord + Clone> Names<T> {
    fn number(&mut self, name: &T) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(name.clone());
        self.numbers.insert(name.clone(), number);
        number
    }
}

impl Ended {
    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Takes in a command, unless it does not fit.
    pub(super) fn keep(&mut self, id: CommandId, command: &Tracked) -> bool {
        let Phase::Ended(end) = command.phase else {
            return false;
        };
        let (Ok(seq), Ok(version)) = (u32::try_from(command.seq), u16::try_from(command.version))
        else {
            return false;
        };
        let node = u32::try_from(self.nodes.number(&command.node));
        let kind = u16::try_from(self.kinds.number(&command.kind));
        let (Ok(node), Ok(kind)) = (node, kind) else {
            return false;
        };
        let flag = |holds: bool, flag| if holds { flag } else { 0 };
        self.insert(Entry {
            id: bytes(id),
            node,
            seq,
            version,
            kind,
            end,
            flags: flag(command.sent, SENT)
                | flag(command.attested, ATTESTED)
                | flag(command.late, LATE),
        });
        true
    }

    /// Gives a command back, as far as the rules ask of one that has ended.
    pub(super) fn take(&mut self, id: CommandId) -> Option<Tracked> {
        let id = bytes(id);
        let block = self.block_mut(id)?;
        let place = block.find(id).ok()?;
        // The block stays, also when it is empty: the command comes back to it.
        let entry = block.entries.remove(place);
        self.count -= 1;
        let never = Timestamp::from_micros(0);
        Some(Tracked {
            node: *self.nodes.names.get(entry.node as usize)?,
            kind: self.kinds.names.get(usize::from(entry.kind))?.clone(),
            batch: None,
            lane: Lane::Control,
            seq: entry.seq.into(),
            not_before: None,
            not_after: never,
            min_generation: None,
            timeout_seconds: 0,
            retry_at: None,
            phase: Phase::Ended(entry.end),
            sent: entry.flags & SENT != 0,
            attested: entry.flags & ATTESTED != 0,
            late: entry.flags & LATE != 0,
            version: entry.version.into(),
        })
    }

    /// How a command ended, if it is one of these, and here.
    pub(super) fn end(&self, id: CommandId) -> Option<Outcome> {
        let id = bytes(id);
        let (_, block) = self.here.range(..=id).next_back()?;
        let place = block.find(id).ok()?;
        Some(block.entries.get(place)?.end)
    }

    /// The block that the command is in, or would be, if that is here.
    fn block_mut(&mut self, id: Id) -> Option<&mut Block> {
        let (_, block) = self.here.range_mut(..=id).next_back()?;
        Some(block)
    }

    fn insert(&mut self, entry: Entry) {
        self.count += 1;
        let Some(block) = self.block_mut(entry.id) else {
            let mut entries = Vec::with_capacity(BLOCK);
            entries.push(entry);
            let used = 0;
            self.here.insert([0; 16], Block { entries, used });
            return;
        };
        let (Err(place) | Ok(place)) = block.find(entry.id);
        if block.entries.len() < BLOCK {
            block.entries.insert(place, entry);
            return;
        }
        // What comes late in a block is followed by more that does: it is left nearly full.
        let at = if place > BLOCK * 7 / 8 {
            BLOCK * 7 / 8
        } else {
            BLOCK / 2
        };
        let mut right = Vec::with_capacity(BLOCK);
        right.extend(block.entries.drain(at..));
        let bound = right.first().map_or(entry.id, |first| first.id);
        if place <= at {
            block.entries.insert(place, entry);
        } else {
            right.insert(place - at, entry);
        }
        let (entries, used) = (right, block.used);
        self.here.insert(bound, Block { entries, used });
    }

    /// The blocks that are here.
    pub(super) fn blocks(&self) -> usize {
        self.here.len()
    }

    /// The block on the shelf that the command would be in.
    pub(super) fn shelf(&self, id: CommandId) -> Option<Shelf> {
        let id = bytes(id);
        let (bound, away) = self.shelved.range(..=id).next_back()?;
        let nearer = self.here.range(*bound..=id).next_back();
        nearer.is_none().then_some(*away)
    }

    /// Takes back the block that [`Self::shelf`] told of. `None`: these are not the bytes of one.
    pub(super) fn take_back(&mut self, id: CommandId, block: &[u8]) -> Option<()> {
        let (bound, _) = self.shelved.range(..=bytes(id)).next_back()?;
        let bound = *bound;
        let mut entries = Vec::with_capacity(BLOCK);
        for entry in block.chunks(ENTRY_BYTES) {
            entries.push(Entry::decode(entry)?);
        }
        self.shelved.remove(&bound);
        let used = 0;
        self.here.insert(bound, Block { entries, used });
        Some(())
    }

    /// Notes that an event asked for the command's block.
    pub(super) fn used(&mut self, id: CommandId, position: u64) {
        if let Some(block) = self.block_mut(bytes(id)) {
            block.used = position;
        }
    }

    /// Lets go of the block that was not asked for longest, to be put at this place.
    pub(super) fn put_away(&mut self, place: u64) -> Option<Vec<u8>> {
        let oldest = self.here.iter().min_by_key(|(_, block)| block.used)?;
        let bound = *oldest.0;
        let block = self.here.remove(&bound)?;
        let mut encoded = Vec::with_capacity(BLOCK_BYTES);
        for entry in &block.entries {
            entry.encode(&mut encoded);
        }
        let bytes = encoded.len();
        self.shelved.insert(bound, Shelf { place, bytes });
        Some(encoded)
    }
}

fn bytes(id: CommandId) -> Id {
    id.uuid().into_bytes()
}

impl Block {
    /// Where the command is, or would be.
    fn find(&self, id: Id) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.id.cmp(&id))
    }
}

impl Entry {
    /// Appends its [`ENTRY_BYTES`].
    fn encode(&self, to: &mut Vec<u8>) {
        let end = Outcome::ALL.iter().position(|end| *end == self.end);
        let end = end.and_then(|end| u8::try_from(end).ok());
        to.extend(self.id);
        to.extend(self.node.to_be_bytes());
        to.extend(self.seq.to_be_bytes());
        to.extend(self.version.to_be_bytes());
        to.extend(self.kind.to_be_bytes());
        to.extend([end.unwrap_or(u8::MAX), self.flags]);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (node, rest) = rest.split_first_chunk()?;
        let (seq, rest) = rest.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let [end, flags] = rest else {
            return None;
        };
        Some(Self {
            id: *id,
            node: u32::from_be_bytes(*node),
            seq: u32::from_be_bytes(*seq),
            version: u16::from_be_bytes(*version),
            kind: u16::from_be_bytes(*kind),
            end: *Outcome::ALL.get(usize::from(*end))?,
            flags: *flags,
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn command(number: u64) -> Tracked {
        Tracked {
            node: NodeId::from_uuid(Uuid::from_u128(u128::from(number % 7))),
            kind: format!("kind-{}", number % 3),
            batch: None,
            lane: Lane::Control,
            seq: number,
            not_before: None,
            not_after: Timestamp::from_micros(0),
            min_generation: None,
            timeout_seconds: 0,
            retry_at: None,
            phase: Phase::Ended(Outcome::Failed),
            sent: number.is_multiple_of(2),
            attested: number.is_multiple_of(3),
            late: number.is_multiple_of(5),
            version: number % 9,
        }
    }

    fn id(number: u64) -> CommandId {
        CommandId::from_uuid(Uuid::from_u128(u128::from(number)))
    }

    fn capacity(ended: &Ended) -> usize {
        let blocks = ended.here.values();
        blocks.map(|block| block.entries.capacity()).sum()
    }

    #[test]
    fn u2_an_ended_command_is_32_bytes_and_comes_back_as_it_was() {
        assert_eq!(size_of::<Entry>(), 32);
        // In order, backwards, and strewn about: 7 has no factor in common with 8,192.
        let orders: [fn(u64) -> u64; 3] = [|n| n, |n| 8_191 - n, |n| n * 7 % 8_192];
        for order in orders {
            let mut ended = Ended::default();
            for number in (0..8_192).map(order) {
                assert!(ended.keep(id(number), &command(number)));
            }
            assert_eq!(ended.count(), 8_192);
            assert_eq!(ended.end(id(8_192)), None);
            let capacity = capacity(&ended);
            assert!(capacity <= 2 * 8_192 + BLOCK, "{capacity}");
            for number in 0..8_192 {
                assert_eq!(ended.end(id(number)), Some(Outcome::Failed));
                assert_eq!(ended.take(id(number)), Some(command(number)));
                assert_eq!(ended.take(id(number)), None);
            }
            assert_eq!(ended.count(), 0);
            assert!(ended.here.values().all(|block| block.entries.is_empty()));
        }
    }

    #[test]
    fn u2_commands_that_end_nearly_in_order_fill_their_blocks() {
        let mut ended = Ended::default();
        // Those of a round end in another order than they were queued in.
        for number in (0..100_000_u64).map(|n| n / 64 * 64 + (n * 13) % 64) {
            ended.keep(id(number), &command(number));
        }
        let capacity = capacity(&ended);
        assert!(capacity * 32 < 100_000 * 40, "{capacity}");
    }

    #[test]
    fn u2_what_does_not_fit_is_left_as_it_was() {
        let mut ended = Ended::default();
        for (seq, version) in [(1 << 32, 1), (1, 1 << 16)] {
            let odd = Tracked {
                seq,
                version,
                ..command(1)
            };
            assert!(!ended.keep(id(1), &odd));
        }
        let live = Tracked {
            phase: Phase::Pending {
                held: false,
                since: Timestamp::from_micros(0),
            },
            ..command(1)
        };
        assert!(!ended.keep(id(1), &live));
        assert_eq!(ended.count(), 0);
    }
}
