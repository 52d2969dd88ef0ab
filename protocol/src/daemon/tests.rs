//! A driver that keeps its journal in memory and can die before any effect.

use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::canonical;
use crate::frame::{
    Acknowledgement, Cancel, CommandUpdate, Update, UpdateAck, UpdateState, Welcome,
};
use crate::kind::Registry;
use crate::trust::{SignedBundle, TrustBundle};

mod admit;
mod approval;
mod crash;
mod orders;
mod secrets;
mod service;
mod session;
mod signature;
mod trust;

const SECOND: i64 = 1_000_000;
/// The server's time when the local clock is at 0; the node's own clock plays no part.
const SERVER_START: i64 = 1_764_490_000 * SECOND;

fn command_id(number: u128) -> CommandId {
    CommandId::from_uuid(Uuid::from_u128(number))
}

fn node_id() -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(7))
}

fn journal_id(number: u128) -> JournalId {
    JournalId::from_uuid(Uuid::from_u128(number))
}

fn server_at(micros: i64) -> Timestamp {
    Timestamp::from_micros(SERVER_START + micros)
}

fn identity() -> Identity {
    Identity {
        agent_version: "1.0.0".to_owned(),
        boot_id: "boot-1".to_owned(),
        node_id: node_id(),
        role: Role::Node,
        kinds: Arc::new(SupportedKinds::new(&Registry::builtin(), |_| true)),
        pins: None,
    }
}

/// A command of this kind as a gateway sends it; its `seq` is its number.
fn command(number: u64, kind: &str) -> frame::Command {
    let registry = Registry::builtin();
    let kind = registry.get(kind).unwrap();
    frame::Command {
        batch: None,
        batch_id: None,
        signed: None,
        attested: kind.attested,
        command_id: command_id(number.into()),
        destructive: kind.destructive,
        kind: kind.name.to_string(),
        kind_version: kind.version,
        lane: kind.lane,
        min_generation: None,
        node_id: node_id(),
        not_after: Some(server_at(600 * SECOND)),
        payload: canonical::from_json(&json!({})).unwrap(),
        retry_safe: kind.retry_safe,
        self_terminating: kind.self_terminating,
        seq: number,
        timeout_seconds: kind.timeout_seconds,
    }
}

fn report(end: End) -> Report {
    Report {
        end,
        reason: None,
        details: None,
        result: None,
    }
}

/// One effect as a short word, for comparing whole lists.
fn word(effect: &Effect) -> String {
    let number = |id: CommandId| id.uuid().as_u128();
    match effect {
        Effect::Journal(record) => match record {
            Record::Accepted(command) => format!("journal accepted {}", command.seq),
            Record::Started(started) => format!("journal started {}", number(started.command_id)),
            Record::Ended(ended) => format!("journal ended {}", number(ended.update.command_id)),
            Record::Confirmed(body) => format!("journal confirmed {}", number(body.command_id)),
            Record::Forgotten(body) => format!("journal forgotten {}", number(body.command_id)),
            Record::Seen(seq) => format!("journal seen {seq}"),
            Record::Applied(generation) => format!("journal applied {generation}"),
            Record::Trusted(signed) => {
                let bundle = TrustBundle::decode(&signed.bundle).unwrap();
                format!("journal trusted {}", bundle.version)
            }
            Record::Unbatched(_) => "journal unbatched".to_owned(),
        },
        Effect::Rewrite(_) => "rewrite".to_owned(),
        Effect::Start(job) => format!("start {}", number(job.command_id)),
        Effect::Stop(id) => format!("stop {}", number(*id)),
        Effect::Send(Frame::CommandUpdate(body)) => {
            let updates = body.updates.iter().map(|update| {
                let reason = update.reason.as_ref().map(|reason| format!(" {reason}"));
                let state = format!("{:?}", update.state).to_lowercase();
                format!(
                    "{state} {}{}",
                    number(update.command_id),
                    reason.unwrap_or_default()
                )
            });
            format!("say {}", updates.collect::<Vec<_>>().join(", "))
        }
        Effect::Send(frame) => format!("send {}", frame.name()),
        Effect::Apply(spec) => format!("apply {}", spec.generation),
        Effect::Pin(pins) => format!("pin {}", pins.version),
        Effect::Secret { answer: Ok(_), .. } => "secret".to_owned(),
        Effect::Secret {
            answer: Err(code), ..
        } => format!("no secret {code}"),
        Effect::Doubt(doubt) => format!("doubt {doubt}"),
        Effect::Close(reason) => format!("close {reason}"),
    }
}

fn words(effects: &[Effect]) -> Vec<String> {
    effects.iter().map(word).collect()
}

struct Driver {
    daemon: Daemon,
    now: Monotonic,
    /// What would be read after a crash.
    durable: Vec<Record>,
    /// What is kept beside the identity.
    pins: Option<Pins>,
    /// What the next `Welcome` brings.
    welcome_trust: Vec<SignedBundle>,
    /// Every effect that was performed, by every process.
    performed: Vec<Effect>,
    /// How often each command's effect was started, by every process.
    starts: std::collections::BTreeMap<CommandId, usize>,
}

impl Driver {
    fn new() -> Self {
        Self {
            daemon: Daemon::new(identity(), journal_id(1)),
            now: Monotonic::from_micros(0),
            durable: Vec::new(),
            pins: None,
            welcome_trust: Vec::new(),
            performed: Vec::new(),
            starts: std::collections::BTreeMap::new(),
        }
    }

    /// A driver in an open session.
    fn welcomed() -> Self {
        let mut driver = Self::new();
        driver.connect();
        driver
    }

    fn connect(&mut self) -> Vec<String> {
        self.give(Input::Connected);
        let server_time = server_at(self.now.as_micros());
        let trust = std::mem::take(&mut self.welcome_trust);
        self.receive(Welcome {
            trust,
            epoch: 1,
            ping_seconds: 10,
            server_time,
        })
    }

    fn perform(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Journal(record) => self.durable.push(record.clone()),
                Effect::Rewrite(records) => self.durable.clone_from(records),
                Effect::Start(job) => *self.starts.entry(job.command_id).or_default() += 1,
                Effect::Pin(pins) => self.pins = Some(pins.clone()),
                Effect::Stop(_)
                | Effect::Send(_)
                | Effect::Apply(_)
                | Effect::Secret { .. }
                | Effect::Doubt(_)
                | Effect::Close(_) => {}
            }
            self.performed.push(effect.clone());
        }
    }

    fn give(&mut self, input: Input) -> Vec<String> {
        let effects = self.daemon.handle(input, self.now);
        self.perform(&effects);
        words(&effects)
    }

    fn receive(&mut self, frame: impl Into<Frame>) -> Vec<String> {
        self.give(Input::Frame(frame.into()))
    }

    fn finish(&mut self, number: u64, end: End) -> Vec<String> {
        let command_id = command_id(number.into());
        let report = report(end);
        self.give(Input::Finished { command_id, report })
    }

    fn acknowledge(
        &mut self,
        number: u64,
        state: UpdateState,
        refused: Option<&str>,
    ) -> Vec<String> {
        let answer = Acknowledgement {
            code: None,
            command_id: command_id(number.into()),
            refused: refused.map(str::to_owned),
            state,
        };
        let updates = vec![answer];
        self.receive(UpdateAck { updates })
    }

    fn cancel(&mut self, number: u64) -> Vec<String> {
        let command_id = command_id(number.into());
        self.receive(Cancel { command_id })
    }

    /// Lets time pass, and gives the timer as often as it becomes due.
    fn pass(&mut self, seconds: i64) -> Vec<String> {
        let end = Monotonic::from_micros(self.now.as_micros() + seconds * SECOND);
        let mut done = Vec::new();
        let mut rounds = 0;
        while let Some(due) = self.daemon.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            done.extend(self.give(Input::Timer));
            rounds += 1;
            assert!(rounds < 10_000, "the timer does not get anything done");
        }
        self.now = end;
        done
    }

    /// The process dies, and a new one reads what was durable.
    fn restart_as(&mut self, identity: Identity) -> Vec<String> {
        // Records go through their bytes, as on a disk.
        let records = self.durable.iter().map(|record| {
            let bytes = record.encode().unwrap();
            Record::decode(&bytes).unwrap()
        });
        let records: Vec<_> = records.collect();
        let (daemon, effects) =
            Daemon::recover(identity, journal_id(1), records, self.now).unwrap();
        self.daemon = daemon;
        self.perform(&effects);
        words(&effects)
    }

    fn restart(&mut self) -> Vec<String> {
        let pins = self.pins.clone();
        self.restart_as(Identity { pins, ..identity() })
    }

    /// The last update that was sent for a command.
    fn last_update(&self, number: u64) -> Update {
        let id = command_id(number.into());
        let updates = self.performed.iter().rev().find_map(|effect| match effect {
            Effect::Send(Frame::CommandUpdate(CommandUpdate { updates })) => {
                updates.iter().rev().find(|update| update.command_id == id)
            }
            _ => None,
        });
        updates.unwrap().clone()
    }

    fn details(&self, number: u64) -> Value {
        canonical::to_json(&self.last_update(number).details.unwrap()).unwrap()
    }
}
