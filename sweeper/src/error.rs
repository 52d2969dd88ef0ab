//! What keeps a sweep from going on.

/// Why a sweep ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The database refused or did not answer.
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    /// The ledger refused.
    #[error("the ledger refused")]
    Ledger(#[from] ledger::Error),
    /// The database did not answer in time.
    #[error("Postgres took longer than {seconds} s")]
    TimedOut {
        /// The bound.
        seconds: u64,
    },
    /// Another replica leads now.
    #[error("another replica leads now")]
    Fenced,
}

/// Waits for a question to Postgres.
pub(crate) async fn database<T, E: Into<Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    let within = crate::limits::DATABASE_WITHIN;
    match tokio::time::timeout(within, work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(Error::TimedOut {
            seconds: within.as_secs(),
        }),
    }
}

/// An error and its causes in one line, for the log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
