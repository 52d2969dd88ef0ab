//! `protocol/vectors/session.json`: a whole session, which a daemon must answer byte for byte.

use ledger_protocol::attestation;
use ledger_protocol::canonical;
use ledger_protocol::daemon::{Daemon, Effect, End, Input, Monotonic, Report};
use ledger_protocol::frame::{CommandUpdate, Frame};
use serde_json::{Value, json};

use crate::vectors::{identity, list, read, signing_key};

#[test]
fn d1_a_daemon_says_what_the_example_of_a_session_says() {
    let vectors = read("session");
    let now = Monotonic::from_micros(0);
    let journal = vectors["daemon"]["journalId"].as_str().unwrap();
    let mut daemon = Daemon::new(identity(&vectors["daemon"]), journal.parse().unwrap());
    let mut said = Vec::new();
    let mut made = Vec::new();
    let mut command_id = None;
    for step in list(&vectors["steps"]) {
        let mut made_step = step.clone();
        let bytes = hex::decode(step["bytes"].as_str().unwrap()).unwrap();
        if step["from"] == "gateway" {
            let frame = Frame::decode(&bytes).unwrap();
            made_step["body"] = frame.body_json();
            made_step["frame"] = frame.name().into();
            if let Frame::Command(command) = &frame {
                command_id = Some(command.command_id);
                canonical::check(&command.payload).unwrap();
            }
            said.extend(sent(daemon.handle(Input::Frame(frame), now)));
        } else {
            if step["frame"] == "Hello" {
                said.extend(sent(daemon.handle(Input::Connected, now)));
            }
            if said.is_empty() {
                let command_id = command_id.unwrap();
                let report = Report {
                    end: End::Succeeded,
                    reason: None,
                    details: None,
                    result: Some(json!({ "passed": true })),
                };
                said.extend(sent(
                    daemon.handle(Input::Finished { command_id, report }, now),
                ));
            }
            let mut frame = said.remove(0);
            sign(&mut frame, &vectors["daemon"]);
            made_step["body"] = frame.body_json();
            made_step["bytes"] = hex::encode(frame.encode().unwrap()).into();
            made_step["frame"] = frame.name().into();
        }
        made.push(made_step);
    }
    assert!(said.is_empty(), "{said:?}");
    let shown = serde_json::to_string_pretty(&made).unwrap();
    let made = Value::from(made);
    assert!(made == vectors["steps"], "the steps should be:\n{shown}");
}

/// What a daemon does as it sends, so that its machine needs no key (SPEC P2).
fn sign(frame: &mut Frame, daemon: &Value) {
    let key = signing_key(&daemon["keySeed"]);
    let node = daemon["nodeId"].as_str().unwrap().parse().unwrap();
    if let Frame::CommandUpdate(CommandUpdate { updates }) = frame {
        for update in updates {
            let signature = attestation::sign(&key, node, update).unwrap();
            update.node_sig = signature.map(|bytes| bytes.to_vec());
        }
    }
}

fn sent(effects: Vec<Effect>) -> Vec<Frame> {
    let frame = |effect| match effect {
        Effect::Send(frame) => Some(frame),
        _ => None,
    };
    effects.into_iter().filter_map(frame).collect()
}
