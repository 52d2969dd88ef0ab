//! What ends a replay, a check or an export before it has an answer.

use ledger_protocol::command::Corrupt;
use ledger_protocol::export::Unwritable;
use ledger_protocol::tlog::{InvalidBundle, Malformed};
use ledger_protocol::{canonical, event};

use crate::archive::ArchiveError;
use crate::verify::Problem;

/// A log that cannot be folded, read or written down.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log lacks an event, or has one too many before this position.
    #[error("position {expected} of the log is missing; position {found} follows")]
    Gap {
        /// The position that had to come.
        expected: u64,
        /// The position that came.
        found: i64,
    },
    /// The bytes of an event are not an event.
    #[error("the event at position {position} is not readable")]
    Unreadable {
        /// Its position.
        position: u64,
        /// What is wrong with it.
        #[source]
        source: event::Error,
    },
    /// An event does not follow from those before it.
    #[error("the event at position {position} does not follow from those before it")]
    Corrupt {
        /// Its position.
        position: u64,
        /// What does not fit.
        #[source]
        source: Corrupt,
    },
    /// Two commands of a node have one idempotency key (SPEC A2).
    #[error("the event at position {position} takes a key that another command has")]
    KeyTwice {
        /// Its position.
        position: u64,
    },
    /// A fold cannot be written as a row.
    #[error("the fold at position {position} cannot be written as a row")]
    Row {
        /// Position of the event that made the fold.
        position: u64,
        /// Why.
        #[source]
        source: ledger_projections::Error,
    },
    /// The temporary file for what the rules keep of ended commands.
    #[error("a file for ended commands in {}, the folder for temporary files (TMPDIR)", std::env::temp_dir().display())]
    Shelf(#[source] std::io::Error),
    /// A fold that was put aside cannot be read again.
    #[error("the fold before position {position} cannot be read again")]
    Fold {
        /// Position of the event that was to be folded.
        position: u64,
        /// Why.
        #[source]
        source: canonical::Error,
    },
    /// The trust bundles beside the log cannot be read.
    #[error("the trust bundles beside the log cannot be read")]
    Trust(#[source] ledger_projections::Error),
    /// The log has never been signed.
    #[error("the log has no checkpoint yet; `serve` with --log-key signs one")]
    NoCheckpoint,
    /// A checkpoint in the database is none.
    #[error("the checkpoint of size {size} in the database")]
    Checkpoint {
        /// The size that it is kept under.
        size: u64,
        /// What is wrong with it.
        #[source]
        source: Malformed,
    },
    /// A checkpoint in the database is kept under another size than it says.
    #[error("the checkpoint of size {size} in the database says {given}")]
    CheckpointSize {
        /// The size that it is kept under.
        size: u64,
        /// The size that it says.
        given: u64,
    },
    /// The tree beside the log cannot be read.
    #[error("the log's tree in the database cannot be read")]
    Tree(#[source] ledger_projections::Error),
    /// An event below the newest checkpoint is not there.
    #[error("position {position} of the log is missing, and its checkpoint covers it")]
    Missing {
        /// Its position.
        position: u64,
    },
    /// Events that fit no bundle.
    #[error("the bundle of events from position {} on", .first + 1)]
    Bundle {
        /// The index of its first event.
        first: u64,
        /// What is wrong with it.
        #[source]
        source: InvalidBundle,
    },
    /// A tile below the newest checkpoint is not there.
    #[error("the hashes of the events from position {first} on are missing")]
    NoTile {
        /// Position of the first.
        first: u64,
    },
    /// Events have left the database, and no archive was given.
    #[error(
        "the events up to position {through} have left the database for an archive; --archive says \
         where that is"
    )]
    Archived {
        /// The last of them.
        through: u64,
    },
    /// The archive has not what it should have.
    #[error("the archive cannot be read")]
    Archive(#[source] ArchiveError),
    /// A record of an export cannot be written.
    #[error("a record of the export")]
    Record(#[source] Unwritable),
    /// A position after the end of the log.
    #[error("position {asked} is beyond the log, which ends at position {last}")]
    Beyond {
        /// What was asked for.
        asked: u64,
        /// The log's last position.
        last: u64,
    },
    /// What should be an export is none, or a damaged one.
    #[error("the export is damaged: {0}")]
    Export(Box<Problem>),
    /// An export cannot be read.
    #[error("the export cannot be read")]
    File(#[source] std::io::Error),
    /// The log cannot be asked for its end.
    #[error("the log cannot be asked for its end")]
    Log(#[source] ledger_projections::Error),
    /// Something that there was cannot be shown.
    #[error("what there was cannot be shown")]
    Shown(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The export cannot be written.
    #[error("the export cannot be written")]
    Write(#[source] std::io::Error),
    /// The database refused or did not answer.
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    /// The database did not answer in time.
    #[error("Postgres took longer than {seconds} s")]
    TimedOut {
        /// The bound.
        seconds: u64,
    },
}

/// Waits for a question to Postgres.
pub(crate) async fn database<T>(
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Error> {
    let within = crate::limits::DATABASE_WITHIN;
    match tokio::time::timeout(within, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Error::TimedOut {
            seconds: within.as_secs(),
        }),
    }
}

/// A question to the log's tables that failed.
pub(crate) fn rows(error: ledger_projections::Error) -> Error {
    match error {
        ledger_projections::Error::Database(source) => Error::Database(source),
        other => Error::Tree(other),
    }
}
