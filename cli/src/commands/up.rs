//! `up`: everything on this machine, for development and for tests (SPEC section 12).

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::exit::Failure;
use crate::lifecycle::{Signals, endings};
use crate::limits::UP_NODES_MAX;
use crate::log::LogWitnesses;
use crate::nats;
use crate::output::Output;
use crate::secret::Secret;
use crate::secrets_key::SecretsKey;
use crate::service::{raise_open_files, until_told};
use crate::signing::Allowance;
use crate::up::{Home, Plan, Ready, Town};

/// Run everything on this machine: Postgres, NATS, the service, and nodes that are this machine.
///
/// The same folder starts again where it stopped. For development and tests, not for production.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder for everything that is kept
    #[arg(long, value_name = "FOLDER", default_value = ".ledger")]
    data: PathBuf,
    /// Nodes to run, each an agent of this machine with a state directory of its own
    #[arg(long, value_name = "NODES", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(UP_NODES_MAX)))]
    nodes: u16,
    /// Port of the API on the loopback address; 0 is any [default: that of the last start]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// When ready, print one line of JSON instead of a banner
    #[arg(long)]
    json: bool,
    // No variables for these two: in a shell that has them for the other commands, `up` would
    // start on what they name and not on what is in its folder.
    /// URL of a Postgres to use instead of an own one, as the owner of its schema
    #[arg(long, value_name = "URL")]
    postgres: Option<Secret>,
    /// URL of a NATS to use instead of an own one
    #[arg(long, value_name = "URL")]
    nats: Option<Secret>,
    #[command(flatten)]
    allowance: Allowance,
    #[command(flatten)]
    secrets_key: SecretsKey,
    #[command(flatten)]
    witnesses: LogWitnesses,
}

/// Runs until a signal.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    nats::check(options.nats.as_ref())?;
    let mut signals = Signals::listen()?;
    raise_open_files();
    let mut home = Home::claim(&options.data)?;
    let plan = Plan {
        nodes: options.nodes.into(),
        port: options.port,
        postgres: options.postgres,
        nats: options.nats,
        allowance: options.allowance,
        secrets_key: options.secrets_key,
        witnesses: options.witnesses,
    };
    let mut town = Town::new();
    let (endings, mut ended) = endings();
    let started = tokio::select! {
        started = town.start(&plan, &mut home, endings) => started,
        signal = signals.asked() => {
            Err(Failure::failed(format!("{signal} before everything was ready")))
        }
    };
    let result = match started {
        Ok(ready) => match tell(&ready, &home, options.json, output) {
            Ok(()) => until_told(&mut signals, &mut ended).await,
            Err(failure) => Err(failure),
        },
        Err(failure) => Err(failure),
    };
    tokio::select! {
        () = town.stop() => {}
        signal = signals.insisted() => {
            tracing::warn!("{signal} again: what is left is cut off");
            town.stop_servers().await;
        }
    }
    result
}

/// The line that `--json` prints; its names are a contract.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    api: &'a str,
    token: &'a str,
    tenant_id: String,
    gateway: &'a str,
    nats: &'a str,
    postgres: &'a str,
    data_dir: &'a str,
    nodes: Vec<Node>,
    pid: u32,
    quorum: u32,
    approvers: Vec<Approver<'a>>,
    log: &'a str,
    log_public_key: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    node_id: String,
    state_dir: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Approver<'a> {
    name: &'a str,
    key_file: String,
}

impl<'a> Approver<'a> {
    fn of((name, key_file): &'a (String, PathBuf)) -> Self {
        let key_file = key_file.to_string_lossy().into_owned();
        Self { name, key_file }
    }
}

fn tell(ready: &Ready, home: &Home, json: bool, output: &mut Output) -> Result<(), Failure> {
    // The folder's path is known to be UTF-8.
    let data_dir = home.folder().to_str().unwrap_or_default();
    if !json {
        return output.line(&banner(ready, data_dir));
    }
    let node = |(node, state_dir): &(_, PathBuf)| Node {
        node_id: ToString::to_string(node),
        state_dir: state_dir.to_string_lossy().into_owned(),
    };
    let line = Line {
        api: &ready.api,
        token: ready.token.reveal(),
        tenant_id: ready.tenant.to_string(),
        gateway: &ready.gateway,
        nats: ready.nats.reveal(),
        postgres: ready.postgres.reveal(),
        data_dir,
        nodes: ready.nodes.iter().map(node).collect(),
        pid: std::process::id(),
        quorum: ready.quorum,
        approvers: ready.approvers.iter().map(Approver::of).collect(),
        log: &ready.log,
        log_public_key: &ready.log_public_key,
    };
    output.line(&serde_json::to_string(&line)?)
}

fn banner(ready: &Ready, data_dir: &str) -> String {
    // Another terminal may be in another folder and have another PATH.
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::to_str);
    let program = quoted(program.unwrap_or("command-ledger"));
    let first = ready.nodes.first().map(|(node, _)| node.to_string());
    let first = first.unwrap_or_default();
    let (nodes, pid) = (ready.nodes.len(), std::process::id());
    let nodes = if nodes == 1 {
        "1 node".to_owned()
    } else {
        format!("{nodes} nodes")
    };
    let export = |name: &str, value: &str| format!("  export {name}={}", quoted(value));
    let exports = [
        export("COMMAND_LEDGER_API", &ready.api),
        export("COMMAND_LEDGER_TOKEN", ready.token.reveal()),
        export("COMMAND_LEDGER_TENANT", &ready.tenant.to_string()),
        export("COMMAND_LEDGER_NATS", ready.nats.reveal()),
        export("COMMAND_LEDGER_POSTGRES", ready.postgres.reveal()),
        export("NODE", &first),
        export("GATEWAY", &ready.gateway),
        export("GATEWAY_CA", &ready.gateway_ca.to_string_lossy()),
    ]
    .join("\n");
    format!(
        "Command Ledger is up: {nodes} connected, data in {data_dir}, process {pid}.
Ctrl-C stops everything; the same command starts it again where it stopped.

In another terminal:

{exports}

  {program} watch &
  {program} node list
  {program} api commands.run tenantId=$COMMAND_LEDGER_TENANT nodeId=$NODE kind=inventory.refresh idempotencyKey=hello
  {program} api commands.list tenantId=$COMMAND_LEDGER_TENANT nodeId=$NODE
  {program} audit replay
"
    )
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@=%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_the_banner_names_all_that_another_terminal_needs() {
        let ready = Ready {
            api: "http://127.0.0.1:1".to_owned(),
            token: Secret::new("token_x.y"),
            tenant: "tenant_01h455vb4pex5vsknk084sn02q".parse().unwrap(),
            gateway: "https://127.0.0.1:2".to_owned(),
            gateway_ca: "/a b/authority/node-ca.pem".into(),
            nats: Secret::new("nats://127.0.0.1:3"),
            postgres: Secret::new("postgres://u@h/d"),
            nodes: Vec::new(),
            quorum: 0,
            approvers: Vec::new(),
            log: "http://127.0.0.1:4".to_owned(),
            log_public_key: "log+1+key".to_owned(),
        };
        let banner = banner(&ready, "/a b");
        for line in [
            "  export COMMAND_LEDGER_API=http://127.0.0.1:1",
            "  export GATEWAY=https://127.0.0.1:2",
            "  export GATEWAY_CA='/a b/authority/node-ca.pem'",
        ] {
            assert!(banner.lines().any(|told| told == line), "{banner}");
        }
        // Whoever runs the banner's command and then the README's must not meet a conflict.
        let key = banner.split("idempotencyKey=").nth(1).unwrap();
        let key = key.split_whitespace().next().unwrap();
        let readme = include_str!("../../../README.md");
        assert!(!readme.contains(&format!("idempotencyKey={key}")), "{key}");
        let program = std::env::current_exe().unwrap();
        assert!(banner.contains(program.to_str().unwrap()), "{banner}");
    }

    #[test]
    fn h2_words_of_the_banner_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("http://127.0.0.1:7070"), "http://127.0.0.1:7070");
        assert_eq!(
            quoted("postgres://u@h/d?host=%2Ftmp"),
            "'postgres://u@h/d?host=%2Ftmp'"
        );
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
