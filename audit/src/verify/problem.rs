//! What can be wrong with an export, and where.

use std::cmp::Ordering;
use std::fmt;

use ledger_protocol::canonical;
use ledger_protocol::event::{self, Stream};
use ledger_protocol::export::{BadFrame, Kind};
use ledger_protocol::invariants::{BrokenChain, Rule};
use ledger_protocol::merkle::Hash;
use ledger_protocol::tlog::{Malformed, Untrusted};

/// Where something is wrong. Ordered by the first position that is concerned; of several, the
/// narrowest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// One event.
    Position(u64),
    /// Somewhere among these events.
    Positions {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
    /// What is no event.
    Byte {
        /// Offset in the file.
        offset: u64,
        /// The position of the last event before it that was read; 0 before the first.
        after: u64,
    },
}

impl Place {
    /// The first position that is concerned: of a byte, the one that should have followed.
    pub const fn first(&self) -> Option<u64> {
        match self {
            Self::Position(first) | Self::Positions { first, .. } => Some(*first),
            Self::Byte { after, .. } => after.checked_add(1),
        }
    }

    fn key(self) -> (u64, u64, u64) {
        match self {
            Self::Position(position) => (position, position, 0),
            Self::Positions { first, last } => (first, last, 0),
            Self::Byte { offset, after } => (after.saturating_add(1), u64::MAX, offset),
        }
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Position(position) => write!(f, "position {position}"),
            Self::Positions { first, last } if first == last => write!(f, "position {first}"),
            Self::Positions { first, last } => write!(f, "positions {first} to {last}"),
            Self::Byte { offset, after: 0 } => write!(f, "byte {offset}, before position 1"),
            Self::Byte { offset, after } => write!(f, "byte {offset}, after position {after}"),
        }
    }
}

/// Something that is wrong.
#[derive(Debug)]
pub struct Problem {
    /// Where.
    pub place: Place,
    pub(super) defect: Defect,
}

impl Problem {
    pub(super) const fn new(place: Place, defect: Defect) -> Self {
        Self { place, defect }
    }

    /// What is wrong there.
    pub fn what(&self) -> String {
        self.defect.to_string()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.defect)
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum Defect {
    #[error("the file is no export of a ledger: it does not begin with `command-ledger export v1`")]
    Foreign,
    #[error("the file ends here, where {expected} must come")]
    Truncated { expected: &'static str },
    #[error("{0}")]
    Frame(BadFrame),
    #[error("a {found} stands where {expected} must come")]
    Unexpected { found: Kind, expected: &'static str },
    #[error("the {kind} is not readable: {}", chain(.source))]
    Record {
        kind: Kind,
        source: canonical::Error,
    },
    #[error("the file says that it is of the log `{given}`, not of `{expected}`")]
    Origin { given: String, expected: String },
    #[error("the file says that it has {given} events, more than a log can have")]
    Size { given: u64 },
    #[error("there are more than {max} trust bundles")]
    TrustBundles { max: u64 },
    #[error("{0}")]
    Chain(BrokenChain),
    #[error("the tile of hashes has {given} bytes; for {events} events it must have {expected}")]
    Hashes {
        given: usize,
        events: u16,
        expected: usize,
    },
    #[error("the bundle of events ends before this event does")]
    Short,
    #[error("{bytes} bytes stand between this event and the next")]
    Excess { bytes: usize },
    #[error(
        "the event is not the one that was logged: its hash is {}, logged was {}",
        hex::encode(given),
        hex::encode(logged)
    )]
    Leaf { given: Hash, logged: Hash },
    #[error("the event is not readable: {}", chain(.0))]
    Event(event::Error),
    #[error("{stream}: {rule}")]
    Rule { stream: Stream, rule: Rule },
    #[error("the checkpoint is not readable: it {0}")]
    Note(Malformed),
    #[error("{0}")]
    Untrusted(Untrusted),
    #[error("a checkpoint of size {given} stands where one of {from} to {to} must")]
    Misplaced { given: u64, from: u64, to: u64 },
    #[error(
        "one of these events, or more, is not the one that was logged: their hashes make another \
         root than the signed checkpoint of size {size} says"
    )]
    Root { size: u64 },
    #[error(
        "the log does not extend the one that the checkpoint of size {size} was made of: its first \
         {size} events have another root"
    )]
    Forked { size: u64 },
    #[error("missing: the checkpoint that the log must extend has them")]
    Shrunk,
    #[error("the end says {given} {what}; the file has {found}")]
    Count {
        what: &'static str,
        given: u64,
        found: u64,
    },
    #[error("something before it was damaged: the file's digest is not what its end says")]
    Digest,
    #[error("bytes follow the end of the export")]
    Trailing,
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !told.ends_with(&text) {
            told.push_str(": ");
            told.push_str(&text);
        }
        next = cause.source();
    }
    told
}
