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

/// The ended commands by id: blocks in order, each sorted, none empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ended {
    blocks: Vec<Vec<Entry>>,
    count: usize,
    nodes: Names<NodeId>,
    kinds: Names<String>,
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
            id: id.uuid().into_bytes(),
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
        let (block, place) = self.find(id).ok()?;
        let entries = self.blocks.get_mut(block)?;
        let entry = entries.remove(place);
        if entries.is_empty() {
            self.blocks.remove(block);
        }
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

    /// How a command ended, if it is one of these.
    pub(super) fn end(&self, id: CommandId) -> Option<Outcome> {
        let (block, place) = self.find(id).ok()?;
        Some(self.blocks.get(block)?.get(place)?.end)
    }

    /// Where the command is, or would be: block, and place in it.
    fn find(&self, id: CommandId) -> Result<(usize, usize), (usize, usize)> {
        let id = id.uuid().into_bytes();
        let begins = |block: &Vec<Entry>| block.first().is_some_and(|first| first.id <= id);
        let block = self.blocks.partition_point(begins).saturating_sub(1);
        let entries = self.blocks.get(block).map_or(&[][..], Vec::as_slice);
        match entries.binary_search_by(|entry| entry.id.cmp(&id)) {
            Ok(place) => Ok((block, place)),
            Err(place) => Err((block, place)),
        }
    }

    fn insert(&mut self, entry: Entry) {
        let (Err((block, place)) | Ok((block, place))) =
            self.find(CommandId::from_uuid(uuid::Uuid::from_bytes(entry.id)));
        self.count += 1;
        let Some(entries) = self.blocks.get_mut(block) else {
            let mut first = Vec::with_capacity(BLOCK);
            first.push(entry);
            self.blocks.push(first);
            return;
        };
        if entries.len() < BLOCK {
            entries.insert(place, entry);
            return;
        }
        // What comes late in a block is followed by more that does: it is left nearly full.
        let at = if place > BLOCK * 7 / 8 {
            BLOCK * 7 / 8
        } else {
            BLOCK / 2
        };
        let mut right = Vec::with_capacity(BLOCK);
        right.extend(entries.drain(at..));
        if place <= at {
            entries.insert(place, entry);
        } else {
            right.insert(place - at, entry);
        }
        self.blocks.insert(block + 1, right);
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
            let capacity: usize = ended.blocks.iter().map(Vec::capacity).sum();
            assert!(capacity <= 2 * 8_192 + BLOCK, "{capacity}");
            for number in 0..8_192 {
                assert_eq!(ended.end(id(number)), Some(Outcome::Failed));
                assert_eq!(ended.take(id(number)), Some(command(number)));
                assert_eq!(ended.take(id(number)), None);
            }
            assert_eq!((ended.count(), ended.blocks.len()), (0, 0));
        }
    }

    #[test]
    fn u2_commands_that_end_nearly_in_order_fill_their_blocks() {
        let mut ended = Ended::default();
        // Those of a round end in another order than they were queued in.
        for number in (0..100_000_u64).map(|n| n / 64 * 64 + (n * 13) % 64) {
            ended.keep(id(number), &command(number));
        }
        let capacity: usize = ended.blocks.iter().map(Vec::capacity).sum();
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
