//! A [`Checker`] whose memory does not grow with the commands that have ended.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom, Write};

use super::ended::BLOCK_BYTES;
use super::{Checker, Violation};
use crate::dsse::PublicKey;
use crate::event::{Event, Stream};
use crate::id::CommandId;

/// Keeps a few blocks of ended commands, and the others in a file. Ids begin with the time, so that
/// nearly every event asks for one of the newest blocks.
///
/// The file holds 30 bytes for each ended command, and is worth nothing without this.
#[derive(Debug)]
pub struct Shelved<F> {
    checker: Checker,
    pub(super) shelf: F,
    pub(super) blocks_max: usize,
    /// Places of the file so far, and those of them that are free again.
    places: u64,
    free: Vec<u64>,
}

impl<F: Read + Write + Seek> Shelved<F> {
    /// A checker that keeps `blocks_max` blocks of up to 512 ended commands (16 KiB), and the others
    /// on the shelf: an empty file of its own.
    pub const fn new(checker: Checker, shelf: F, blocks_max: usize) -> Self {
        Self {
            checker,
            shelf,
            blocks_max,
            places: 0,
            free: Vec::new(),
        }
    }

    /// Takes in the next event, as [`Checker::observe`] does. An error is the shelf's; nothing that
    /// is observed after it means anything.
    pub fn observe(&mut self, position: u64, event: &Event) -> io::Result<Vec<Violation>> {
        let Stream::Command(id) = event.stream else {
            return Ok(self.checker.observe(position, event));
        };
        self.take_back(id)?;
        self.checker.ended.used(id, position);
        let found = self.checker.observe(position, event);
        while self.checker.ended.blocks() > self.blocks_max.max(1) {
            self.put_away()?;
        }
        Ok(found)
    }

    fn take_back(&mut self, id: CommandId) -> io::Result<()> {
        let Some(block) = self.checker.ended.shelf(id) else {
            return Ok(());
        };
        let mut bytes = vec![0; block.bytes];
        self.go_to(block.place)?;
        self.shelf.read_exact(&mut bytes)?;
        let took = self.checker.ended.take_back(id, &bytes);
        took.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the shelf was changed"))?;
        self.free.push(block.place);
        Ok(())
    }

    fn put_away(&mut self) -> io::Result<()> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places += 1;
            self.places - 1
        });
        let Some(bytes) = self.checker.ended.put_away(place) else {
            return Ok(());
        };
        self.go_to(place)?;
        self.shelf.write_all(&bytes)
    }

    fn go_to(&mut self, place: u64) -> io::Result<()> {
        let at = place * BLOCK_BYTES as u64;
        self.shelf.seek(SeekFrom::Start(at)).map(|_| ())
    }

    /// From here on signatures are held against these roots.
    pub fn trust(&mut self, roots: BTreeSet<PublicKey>) {
        self.checker.trust(roots);
    }

    /// What is known now. How a command ended is known only of those that are not on the shelf.
    pub const fn checker(&self) -> &Checker {
        &self.checker
    }
}
