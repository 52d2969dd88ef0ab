//! Whom an agent believes, on a real disk (SPEC P1).

use std::path::Path;

use ed25519_dalek::SigningKey;
use ledger_protocol::daemon::{Daemon, Effect, Input, Monotonic, Record};
use ledger_protocol::dsse::{self, PublicKey, Purpose};
use ledger_protocol::frame::{Command, CommandUpdate, Frame, Trust, Welcome};
use ledger_protocol::time::Timestamp;
use ledger_protocol::trust::{
    RootSignature, Signed, SignedBundle, TrustBundle, WorkerCertificate, intent,
};

use super::*;
use crate::fake_gateway::Session;
use crate::journal::Change;

const WORKER: u8 = 100;

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn public(number: u8) -> PublicKey {
    PublicKey::of(&key(number))
}

/// Bundle `version` of a chain in which each one's only root is its version.
fn link(version: u8) -> SignedBundle {
    let bundle = TrustBundle {
        approvers: Vec::new(),
        quorum: 0,
        roots: vec![public(version)],
        unbatched_destructive_per_hour: 0,
        version: version.into(),
    };
    let bytes = bundle.encode().unwrap();
    let signature = |root: u8| RootSignature {
        root: public(root),
        signature: dsse::sign(&key(root), Purpose::TrustBundle, &bytes).to_vec(),
    };
    SignedBundle {
        signatures: [version.saturating_sub(1).max(1), version]
            .map(signature)
            .to_vec(),
        bundle: bytes,
    }
}

fn trust(bundles: &[SignedBundle]) -> Trust {
    Trust {
        bundles: bundles.to_vec(),
    }
}

/// A command that is signed under this root.
fn signed(number: u64, root: u8) -> Command {
    let command = command(number, "diag.nvml");
    let now = Clock::system().wall();
    let (from, until) = (now.plus_micros(-300_000_000), now.plus_seconds(86_400));
    let root_key = public(root);
    let statement = WorkerCertificate::statement(public(WORKER), (from, until), root_key).unwrap();
    let worker = WorkerCertificate {
        key: public(WORKER),
        not_after: until,
        not_before: from,
        root: root_key,
        signature: dsse::sign(&key(root), Purpose::WorkerKey, &statement).to_vec(),
    };
    let payload = intent::of_command(&command).unwrap();
    let signed = Signed::new(&key(WORKER), &worker, Purpose::Command, &payload);
    Command {
        signed: Some(Box::new(signed)),
        ..command
    }
}

/// What the state directory has pinned.
fn pinned(fixture: &Fixture) -> Value {
    let identity = fixture.options.state_dir.join("identity.json");
    let identity: Value = serde_json::from_slice(&std::fs::read(identity).unwrap()).unwrap();
    identity["trust"].clone()
}

async fn is_refused(session: &mut Session, command: Command) {
    let number = u64::try_from(command.command_id.uuid().as_u128()).unwrap();
    session.send(command).await;
    let update = session.until(number, UpdateState::Rejected).await;
    assert_eq!(update.reason.as_deref(), Some("BAD_SIGNATURE"));
}

async fn is_run(session: &mut Session, command: Command) {
    let number = u64::try_from(command.command_id.uuid().as_u128()).unwrap();
    session.send(command).await;
    session.until(number, UpdateState::Succeeded).await;
}

#[tokio::test]
async fn p1_a_node_that_joins_with_a_bundle_pins_its_roots_and_takes_nothing_unsigned() {
    let gateway = FakeGateway::start().await;
    *gateway.trust.lock().unwrap() = Some(link(1));
    let mut fixture = Fixture::with(gateway, scripted(Duration::ZERO), TOKEN);
    let mut session = fixture.gateway.session().await;
    let root = public(1).to_string();
    assert_eq!(pinned(&fixture), json!({ "roots": [root], "version": 1 }));
    assert_eq!(session.hello.trust_version, 0);
    is_refused(&mut session, command(1, "diag.nvml")).await;
    // A bundle of somebody else is none, although the node has no other yet.
    session.send(trust(&[link(9)])).await;
    session.send(trust(&[link(1)])).await;
    is_run(&mut session, signed(2, 1)).await;
    for _ in 0..2 {
        fixture.crash().await;
        fixture.start();
        let mut session = fixture.gateway.session().await;
        assert_eq!(session.hello.trust_version, 1);
        is_refused(&mut session, command(3, "diag.nvml")).await;
    }
}

#[tokio::test]
async fn p1_a_join_with_a_bundle_that_is_none_is_no_join() {
    let mut broken = link(1);
    broken.signatures[0].signature[0] ^= 1;
    broken.signatures[1].signature[0] ^= 1;
    let gateway = FakeGateway::start().await;
    *gateway.trust.lock().unwrap() = Some(broken);
    let mut fixture = Fixture::with(gateway, scripted(Duration::ZERO), TOKEN);
    let error = fixture.ended().await.unwrap_err();
    assert!(matches!(error, Error::JoinUnbelievable { .. }), "{error:?}");
    assert!(!fixture.options.state_dir.join("identity.json").exists());
}

#[tokio::test]
async fn p1_a_node_that_joined_before_there_was_trust_pins_the_first_bundle_that_comes() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    assert_eq!(pinned(&fixture), Value::Null);
    is_run(&mut session, command(1, "diag.nvml")).await;
    session.send(trust(&[link(1), link(2)])).await;
    is_refused(&mut session, command(2, "diag.nvml")).await;
    is_run(&mut session, signed(3, 2)).await;
    assert_eq!(pinned(&fixture)["version"], 2);
    fixture.crash().await;
    fixture.start();
    let mut session = fixture.gateway.session().await;
    assert_eq!(session.hello.trust_version, 2);
    is_refused(&mut session, command(4, "diag.nvml")).await;
}

#[tokio::test]
async fn p1_with_its_journal_lost_an_agent_follows_the_chain_from_its_pins() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    session.send(trust(&[link(1), link(2)])).await;
    is_run(&mut session, signed(1, 2)).await;
    fixture.crash().await;
    fixture.damage_journal();
    fixture.start();
    let mut session = fixture.gateway.session().await;
    assert_eq!(session.hello.trust_version, 0);
    is_refused(&mut session, command(2, "diag.nvml")).await;
    session.send(trust(&[link(1), link(2), link(3)])).await;
    is_run(&mut session, signed(3, 3)).await;
    assert_eq!(pinned(&fixture)["version"], 3);
}

#[tokio::test]
async fn p1_roots_that_cannot_be_pinned_keep_everything_out_until_they_are() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    let identity = fixture.options.state_dir.join("identity.json");
    let aside = fixture.options.state_dir.join("aside");
    std::fs::rename(&identity, &aside).unwrap();
    session.send(trust(&[link(1)])).await;
    session.send(signed(1, 1)).await;
    session.settle().await;
    let said: Vec<_> = session.updates.iter().map(|update| update.state).collect();
    assert!(
        said.iter().all(|state| *state == UpdateState::Busy),
        "{said:?}"
    );
    std::fs::rename(&aside, &identity).unwrap();
    loop {
        match session.update().await.state {
            UpdateState::Succeeded => break,
            UpdateState::Busy => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                session.send(signed(1, 1)).await;
            }
            _ => {}
        }
    }
    assert_eq!(pinned(&fixture)["version"], 1);
}

/// The identity file of an agent that has pinned root 1.
async fn pinned_identity() -> (Fixture, Vec<u8>) {
    let gateway = FakeGateway::start().await;
    *gateway.trust.lock().unwrap() = Some(link(1));
    let mut fixture = Fixture::with(gateway, scripted(Duration::ZERO), TOKEN);
    drop(fixture.gateway.session().await);
    fixture.crash().await;
    let bytes = std::fs::read(fixture.options.state_dir.join("identity.json")).unwrap();
    (fixture, bytes)
}

#[tokio::test]
async fn p1_an_identity_that_is_damaged_at_any_byte_is_an_error_or_keeps_its_pins() {
    let (fixture, whole) = pinned_identity().await;
    let path = fixture.options.state_dir.join("identity.json");
    let dir = StateDir::open(&fixture.options.state_dir).unwrap();
    let mut errors = 0;
    let mut is_safe = |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).unwrap();
        match Credentials::load(&dir) {
            Ok(kept) => assert!(kept.unwrap().pins.is_some(), "{what}"),
            Err(_) => errors += 1,
        }
    };
    for byte in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[byte] ^= 1 << (byte % 8);
        is_safe(&flipped, &format!("byte {byte}"));
        is_safe(&whole[..byte], &format!("cut at {byte}"));
    }
    assert!(errors > whole.len());
    // A file of a time before there was trust is read as ever.
    let mut old: Value = serde_json::from_slice(&whole).unwrap();
    old.as_object_mut().unwrap().remove("trust");
    std::fs::write(&path, old.to_string()).unwrap();
    assert_eq!(Credentials::load(&dir).unwrap().unwrap().pins, None);
}

#[tokio::test]
async fn p1_an_agent_whose_identity_is_damaged_says_so_and_opens_no_session() {
    let (mut fixture, mut bytes) = pinned_identity().await;
    let name = bytes.windows(7).position(|seven| seven == b"\"trust\"");
    bytes[name.unwrap() + 1] ^= 1;
    std::fs::write(fixture.options.state_dir.join("identity.json"), bytes).unwrap();
    fixture.start();
    let error = fixture.ended().await.unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }), "{error:?}");
    assert!(error.to_string().contains("cannot be understood"));
}

/// A daemon on the journal of this folder, in an open session.
fn reopened(folder: &Path, identity: &Identity) -> Daemon {
    let dir = Arc::new(StateDir::open(folder).unwrap());
    let new_id = JournalId::from_uuid(uuid::Uuid::from_u128(2));
    let opened = Opened::file(&dir, new_id).unwrap();
    let now = Monotonic::from_micros(0);
    let recovered = Daemon::recover(identity.clone(), opened.journal_id, opened.records, now);
    let (mut daemon, _) = recovered.unwrap_or((Daemon::new(identity.clone(), new_id), Vec::new()));
    daemon.handle(Input::Connected, now);
    let welcome = Welcome {
        trust: Vec::new(),
        epoch: 1,
        ping_seconds: 10,
        server_time: Clock::system().wall(),
    };
    daemon.handle(Input::Frame(welcome.into()), now);
    daemon
}

/// The refusals among what a daemon does.
fn refusals(effects: &[Effect]) -> Vec<String> {
    let updates = effects.iter().filter_map(|effect| match effect {
        Effect::Send(Frame::CommandUpdate(CommandUpdate { updates })) => Some(updates),
        _ => None,
    });
    updates
        .flatten()
        .filter_map(|update| update.reason.clone())
        .collect()
}

#[test]
fn p1_a_journal_that_is_damaged_at_any_byte_never_makes_a_node_take_what_is_unsigned() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Arc::new(StateDir::open(folder.path()).unwrap());
    let journal_id = JournalId::from_uuid(uuid::Uuid::from_u128(1));
    let mut store = Opened::file(&dir, journal_id).unwrap().store;
    let records = [
        Record::Trusted(Box::new(link(1))),
        Record::Trusted(Box::new(link(2))),
        Record::Unbatched(Timestamp::from_micros(1)),
    ];
    store.write(&records.map(Change::Append)).unwrap();
    drop((store, dir));
    let path = folder.path().join("journal");
    let whole = std::fs::read(&path).unwrap();
    let pins = ledger_protocol::daemon::Pins {
        roots: vec![public(2)],
        version: 2,
    };
    let identity = Identity {
        agent_version: "1".to_owned(),
        boot_id: "boot".to_owned(),
        node_id: node_id(),
        role: Role::Node,
        kinds: Arc::new(SupportedKinds::new(&Registry::builtin(), |_| true)),
        pins: Some(pins),
    };
    let now = Monotonic::from_micros(0);
    for byte in 0..whole.len() {
        for truncates in [false, true] {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1 << (byte % 8);
            if truncates {
                damaged.truncate(byte);
            }
            std::fs::write(&path, damaged).unwrap();
            let mut daemon = reopened(folder.path(), &identity);
            let unsigned = Input::Frame(command(1, "diag.nvml").into());
            let done = daemon.handle(unsigned, now);
            assert_eq!(refusals(&done), ["BAD_SIGNATURE"], "byte {byte}");
            let chain = trust(&[link(1), link(2), link(3)]);
            daemon.handle(Input::Frame(chain.into()), now);
            assert_eq!(daemon.hello().trust_version, 3, "byte {byte}");
            let done = daemon.handle(Input::Frame(signed(2, 3).into()), now);
            let starts = |effect: &Effect| matches!(effect, Effect::Start(_));
            assert!(done.iter().any(starts), "byte {byte}: {done:?}");
        }
    }
}
