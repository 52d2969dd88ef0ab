//! `audit verify`: an export, held against nothing but the log's key (SPEC U2). No database, no
//! network, no clock.
//!
//! One thread reads and hashes ([`reading`]), the other holds the events against the rules
//! ([`rules`]). Both hold little, whatever the file says of its own sizes; the rules keep ended
//! commands in a temporary file. What is wrong is a [`Problem`], with the position that it concerns.

use std::io::{self, Read};
use std::sync::mpsc::sync_channel;
use std::thread;

use ledger_protocol::tlog::{
    Algorithm, InvalidPolicy, Note, Policy, TreeHead, Untrusted, VerifierKey,
};

use crate::Error;
use crate::limits::{BUNDLES_WAITING_MAX, VIOLATIONS_MAX};

mod events;
mod problem;
mod reading;
mod records;
mod rules;
mod tree;

pub(crate) use events::events;
pub use problem::{Place, Problem};
use reading::Reading;
use rules::Rules;
pub(crate) use rules::shelved;

/// What is trusted: who signs the log, who watches it, and what was seen of it before.
#[derive(Debug, Clone)]
pub struct Trusted {
    /// The log alone: for checkpoints before the last.
    log: Policy,
    /// With its witnesses.
    witnessed: Policy,
    origin: String,
    against: Option<TreeHead>,
}

/// Keys that say nothing about a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTrust {
    /// A witness's key in the log's place.
    #[error("the log's key is one of a witness: its type must be 0x01, Ed25519")]
    LogKey,
    /// What cannot be asked of the keys.
    #[error("the policy {0}")]
    Policy(#[from] InvalidPolicy),
}

impl Trusted {
    /// Trust in a log's key, whose name is the log's origin, when `quorum` of these witnesses have
    /// cosigned the last checkpoint.
    pub fn new(
        log: VerifierKey,
        witnesses: Vec<VerifierKey>,
        quorum: usize,
    ) -> Result<Self, InvalidTrust> {
        if log.algorithm() != Algorithm::Ed25519 {
            return Err(InvalidTrust::LogKey);
        }
        let origin = log.name().to_string();
        Ok(Self {
            log: Policy::new(&origin, vec![log.clone()], Vec::new(), 0)?,
            witnessed: Policy::new(&origin, vec![log], witnesses, quorum)?,
            origin,
            against: None,
        })
    }

    /// Asks that the log extends the one that this checkpoint was made of, if the log signed it.
    pub fn against(&mut self, checkpoint: &Note) -> Result<(), Untrusted> {
        let believed = self.log.believe(checkpoint)?;
        self.against = Some(*believed.checkpoint.head());
        Ok(())
    }
}

/// A witness's word on the last checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cosigned {
    /// The witness's name.
    pub by: String,
    /// When, in seconds since the epoch.
    pub at_seconds: u64,
}

/// The answer. The export is what the log's key says, and keeps every rule, when `problems_total`
/// is 0.
#[derive(Debug, Default)]
pub struct Verified {
    /// Which log it is of, as far as its header says.
    pub origin: String,
    /// Events whose bytes are those that the log had hashed.
    pub events: u64,
    /// Size and root of the last checkpoint that holds.
    pub head: Option<TreeHead>,
    /// Checkpoints that hold: signed by the log, over these events.
    pub checkpoints: u64,
    /// Known witnesses that cosigned the last one.
    pub cosigned: Vec<Cosigned>,
    /// The size of the checkpoint that it was held against, once it is known to extend that.
    pub extends: Option<u64>,
    /// Trust bundles. Without any, signatures of commands and desired states are not looked at.
    pub trust_bundles: u64,
    /// Commands that the events made.
    pub commands: usize,
    /// Commands that have not ended.
    pub live: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// The first problems by their positions, at most 1,000.
    pub problems: Vec<Problem>,
    /// How many there are.
    pub problems_total: u64,
}

impl Verified {
    /// Whether all of it holds.
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }

    /// The first position that is not what it should be, as far as one can be named.
    pub fn first_bad_position(&self) -> Option<u64> {
        self.problems.first().and_then(|first| first.place.first())
    }
}

/// How closely an export is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Hashes, order and checkpoints: whether these are the events that the log's key signed.
    Hashes,
    /// The rules as well, with every signature.
    Everything,
}

/// Reads an export and says what is wrong with it. `progress` is told how many events of how many
/// are hashed. An error is the reader's own; whatever the bytes are is the answer's.
pub fn verify(
    file: impl Read,
    trusted: &Trusted,
    look: Look,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<Verified> {
    if look == Look::Hashes {
        return Reading::new(file, trusted, None).read(progress);
    }
    let (work, waiting) = sync_channel(BUNDLES_WAITING_MAX);
    thread::scope(|scope| {
        let checking = scope.spawn(move || Rules::follow(&waiting));
        let read = Reading::new(file, trusted, Some(work)).read(progress);
        let kept = match checking.join() {
            Ok(kept) => kept,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let mut verified = read?;
        let kept = kept.map_err(|error| io::Error::new(error.kind(), Error::Shelf(error)))?;
        verified.commands = kept.commands;
        verified.live = kept.live;
        verified.problems_total += kept.problems_total;
        verified.problems.extend(kept.problems);
        // What has no position of its own comes after what has the same.
        verified.problems.sort_by_key(|problem| problem.place);
        verified.problems.truncate(VIOLATIONS_MAX);
        Ok(verified)
    })
}
