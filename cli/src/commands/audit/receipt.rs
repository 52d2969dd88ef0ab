//! `audit receipt` and `audit verify-receipt`: what happened to one command, for somebody who trusts
//! nobody here (SPEC U3).

use std::path::{Path, PathBuf};

use clap::Args;
use ledger_audit::ReceiptError;
use ledger_protocol::command::State;
use ledger_protocol::id::CommandId;
use ledger_protocol::receipt::{Proved, RECEIPT_BYTES_MAX, Receipt};
use serde_json::{Value, json};

use super::whom::Whom;
use crate::archive::ArchiveOption;
use crate::exit::{Code, Failure, Meaning};
use crate::key_file;
use crate::limits::CONNECTIONS_OF_ONE_CALL;
use crate::output::{Output, printable};
use crate::postgres::{self, PostgresOption};

/// What a receipt is made of.
#[derive(Debug, Args)]
pub(super) struct Make {
    /// The command
    command: CommandId,
    /// Where it is written; standard output unless given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    archive: ArchiveOption,
    #[command(flatten)]
    postgres: PostgresOption,
}

/// What a receipt is held against.
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// The receipt
    file: PathBuf,
    /// Print what it proves as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    whom: Whom,
}

/// Makes a receipt.
pub(super) async fn make(options: Make, output: &mut Output) -> Result<(), Failure> {
    let pool = postgres::connect(&options.postgres.postgres, CONNECTIONS_OF_ONE_CALL).await?;
    let receipt =
        ledger_audit::receipt(&pool, options.archive.archive.as_ref(), options.command).await;
    let receipt = receipt.map_err(told)?.to_json();
    let Some(path) = options.out else {
        return output.json(&receipt);
    };
    let text = format!("{receipt:#}\n");
    std::fs::write(&path, text).or_usage(format!("{} cannot be written", path.display()))
}

fn told(error: ReceiptError) -> Failure {
    let code = match &error {
        ReceiptError::Unknown(_) => Code::NotFound,
        ReceiptError::NoCheckpoint
        | ReceiptError::NotYet { .. }
        | ReceiptError::Projection(_)
        | ReceiptError::Snapshot(_) => Code::Unavailable,
        ReceiptError::Archived { .. } => Code::Usage,
        ReceiptError::Archive(_)
        | ReceiptError::Log(_)
        | ReceiptError::Checkpoint { .. }
        | ReceiptError::Tree { .. }
        | ReceiptError::Event { .. } => Code::Failed,
    };
    Failure::new(code, error)
}

/// Verifies a receipt, without network or database, and shows what it proves.
pub(super) fn verify(options: &Verify, output: &mut Output) -> Result<(), Failure> {
    let receipt = read(&options.file)?;
    let policy = options.whom.policy()?;
    let proved = receipt.verify(&policy).map_err(Failure::failed)?;
    if options.json {
        output.json(&as_json(&proved))
    } else {
        show(&proved, output)
    }
}

fn read(path: &Path) -> Result<Receipt, Failure> {
    let text = key_file::read(path, RECEIPT_BYTES_MAX as u64)?;
    Receipt::parse(text.as_bytes()).or_usage(path.display())
}

fn as_json(proved: &Proved<'_>) -> Value {
    let head = proved.checkpoint.checkpoint.head();
    let command = &proved.command;
    let events = proved.events.iter().map(|(position, event)| {
        json!({
            "position": position,
            "at": event.at,
            "type": event.body.type_name(),
            "actor": event.actor.as_str(),
            "body": event.body.to_json(),
        })
    });
    json!({
        "commandId": command.id,
        "tenantId": command.tenant,
        "nodeId": command.node_id(),
        "kind": command.queued.kind,
        "state": command.state_name().as_str(),
        "events": events.collect::<Vec<_>>(),
        "signedByNode": proved.attested_by.is_some(),
        "batchId": command.queued.batch_id,
        "approvedBy": approvers(proved),
        "checkpoint": {
            "origin": proved.checkpoint.checkpoint.origin(),
            "size": head.size,
            "root": hex::encode(head.root),
            "cosignedBy": proved.checkpoint.cosigned.len(),
        },
    })
}

fn approvers(proved: &Proved<'_>) -> Vec<String> {
    let approvals = proved.batch.iter().flat_map(|batch| &batch.approvals);
    approvals
        .map(|approval| approval.given.approver.clone())
        .collect()
}

fn show(proved: &Proved<'_>, output: &mut Output) -> Result<(), Failure> {
    let command = &proved.command;
    let checkpoint = &proved.checkpoint.checkpoint;
    let queued = &command.queued;
    output.line(&printable(&format!(
        "{} · {} for {} · {}",
        command.id,
        queued.kind,
        queued.node_id,
        command.state_name()
    )))?;
    let rows: Vec<Vec<String>> = proved
        .events
        .iter()
        .map(|(position, event)| {
            vec![
                position.to_string(),
                event.at.to_string(),
                event.body.type_name().to_owned(),
                printable(event.actor.as_str()),
            ]
        })
        .collect();
    output.table(&["POSITION", "AT", "EVENT", "BY"], &rows)?;
    let end = match (&command.state, &proved.attested_by) {
        (State::Settled(_), Some(certificate)) => format!(
            "the end is signed by the node's key {}",
            hex::encode(&certificate.public_key)
        ),
        (State::Settled(_), None) => "the end is not signed by the node".to_owned(),
        _ => "the command had not ended when this receipt was made".to_owned(),
    };
    output.line(&end)?;
    let approvers = approvers(proved);
    if !approvers.is_empty() {
        let approvers = approvers.join(", ");
        output.line(&printable(&format!(
            "its batch was approved by {approvers}"
        )))?;
    }
    let cosigned = proved.checkpoint.cosigned.len();
    output.line(&printable(&format!(
        "all of it is in the log {} of {} events, signed by its key{}",
        checkpoint.origin(),
        checkpoint.head().size,
        if cosigned == 0 {
            String::new()
        } else {
            format!(" and cosigned by {cosigned} witnesses")
        }
    )))
}
