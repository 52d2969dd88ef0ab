//! Where Postgres is, and the connections to it.

use std::str::FromStr as _;

use anyhow::Context as _;
use clap::Args;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgPool};
use tokio::time::timeout;

use crate::exit::{Failure, Meaning};
use crate::limits::POSTGRES_CONNECT_WITHIN;
use crate::secret::Secret;

/// Where Postgres is.
#[derive(Debug, Clone, Args)]
pub(crate) struct PostgresOption {
    /// URL of Postgres 15 or newer, `postgres://USER:PASSWORD@HOST/DATABASE`
    #[arg(
        long,
        env = "COMMAND_LEDGER_POSTGRES",
        value_name = "URL",
        hide_env_values = true
    )]
    pub(crate) postgres: Secret,
}

/// Reads a URL. Nothing of it goes into the error: it may hold a password.
pub(crate) fn parse(url: &Secret) -> Result<PgConnectOptions, Failure> {
    let url = url.reveal().trim();
    let scheme = ["postgres://", "postgresql://"];
    let options = PgConnectOptions::from_str(url).ok();
    let options = options.filter(|_| scheme.iter().any(|scheme| url.starts_with(scheme)));
    options.ok_or_else(|| {
        Failure::usage(
            "--postgres is no URL of a database, such as postgres://user:password@host/database",
        )
    })
}

/// Connections under the service's role.
pub(crate) async fn connect(url: &Secret, connections_max: u32) -> Result<PgPool, Failure> {
    // A pool tells only that its time has run out; one connection of our own tells why.
    let connecting = timeout(POSTGRES_CONNECT_WITHIN, parse(url)?.connect()).await;
    let mut first = connecting
        .or_unavailable("Postgres does not answer")?
        .or_unavailable("could not connect to Postgres")?;
    let role = sqlx::query("SET ROLE command_ledger_service");
    role.execute(&mut first).await.context(
        "the database cannot be used under the role command_ledger_service; run \
         `command-ledger migrate` as its owner first",
    )?;
    // Postgres would also notice by itself, after its keepalive.
    let _ = first.close().await;

    let connecting = ledger::connect(url.reveal().trim(), connections_max);
    let connected = timeout(POSTGRES_CONNECT_WITHIN, connecting).await;
    connected
        .or_unavailable("Postgres does not answer")?
        .or_unavailable("could not connect to Postgres")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    #[test]
    fn p6_a_postgres_url_that_cannot_be_is_refused_without_being_shown() {
        for url in [
            "",
            "hunter2",
            "http://u:hunter2@h/d",
            "postgres://u:hunter2@h:port/d",
        ] {
            let failure = parse(&Secret::new(url)).unwrap_err();
            assert_eq!(failure.code, Code::Usage, "{url}");
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
        parse(&Secret::new("postgres://u@localhost/d?host=%2Ftmp%2Fa%20b")).unwrap();
    }
}
