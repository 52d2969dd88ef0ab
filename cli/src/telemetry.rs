//! Logs, on stderr: text for people, JSON for collectors.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
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
    let wrong = |part: &str| {
        format!(
            "--log-level (or COMMAND_LEDGER_LOG): `{part}` is no log level; use off, error, warn, \
             info, debug, trace or target=level"
        )
    };
    if let Some(word) = unknown_word(directives) {
        return Err(Failure::usage(wrong(word)));
    }
    let filter = EnvFilter::builder()
        .parse(format!("{QUIETER},{directives}"))
        .or_usage(wrong(directives))?;
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

/// The first bare word that is no level. A filter would take it for the name of a target, and turn
/// everything else off.
fn unknown_word(directives: &str) -> Option<&str> {
    let words = directives.split(',').map(str::trim);
    // What stands in brackets belongs to a span.
    let mut bare =
        words.filter(|word| !word.is_empty() && !word.contains(['=', '[', ']', '{', '}']));
    bare.find(|word| word.parse::<LevelFilter>().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    #[test]
    fn h2_a_word_that_is_no_level_is_refused_with_the_levels() {
        for word in ["foo", "inof", "info,foo", "sqlx=warn,inof"] {
            let failure = start(word, Format::Text).unwrap_err();
            assert_eq!(failure.code, Code::Usage, "{word}");
            assert!(
                failure.to_string().contains("error, warn, info"),
                "{failure}"
            );
        }
        for filter in [
            "info",
            "INFO",
            "off",
            "info,sqlx=warn",
            "sqlx=debug",
            "[a{b=1,c}]=info",
        ] {
            assert_eq!(unknown_word(filter), None, "{filter}");
        }
    }
}
