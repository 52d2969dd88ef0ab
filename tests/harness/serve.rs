//! The services of the program, each as a process of its own.

use std::net::SocketAddr;
use std::path::Path;

use reqwest::Url;
use serde_json::Value;

use crate::http::Caller;
use crate::process::Process;

/// A process that listens somewhere.
#[derive(Debug)]
pub struct Service {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    ready: &'static str,
}

/// A tenant and its admin in an empty database, by the program's own commands; the API's address
/// comes later.
pub async fn install(postgres: &Url) -> Caller {
    let at = ["--postgres", postgres.as_str()];
    let run = async |words: &[&str]| Process::output(&[words, &at].concat()).await;
    run(&["migrate"]).await;
    let tenant = run(&["tenant", "create", "acme"]).await;
    let tenant = tenant.trim();
    let token = ["--tenant", tenant, "--identity", "ada", "--admin"];
    let token = run(&[&["token", "create"], &token[..]].concat()).await;
    Caller::new("", tenant, token.trim())
}

/// `command-ledger serve`: an API, and a publisher when there is a NATS.
pub async fn serve(postgres: &Url, nats: Option<&str>) -> Service {
    let mut more = Vec::new();
    if let Some(nats) = nats {
        more.extend(["--nats", nats]);
    }
    start("serve", postgres, &more, "the API is served").await
}

/// `command-ledger serve` with these arguments and no publisher.
pub async fn serve_with(postgres: &Url, more: &[&str]) -> Service {
    start("serve", postgres, more, "the API is served").await
}

/// The same, with variables.
pub async fn serve_in(postgres: &Url, more: &[&str], variables: &[(String, String)]) -> Service {
    start_in("serve", postgres, more, "the API is served", variables).await
}

/// `command-ledger gateway`, with the authority in this folder.
pub async fn gateway(postgres: &Url, authority: &str) -> Service {
    gateway_with(postgres, authority, &[]).await
}

/// The same, with more arguments.
pub async fn gateway_with(postgres: &Url, authority: &str, more: &[&str]) -> Service {
    let more = [&["--authority", authority], more].concat();
    start("gateway", postgres, &more, "gateway serves nodes").await
}

/// `command-ledger agent`, with its state in `agent` of a folder that has the gateway's authority in
/// `authority`. It is this machine's own daemon, so no test of it may ask for a reboot.
pub fn agent(gateway: &Service, folder: &Path, join_token: Option<&str>) -> Process {
    let (state, ca) = (folder.join("agent"), folder.join("authority/node-ca.pem"));
    let at = format!("https://{}", gateway.address);
    let paths = (state.to_str().unwrap(), ca.to_str().unwrap());
    let arguments = [
        "agent",
        "--gateway",
        &at,
        "--state",
        paths.0,
        "--gateway-ca",
        paths.1,
    ];
    let token = join_token.map(|token| ("COMMAND_LEDGER_JOIN_TOKEN", token));
    Process::start_with(&arguments, token.as_slice())
}

/// `command-ledger witness` of the logs with these keys, with its key and its state in this folder.
pub async fn witness(folder: &Path, name: &str, logs: &[&str]) -> Service {
    let (key, state) = (folder.join(format!("{name}.pem")), folder.join(name));
    let (key, state) = (key.to_str().unwrap(), state.to_str().unwrap());
    if !Path::new(key).exists() {
        Process::output(&["batch", "keygen", "--out", key]).await;
    }
    let own = ["--key", key, "--name", name, "--state", state];
    let mut arguments = vec!["--log-format", "json", "witness"];
    arguments.extend(own);
    arguments.extend(logs.iter().flat_map(|log| ["--log", *log]));
    let arguments = arguments.into_iter().map(str::to_owned).collect();
    started(arguments, "the witness is served", Vec::new()).await
}

/// One of several gateways, woken by NATS.
pub async fn gateway_of_many(postgres: &Url, authority: &str, name: &str, nats: &str) -> Service {
    let more = ["--authority", authority, "--name", name, "--nats", nats];
    start("gateway", postgres, &more, "gateway serves nodes").await
}

async fn start(command: &str, postgres: &Url, more: &[&str], ready: &'static str) -> Service {
    start_in(command, postgres, more, ready, &[]).await
}

async fn start_in(
    command: &str,
    postgres: &Url,
    more: &[&str],
    ready: &'static str,
    variables: &[(String, String)],
) -> Service {
    let mut arguments = vec![
        "--log-format",
        "json",
        command,
        "--postgres",
        postgres.as_str(),
    ];
    arguments.extend(more);
    let arguments = arguments.into_iter().map(str::to_owned).collect();
    started(arguments, ready, variables.to_vec()).await
}

async fn started(
    arguments: Vec<String>,
    ready: &'static str,
    variables: Vec<(String, String)>,
) -> Service {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (process, address) = launch(&arguments, any, ready, &variables).await;
    Service {
        process,
        address,
        arguments,
        variables,
        ready,
    }
}

async fn launch(
    arguments: &[String],
    at: SocketAddr,
    ready: &str,
    variables: &[(String, String)],
) -> (Process, SocketAddr) {
    let at = at.to_string();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--listen", &at]);
    let variables = variables.iter();
    let variables: Vec<_> = variables.map(|(name, value)| (&**name, &**value)).collect();
    let mut process = Process::start_with(&arguments, &variables);
    // The address stands nowhere but in the log, for port 0 is any port.
    let address = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        let text = line["address"]
            .as_str()
            .filter(|_| line["message"] == ready)?;
        text.parse().ok()
    };
    let address = process.line(ready, Process::stderr, address).await;
    (process, address)
}

impl Service {
    /// Waits for a line of its log whose message begins so; the whole line.
    pub async fn told(&mut self, begins: &str) -> Value {
        let line = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            let message = line["message"].as_str()?;
            message.starts_with(begins).then_some(line)
        };
        self.process.line(begins, Process::stderr, line).await
    }

    /// Dies as `kill -9` does, and starts again on the same address.
    pub async fn crash(&mut self) {
        self.process.kill().await;
        self.revive().await;
    }

    /// Starts again what has died, on the same address.
    pub async fn revive(&mut self) {
        (self.process, _) =
            launch(&self.arguments, self.address, self.ready, &self.variables).await;
    }
}
