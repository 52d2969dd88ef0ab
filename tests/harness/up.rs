//! `command-ledger up --json` on a folder of its own: the whole of it, through its front door.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread::sleep;
use std::time::{Duration, Instant};

use reqwest::Url;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::http::Caller;
use crate::process::Process;
use crate::tree::{self, Known};
use crate::wait::found;

/// SIGTERM stops all that it started within this time (SPEC section 12).
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// What a machine that runs other tests at the same time may add to it.
const SLACK: Duration = Duration::from_secs(5);
/// Between two looks in a place that cannot await.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running `up`.
#[derive(Debug)]
pub struct Up {
    process: Process,
    /// What it has printed when it was ready.
    pub line: Value,
    /// The admin of its tenant.
    pub admin: Caller,
}

/// The arguments of `up` on this folder.
pub fn arguments(folder: &Path) -> Vec<&str> {
    vec![
        "up",
        "--json",
        "--port",
        "0",
        "--data",
        folder.to_str().unwrap(),
    ]
}

impl Up {
    /// Starts it on this folder, and waits until it is ready.
    pub async fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[]).await
    }

    /// The same, with more arguments.
    pub async fn start_with(folder: &Path, more: &[&str]) -> Self {
        let mut process = Process::start(&[&arguments(folder)[..], more].concat());
        let read = |line: &str| Some(serde_json::from_str(line));
        let line = process.line("up is ready", Process::stdout, read).await;
        let line: Value = line.unwrap();
        let text = |field: &str| {
            let text = line[field].as_str();
            text.unwrap_or_else(|| panic!("no {field}: {line}"))
                .to_owned()
        };
        let admin = Caller::new(text("api"), &text("tenantId"), text("token"));
        Self {
            process,
            line,
            admin,
        }
    }

    /// A field of the ready line.
    pub fn text(&self, field: &str) -> &str {
        let text = self.line[field].as_str();
        text.unwrap_or_else(|| panic!("no {field}: {}", self.line))
    }

    /// The id of a node, from 0.
    pub fn node(&self, index: usize) -> &str {
        let id = self.line["nodes"][index]["nodeId"].as_str();
        id.unwrap_or_else(|| panic!("no node {index}: {}", self.line))
    }

    /// The state directory of a node, from 0.
    pub fn state_dir(&self, index: usize) -> PathBuf {
        let path = self.line["nodes"][index]["stateDir"].as_str();
        path.unwrap_or_else(|| panic!("no node {index}: {}", self.line))
            .into()
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// All that it has printed.
    pub fn said(&self) -> String {
        [self.process.stdout(), self.process.stderr()].concat()
    }

    /// All that it has started, itself included.
    pub fn tree(&self) -> std::collections::BTreeSet<Known> {
        tree::descendants(self.pid())
    }

    /// Queues a command for a node, from 0.
    pub async fn run(&self, node: usize, kind: &str, key: &str) -> Value {
        let node = self.node(node);
        let input = json!({"nodeId": node, "kind": kind, "idempotencyKey": key});
        self.admin.call("commands.run", input).await.ok()
    }

    /// A command as it stands.
    pub async fn command(&self, command: &Value) -> Value {
        let input = json!({"nodeId": command["nodeId"], "commandId": command["id"]});
        self.admin.call("commands.get", input).await.ok()
    }

    /// Waits until a command has ended.
    pub async fn settled(&self, command: &Value) -> Value {
        found("the command ends", async || {
            let command = self.command(command).await;
            command["settledAt"].is_string().then_some(command)
        })
        .await
    }

    /// Ends it with SIGTERM, in time, and looks whether anything is left behind.
    pub async fn stop(mut self) -> ExitStatus {
        let started = self.tree();
        assert!(
            started.len() >= 3,
            "Postgres and NATS are not its children: {started:?}"
        );
        let began = Instant::now();
        self.process.signal(Signal::TERM);
        let status = self.process.ended().await;
        let took = began.elapsed();
        assert!(
            took < STOP_WITHIN + SLACK,
            "it took {took:?}: {}",
            self.process.tail()
        );
        let left = tree::left(&started);
        assert!(left.is_empty(), "left behind: {left:#?}");
        let left = tree::naming(self.text("dataDir"));
        assert!(left.is_empty(), "left behind: {left:#?}");
        self.assert_closed();
        status
    }

    /// Ends it as `kill -9` does. What it has started is not told, and lives on.
    pub async fn kill(mut self) {
        self.process.kill().await;
    }

    fn assert_closed(&self) {
        for field in ["api", "gateway", "nats", "log"] {
            let url: Url = self.text(field).parse().unwrap();
            let port = url.port().unwrap();
            let open = TcpStream::connect(("127.0.0.1", port)).is_ok();
            assert!(!open, "{field} is still open at {port}");
        }
        let url: Url = self.text("postgres").parse().unwrap();
        let folder = url
            .query_pairs()
            .find(|(name, _)| name == "host")
            .unwrap()
            .1;
        let sockets = tree::sockets_below(&folder);
        assert!(sockets.is_empty(), "still open: {sockets:?}");
    }
}

impl Drop for Up {
    /// A test that failed must not leave servers behind: they end with their owner, or are ended.
    fn drop(&mut self) {
        if !self.process.runs() {
            return;
        }
        let started = self.tree();
        self.process.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_WITHIN;
        while self.process.runs() && Instant::now() < deadline {
            sleep(LOOK_EVERY);
        }
        end(&started);
    }
}

/// Ends those of them that are still there; each was started by a test.
pub fn end(started: &std::collections::BTreeSet<Known>) {
    for one in tree::left(started) {
        if let Some(pid) = Pid::from_raw(one.pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
