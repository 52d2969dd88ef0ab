//! What can stand against an append.

use std::sync::Arc;

use ledger_protocol::command::Corrupt;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::time::Timestamp;
use ledger_protocol::{canonical, event};

/// An append that did not happen, or of which it is not known whether it did.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// It was decided against.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Too many requests wait already.
    #[error(
        "{} requests wait for the ledger, the most it keeps",
        crate::limits::QUEUE_REQUESTS_MAX
    )]
    Overloaded,
    /// The link to the database died during the commit: it may have happened (SPEC L10).
    #[error("the database link died during the commit; the outcome is unknown")]
    OutcomeUnknown,
    /// The database could not be asked; nothing happened.
    #[error("the database is not available")]
    Unavailable(#[source] Arc<sqlx::Error>),
    /// The read tables could not be read or written; nothing happened.
    #[error("the read tables cannot be used")]
    Projection(#[source] Arc<ledger_projections::Error>),
    /// Who asked is no longer the leader.
    #[error("the lease was lost to another holder")]
    Fenced,
    /// The fold does not accept what was decided: a defect, or altered rows.
    #[error("the events do not follow from the state")]
    Corrupt(#[from] Corrupt),
    /// An event cannot be encoded or decoded.
    #[error("an event is not usable")]
    Event(#[source] Arc<event::Error>),
    /// A payload cannot be encoded.
    #[error("a value is not usable")]
    Canonical(#[source] Arc<canonical::Error>),
    /// A kind of the registry has a schema that is not one.
    #[error("the payload schema of kind `{kind}` is not a JSON Schema: {problem}")]
    Schema {
        /// The kind.
        kind: String,
        /// What is wrong with its schema.
        problem: String,
    },
    /// There is no worker key to sign with, or none that lives long enough (SPEC P1); nothing
    /// happened.
    #[error(
        "no key to sign with is certified{}; the root of this service must certify one first",
        until(not_after.as_ref())
    )]
    NoWorker {
        /// The command's `notAfter`, which the key must outlive.
        not_after: Option<Timestamp>,
    },
    /// The append answered with another shape than the request has: a defect.
    #[error("the append answered with another shape than it was asked for")]
    Shape,
    /// A caller's transaction that cannot see what others have committed since it began; it was
    /// rolled back (SPEC L4).
    #[error(
        "commands are queued and cancelled in transactions of READ COMMITTED alone; this one is \
         {given}"
    )]
    Isolation {
        /// Its isolation level.
        given: String,
    },
    /// The ledger is shutting down; nothing happened.
    #[error("the ledger is shutting down")]
    Closed,
}

fn until(not_after: Option<&Timestamp>) -> String {
    not_after.map_or_else(String::new, |at| format!(" that lives until {at}"))
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::Unavailable(Arc::new(error))
    }
}

impl From<ledger_projections::Error> for Error {
    fn from(error: ledger_projections::Error) -> Self {
        match error {
            ledger_projections::Error::Database(source) => source.into(),
            other => Self::Projection(Arc::new(other)),
        }
    }
}

impl From<event::Error> for Error {
    fn from(error: event::Error) -> Self {
        Self::Event(Arc::new(error))
    }
}

impl From<canonical::Error> for Error {
    fn from(error: canonical::Error) -> Self {
        Self::Canonical(Arc::new(error))
    }
}

impl Error {
    /// Whether the database itself answered with an error: then one request may be at fault, and
    /// the others of its group deserve a try without it.
    pub(crate) fn is_from_statement(&self) -> bool {
        match self {
            Self::Unavailable(source) => source.as_database_error().is_some(),
            Self::Projection(_) | Self::Corrupt(_) | Self::Event(_) | Self::Canonical(_) => true,
            Self::Refused(_)
            | Self::Overloaded
            | Self::OutcomeUnknown
            | Self::Fenced
            | Self::Schema { .. }
            | Self::NoWorker { .. }
            | Self::Shape
            | Self::Isolation { .. }
            | Self::Closed => false,
        }
    }
}
