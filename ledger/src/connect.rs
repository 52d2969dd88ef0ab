//! The service's connections, and the upkeep of the log's partitions.

use std::str::FromStr;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Executor as _};

use crate::Error;
use crate::limits::{ACQUIRE_TIMEOUT, LOCK_TIMEOUT, STATEMENT_TIMEOUT};

/// Connects to the ledger's database under the service's role, whoever the URL names: the log is
/// append-only for it (SPEC L6).
pub async fn connect(url: &str, connections_max: u32) -> Result<PgPool, Error> {
    let options = PgConnectOptions::from_str(url)?
        .application_name("command-ledger")
        .options([
            (
                "statement_timeout",
                STATEMENT_TIMEOUT.as_millis().to_string(),
            ),
            ("lock_timeout", LOCK_TIMEOUT.as_millis().to_string()),
            ("synchronous_commit", "on".to_owned()),
            // A connection keeps its plans. One that was made when a table was small reads all of
            // it, and goes on to until the next ANALYZE, however large the table has become by
            // then; with 10,000 new nodes each look at what is due would read millions of rows
            // (SPEC D3). Every question of the service has its index.
            ("enable_seqscan", "off".to_owned()),
            // Where there is no index after all, Postgres below 18 takes the plan for so dear that
            // it would compile it.
            ("jit", "off".to_owned()),
        ])
        .disable_statement_logging();
    let pool = PgPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .after_connect(|connection, _| {
            Box::pin(async move {
                connection
                    .execute("SET ROLE command_ledger_service")
                    .await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await?;
    Ok(pool)
}

/// Makes the partitions of the log that the next appends need. Cheap; once a minute is enough.
pub async fn maintain(pool: &PgPool) -> Result<(), Error> {
    sqlx::query("SELECT extend_log()").execute(pool).await?;
    Ok(())
}
