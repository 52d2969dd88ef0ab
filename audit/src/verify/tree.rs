//! The tree over the events that were read, held against the checkpoints.

use ledger_protocol::merkle::Hash;
use ledger_protocol::tlog::{Note, Policy, RightEdge, TreeHead, TrustedCheckpoint};

use super::problem::{Defect, Place, Problem};

/// The tree as it grows. Leaves wait until it is known whether a checkpoint ends among them.
pub(super) struct Tree<'a> {
    edge: RightEdge,
    /// Hashes that are not in the tree yet, at most those of one bundle.
    waiting: Vec<Hash>,
    /// What was seen of the log before.
    against: Option<&'a TreeHead>,
    /// The last checkpoint that holds.
    pub(super) head: Option<TreeHead>,
    pub(super) checkpoints: u64,
    pub(super) extends: Option<u64>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(against: Option<&'a TreeHead>) -> Self {
        Self {
            edge: RightEdge::new(),
            waiting: Vec::new(),
            against,
            head: None,
            checkpoints: 0,
            extends: None,
        }
    }

    /// Leaves that were read.
    pub(super) fn read(&self) -> u64 {
        self.edge.size() + self.waiting.len() as u64
    }

    /// One more leaf.
    pub(super) fn add(&mut self, leaf: Hash) {
        self.waiting.push(leaf);
    }

    /// Takes in what waits, up to a size.
    pub(super) fn grow_to(&mut self, size: u64) -> Result<(), Problem> {
        let more = size.saturating_sub(self.edge.size());
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        for leaf in self.waiting.drain(..more.min(self.waiting.len())) {
            // No file has as many as a tree may have.
            if self.edge.push(leaf).is_err() {
                break;
            }
            let Some(against) = self.against.filter(|one| one.size == self.edge.size()) else {
                continue;
            };
            let size = against.size;
            if self.edge.head() != *against {
                let place = Place::Positions {
                    first: 1,
                    last: size,
                };
                return Err(Problem::new(place, Defect::Forked { size }));
            }
            self.extends = Some(size);
        }
        Ok(())
    }

    /// Takes in a checkpoint in its place: larger than the one before it, and within the last
    /// bundle that was read.
    pub(super) fn checkpoint<'p>(
        &mut self,
        policy: &'p Policy,
        payload: &[u8],
        place: Place,
    ) -> Result<(Note, TrustedCheckpoint<'p>), Problem> {
        let wrong = |defect| Problem::new(place, defect);
        let note = Note::parse(payload).map_err(|bad| wrong(Defect::Note(bad)))?;
        let believed = policy.believe(&note);
        let believed = believed.map_err(|why| wrong(Defect::Untrusted(why)))?;
        let head = *believed.checkpoint.head();
        let before = self.head.map_or(0, |head| head.size);
        let from = (before + 1).max(self.edge.size());
        let (given, to) = (head.size, self.read());
        if !(from..=to).contains(&given) {
            let misplaced = Defect::Misplaced { given, from, to };
            // The log signed it, so it is where it is because events are missing or too many.
            let place = match before + 1 {
                first if given >= first => Place::Positions { first, last: given },
                _ => place,
            };
            return Err(Problem::new(place, misplaced));
        }
        self.grow_to(given)?;
        if self.edge.head() != head {
            let place = Place::Positions {
                first: before + 1,
                last: given,
            };
            return Err(Problem::new(place, Defect::Root { size: given }));
        }
        self.head = Some(head);
        self.checkpoints += 1;
        Ok((note, believed))
    }

    /// Whether it has grown to what it must extend.
    pub(super) fn check_extends(&self) -> Result<(), Problem> {
        let against = self.against.filter(|one| one.size > self.read());
        against.map_or(Ok(()), |against| {
            let place = Place::Positions {
                first: self.read() + 1,
                last: against.size,
            };
            Err(Problem::new(place, Defect::Shrunk))
        })
    }
}
