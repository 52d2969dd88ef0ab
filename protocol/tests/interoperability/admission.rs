//! `protocol/vectors/admission.json`: what a daemon answers to a `Command` or a `Cancel`.

use ledger_protocol::daemon::{
    Daemon, Effect, End, Identity, Input, Monotonic, Pins, Record, Report,
};
use ledger_protocol::frame::{Acknowledgement, Cancel, Frame, UpdateAck, UpdateState};
use ledger_protocol::id::CommandId;
use ledger_protocol::trust::SignedBundle;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::vectors::{command, identity, journal_id, list, merged, read, welcome};

const NOW: Monotonic = Monotonic::from_micros(0);

/// What was done, in order: records by their name, frames by their name and body.
fn shown(effects: &[Effect]) -> Vec<Value> {
    let shown = |effect: &Effect| match effect {
        Effect::Journal(Record::Accepted(_)) => json!("journal accepted"),
        Effect::Journal(Record::Started(_)) => json!("journal started"),
        Effect::Journal(Record::Ended(_)) => json!("journal ended"),
        Effect::Journal(Record::Unbatched(_)) => json!("journal unbatched"),
        Effect::Journal(_) => json!("journal"),
        Effect::Rewrite(_) => json!("rewrite"),
        Effect::Start(_) => json!("start"),
        Effect::Stop(_) => json!("stop"),
        Effect::Send(frame) => json!({ frame.name(): without_words(frame.body_json()) }),
        Effect::Apply(_) => json!("apply"),
        Effect::Close(_) => json!("close"),
        Effect::Pin(_) => json!("pin"),
        Effect::Secret { .. } => json!("secret"),
        Effect::Doubt(_) => json!("doubt"),
    };
    effects.iter().map(shown).collect()
}

/// Explanations are for people, and every daemon may word its own.
fn without_words(mut body: Value) -> Value {
    let updates = body.get_mut("updates").and_then(Value::as_array_mut);
    for update in updates.into_iter().flatten() {
        if update["details"].get("why").is_some() {
            update["details"]["why"] = json!("…");
        }
    }
    body
}

fn finish(daemon: &mut Daemon, command_id: CommandId) {
    let report = Report {
        end: End::Succeeded,
        reason: None,
        details: None,
        result: Some(json!({ "passed": true })),
    };
    daemon.handle(Input::Finished { command_id, report }, NOW);
}

fn give(daemon: &mut Daemon, before: &str, base: &Value, given: &Value) {
    let own = command(&merged(base, given));
    let id = own.command_id;
    match before {
        "waits for a generation" => {
            let waits = merged(base, &json!({ "minGeneration": 99 }));
            daemon.handle(Input::Frame(command(&waits).into_frame()), NOW);
        }
        "runs" => drop(daemon.handle(Input::Frame(own.into_frame()), NOW)),
        "ended" => {
            daemon.handle(Input::Frame(own.into_frame()), NOW);
            finish(daemon, id);
        }
        "confirmed" => {
            daemon.handle(Input::Frame(own.into_frame()), NOW);
            finish(daemon, id);
            let updates = vec![Acknowledgement {
                code: None,
                command_id: id,
                refused: None,
                state: UpdateState::Succeeded,
            }];
            daemon.handle(Input::Frame(UpdateAck { updates }.into()), NOW);
        }
        "was refused as expired" => {
            let late = merged(base, &json!({ "notAfter": 1 }));
            daemon.handle(Input::Frame(command(&late).into_frame()), NOW);
        }
        "the daemon stops" => drop(daemon.handle(Input::Stopping, NOW)),
        "the journal cannot be written" => {
            let unperformed = Vec::new();
            daemon.handle(Input::JournalFailed { unperformed }, NOW);
        }
        lane => {
            let (count, kind) = lane.split_once(" of ").unwrap();
            let kind = kind.strip_suffix(" run").unwrap();
            let registered = ledger_protocol::kind::Registry::builtin();
            let lane = registered.get(kind).unwrap().lane;
            for number in 0..count.parse().unwrap() {
                let id = CommandId::from_uuid(Uuid::from_u128(900 + number));
                let other = json!({ "commandId": id.to_string(), "kind": kind, "lane": lane });
                let effects = daemon.handle(
                    Input::Frame(command(&merged(base, &other)).into_frame()),
                    NOW,
                );
                assert!(effects.len() > 1, "{kind} {number} is not accepted");
            }
        }
    }
}

trait IntoFrame {
    fn into_frame(self) -> Frame;
}

impl IntoFrame for ledger_protocol::frame::Command {
    fn into_frame(self) -> Frame {
        Frame::Command(self)
    }
}

#[test]
fn d4_d5_d12_every_answer_of_a_daemon_is_that_of_its_vector() {
    let vectors = read("admission");
    let (daemon_is, base) = (&vectors["daemon"], &vectors["command"]);
    let mut wrong = Vec::new();
    for case in list(&vectors["cases"]) {
        let bundle = |name: &Value| -> SignedBundle {
            let bundle = vectors["bundles"][name.as_str().unwrap()].clone();
            serde_json::from_value(bundle).unwrap()
        };
        let believed = case.get("pins").map(|name| bundle(name).begin().unwrap());
        let identity = Identity {
            pins: believed.as_ref().map(Pins::of),
            ..identity(daemon_is)
        };
        let mut daemon = Daemon::new(identity, journal_id());
        let trust = list(&case["trust"]).iter().map(bundle).collect();
        welcome(&mut daemon, &daemon_is["serverTime"], trust);
        let generation = daemon_is["appliedGeneration"].as_u64().unwrap();
        daemon.handle(Input::Applied { generation }, NOW);
        for before in list(&case["before"]) {
            let Some(what) = before.as_str() else {
                let other = command(&merged(base, before)).into_frame();
                daemon.handle(Input::Frame(other), NOW);
                continue;
            };
            give(&mut daemon, what, base, &case["command"]);
        }
        let command = command(&merged(base, &case["command"]));
        let frame = if case["comes"] == "Cancel" {
            let command_id = command.command_id;
            Cancel { command_id }.into()
        } else {
            command.into_frame()
        };
        let does = Value::from(shown(&daemon.handle(Input::Frame(frame), NOW)));
        if does != case["does"] {
            wrong.push(format!("{}: {does}", case["name"]));
        }
    }
    assert!(wrong.is_empty(), "a daemon does:\n{}", wrong.join("\n"));
}
