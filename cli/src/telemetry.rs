//! Logs, on stderr: text for people, JSON for collectors.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::{Failure, Meaning};

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One object a line, for collectors.
    Json,
}

/// Libraries that tell their inner life at `info`.
const QUIETER: &str = "async_nats=warn,sqlx=warn,hyper=warn,rustls=warn";

/// Starts logging. `directives` are a level, or `target=level` pairs separated by commas.
pub(crate) fn start(directives: &str, format: Format) -> Result<(), Failure> {
    let filter = EnvFilter::builder()
        .parse(format!("{QUIETER},{directives}"))
        .or_usage(format!(
            "`{directives}` is no log level; use error, warn, info, debug, trace or target=level"
        ))?;
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(colours)
        // Its default answer to a stderr that nobody reads is to print there, which panics.
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        Format::Text => registry.with(layer).try_init()?,
        Format::Json => registry.with(layer.json().flatten_event(true)).try_init()?,
    }
    Ok(())
}
