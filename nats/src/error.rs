//! What keeps events from being published.

use ledger_protocol::id::EventId;

use crate::limits;

/// Why the publisher stopped, waits, or alarms.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL cannot be one of a NATS server. It may hold a secret, so it is not quoted.
    #[error("the NATS URL is not valid; it looks like nats://TOKEN@HOST:4222")]
    Url(#[source] std::io::Error),
    /// The server lacks what the publisher relies on, and an old one does not say so.
    #[error("NATS server {version} is too old; the ledger needs 2.10 or newer")]
    ServerTooOld {
        /// The version that the server gave.
        version: String,
    },
    /// No connection to the server.
    #[error("no connection to NATS at {server}")]
    Connect {
        /// Host and port.
        server: String,
        /// Why.
        #[source]
        source: async_nats::ConnectError,
    },
    /// A request about the stream failed.
    #[error("JetStream could not {what}")]
    Stream {
        /// What was asked for.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// JetStream did not take an event. What it has is looked up before the next attempt.
    #[error("JetStream did not store the event at position {position}")]
    Publish {
        /// The event's position.
        position: u64,
        /// Why.
        #[source]
        source: async_nats::jetstream::context::PublishError,
    },
    /// A message for plain subscribers could not be handed over.
    #[error("NATS did not take a copy or a wake")]
    Copy(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The client has ended the subscription to the wakes.
    #[error("the subscription to the wakes has ended")]
    Unsubscribed,
    /// Something did not answer in time.
    #[error("{what} took longer than {seconds} s")]
    TimedOut {
        /// What did.
        what: &'static str,
        /// The bound.
        seconds: u64,
    },
    /// The stream changed without this publisher: another one writes, or it was lost.
    #[error("the stream ends at {found}, where {expected} was expected")]
    Moved {
        /// What this publisher had seen stored.
        expected: u64,
        /// What the stream has now.
        found: u64,
    },
    /// The stream holds more than the ledger: the ledger lost a tail, or this is another's stream.
    #[error(
        "the stream holds {stream} events, the ledger only {head}: the ledger lost a tail or the \
         stream belongs to another one; nothing is published until an operator removes the stream"
    )]
    Ahead {
        /// The stream's last sequence.
        stream: u64,
        /// The ledger's last position.
        head: u64,
    },
    /// The stream holds something else than the ledger.
    #[error(
        "the stream holds `{found}` at {position}, the ledger {expected}: they are not the same \
         history; nothing is published until an operator removes the stream"
    )]
    Diverged {
        /// The position.
        position: u64,
        /// Id of the ledger's event there.
        expected: EventId,
        /// Id of the stream's message there.
        found: String,
    },
    /// What the stream lacks has left the database.
    #[error(
        "the stream ends at {stream}, and the events up to {through} have left the database for an \
         archive; nothing is published until an operator removes the stream, which is then made \
         again from there on"
    )]
    Archived {
        /// The stream's last sequence.
        stream: u64,
        /// The last position that is in the archive alone.
        through: u64,
    },
    /// The log has no event where one must be.
    #[error("the log has no event at position {position}")]
    Gap {
        /// The position.
        position: u64,
    },
    /// The log holds bytes that this version cannot read.
    #[error("the event at position {position} is not readable")]
    Unreadable {
        /// The position.
        position: u64,
        /// Why.
        #[source]
        source: ledger_protocol::event::Error,
    },
    /// The log holds an event that cannot follow in its stream.
    #[error("the events of the command at position {position} do not follow each other")]
    Corrupt {
        /// The position.
        position: u64,
        /// Why.
        #[source]
        source: ledger_protocol::command::Corrupt,
    },
    /// The database refused or did not answer.
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    /// A question to the read tables failed.
    #[error("the ledger could not be read")]
    Projection(#[from] ledger_projections::Error),
    /// The ledger refused.
    #[error("the lease could not be had")]
    Lease(#[from] ledger::Error),
}

/// What follows from an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// It may be gone at the next attempt.
    Passing,
    /// An operator has to act; until then nothing is published.
    Alarm,
    /// It cannot work with these options or this server.
    Fatal,
}

impl Error {
    pub(crate) fn severity(&self) -> Severity {
        match self {
            Self::Url(_) | Self::ServerTooOld { .. } => Severity::Fatal,
            Self::Ahead { .. }
            | Self::Diverged { .. }
            | Self::Archived { .. }
            | Self::Gap { .. }
            | Self::Unreadable { .. }
            | Self::Corrupt { .. } => Severity::Alarm,
            Self::Connect { .. }
            | Self::Stream { .. }
            | Self::Publish { .. }
            | Self::Copy(_)
            | Self::Unsubscribed
            | Self::TimedOut { .. }
            | Self::Moved { .. }
            | Self::Database(_)
            | Self::Projection(_)
            | Self::Lease(_) => Severity::Passing,
        }
    }

    pub(crate) fn stream(
        what: &'static str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self::Stream {
            what,
            source: Box::new(source),
        }
    }

    pub(crate) fn copy(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Copy(Box::new(source))
    }

    /// The error and its causes in one line, for the log.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }
}

/// Waits for `work`, at most `within`.
pub(crate) async fn in_time<T, E: Into<Error>>(
    what: &'static str,
    within: std::time::Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    match tokio::time::timeout(within, work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(Error::TimedOut {
            what,
            seconds: within.as_secs(),
        }),
    }
}

/// Waits for a question to Postgres.
pub(crate) async fn database<T, E: Into<Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    in_time("Postgres", limits::DATABASE_WITHIN, work).await
}
