//! `bench`: how fast the ledger is here, on a real Postgres with fsync on; JSON out.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::output::Output;
use crate::secret::Secret;

mod append;
mod audit;
mod ground;
mod http;
mod latency;
mod lifecycle;

use ground::Ground;

/// Measure appends, whole lifecycles and the time to dispatch, and print JSON.
///
/// Starts a Postgres of its own in a temporary folder, with fsync on, unless --postgres names one;
/// that one gets a tenant and nodes that stay. Machines differ and are shared: compare figures of
/// one run with each other.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    of: Option<Of>,
    /// How long each figure is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Nodes that the commands are spread over
    #[arg(long, value_name = "NODES", default_value_t = 200,
          value_parser = clap::value_parser!(u16).range(1..=2_000))]
    nodes: u16,
    /// Sign no command, as a `serve` without --command-root
    #[arg(long)]
    unsigned: bool,
    /// Only these figures; all when none is named
    #[arg(long, value_enum, value_name = "FIGURE")]
    only: Vec<Figure>,
    // No variable: what is measured stays in the ledger for ever, so a shell that has the variable
    // for the other commands must not be enough to name it.
    /// URL of Postgres, as one who may migrate
    #[arg(long, value_name = "URL")]
    postgres: Option<Secret>,
}

#[derive(Debug, Subcommand)]
enum Of {
    Audit(audit::Options),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Figure {
    /// `run`s per second through the library
    Append,
    /// `run`s per second through HTTP
    Http,
    /// Lifecycles per second through a gateway and scripted agents
    Lifecycle,
    /// Time from `run` to dispatched on an idle node
    Latency,
}

/// Measures and prints.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    if let Some(Of::Audit(options)) = &options.of {
        return audit::run(options, output).await;
    }
    let wanted = |figure| options.only.is_empty() || options.only.contains(&figure);
    let span = Duration::from_secs(options.seconds);
    let signs = !options.unsigned;
    let ground = Ground::prepare(options.postgres.as_ref(), options.nodes, signs).await?;
    let measured = measure(&ground, span, wanted).await;
    ground.clear().await?;
    output.json(&measured?)
}

async fn measure(
    ground: &Ground,
    span: Duration,
    wanted: impl Fn(Figure) -> bool,
) -> Result<Value, Failure> {
    let mut figures = Map::new();
    // First those that want idle nodes: what the others queue is never run.
    if wanted(Figure::Latency) || wanted(Figure::Lifecycle) {
        let fleet = lifecycle::Fleet::start(ground).await?;
        if wanted(Figure::Latency) {
            figures.insert("latency".to_owned(), latency::measure(ground, span).await?);
        }
        if wanted(Figure::Lifecycle) {
            figures.insert("lifecycle".to_owned(), fleet.measure(ground, span).await?);
        }
        fleet.stop().await;
    }
    if wanted(Figure::Append) {
        figures.insert("append".to_owned(), append::measure(ground, span).await?);
    }
    if wanted(Figure::Http) {
        figures.insert("http".to_owned(), http::measure(ground, span).await?);
    }
    let raw = ground.raw_commits_per_second(span).await?;
    Ok(json!({
        "figures": figures,
        "signed": ground.signs,
        "nodes": ground.nodes.len(),
        "secondsPerFigure": span.as_secs(),
        "postgres": ground.version().await?,
        "rawSingleRowCommitsPerSecond": raw,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "optimised": !cfg!(debug_assertions),
    }))
}
