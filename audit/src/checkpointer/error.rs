//! What keeps a checkpoint from being signed.

use std::path::PathBuf;

use ledger_protocol::tlog::TileIndex;

use super::memory::MemoryError;
use crate::archive::ArchiveError;
use crate::log_key::LogKeyFailure;

/// Why the log is not signed, and will not be until somebody has looked: signing on could show two
/// histories under one key.
#[derive(Debug, thiserror::Error)]
pub(super) enum Alarm {
    #[error(
        "the log ends at position {head}, and {signed} events were signed: its database has lost \
         events"
    )]
    Shrunk { signed: u64, head: u64 },
    #[error(
        "the first {size} events are not those that were signed: the database was put back and \
         written on, or changed"
    )]
    Forked { size: u64 },
    #[error(
        "the tiles of the first {size} events do not make the root that was signed: log_tiles was \
         changed"
    )]
    Tiles { size: u64 },
    #[error(
        "`{0}` is kept with other hashes than its events have: log_tiles or events was changed"
    )]
    Tile(TileIndex),
    #[error("the event at position {position} is missing")]
    Gap { position: u64 },
    #[error(
        "the tiles are gone, and the events up to position {through} have left the database for an \
         archive: --log-archive says where that is"
    )]
    Archived { through: u64 },
    #[error(
        "{} is missing, and a checkpoint of size {size} was published: put the file back, or put \
         into it the newest checkpoint of this log that anybody has, as it was served",
        path.display()
    )]
    Forgotten { path: PathBuf, size: u64 },
    #[error(
        "{} says that {remembered} events were signed last, and {published} were published: it is \
         an older copy, or another process signs with this key and another file",
        path.display()
    )]
    Behind {
        path: PathBuf,
        remembered: u64,
        published: u64,
    },
    #[error("the published checkpoint of size {size} is not by this key ({problem})")]
    Foreign { size: u64, problem: String },
    #[error("another checkpoint of size {size} was published")]
    Published { size: u64 },
    #[error("the log is as large as a tree can be")]
    Full,
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Why a turn of the checkpointer ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    #[error("the tree's tables cannot be read or written")]
    Tables(#[from] ledger_projections::Error),
    #[error("the ledger refused")]
    Ledger(#[from] ledger::Error),
    #[error("it took longer than {seconds} s")]
    TimedOut { seconds: u64 },
    #[error("the archive cannot be read")]
    Archive(#[from] ArchiveError),
    #[error("the log's key did not sign: {0}")]
    Key(LogKeyFailure),
    #[error("the signed checkpoint cannot be a note")]
    Note(#[from] ledger_protocol::tlog::Malformed),
    #[error("the thread that reads and writes the signer's memory ended")]
    Thread(#[from] tokio::task::JoinError),
    #[error("another replica leads now")]
    Fenced,
    #[error(transparent)]
    Refused(#[from] Alarm),
}

impl Error {
    /// Whether somebody must look, and trying again will not do.
    pub(super) fn is_alarm(&self) -> bool {
        match self {
            // Whoever holds it at this moment lets go of it, or is seen as what it is next time.
            Self::Refused(alarm) => !matches!(alarm, Alarm::Memory(MemoryError::Taken { .. })),
            _ => false,
        }
    }
}
