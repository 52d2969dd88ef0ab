//! What the ledger says, held against itself: [`replay`] compares the live tables with the log
//! (SPEC L7), [`check`] the log with the rules that any log must keep. [`export`] writes the log as one
//! file, which [`verify`] holds against the log's key, wherever it is (SPEC U2).
//!
//! The read tables are written in the same transaction as the events, so they need no proof in
//! daily life. This is the proof: [`replay`] folds the log from position 1 with the same pure
//! functions that decided it, makes of the folds what each table must hold, and compares column by
//! column. A row that was changed, removed or added behind the ledger's back is named.
//!
//! A [`History`] gives the ledger as it was at any past position, and [`diff`] what changed between
//! two (SPEC U2).
//!
//! For those who do not trust this database there is the log's tree: [`checkpoint`] grows and signs
//! it, [`router`] serves it to any client of C2SP tlog-tiles (SPEC U1), and a [`receipt`] shows what
//! happened to one command (SPEC U3). A [`Witness`] is what somebody else runs: it cosigns only what
//! extends what it has seen of a log (SPEC U4).

mod archive;
mod archiver;
mod check;
mod checkpointer;
mod durable;
mod error;
mod export;
mod fold;
mod limits;
mod log;
mod log_key;
mod past;
mod receipt;
mod replay;
mod report;
mod retention;
mod scopes;
mod serve;
mod tables;
#[cfg(test)]
mod tests;
mod trust;
mod verify;
mod witness;

pub use archive::{Archive, ArchiveError, BucketAt, InvalidBucket};
pub use archiver::{ArchiverError, archive};
pub use check::{Checked, check};
pub use checkpointer::{Checkpointing, InvalidWitness, WitnessAt, checkpoint};
pub use error::Error;
pub use export::{Exported, export};
pub use log_key::{HeldLogKey, LogKey, LogKeyFailure, SigningNote};
pub use past::{
    BatchFacts, Change, Changed, CommandFacts, Counts, Each, History, Item, Moment, NoMoment,
    NodeFacts, Past, diff,
};
pub use receipt::{ReceiptError, receipt};
pub use replay::replay;
pub use report::{Difference, Report};
pub use retention::{Kept, Policy, Retained, RetentionError, retain};
pub use serve::{Unserved, router};
pub use verify::{Cosigned, InvalidTrust, Look, Place, Problem, Trusted, Verified, verify};
pub use witness::{Unopened, Witness, witness_router};
