//! The command line.

use clap::{Parser, Subcommand};

use crate::commands::{
    agent, api, audit, batch, bench, gateway, migrate, node, retention, secret, serve, sweeper,
    tenant, token, up, watch, witness,
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
    Batch(batch::Options),
    Secret(secret::Options),
    Api(api::Options),
    Watch(watch::Options),
    Audit(audit::Options),
    Retention(retention::Options),
    Witness(witness::Options),
    Bench(bench::Options),
}

impl Command {
    /// What is logged unless the caller says otherwise: a service tells what it does, a command
    /// that a person waits for only what is wrong.
    fn log_level(&self) -> &'static str {
        match self {
            Self::Serve(_)
            | Self::Gateway(_)
            | Self::Sweeper(_)
            | Self::Agent(_)
            | Self::Witness(_) => "info",
            Self::Up(_)
            | Self::Migrate(_)
            | Self::Tenant(_)
            | Self::Token(_)
            | Self::Node(_)
            | Self::Batch(_)
            | Self::Secret(_)
            | Self::Api(_)
            | Self::Watch(_)
            | Self::Audit(_)
            | Self::Retention(_)
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
            Command::Agent(options) => agent::run(options, output).await,
            Command::Migrate(options) => migrate::run(options, output).await,
            Command::Tenant(options) => tenant::run(options, output).await,
            Command::Token(options) => token::run(options, output).await,
            Command::Node(options) => node::run(options, output).await,
            Command::Batch(options) => batch::run(options, output).await,
            Command::Secret(options) => secret::run(options, output).await,
            Command::Api(options) => api::run(options, output).await,
            Command::Watch(options) => watch::run(options, output).await,
            Command::Audit(options) => audit::run(options, output).await,
            Command::Retention(options) => retention::run(options, output).await,
            Command::Witness(options) => witness::run(options, output).await,
            Command::Bench(options) => bench::run(options, output).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use clap::CommandFactory as _;

    use super::*;

    /// Wide enough for every line that is not wrapped by itself.
    const COLUMNS: usize = 100;
    const HELP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/help.txt");

    /// The help of every command, in the order in which they stand.
    fn help() -> String {
        fn add(command: &clap::Command, path: &str, text: &mut String) {
            let path = format!("{path}{}", command.get_name());
            // What this environment holds is no part of the help.
            let shown = command
                .clone()
                .mut_args(|argument| argument.hide_env_values(true));
            let mut shown = shown.term_width(COLUMNS).bin_name(&path);
            let shown = shown.render_long_help().to_string();
            writeln!(text, "$ {path} --help").unwrap();
            for line in shown.trim_end().lines() {
                writeln!(text, "{}", line.trim_end()).unwrap();
            }
            text.push('\n');
            for inner in command
                .get_subcommands()
                .filter(|inner| inner.get_name() != "help")
            {
                add(inner, &format!("{path} "), text);
            }
        }
        let mut command = Arguments::command();
        command.build();
        let mut text = String::new();
        add(&command, "", &mut text);
        text
    }

    #[test]
    fn h2_the_help_is_the_committed_file() {
        let committed = std::fs::read_to_string(Path::new(HELP)).unwrap_or_default();
        assert!(
            committed == help(),
            "the help has changed; look at the change after `cargo nextest run -p ledger-cli \
             --run-ignored only writes_the_help`"
        );
    }

    #[test]
    #[ignore = "writes cli/help.txt, which the test above compares"]
    fn writes_the_help() {
        std::fs::write(HELP, help()).unwrap();
    }

    #[test]
    fn h2_the_words_that_scripts_use_are_there() {
        for line in [
            "up --data d --nodes 3 --port 0 --json --postgres p --nats n",
            "serve --postgres p --nats n",
            "gateway --postgres p --authority a",
            "sweeper --postgres p",
            "agent --gateway https://g --state s --join-token t --gateway-ca f",
            "agent --simulate 9 --gateway wss://g --state s --gateway-ca f --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q --json",
            "migrate --postgres p",
            "tenant create name --postgres p",
            "token create --tenant tenant_01h455vb4pex5vsknk084sn02q --identity i --admin --postgres p",
            "api commands.run a=1 b=2 --api u --token t",
            "api commands.run --json - --api u --token t",
            "watch --nats n --json --count 1 --for 3s --from 1",
            "node list --tenant tenant_01h455vb4pex5vsknk084sn02q --json --api u --token t",
            "batch approve --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q --batch batch_01h455vb4pex5vsknk084sn02q --key f",
            "batch approve batch_01h455vb4pex5vsknk084sn02q --key f --payload p --payload q --scope s --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "batch show batch_01h455vb4pex5vsknk084sn02q --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "batch show --batch batch_01h455vb4pex5vsknk084sn02q --payload p --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "batch verify batch_01h455vb4pex5vsknk084sn02q --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "serve --postgres p --approvers f --unbatched-destructive-per-hour 3",
            "serve --postgres p --command-root old --command-root new",
            "up --unbatched-destructive-per-hour 1024",
            "serve --postgres p --secrets-key new --secrets-key old",
            "up --secrets-key f",
            "secret keygen f",
            "secret put site/bmc --file f --kind bmc.power --node node_01h455vb4pex5vsknk084sn02q --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q --json",
            "secret list --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "secret delete site/bmc --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "witness --key f --name n --log k --log l --state s --listen 127.0.0.1:0",
            "audit witness-key --key f --name n",
            "audit replay --postgres p --json",
            "audit replay --at 5 --postgres p --json",
            "audit replay --at 2026-01-31T09:30:00Z --file f --key k",
            "audit diff 5 9 --postgres p --json",
            "audit check --postgres p --json",
            "--log-format json --log-level debug audit replay --postgres p",
            "audit replay --postgres p --log-level debug",
        ] {
            let words = std::iter::once("command-ledger").chain(line.split(' '));
            if let Err(error) = Arguments::try_parse_from(words) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn h2_what_cannot_be_meant_is_a_usage_error() {
        for line in [
            "",
            "nothing",
            "up --nodes 0",
            "up --nodes 501",
            "up --port 65536",
            "up extra",
            "api --api u --token t",
            "api commands.run a=1 --json f --api u --token t",
            "watch --nats n --count 0",
            "watch --nats n --for soon",
            "watch --nats n --node cmd_01h455vb4pex5vsknk084sn02q",
            "batch propose --reason r --idempotency-key k --tenant tenant_01h455vb4pex5vsknk084sn02q --api u --token t",
            "batch show --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "batch show batch_01h455vb4pex5vsknk084sn02q --batch batch_01h455vb4pex5vsknk084sn02q --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "node get node_1 --tenant tenant_01h455vb4pex5vsknk084sn02q --api u --token t",
            "token create --tenant tenant_01h455vb4pex5vsknk084sn02q --identity i --postgres p",
            "serve --postgres p --listen 7070",
            "witness --key f --name n --state s",
            "witness --key f --name a+b --log k --state s",
            "serve --postgres p --gateway http://g:7443",
            "gateway --postgres p --authority a --server-name https://g",
            "secret put site/bmc hunter2 --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "secret put /bmc --api u --token t --tenant tenant_01h455vb4pex5vsknk084sn02q",
            "secret keygen",
            "audit replay --at soon --postgres p",
            "audit replay --command cmd_01h455vb4pex5vsknk084sn02q --postgres p",
            "audit diff 5 --postgres p",
            "agent --gateway http://g:7443 --state s",
        ] {
            let words = std::iter::once("command-ledger").chain(line.split_terminator(' '));
            assert!(Arguments::try_parse_from(words).is_err(), "{line}");
        }
    }

    #[test]
    fn p4_an_allowance_that_no_node_counts_up_to_is_refused_with_the_limit() {
        for command in ["up", "serve --postgres p"] {
            let line = format!("command-ledger {command} --unbatched-destructive-per-hour 1025");
            let error = Arguments::try_parse_from(line.split(' ')).err().unwrap();
            assert_eq!(error.exit_code(), 2);
            let told = error.to_string();
            assert!(told.contains("1025 is not in 0..=1024"), "{told}");
        }
    }

    #[test]
    fn h2_what_would_work_on_a_ledger_unasked_takes_no_variable() {
        let command = Arguments::command();
        for name in ["bench", "up"] {
            let command = command.find_subcommand(name).unwrap();
            let postgres = command
                .get_arguments()
                .find(|arg| arg.get_id() == "postgres");
            assert_eq!(postgres.unwrap().get_env(), None, "{name}");
        }
    }

    #[test]
    fn a13_a_token_without_a_grant_is_told_of_both_ways_to_give_one() {
        let create = "command-ledger token create --identity i --postgres p --tenant \
                      tenant_01h455vb4pex5vsknk084sn02q";
        let told = |more: &str| {
            let line = format!("{create}{more}");
            Arguments::try_parse_from(line.split(' '))
                .err()
                .map(|error| error.to_string())
        };
        let neither = told("").unwrap();
        for part in ["--grant", "--admin"] {
            assert!(neither.contains(part), "{neither}");
        }
        let read = " --grant compute:nodes:read";
        assert!(told(&format!("{read} --admin")).is_some());
        assert_eq!(told(&format!("{read}{read}")), None);
        assert_eq!(told(" --admin"), None);
    }

    #[test]
    fn h2_the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
