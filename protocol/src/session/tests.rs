use super::*;
use crate::command::State as CommandState;
use crate::event::{Actor, CommandQueued, NodeSpecSet};
use crate::frame::{Acknowledgement, Cancel, EntryState, UpdateAck, UpdateState};
use crate::id::{JournalId, TenantId};
use crate::kind::{Lane, Role};
use crate::node::Session as NodeSession;
use crate::refusal::Refusal;

const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);

fn node_id(number: u8) -> NodeId {
    NodeId::new(NOW, [number; 10])
}

fn command_id(seq: u64) -> CommandId {
    CommandId::new(NOW, [u8::try_from(seq).unwrap(); 10])
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn terms() -> Terms {
    Terms {
        gateway: "gw-1".to_owned(),
        gateway_lease: None,
        hello_within: seconds(10),
        ping_seconds: 20,
    }
}

fn session(allowed_kinds: Option<Vec<String>>) -> Session {
    Session::new(
        Peer {
            allowed_kinds,
            certificate: None,
            node_id: node_id(1),
        },
        terms(),
    )
}

fn hello(entries: Vec<JournalEntry>) -> Hello {
    Hello {
        trust_version: 0,
        agent_version: "0.1.0".to_owned(),
        applied_generation: 3,
        boot_id: "boot-1".to_owned(),
        entries,
        highest_seq: 9,
        journal_id: JournalId::new(NOW, [7; 10]),
        node_id: node_id(1),
        role: Role::Node,
    }
}

fn node(generation: u64) -> Node {
    Node {
        agent_version: None,
        applied_generation: 3,
        boot_id: None,
        certificate: None,
        deleted_at: None,
        enrolled: None,
        epoch: 5,
        generation,
        id: node_id(1),
        journal_copied: false,
        journal_id: None,
        journal_seq: 0,
        journal_since: 0,
        labels: std::collections::BTreeMap::new(),
        name: "n".to_owned(),
        registered_at: NOW,
        revocation: None,
        role: Role::Node,
        seq_lifted: 0,
        seq: 9,
        session: NodeSession::Never,
        tenant: TenantId::new(NOW, [2; 10]),
        version: 4,
    }
}

fn in_flight(seq: u64, kind: &str, state: CommandState) -> command::Command {
    command::Command {
        acked_at: None,
        attempts: 1,
        cancel_requested_at: None,
        dispatched_at: Some(NOW),
        id: command_id(seq),
        issued_by: Actor::api("ada"),
        queued: CommandQueued {
            signed: None,
            attested: false,
            batch_id: None,
            batch_inclusion: None,
            bundle_key: None,
            destructive: false,
            held: false,
            idempotency_key: format!("key-{seq}"),
            kind: kind.to_owned(),
            kind_version: 1,
            lane: Lane::Control,
            min_generation: None,
            node_id: node_id(1),
            not_after: NOW.plus_seconds(600),
            not_before: None,
            payload: vec![0x80],
            retry_safe: kind != "node.reboot",
            self_terminating: kind == "node.reboot",
            seq,
            timeout_seconds: 300,
        },
        queued_at: NOW,
        running_at: None,
        state,
        tenant: TenantId::new(NOW, [2; 10]),
        version: 2,
    }
}

fn receive(session: &mut Session, frame: impl Into<Frame>) -> Vec<Effect> {
    let bytes = frame.into().encode().unwrap();
    session.receive(Message::Binary(&bytes), Duration::ZERO, NOW)
}

fn open() -> Session {
    let mut session = session(None);
    receive(&mut session, hello(Vec::new()));
    session.opened(&node(3), &[], Duration::ZERO, NOW);
    session
}

fn close_code(effects: &[Effect]) -> u16 {
    match effects {
        [Effect::Close(close)] => close.code,
        other => panic!("{other:?} is not one close"),
    }
}

#[test]
fn d1_the_first_frame_is_hello() {
    for frame in [
        Frame::Ping(Ping {
            nonce: 1,
            reply: false,
            server_time: None,
        }),
        Frame::CommandUpdate(CommandUpdate {
            updates: Vec::new(),
        }),
        Frame::Welcome(Welcome {
            trust: Vec::new(),
            epoch: 1,
            ping_seconds: 1,
            server_time: NOW,
        }),
    ] {
        assert_eq!(close_code(&receive(&mut session(None), frame)), 1002);
    }
    let mut session = session(None);
    let effects = receive(&mut session, hello(Vec::new()));
    let [Effect::Open { open, entries }] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    assert_eq!((open.gateway.as_str(), open.highest_seq), ("gw-1", 9));
    assert!(entries.is_empty());
}

#[test]
fn d1_hello_comes_in_time_and_once() {
    let mut late = session(None);
    assert_eq!(late.next_tick(), seconds(10));
    assert_eq!(late.tick(seconds(9), NOW), []);
    assert_eq!(close_code(&late.tick(seconds(10), NOW)), 1008);
    let mut twice = open();
    assert_eq!(close_code(&receive(&mut twice, hello(Vec::new()))), 1002);
}

#[test]
fn d1_hello_names_the_node_of_the_certificate() {
    let mut session = session(None);
    let other = Hello {
        node_id: node_id(2),
        ..hello(Vec::new())
    };
    assert_eq!(close_code(&receive(&mut session, other)), 1008);
}

#[test]
fn d6_hello_is_bounded() {
    let entry = JournalEntry {
        command_id: command_id(1),
        seq: 1,
        state: EntryState::Accepted,
    };
    let entries = vec![entry; limits::HELLO_ENTRIES_MAX + 1];
    let effects = receive(&mut session(None), hello(entries));
    assert_eq!(close_code(&effects), 1008);
}

#[test]
fn d1_garbage_closes_with_a_reason() {
    for (bytes, code) in [
        (&b""[..], 1002),
        (b"\x92", 1002),
        (b"\x92\x63\x80", 1002),
        (b"\x92\x05\x80", 1002),
        (b"\x92\x05\x81\xa7updates\xdd\xff\xff\xff\xff", 1002),
        (b"\x92\x09\x82\xa5nonce\x01\xa5reply\xc2tail", 1002),
        (&[0x91; 400], 1002),
    ] {
        for mut session in [session(None), open()] {
            let effects = session.receive(Message::Binary(bytes), Duration::ZERO, NOW);
            assert_eq!(close_code(&effects), code, "{bytes:x?}");
            let [Effect::Close(close)] = effects.as_slice() else {
                unreachable!()
            };
            assert!(!close.reason.is_empty());
        }
    }
    let effects = open().receive(Message::Text, Duration::ZERO, NOW);
    assert_eq!(close_code(&effects), 1003);
}

#[test]
fn d1_a_daemon_sends_only_what_daemons_send() {
    let id = command_id(1);
    for frame in [
        Frame::Welcome(Welcome {
            trust: Vec::new(),
            epoch: 1,
            ping_seconds: 1,
            server_time: NOW,
        }),
        command_frame(&in_flight(
            1,
            "diag.nvml",
            CommandState::Dispatched { epoch: 1 },
        )),
        Frame::Cancel(Cancel { command_id: id }),
        Frame::UpdateAck(UpdateAck {
            updates: Vec::new(),
        }),
        spec_frame(NodeSpecSet {
            generation: 1,
            signed: None,
            spec: vec![0x80],
        }),
    ] {
        assert_eq!(close_code(&receive(&mut open(), frame)), 1002);
    }
}

#[test]
fn d1_a_command_update_has_1_to_64_updates() {
    let update = Update::bare(command_id(1), UpdateState::Acked);
    for count in [0, 65] {
        let frame = CommandUpdate {
            updates: vec![update.clone(); count],
        };
        assert_eq!(close_code(&receive(&mut open(), frame)), 1008);
    }
    let updates = vec![update; 64];
    let effects = receive(
        &mut open(),
        CommandUpdate {
            updates: updates.clone(),
        },
    );
    assert_eq!(effects, [Effect::Report(updates)]);
}

#[test]
fn d13_an_oversized_frame_is_refused_by_name_and_the_session_lives_on() {
    let mut session = open();
    let update = Update {
        result: Some(vec![0; limits::FRAME_BYTES_MAX]),
        ..Update::bare(command_id(1), UpdateState::Succeeded)
    };
    let effects = receive(
        &mut session,
        CommandUpdate {
            updates: vec![update],
        },
    );
    let [Effect::Send(Frame::UpdateAck(UpdateAck { updates }))] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    let [
        Acknowledgement {
            code: Some(code),
            command_id: id,
            refused: Some(why),
            state,
        },
    ] = updates.as_slice()
    else {
        panic!("{updates:?}");
    };
    assert_eq!((*id, *state), (command_id(1), UpdateState::Succeeded));
    assert!(why.contains("262144"), "{why}");
    assert_eq!(code, "TOO_LARGE");
    let noise = vec![0xc1; limits::FRAME_BYTES_MAX + 1];
    assert_eq!(
        session.receive(Message::Binary(&noise), Duration::ZERO, NOW),
        []
    );
    let ping = Ping {
        nonce: 8,
        reply: false,
        server_time: None,
    };
    let reply = Ping {
        nonce: 8,
        reply: true,
        server_time: Some(NOW),
    };
    assert_eq!(receive(&mut session, ping), [Effect::Send(reply.into())]);
    // Before `Hello` there is no session that could live on.
    let mut fresh = self::session(None);
    let effects = fresh.receive(Message::Binary(&noise), Duration::ZERO, NOW);
    assert_eq!(close_code(&effects), 1009);
}

#[test]
fn d6_replay_is_in_seq_order_and_cancels_follow() {
    let mut session = session(None);
    receive(&mut session, hello(Vec::new()));
    let mut cancelled = in_flight(2, "diag.nvml", CommandState::Running { epoch: 4 });
    cancelled.cancel_requested_at = Some(NOW);
    let replay = [
        in_flight(5, "diag.nvml", CommandState::Dispatched { epoch: 4 }),
        cancelled,
        in_flight(3, "logs.collect", CommandState::Acked { epoch: 4 }),
    ];
    let effects = session.opened(&node(3), &replay, seconds(1), NOW);
    let names: Vec<_> = effects
        .iter()
        .map(|effect| match effect {
            Effect::Send(Frame::Welcome(welcome)) => format!("welcome {}", welcome.epoch),
            Effect::Send(Frame::Command(command)) => format!("command {}", command.seq),
            Effect::Send(Frame::Cancel(cancel)) if cancel.command_id == command_id(2) => {
                "cancel 2".to_owned()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        names,
        [
            "welcome 5",
            "command 2",
            "command 3",
            "command 5",
            "cancel 2"
        ]
    );
}

#[test]
fn d9_a_self_terminating_command_is_never_replayed_once_accepted() {
    let entry = JournalEntry {
        command_id: command_id(2),
        seq: 2,
        state: EntryState::Started,
    };
    let mut session = session(None);
    receive(&mut session, hello(vec![entry]));
    let replay = [
        in_flight(1, "node.reboot", CommandState::Dispatched { epoch: 4 }),
        in_flight(2, "node.reboot", CommandState::Dispatched { epoch: 4 }),
        in_flight(3, "node.reboot", CommandState::Acked { epoch: 4 }),
        in_flight(4, "node.reboot", CommandState::Running { epoch: 4 }),
    ];
    let effects = session.opened(&node(3), &replay, seconds(1), NOW);
    assert_eq!(effects[1..], [Effect::Send(command_frame(&replay[0]))]);
}

#[test]
fn d11_a_restricted_session_is_not_sent_other_kinds() {
    let mut session = session(Some(vec!["diag.nvml".to_owned()]));
    receive(&mut session, hello(Vec::new()));
    let replay = [
        in_flight(1, "logs.collect", CommandState::Dispatched { epoch: 4 }),
        in_flight(2, "diag.nvml", CommandState::Dispatched { epoch: 4 }),
    ];
    let effects = session.opened(&node(3), &replay, seconds(1), NOW);
    assert_eq!(effects[1..], [Effect::Send(command_frame(&replay[1]))]);
}

#[test]
fn t1_a_newer_desired_state_is_sent_when_the_session_opens() {
    let mut session = session(None);
    receive(&mut session, hello(Vec::new()));
    let effects = session.opened(&node(4), &[], Duration::ZERO, NOW);
    assert_eq!(effects[1..], [Effect::SendSpec]);
}

#[test]
fn t1_an_applied_generation_is_told_until_the_ledger_has_it() {
    let mut session = open();
    let status = |applied_generation, wants_spec| Status {
        trust_version: 0,
        wants_trust: false,
        applied_generation,
        wants_spec,
    };
    assert_eq!(receive(&mut session, status(3, false)), []);
    assert_eq!(receive(&mut session, status(3, true)), [Effect::SendSpec]);
    assert_eq!(
        receive(&mut session, status(4, false)),
        [Effect::ApplyGeneration(4)]
    );
    session.heard(seconds(20));
    let effects = session.tick(seconds(20), NOW);
    assert_eq!(effects[1..], [Effect::ApplyGeneration(4)]);
    session.generation_recorded(4);
    assert_eq!(receive(&mut session, status(4, false)), []);
    session.heard(seconds(40));
    assert_eq!(session.tick(seconds(40), NOW).len(), 1);
}

#[test]
fn d1_a_status_out_of_bounds_ends_the_session() {
    let status = |applied_generation, wants_spec| Status {
        trust_version: 0,
        wants_trust: false,
        applied_generation,
        wants_spec,
    };
    let most = limits::COUNT_MAX;
    assert_eq!(
        receive(&mut open(), status(most, false)),
        [Effect::ApplyGeneration(most)]
    );
    for given in [most + 1, u64::MAX] {
        for wants_spec in [false, true] {
            let effects = receive(&mut open(), status(given, wants_spec));
            assert_eq!(close_code(&effects), 1008, "{given}");
        }
    }
}

#[test]
fn d10_pings_carry_the_servers_time() {
    let mut session = open();
    assert_eq!(session.next_tick(), seconds(20));
    assert_eq!(session.tick(seconds(19), NOW), []);
    let ping = Ping {
        nonce: 1,
        reply: false,
        server_time: Some(NOW),
    };
    assert_eq!(session.tick(seconds(20), NOW), [Effect::Send(ping.into())]);
    assert_eq!(session.next_tick(), seconds(40));
}

#[test]
fn d1_a_silent_daemon_is_let_go() {
    let mut session = open();
    session.heard(seconds(10));
    for at in [20, 40, 60] {
        assert!(matches!(
            session.tick(seconds(at), NOW)[..],
            [Effect::Send(_)]
        ));
    }
    assert_eq!(session.next_tick(), seconds(70));
    assert_eq!(close_code(&session.tick(seconds(70), NOW)), 1008);
}

#[test]
fn d1_only_what_was_answered_is_acknowledged() {
    let update = |seq, answer| (command_id(seq), UpdateState::Acked, answer);
    let frame = acknowledge([
        update(1, Answer::Recorded),
        update(2, Answer::None),
        update(3, Answer::refused(&Refusal::NeverDispatched)),
    ]);
    let Some(Frame::UpdateAck(UpdateAck { updates })) = frame else {
        panic!("{frame:?}")
    };
    let seen: Vec<_> = updates
        .iter()
        .map(|update| (update.command_id, update.code.as_deref()))
        .collect();
    let never_sent = (command_id(3), Some("NEVER_SENT"));
    assert_eq!(seen, [(command_id(1), None), never_sent]);
    assert_eq!(acknowledge([update(1, Answer::None)]), None);
}

#[test]
fn p6_a_question_for_a_secret_is_passed_on_and_its_name_is_bounded() {
    let question = |name: String| SecretRequest {
        command_id: command_id(1),
        key: crate::secret::OneTimeKey::from_bytes([7; 32]),
        node_sig: None,
        secret_ref: name,
    };
    let mut session = open();
    let asked = question("a".repeat(limits::SECRET_NAME_BYTES_MAX));
    let effects = receive(&mut session, asked.clone());
    assert_eq!(effects, [Effect::Exchange(asked)]);
    let longer = question("a".repeat(limits::SECRET_NAME_BYTES_MAX + 1));
    let effects = receive(&mut session, longer);
    let [Effect::Close(close)] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    assert!(close.reason.contains("the limit is 200"), "{close}");
}
