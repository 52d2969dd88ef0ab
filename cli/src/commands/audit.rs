//! `audit`: what the ledger says happened, checked.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ledger_audit::{Checked, Error, Report};
use ledger_protocol::kind::Registry;
use ledger_protocol::tlog::{Algorithm, KeyName};
use serde_json::json;

mod diff;
mod export;
mod progress;
mod receipt;
mod replay;
mod source;
mod verify;
mod whom;

pub(super) use progress::Progress;
pub(super) use whom::Whom;

use crate::archive::ArchiveOption;
use crate::exit::{Code, Failure};
use crate::limits::CONNECTIONS_OF_ONE_CALL;
use crate::output::{Output, printable};
use crate::postgres::{self, PostgresOption};

/// Check what the ledger says.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Fold the log from its first event and compare the result with the live tables, row by row;
    /// any difference is printed, and the exit code is 1. With --at, show the ledger as it was
    Replay(replay::Options),
    /// Show what changed between two points of the log: commands, nodes and batches, in the order of
    /// their first change
    Diff(diff::Options),
    /// Check every event against the rules that any log must keep: one end for each command, order,
    /// credits, sessions, deadlines; whatever breaks one is printed, and the exit code is 1
    Check {
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        archive: ArchiveOption,
        #[command(flatten)]
        postgres: PostgresOption,
    },
    /// Print the key that others verify the log with, as `audit verify` and any client of signed notes
    /// take it
    Key {
        /// The log's private key, as `serve --log-key` has it, or its public key
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Name of the log, as `serve --log-origin` has it
        #[arg(long, value_name = "NAME")]
        origin: KeyName,
    },
    /// Print the key that others verify a witness's cosignatures with, as `audit verify --witness` and
    /// `serve --log-witness` take it
    WitnessKey {
        /// The witness's private key, as `witness --key` has it, or its public key
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Name of the witness, as `witness --name` has it
        #[arg(long, value_name = "NAME")]
        name: KeyName,
    },
    /// Write the log, up to its newest checkpoint, to one file that `audit verify` can hold against
    /// the log's key, wherever it is
    Export(export::Options),
    /// Check an export against the log's key alone, without database or network: every hash and
    /// checkpoint, and the rules of `audit check`; the first position that is not what it should
    /// be is named, and the exit code is 1
    Verify(verify::Options),
    /// Write what happened to one command as a small file, with the proof that the log says so
    Receipt(receipt::Make),
    /// Check a receipt against the log's key alone, without database or network, and show what
    /// it proves
    VerifyReceipt(receipt::Verify),
}

/// Does what the verb says.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    match options.verb {
        Verb::Replay(options) => replay::run(options, output).await,
        Verb::Diff(options) => diff::run(options, output).await,
        Verb::Check {
            json,
            archive,
            postgres,
        } => {
            let pool = postgres::connect(&postgres.postgres, CONNECTIONS_OF_ONE_CALL).await?;
            let kinds = Registry::builtin();
            let checked = ledger_audit::check(&pool, archive.archive.as_ref(), &kinds).await;
            let checked = checked.map_err(told)?;
            tell_checked(&checked, json, output)
        }
        Verb::Key { key, origin } => {
            let key = crate::log::verifier_key(&key, origin, Algorithm::Ed25519)?;
            output.line(&key.to_string())
        }
        Verb::WitnessKey { key, name } => {
            let key = crate::log::verifier_key(&key, name, Algorithm::CosignatureV1)?;
            output.line(&key.to_string())
        }
        Verb::Export(options) => export::run(options, output).await,
        Verb::Verify(options) => verify::run(options, output).await,
        Verb::Receipt(options) => receipt::make(options, output).await,
        Verb::VerifyReceipt(options) => receipt::verify(&options, output),
    }
}

fn told(error: Error) -> Failure {
    let code = match &error {
        Error::Database(_) | Error::TimedOut { .. } => Code::Unavailable,
        Error::Beyond { .. } | Error::Archived { .. } | Error::File(_) => Code::Usage,
        Error::Gap { .. }
        | Error::Unreadable { .. }
        | Error::Corrupt { .. }
        | Error::KeyTwice { .. }
        | Error::Row { .. }
        | Error::Fold { .. }
        | Error::Trust(_)
        | Error::NoCheckpoint
        | Error::Checkpoint { .. }
        | Error::CheckpointSize { .. }
        | Error::Tree(_)
        | Error::Missing { .. }
        | Error::Bundle { .. }
        | Error::NoTile { .. }
        | Error::Archive(_)
        | Error::Record(_)
        | Error::Export(_)
        | Error::Log(_)
        | Error::Shelf(_)
        | Error::Shown(_)
        | Error::Write(_) => Code::Failed,
    };
    Failure::new(code, error)
}

fn tell(report: &Report, json: bool, output: &mut Output) -> Result<(), Failure> {
    let Report {
        events,
        commands,
        nodes,
        differences,
        differences_total,
    } = report;
    let total = *differences_total;
    if json {
        let differences: Vec<_> = differences
            .iter()
            .map(|found| {
                json!({
                    "table": found.table,
                    "key": found.key,
                    "column": found.column,
                    "expected": found.expected,
                    "found": found.found,
                })
            })
            .collect();
        output.json(&json!({
            "events": events,
            "commands": commands,
            "nodes": nodes,
            "differencesTotal": total,
            "differences": differences,
        }))?;
    } else {
        for difference in differences {
            output.line(&printable(&difference.to_string()))?;
        }
    }
    if !report.is_clean() {
        let shown = differences.len();
        return Err(Failure::failed(format!(
            "the live tables differ from the log ({total} differences, {shown} shown)"
        )));
    }
    if !json {
        output.line(&format!(
            "the live tables are exactly what the log says \
             (events: {events}, commands: {commands}, nodes: {nodes})"
        ))?;
    }
    Ok(())
}

fn tell_checked(checked: &Checked, json: bool, output: &mut Output) -> Result<(), Failure> {
    let Checked {
        events,
        commands,
        live,
        violations,
        violations_total: total,
        broken_trust,
    } = checked;
    if json {
        let violations: Vec<_> = violations
            .iter()
            .map(|found| {
                json!({
                    "position": found.position,
                    "stream": found.stream.to_string(),
                    "rule": found.rule.to_string(),
                })
            })
            .collect();
        output.json(&json!({
            "events": events,
            "commands": commands,
            "live": live,
            "violationsTotal": total,
            "violations": violations,
            "brokenTrust": broken_trust.as_ref().map(ToString::to_string),
        }))?;
    } else {
        if let Some(broken) = broken_trust {
            output.line(&printable(&broken.to_string()))?;
        }
        for violation in violations {
            output.line(&printable(&violation.to_string()))?;
        }
    }
    if !checked.is_clean() {
        let shown = violations.len();
        return Err(Failure::failed(match broken_trust {
            Some(_) if *total == 0 => "the trust bundles beside the log are no chain".to_owned(),
            _ => format!("the log breaks its rules ({total} violations, {shown} shown)"),
        }));
    }
    if !json {
        output.line(&format!(
            "the log keeps every rule (events: {events}, commands: {commands}, not ended: {live})"
        ))?;
    }
    Ok(())
}
