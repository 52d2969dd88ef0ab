//! `audit replay`: the log folded again; to its end and compared with the live tables, or up to a past
//! position, and shown as it was.

use clap::Args;
use ledger_audit::{Error, Item, Moment, Past};
use ledger_protocol::event::Stream;
use ledger_protocol::id::{BatchId, CommandId, NodeId};
use ledger_protocol::time::Timestamp;
use serde_json::{Value, json};

use super::source::Source;
use super::told;
use crate::exit::{Code, Failure};
use crate::limits::CONNECTIONS_OF_ONE_CALL;
use crate::output::Output;
use crate::postgres;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Show the ledger as it was after the event at this position, or after the last event that was
    /// recorded at or before this time (RFC 3339), and compare nothing
    #[arg(
        long,
        value_name = "POSITION|TIME",
        required_unless_present = "postgres"
    )]
    at: Option<Moment>,
    /// Show this command as it was, whole
    #[arg(long, value_name = "ID", requires = "at", group = "only")]
    command: Option<CommandId>,
    /// Show this node as it was, whole
    #[arg(long, value_name = "ID", requires = "at", group = "only")]
    node: Option<NodeId>,
    /// Show this batch as it was, whole
    #[arg(long, value_name = "ID", requires = "at", group = "only")]
    batch: Option<BatchId>,
    /// Print JSON: the report, or with --at a line for each thing that there was, then the counts
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

impl Options {
    fn only(&self) -> Option<Stream> {
        let command = self.command.map(Stream::Command);
        let node = self.node.map(Stream::Node);
        command.or(node).or(self.batch.map(Stream::Batch))
    }
}

pub(super) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let Some(moment) = options.at else {
        if options.source.file.is_some() {
            return Err(Failure::usage(
                "an export has no tables to compare with: give --at, or --postgres and no --file",
            ));
        }
        let url = options.source.database()?;
        let pool = postgres::connect(url, CONNECTIONS_OF_ONE_CALL).await?;
        let report = ledger_audit::replay(&pool, options.source.archive.archive.as_ref()).await;
        let report = report.map_err(told)?;
        return super::tell(&report, options.json, output);
    };
    let mut history = options.source.open().await?;
    let position = history.position(moment).await.map_err(told)?;
    let only = options.only();
    if only.is_none() && !options.json {
        let past = history.past(position, None, None).await.map_err(told)?;
        return tell(&past, output);
    }
    let time = moment_of(moment);
    let mut found = false;
    let mut failed = None;
    let mut each = |item: Item<'_>| {
        found = true;
        let shown = show(&item, time, only.is_some());
        let shown = shown.map_err(|error| Error::Shown(error.into()))?;
        let printed = if options.json {
            output.json_line(&shown)
        } else {
            output.json_indented(&shown)
        };
        printed.map_err(|failure| {
            failed = Some(failure);
            Error::Shown("nobody takes it".into())
        })
    };
    let past = history.past(position, only, Some(&mut each)).await;
    if let Some(failure) = failed {
        return Err(failure);
    }
    let past = past.map_err(told)?;
    match only {
        Some(stream) if !found => Err(Failure::new(
            Code::NotFound,
            anyhow::anyhow!("{stream} was not there at position {position}"),
        )),
        Some(_) => Ok(()),
        None => output.json_line(&counts(&past)),
    }
}

/// The time that a batch's standing is told for; that of a position is its event's.
const fn moment_of(moment: Moment) -> Option<Timestamp> {
    match moment {
        Moment::Time(time) => Some(time),
        Moment::Position(_) => None,
    }
}

/// One thing as it was: alone as the API shows it, among others under the name of what it is.
fn show(
    item: &Item<'_>,
    time: Option<Timestamp>,
    is_alone: bool,
) -> Result<Value, ledger_api::Error> {
    let (name, shown) = match item {
        Item::Command(command) => ("command", ledger_api::shown::command(command)?),
        Item::Node(node, spec) => ("node", ledger_api::shown::node(node, *spec)?),
        Item::Batch(batch, at) => (
            "batch",
            ledger_api::shown::batch(batch, time.unwrap_or(*at))?,
        ),
    };
    Ok(if is_alone {
        shown
    } else {
        json!({ name: shown })
    })
}

fn counts(past: &Past) -> Value {
    let counts = &past.counts;
    json!({
        "position": past.position,
        "at": past.at.map(|at| at.to_string()),
        "counts": {
            "commands": counts.commands,
            "nodes": counts.nodes,
            "connected": counts.connected,
            "deleted": counts.deleted,
            "batches": counts.batches,
            "approved": counts.approved,
        },
    })
}

fn tell(past: &Past, output: &mut Output) -> Result<(), Failure> {
    let counts = &past.counts;
    output.line(&match past.at {
        Some(at) => format!("after position {}, recorded at {at}:", past.position),
        None => "before the first event:".to_owned(),
    })?;
    let mut rows = Vec::new();
    for (state, count) in &counts.commands {
        rows.push(vec![format!("commands {state}"), count.to_string()]);
    }
    for (what, count) in [
        ("nodes", counts.nodes),
        ("nodes connected", counts.connected),
        ("nodes deleted", counts.deleted),
        ("batches", counts.batches),
        ("batches approved", counts.approved),
    ] {
        rows.push(vec![what.to_owned(), count.to_string()]);
    }
    output.table(&["WHAT", "COUNT"], &rows)
}
