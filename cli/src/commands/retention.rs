//! `retention`: what is old leaves the database.

use std::time::Duration;

use clap::Args;
use ledger_audit::{Archive, ArchiverError, Policy, Retained, RetentionError, Unserved, retain};
use serde_json::json;
use sqlx::Connection as _;

use super::audit::{Progress, Whom};
use crate::archive;
use crate::exit::{Code, Failure};
use crate::limits::{COMMANDS_KEPT_DAYS_MIN, KEPT_DAYS_MAX};
use crate::output::Output;
use crate::postgres::{self, PostgresOption};

/// Let go of what is old: events that the archive has leave the database with their partitions of ten
/// million positions, commands that have ended leave the tables that queries read. Nothing else ever
/// deletes. Connects as the schema's owner; services go on meanwhile. To be run now and then, such as
/// daily.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("kept").required(true).multiple(true))]
pub(crate) struct Options {
    /// The archive, brought up with the log first; a partition is dropped only after all that the
    /// archive has of it was read back and held against what the log's key has signed
    #[arg(long, value_name = "FOLDER|s3://BUCKET/PREFIX", value_parser = archive::parse)]
    archive: Archive,
    /// Days for which events stay in the database: a partition leaves when its youngest event is older.
    /// Afterwards `commands.timeline` lacks them, `audit` finds them with --archive
    #[arg(long, value_name = "DAYS", group = "kept",
          value_parser = clap::value_parser!(u32).range(0..=i64::from(KEPT_DAYS_MAX)))]
    keep_events_days: Option<u32>,
    /// Days for which commands can be queried after their end, 30 at least. Afterwards they are unknown to
    /// `commands.get`, and an idempotencyKey may be used again; the log has them still. A node's newest
    /// command stays
    #[arg(long, value_name = "DAYS", group = "kept",
          value_parser = clap::value_parser!(u32)
              .range(i64::from(COMMANDS_KEPT_DAYS_MIN)..=i64::from(KEPT_DAYS_MAX)))]
    keep_commands_days: Option<u32>,
    /// Only say what would leave; the archive is brought up all the same
    #[arg(long)]
    dry_run: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    postgres: PostgresOption,
}

/// Applies the policy.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let trust = options.whom.policy()?;
    let mut owner = postgres::connect_owner(&options.postgres.postgres).await?;
    let days = |days: u32| Duration::from_hours(24 * u64::from(days));
    let policy = Policy {
        events: options.keep_events_days.map(days),
        commands: options.keep_commands_days.map(days),
        is_rehearsal: options.dry_run,
    };
    let mut progress = Progress::of("read back");
    let progress = |done, all| progress.tell(done, all);
    let retained = retain(&mut owner, &options.archive, &trust, policy, progress).await;
    let retained = retained.map_err(told)?;
    // Postgres would also notice by itself, after its keepalive.
    let _ = owner.close().await;
    tell(&retained, &options, output)
}

fn told(error: RetentionError) -> Failure {
    let code = match &error {
        RetentionError::Archiver(ArchiverError::Log(
            Unserved::Absent | Unserved::Database(_) | Unserved::Tables(_),
        ))
        | RetentionError::Busy { .. }
        | RetentionError::Database(_)
        | RetentionError::Tables(_)
        | RetentionError::Question(_) => Code::Unavailable,
        RetentionError::Archiver(_)
        | RetentionError::Note(_)
        | RetentionError::Untrusted(_)
        | RetentionError::Archive { .. }
        | RetentionError::Log { .. }
        | RetentionError::Event { .. }
        | RetentionError::Missing { .. } => Code::Failed,
    };
    Failure::new(code, error)
}

fn tell(retained: &Retained, options: &Options, output: &mut Output) -> Result<(), Failure> {
    let Retained {
        archived,
        dropped,
        through,
        kept,
        commands,
    } = retained;
    if options.json {
        let dropped = dropped
            .iter()
            .map(|part| json!({ "partition": part.name, "first": part.first, "last": part.last }));
        return output.json(&json!({
            "dryRun": options.dry_run,
            "archived": archived,
            "dropped": dropped.collect::<Vec<_>>(),
            "through": through,
            "kept": kept.as_ref().map(ToString::to_string),
            "commands": commands,
        }));
    }
    let would = if options.dry_run { "would be " } else { "" };
    output.line(&format!(
        "{} is brought up to position {archived}",
        options.archive
    ))?;
    for part in dropped {
        let (name, first, last) = (&part.name, part.first, part.last);
        output.line(&format!(
            "{name} {would}dropped (positions {first} to {last})"
        ))?;
    }
    if let Some(kept) = kept {
        output.line(&format!("events stay: {kept}"))?;
    }
    if options.keep_commands_days.is_some() {
        output.line(&format!(
            "commands {would}taken out of the tables: {commands}"
        ))?;
    }
    Ok(())
}
