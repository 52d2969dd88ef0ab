//! The command line.

use clap::{Parser, Subcommand};

use crate::commands::{
    agent, api, audit, bench, gateway, migrate, node, serve, sweeper, tenant, token, up, watch,
};
use crate::exit::Failure;
use crate::output::Output;
use crate::telemetry;

/// Every command ends; it has at most one effect; what the ledger says happened can be proved.
#[derive(Debug, Parser)]
#[command(
    name = "command-ledger",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 done, 1 failed or differs, 2 usage, 3 refused, 4 not found, \
                  5 unavailable."
)]
pub(crate) struct Arguments {
    /// What is logged, on stderr: error, warn, info, debug, trace, or target=level pairs
    #[arg(long, global = true, env = "COMMAND_LEDGER_LOG", value_name = "LEVEL")]
    log_level: Option<String>,
    /// How a line of the log looks
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        value_name = "FORMAT"
    )]
    log_format: telemetry::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Options),
    Serve(serve::Options),
    Gateway(gateway::Options),
    Sweeper(sweeper::Options),
    Agent(agent::Options),
    Migrate(migrate::Options),
    Tenant(tenant::Options),
    Token(token::Options),
    Node(node::Options),
    Api(api::Options),
    Watch(watch::Options),
    Audit(audit::Options),
    Bench(bench::Options),
}

impl Command {
    /// What is logged unless the caller says otherwise: a service tells what it does, a command
    /// that a person waits for only what is wrong.
    fn log_level(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Gateway(_) | Self::Sweeper(_) | Self::Agent(_) => "info",
            Self::Up(_)
            | Self::Migrate(_)
            | Self::Tenant(_)
            | Self::Token(_)
            | Self::Node(_)
            | Self::Api(_)
            | Self::Watch(_)
            | Self::Audit(_)
            | Self::Bench(_) => "warn",
        }
    }
}

impl Arguments {
    /// Starts the log and does what was asked for.
    pub(crate) async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let level = self.log_level.as_deref().filter(|level| !level.is_empty());
        telemetry::start(level.unwrap_or(self.command.log_level()), self.log_format)?;
        match self.command {
            Command::Up(options) => up::run(options, output).await,
            Command::Serve(options) => serve::run(options).await,
            Command::Gateway(options) => gateway::run(options).await,
            Command::Sweeper(options) => sweeper::run(options).await,
            Command::Agent(options) => agent::run(options).await,
            Command::Migrate(options) => migrate::run(options, output).await,
            Command::Tenant(options) => tenant::run(options, output).await,
            Command::Token(options) => token::run(options, output).await,
            Command::Node(options) => node::run(options, output).await,
            Command::Api(options) => api::run(options, output).await,
            Command::Watch(options) => watch::run(options, output).await,
            Command::Audit(options) => audit::run(options, output).await,
            Command::Bench(options) => bench::run(options, output).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn h2_the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
