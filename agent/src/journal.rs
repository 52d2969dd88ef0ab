//! Where the daemon's records are kept (SPEC D5, D8).

mod file;

use std::path::Path;
use std::sync::Arc;

use ledger_protocol::daemon::Record;
use ledger_protocol::id::JournalId;

use crate::error::Error;
use crate::state_dir::StateDir;

pub use file::FileJournal;

/// A journal.
#[derive(Debug)]
pub enum JournalStore {
    /// A file: what a node has.
    File(FileJournal),
    /// Nothing outlives the process, so there is nothing to write: for fleets of simulated nodes.
    Memory,
}

/// A journal that was opened, and what it held.
#[derive(Debug)]
pub struct Opened {
    /// Takes the records from here on.
    pub store: JournalStore,
    /// The journal's life; a new one when it was lost.
    pub journal_id: JournalId,
    /// What it holds, in order.
    pub records: Vec<Record>,
}

impl Opened {
    /// An empty journal that is kept nowhere.
    pub fn memory(journal_id: JournalId) -> Self {
        Self {
            store: JournalStore::Memory,
            journal_id,
            records: Vec::new(),
        }
    }

    /// The journal in this state directory; an empty one with the new id when there is none, or
    /// when it was lost (SPEC D8).
    pub fn file(dir: &Arc<StateDir>, new_id: JournalId) -> Result<Self, Error> {
        FileJournal::open(dir.path(), Some(dir.clone()), new_id)
    }
}

/// Takes the journal out of a state directory, as a disk that was exchanged does (SPEC D8).
pub(crate) fn remove(folder: &Path) -> Result<(), Error> {
    file::remove(folder)
}

/// One change of a journal.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// One more record.
    Append(Record),
    /// These records and no others.
    Rewrite(Vec<Record>),
}

/// Changes that are not in the journal.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// How many of the changes are durable; the others are not, or are not known to be.
    pub(crate) durable: usize,
    /// Why.
    pub(crate) error: Error,
}

impl JournalStore {
    /// Makes the changes, in order, and makes them durable where that matters.
    pub(crate) fn write(&mut self, changes: &[Change]) -> Result<(), Unwritten> {
        let Self::File(file) = self else {
            return Ok(());
        };
        let is_append = |change: &Change| matches!(change, Change::Append(_));
        let mut durable = 0;
        // Records that follow each other are made durable together.
        for run in changes.chunk_by(|one, next| is_append(one) && is_append(next)) {
            let written = match run {
                [Change::Rewrite(records)] => file.rewrite(records),
                appends => file.append(appends.iter().filter_map(|change| match change {
                    Change::Append(record) => Some(record),
                    Change::Rewrite(_) => None,
                })),
            };
            written.map_err(|error| Unwritten { durable, error })?;
            durable += run.len();
        }
        Ok(())
    }
}
