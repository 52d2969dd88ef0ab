//! `protocol/vectors/recovery.json`: what a daemon makes of an open entry of its journal when its
//! process starts again.

use std::collections::BTreeSet;

use ledger_protocol::canonical;
use ledger_protocol::daemon::{Daemon, Effect, Input, Monotonic, Record, Started};
use ledger_protocol::frame::Frame;
use serde_json::{Value, json};

use crate::document::section;
use crate::vectors::{command, identity, journal_id, list, merged, read, text, welcome};

const NOW: Monotonic = Monotonic::from_micros(0);

/// `same` leaves the daemon of the vectors as it was.
fn decided(vectors: &Value, kind: &str, entry: &str, back: [&str; 3]) -> Value {
    let registry = ledger_protocol::kind::Registry::builtin();
    let known = registry.get(kind).unwrap();
    let given = json!({
        "kind": kind,
        "lane": known.lane,
        "retrySafe": known.retry_safe,
        "selfTerminating": known.self_terminating,
    });
    let command = command(&merged(&vectors["command"], &given));
    let before = identity(&vectors["daemon"]);
    let mut records = vec![Record::Accepted(Box::new(command.clone()))];
    if entry == "started" {
        records.push(Record::Started(Started {
            agent_version: before.agent_version.clone(),
            boot_id: before.boot_id.clone(),
            command_id: command.command_id,
            role: before.role,
        }));
    }
    let mut after = vectors["daemon"].clone();
    for (field, value) in ["bootId", "role", "agentVersion"].iter().zip(back) {
        if value != "same" {
            after[field] = vectors["back"][field].clone();
        }
    }
    let (mut daemon, effects) =
        Daemon::recover(identity(&after), journal_id(), records, NOW).unwrap();
    if let [Effect::Journal(Record::Ended(ended))] = effects.as_slice() {
        let mut settled = json!({ "state": ended.update.state });
        if let Some(details) = &ended.update.details {
            let document = text("docs/protocol.md");
            let restart = section(&document, "## Restart");
            let details = canonical::to_json(details).unwrap();
            for name in details.as_object().unwrap().keys() {
                assert!(restart.contains(&format!("`{name}`")), "{name}");
            }
        }
        if let Some(reason) = &ended.update.reason {
            settled["reason"] = reason.as_str().into();
        }
        if let Some(result) = &ended.update.result {
            settled["result"] = canonical::to_json(result).unwrap();
        }
        return settled;
    }
    assert_eq!(effects, [], "{kind} {entry}");
    welcome(&mut daemon, &vectors["daemon"]["serverTime"], Vec::new());
    let again = daemon.handle(Input::Frame(Frame::Command(command)), NOW);
    assert!(
        !again
            .iter()
            .any(|effect| matches!(effect, Effect::Start(_)))
    );
    json!(if daemon.is_running() {
        "runs again"
    } else {
        "stays open"
    })
}

#[test]
fn d7_d9_every_restart_is_decided_once_and_as_its_vector_says() {
    let vectors = read("recovery");
    let mut seen = BTreeSet::new();
    let names = |value: &Value| -> Vec<String> {
        let names = list(value).iter().map(|name| name.as_str().unwrap());
        names.map(str::to_owned).collect()
    };
    for case in list(&vectors["cases"]) {
        for kind in names(&case["kind"]) {
            for entry in names(&case["entry"]) {
                for boot in names(&case["bootId"]) {
                    for role in names(&case["role"]) {
                        for version in names(&case["agentVersion"]) {
                            let what = format!("{kind} {entry} {boot} {role} {version}");
                            let back = [boot.as_str(), &role, &version];
                            let found = decided(&vectors, &kind, &entry, back);
                            assert_eq!(found, case["decides"], "{what}");
                            assert!(seen.insert(what.clone()), "{what} stands there twice");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(seen.len(), 5 * 2 * 2 * 2 * 2, "not every case is there");
}
