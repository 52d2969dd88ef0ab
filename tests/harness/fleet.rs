//! `agent --simulate`: many nodes with real agents in one process, and what they note of their
//! effects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::http::Caller;
use crate::process::Process;
use crate::wait::{DEADLINE, until_within};

/// What each further node may add to the time in which all join: one joins at a time.
const JOIN_WITHIN: Duration = Duration::from_millis(50);

/// How often a node began, and finished, the effect of one command.
#[derive(Debug, Default)]
pub struct Effects {
    /// How often it began.
    pub started: usize,
    /// How often it was done.
    pub finished: usize,
}

/// A fleet of simulated nodes.
#[derive(Debug)]
pub struct Fleet {
    /// The process that plays it.
    pub process: Process,
    /// The nodes' ids and state directories.
    pub nodes: Vec<(Value, PathBuf)>,
    arguments: Vec<String>,
}

impl Fleet {
    /// Registers so many nodes with the API and lets them join; `state` becomes their folder, and
    /// `more` says what they play.
    pub async fn start(
        nodes: usize,
        state: &Path,
        gateway: (&str, &Path),
        admin: &Caller,
        more: &[&str],
    ) -> Self {
        let nodes = nodes.to_string();
        let paths = (state.to_str().unwrap(), gateway.1.to_str().unwrap());
        let fleet = ["agent", "--json", "--simulate", &nodes, "--state", paths.0];
        let joining = ["--gateway", gateway.0, "--gateway-ca", paths.1];
        let api = ["--api", &admin.api, "--tenant", &admin.tenant];
        let arguments = [&fleet[..], &joining[..], more].concat();
        let token = ("COMMAND_LEDGER_TOKEN", admin.token.as_str());
        let mut process = Process::start_with(&[&arguments[..], &api[..]].concat(), &[token]);
        let read = |line: &str| serde_json::from_str::<Value>(line).ok();
        let line = process.line("the fleet runs", Process::stdout, read).await;
        let nodes = line["nodes"].as_array().unwrap().iter().map(|node| {
            let state_dir = node["stateDir"].as_str().unwrap();
            (node["nodeId"].clone(), PathBuf::from(state_dir))
        });
        Self {
            nodes: nodes.collect(),
            process,
            arguments: arguments.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Waits until every node has its certificate.
    pub async fn joined(&self) {
        let within = DEADLINE + JOIN_WITHIN * u32::try_from(self.nodes.len()).unwrap();
        until_within(within, "every node has joined", async || {
            let mut folders = self.nodes.iter().map(|(_, folder)| folder);
            folders.all(|folder| folder.join("identity.json").exists())
        })
        .await;
    }

    /// Starts again what has died. Nodes that have joined need no API.
    pub fn revive(&mut self) {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.process = Process::start(&arguments);
    }

    /// What every node noted of every command.
    pub fn effects(&self) -> BTreeMap<String, Effects> {
        let mut effects: BTreeMap<String, Effects> = BTreeMap::new();
        for note in self.nodes.iter().flat_map(|(_, folder)| notes(folder)) {
            let id = note["commandId"].as_str().unwrap().to_owned();
            let effect = effects.entry(id).or_default();
            match note["phase"].as_str() {
                Some("started") => effect.started += 1,
                Some("finished") => effect.finished += 1,
                other => panic!("phase {other:?}"),
            }
        }
        effects
    }
}

/// Looks for a boot of the node whose commands these are, if any of them says that there was one.
///
/// Of several reboots at a time the boot of one proves all, also one whose effect had not begun
/// when its journal said that it would (SPEC D9).
#[track_caller]
pub fn assert_booted(commands: &[Value], effects: &BTreeMap<String, Effects>) {
    let reboots = commands.iter().filter(|own| own["kind"] == "node.reboot");
    let (succeeded, others): (Vec<_>, Vec<_>) =
        reboots.partition(|reboot| reboot["state"] == "succeeded");
    let is_done = |reboot: &&Value| {
        let effect = effects.get(reboot["id"].as_str().unwrap());
        effect.is_some_and(|effect| effect.finished > 0)
    };
    let has_booted = succeeded.iter().chain(&others).any(is_done);
    assert!(succeeded.is_empty() || has_booted, "{succeeded:#?}");
}

/// The boots in which a node began an effect.
pub fn boots(state_dir: &Path) -> BTreeSet<String> {
    let boots = notes(state_dir).into_iter();
    boots
        .map(|note| note["bootId"].as_str().unwrap().to_owned())
        .collect()
}

/// What a node noted of its effects.
fn notes(state_dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(state_dir.join("effects.jsonl")).unwrap_or_default();
    let notes = text.lines().map(|note| serde_json::from_str(note).unwrap());
    notes.collect()
}
