//! `protocol/vectors/rejoin.json`: what the ledger makes of a command in flight when its node
//! comes back, and whether the gateway sends it again.

use std::collections::BTreeSet;
use std::time::Duration;

use ledger_protocol::canonical;
use ledger_protocol::command::{Command, State, rejoin};
use ledger_protocol::event::{Actor, Body, CommandQueued};
use ledger_protocol::frame::{EntryState, Frame, Hello, JournalEntry};
use ledger_protocol::id::{CommandId, NodeId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::node::{self, Node};
use ledger_protocol::session::{Effect, Message, Peer, Session, Terms};
use ledger_protocol::time::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::vectors::{journal_id, list, read};

const AT: Timestamp = Timestamp::from_micros(1_764_490_000_123_456);

fn command(kind: &str, state: &str) -> Command {
    let registry = Registry::builtin();
    let kind = registry.get(kind).unwrap();
    Command {
        acked_at: None,
        attempts: 1,
        cancel_requested_at: None,
        dispatched_at: Some(AT),
        id: CommandId::from_uuid(Uuid::from_u128(3)),
        issued_by: Actor::api("operator"),
        queued: CommandQueued {
            signed: None,
            attested: kind.attested,
            batch_id: None,
            batch_inclusion: None,
            bundle_key: None,
            destructive: kind.destructive,
            held: false,
            idempotency_key: "api:k".to_owned(),
            kind: kind.name.to_string(),
            kind_version: kind.version,
            lane: kind.lane,
            min_generation: None,
            node_id: node_id(),
            not_after: AT.plus_seconds(600),
            not_before: None,
            payload: vec![0x80],
            retry_safe: kind.retry_safe,
            self_terminating: kind.self_terminating,
            seq: 1,
            timeout_seconds: kind.timeout_seconds,
        },
        queued_at: AT,
        running_at: None,
        state: match state {
            "dispatched" => State::Dispatched { epoch: 1 },
            "acked" => State::Acked { epoch: 1 },
            "running" => State::Running { epoch: 1 },
            other => panic!("{other}"),
        },
        tenant: TenantId::from_uuid(Uuid::from_u128(1)),
        version: 2,
    }
}

fn node_id() -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(2))
}

fn entry(name: &str) -> Option<EntryState> {
    match name {
        "none" => None,
        name => Some(serde_json::from_value(name.into()).unwrap()),
    }
}

/// Whether a session that opens with this journal sends the command again.
fn is_sent_again(command: &Command, entry: Option<EntryState>) -> bool {
    let peer = Peer {
        allowed_kinds: None,
        certificate: None,
        node_id: node_id(),
    };
    let terms = Terms {
        gateway: "g".to_owned(),
        gateway_lease: None,
        hello_within: Duration::from_secs(10),
        ping_seconds: 20,
    };
    let entries = entry.map(|state| JournalEntry {
        command_id: command.id,
        seq: 1,
        state,
    });
    let hello = Hello {
        trust_version: 0,
        agent_version: "1".to_owned(),
        applied_generation: 0,
        boot_id: "boot-2".to_owned(),
        entries: entries.into_iter().collect(),
        highest_seq: 1,
        journal_id: journal_id(),
        node_id: node_id(),
        role: Role::Node,
    };
    let mut session = Session::new(peer, terms);
    let hello = Frame::Hello(hello).encode().unwrap();
    session.receive(Message::Binary(&hello), Duration::ZERO, AT);
    let node = Node {
        agent_version: None,
        applied_generation: 0,
        boot_id: None,
        certificate: None,
        deleted_at: None,
        enrolled: None,
        epoch: 2,
        generation: 0,
        id: node_id(),
        journal_copied: false,
        journal_id: None,
        journal_seq: 0,
        journal_since: 0,
        labels: std::collections::BTreeMap::new(),
        name: "n1".to_owned(),
        registered_at: AT,
        revocation: None,
        role: Role::Node,
        seq_lifted: 0,
        seq: 1,
        session: node::Session::Never,
        tenant: TenantId::from_uuid(Uuid::from_u128(1)),
        version: 1,
    };
    let effects = session.opened(&node, std::slice::from_ref(command), Duration::ZERO, AT);
    let is_command = |effect: &Effect| matches!(effect, Effect::Send(Frame::Command(_)));
    effects.iter().any(is_command)
}

fn decided(kind: &str, state: &str, held: &str, journal_lost: bool, new_boot: bool) -> Value {
    let command = command(kind, state);
    let entry = entry(held);
    let proof = rejoin::Rejoin {
        journal_lost,
        new_boot,
        entry,
    };
    match rejoin::decide(&command, proof, 2) {
        None if is_sent_again(&command, entry) => json!("sent again"),
        None => json!("left to the daemon's report"),
        Some(Body::CommandSettled(end)) => {
            let mut settled = json!({ "state": end.state.as_str() });
            if let Some(reason) = end.reason {
                settled["reason"] = reason.into();
            }
            if let Some(result) = end.result {
                settled["result"] = canonical::to_json(&result).unwrap();
            }
            settled
        }
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn d6_d8_d9_every_rejoin_is_decided_once_and_as_its_vector_says() {
    let vectors = read("rejoin");
    let mut seen = BTreeSet::new();
    for case in list(&vectors["cases"]) {
        let dimension = |name: &str| list(&case[name]).to_vec();
        for kind in dimension("kind") {
            for state in dimension("ledger") {
                for entry in dimension("entry") {
                    for lost in dimension("journalLost") {
                        for boot in dimension("newBoot") {
                            let (kind, state, entry) = (
                                kind.as_str().unwrap(),
                                state.as_str().unwrap(),
                                entry.as_str().unwrap(),
                            );
                            let (lost, boot) = (lost.as_bool().unwrap(), boot.as_bool().unwrap());
                            let what = format!("{kind} {state} {entry} {lost} {boot}");
                            let found = decided(kind, state, entry, lost, boot);
                            assert_eq!(found, case["decides"], "{what}");
                            assert!(seen.insert(what.clone()), "{what} stands there twice");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(seen.len(), 4 * 3 * 4 * 2 * 2, "not every case is there");
    for kind in list(&vectors["kinds"]) {
        let registry = Registry::builtin();
        let known = registry.get(kind["kind"].as_str().unwrap()).unwrap();
        assert_eq!(kind["retrySafe"], known.retry_safe);
        assert_eq!(kind["selfTerminating"], known.self_terminating);
    }
}
