//! The journal's file: what is synced outlives a loss of power, what is written outlives a crash.

use ledger_protocol::daemon::Record;
use ledger_protocol::id::JournalId;

use crate::chance::Chance;

/// One node's journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Disk {
    pub(crate) journal_id: JournalId,
    /// How often the journal was lost: its life, whatever its id says.
    pub(crate) life: u32,
    synced: Vec<Record>,
    written: Vec<Record>,
    /// Writes fail.
    pub(crate) broken: bool,
}

impl Disk {
    pub(crate) fn new(journal_id: JournalId) -> Self {
        Self {
            journal_id,
            life: 0,
            synced: Vec::new(),
            written: Vec::new(),
            broken: false,
        }
    }

    pub(crate) fn append(&mut self, record: Record, sync: bool) {
        self.written.push(record);
        if sync {
            self.sync();
        }
    }

    pub(crate) fn sync(&mut self) {
        self.synced.append(&mut self.written);
    }

    /// Replaces everything, at once.
    pub(crate) fn rewrite(&mut self, records: Vec<Record>) {
        self.synced = records;
        self.written.clear();
    }

    /// Some of what was not synced is gone: the tail was torn.
    pub(crate) fn lose_power(&mut self, chance: &mut Chance) {
        let kept = chance.below(self.written.len() + 1);
        self.written.truncate(kept);
        self.sync();
    }

    /// Everything is gone.
    pub(crate) fn lose(&mut self, new_id: JournalId) {
        self.journal_id = new_id;
        self.life += 1;
        self.synced.clear();
        self.written.clear();
    }

    /// What a new process reads.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.synced.iter().chain(&self.written)
    }
}
