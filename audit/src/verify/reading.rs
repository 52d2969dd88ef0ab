//! An export from its first byte to its last: what follows what, and every hash.

use std::io::{self, Read};
use std::sync::mpsc::SyncSender;

use ledger_protocol::canonical;
use ledger_protocol::export::{End, Header, Kind, TRUST_BUNDLES_MAX, Trust};
use ledger_protocol::invariants::RootChain;
use ledger_protocol::merkle::{HASH_BYTES, leaf_hash};
use ledger_protocol::tlog::limits::TREE_SIZE_MAX;
use ledger_protocol::tlog::{EntryBundle, TILE_WIDTH};

use super::problem::{Defect, Place, Problem};
use super::records::{Record, Records, Stop};
use super::rules::{Events, Work};
use super::tree::Tree;
use super::{Cosigned, Trusted, Verified};

pub(super) struct Reading<'a, R> {
    records: Records<R>,
    trusted: &'a Trusted,
    tree: Tree<'a>,
    /// To the thread of the rules, where they are looked at; where it has ended, it has said why.
    work: Option<SyncSender<Work>>,
    verified: Verified,
}

/// What ends the reading before the end of the file.
enum Ended {
    Io(io::Error),
    Problem(Problem),
}

impl From<Problem> for Ended {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl<'a, R: Read> Reading<'a, R> {
    pub(super) fn new(file: R, trusted: &'a Trusted, work: Option<SyncSender<Work>>) -> Self {
        Self {
            records: Records::new(file),
            trusted,
            tree: Tree::new(trusted.against.as_ref()),
            work,
            verified: Verified::default(),
        }
    }

    fn rule(&self, work: Work) {
        if let Some(rules) = &self.work {
            let _ = rules.send(work);
        }
    }

    /// Reads all of it, or up to where nothing after it can be believed.
    pub(super) fn read(mut self, progress: &mut dyn FnMut(u64, u64)) -> io::Result<Verified> {
        match self.read_all(progress) {
            Ok(()) => {}
            Err(Ended::Io(error)) => return Err(error),
            Err(Ended::Problem(problem)) => self.add(problem),
        }
        self.verified.bytes = self.records.offset();
        self.verified.head = self.tree.head;
        self.verified.checkpoints = self.tree.checkpoints;
        self.verified.extends = self.tree.extends;
        Ok(self.verified)
    }

    fn add(&mut self, problem: Problem) {
        self.verified.problems_total += 1;
        self.verified.problems.push(problem);
    }

    fn read_all(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Ended> {
        let begun = self.records.begin();
        begun.map_err(|stop| self.ended(stop))?;
        let first = self.next("the header")?;
        let size = self.header(&first)?;
        let mut record = self.trust_bundles()?;
        while self.tree.read() < size {
            record = match record.kind {
                Kind::Entries => {
                    self.bundle(record.payload, size)?;
                    progress(self.tree.read(), size);
                    self.next("a checkpoint or more events")?
                }
                Kind::Checkpoint => {
                    self.checkpoint(&record)?;
                    self.next("a checkpoint or more events")?
                }
                _ => return Err(self.unexpected(&record, "a bundle of events")),
            };
        }
        while record.kind == Kind::Checkpoint {
            self.checkpoint(&record)?;
            record = self.next("the last checkpoint")?;
        }
        self.last(&record)?;
        let end = self.next("the end")?;
        self.end(&end)?;
        let ended = self.records.end();
        ended.map_err(|stop| self.ended(stop))
    }

    fn header(&mut self, record: &Record) -> Result<u64, Ended> {
        if record.kind != Kind::Header {
            return Err(self.unexpected(record, "the header"));
        }
        let header: Header = self.decode(record)?;
        let expected = &self.trusted.origin;
        let bad = if header.origin != *expected {
            let (given, expected) = (header.origin.clone(), expected.clone());
            Some(Defect::Origin { given, expected })
        } else if header.size > TREE_SIZE_MAX {
            let given = header.size;
            Some(Defect::Size { given })
        } else {
            None
        };
        self.verified.origin = header.origin;
        match bad {
            Some(defect) => Err(self.at(record.offset, defect).into()),
            None => Ok(header.size),
        }
    }

    /// Reads the trust bundles, and the record after them. Bundles that are no chain say nothing
    /// about signatures, but all else can still be verified.
    fn trust_bundles(&mut self) -> Result<Record, Ended> {
        let mut chain = Some(RootChain::default());
        let what = "a trust bundle or a bundle of events";
        let mut record = self.next(what)?;
        while record.kind == Kind::Trust {
            let max = TRUST_BUNDLES_MAX;
            if self.verified.trust_bundles == max {
                let too_many = Defect::TrustBundles { max };
                return Err(self.at(record.offset, too_many).into());
            }
            let bundle: Trust = self.decode(&record)?;
            self.verified.trust_bundles += 1;
            let extended = chain.as_mut().map(|chain| chain.extend(&bundle.into()));
            if let Some(Err(broken)) = extended {
                chain = None;
                let problem = self.at(record.offset, Defect::Chain(broken));
                self.add(problem);
            }
            record = self.next(what)?;
        }
        let roots = chain.unwrap_or_default().into_roots();
        self.rule(Work::Roots(roots));
        Ok(record)
    }

    /// Holds each event of a bundle against the hash that the log had of it.
    fn bundle(&mut self, bytes: Vec<u8>, size: u64) -> Result<(), Ended> {
        let before = self.tree.read();
        self.tree.grow_to(before)?;
        let width = u16::try_from(size - before).map_or(TILE_WIDTH, |rest| rest.min(TILE_WIDTH));
        let record = self.next("the hashes of these events")?;
        if record.kind != Kind::Hashes {
            return Err(self.unexpected(&record, "the hashes of these events"));
        }
        let (hashes, rest) = record.payload.as_chunks::<HASH_BYTES>();
        if hashes.len() != usize::from(width) || !rest.is_empty() {
            let defect = Defect::Hashes {
                given: record.payload.len(),
                events: width,
                expected: usize::from(width) * HASH_BYTES,
            };
            return Err(self.at(record.offset, defect).into());
        }
        let mut entries = EntryBundle::first(&bytes, width);
        let mut count = 0;
        let mut wrong = None;
        for logged in hashes {
            let Some(entry) = entries.next() else {
                wrong = Some(Defect::Short);
                break;
            };
            let given = leaf_hash(entry);
            if given != *logged {
                let logged = *logged;
                wrong = Some(Defect::Leaf { given, logged });
                break;
            }
            self.tree.add(given);
            count += 1;
        }
        let position = before + u64::from(count) + 1;
        let excess = entries.rest().len();
        self.verified.events = position - 1;
        self.rule(Work::Bundle(Events {
            before,
            bytes,
            count,
        }));
        match wrong {
            Some(defect) => Err(Problem::new(Place::Position(position), defect).into()),
            None if excess > 0 => {
                // After the last event of the bundle, which was the right one.
                let place = Place::Position(position - 1);
                Err(Problem::new(place, Defect::Excess { bytes: excess }).into())
            }
            None => Ok(()),
        }
    }

    fn checkpoint(&mut self, record: &Record) -> Result<(), Ended> {
        let place = self.at_byte(record.offset);
        let trusted = self.trusted;
        self.tree.checkpoint(&trusted.log, &record.payload, place)?;
        Ok(())
    }

    /// The checkpoint of all of it, and who cosigned it.
    fn last(&mut self, record: &Record) -> Result<(), Ended> {
        if record.kind != Kind::Last {
            return Err(self.unexpected(record, "the last checkpoint"));
        }
        let place = self.at_byte(record.offset);
        let (trusted, to) = (self.trusted, self.tree.read());
        let taken = self.tree.checkpoint(&trusted.log, &record.payload, place)?;
        let (note, believed) = taken;
        let given = believed.checkpoint.head().size;
        if given != to {
            let (from, first) = (to, given + 1);
            let place = Place::Positions { first, last: to };
            return Err(Problem::new(place, Defect::Misplaced { given, from, to }).into());
        }
        match trusted.witnessed.believe(&note) {
            Ok(believed) => {
                let cosigned = believed.cosigned.iter().map(|one| Cosigned {
                    by: one.key.name().to_string(),
                    at_seconds: one.cosigned_at_seconds.unwrap_or(0),
                });
                self.verified.cosigned = cosigned.collect();
            }
            Err(why) => self.add(Problem::new(place, Defect::Untrusted(why))),
        }
        if let Err(problem) = self.tree.check_extends() {
            self.add(problem);
        }
        Ok(())
    }

    fn end(&mut self, record: &Record) -> Result<(), Ended> {
        if record.kind != Kind::End {
            return Err(self.unexpected(record, "the end"));
        }
        let end: End = self.decode(record)?;
        let counts = [
            ("events", end.events, self.tree.read()),
            ("checkpoints", end.checkpoints, self.tree.checkpoints),
            (
                "trust bundles",
                end.trust_bundles,
                self.verified.trust_bundles,
            ),
        ];
        for (what, given, found) in counts {
            if given != found {
                let defect = Defect::Count { what, given, found };
                return Err(self.at(record.offset, defect).into());
            }
        }
        let digest = record.digest.as_ref().map(<[u8; 32]>::as_slice);
        if digest != Some(&end.digest) {
            return Err(self.at(record.offset, Defect::Digest).into());
        }
        Ok(())
    }

    fn decode<T: serde::de::DeserializeOwned>(&self, record: &Record) -> Result<T, Ended> {
        let kind = record.kind;
        canonical::decode(&record.payload).map_err(|source| {
            self.at(record.offset, Defect::Record { kind, source })
                .into()
        })
    }

    fn next(&mut self, expected: &'static str) -> Result<Record, Ended> {
        let next = self.records.next(expected);
        next.map_err(|stop| self.ended(stop))
    }

    fn ended(&self, stop: Stop) -> Ended {
        match stop {
            Stop::Io(error) => Ended::Io(error),
            Stop::At(offset, defect) => self.at(offset, defect).into(),
        }
    }

    fn unexpected(&self, record: &Record, expected: &'static str) -> Ended {
        let found = record.kind;
        self.at(record.offset, Defect::Unexpected { found, expected })
            .into()
    }

    fn at(&self, offset: u64, defect: Defect) -> Problem {
        Problem::new(self.at_byte(offset), defect)
    }

    fn at_byte(&self, offset: u64) -> Place {
        let after = self.tree.read();
        Place::Byte { offset, after }
    }
}
