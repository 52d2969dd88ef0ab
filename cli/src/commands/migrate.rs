//! `migrate`: brings the schema of a database up to date.

use clap::Args;
use ledger_migrations::MIGRATOR;
use sqlx::Connection as _;
use tokio::time::timeout;

use crate::exit::{Code, Failure, Meaning};
use crate::limits::MIGRATE_WITHIN;
use crate::output::Output;
use crate::postgres::{self, PostgresOption};
use crate::secret::Secret;

/// Make or update the schema. Connects as the schema's owner, not as the service.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    postgres: PostgresOption,
}

/// Migrates and says where the schema stands.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let version = migrate(&options.postgres.postgres).await?;
    output.line(&format!("the schema is at version {version}"))
}

/// Applies what is missing, and gives the version that the schema then has. Two at once are fine:
/// one waits for the other.
pub(crate) async fn migrate(url: &Secret) -> Result<i64, Failure> {
    let options = postgres::parse(url)?.application_name("command-ledger migrate");
    let mut connection = postgres::connect_once(&options).await?;
    let migrating = timeout(MIGRATE_WITHIN, MIGRATOR.run(&mut connection)).await;
    let seconds = MIGRATE_WITHIN.as_secs();
    migrating
        .or_unavailable(format!("the migrations did not end within {seconds} s"))?
        .map_err(|error| {
            let error = anyhow::Error::from(error).context(
                "the migrations failed; they need the URL of the schema's owner, who must have \
                 CREATEROLE for the first one",
            );
            Failure::new(Code::Failed, error)
        })?;
    // Postgres would also notice by itself, after its keepalive.
    let _ = connection.close().await;
    Ok(newest())
}

/// The newest version of the schema that this program knows.
pub(crate) fn newest() -> i64 {
    let versions = MIGRATOR.iter().map(|migration| migration.version);
    versions.max().unwrap_or(0)
}
