//! Agents against a gateway that the test plays.

mod trust;

use std::sync::atomic::Ordering;
use std::time::Instant;

use ledger_protocol::canonical;
use ledger_protocol::frame::{Cancel, EntryState, UpdateState};
use ledger_protocol::limits::FRAME_BYTES_MAX;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::fake_gateway::{FakeGateway, TOKEN, Validity, command, command_id, node_id};
use crate::fake_machine::{FakeMachine, wait_until};
use crate::kinds::{Finished, Outcome};

mod attested;
mod renewing;
mod secrets;

/// An agent that runs in the background, and a state directory that outlives it.
struct Fixture {
    gateway: FakeGateway,
    _folder: TempDir,
    options: AgentOptions,
    shutdown: CancellationToken,
    agent: JoinSet<Result<(), Error>>,
}

impl Fixture {
    async fn new(machine: Machine) -> Self {
        Self::with(FakeGateway::start().await, machine, TOKEN)
    }

    fn with(gateway: FakeGateway, machine: Machine, token: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca.pem");
        std::fs::write(&ca_file, &gateway.ca_certificate).unwrap();
        let options = AgentOptions {
            ca_file: Some(ca_file),
            join_token: Some(token.to_owned()),
            boot: Boot::Simulated,
            machine,
            ..AgentOptions::new(folder.path().join("state"), gateway.url())
        };
        let mut fixture = Self {
            gateway,
            _folder: folder,
            options,
            shutdown: CancellationToken::new(),
            agent: JoinSet::new(),
        };
        fixture.start();
        fixture
    }

    fn start(&mut self) {
        self.shutdown = CancellationToken::new();
        let run = run(self.options.clone(), self.shutdown.clone());
        self.agent.spawn(run);
    }

    /// Ends the agent as a crash of its process would: in the middle of whatever it does.
    async fn crash(&mut self) {
        self.agent.shutdown().await;
        // A write that was under way holds the state directory until it is done.
        let free = || StateDir::open(&self.options.state_dir).is_ok();
        wait_until("the state directory is free", free).await;
    }

    /// Changes a bit in the middle of the journal.
    fn damage_journal(&self) {
        let path = self.options.state_dir.join("journal");
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }

    async fn ended(&mut self) -> Result<(), Error> {
        let ended = tokio::time::timeout(Duration::from_secs(30), self.agent.join_next()).await;
        ended.expect("the agent goes on").unwrap().unwrap()
    }
}

fn scripted(duration: Duration) -> Machine {
    Machine::Scripted(ScriptedExecutor::succeeding(
        duration,
        json!({ "done": true }),
    ))
}

/// Longer than any test.
const FOREVER: Duration = Duration::from_hours(1);

fn json_of(bytes: Option<Vec<u8>>) -> Value {
    canonical::to_json(&bytes.unwrap()).unwrap()
}

#[tokio::test]
async fn d1_an_agent_joins_opens_a_session_and_runs_a_command() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    assert_eq!(session.hello.node_id, node_id());
    assert_eq!(session.hello.entries, []);
    session.send(command(1, "diag.nvml")).await;
    let mut states = Vec::new();
    while states.last() != Some(&UpdateState::Succeeded) {
        let update = session.update().await;
        session.acknowledge(&update).await;
        states.push(update.state);
        if update.state == UpdateState::Succeeded {
            assert_eq!(json_of(update.result), json!({ "done": true }));
        }
    }
    assert_eq!(
        states,
        [
            UpdateState::Acked,
            UpdateState::Running,
            UpdateState::Succeeded
        ]
    );
    session.settle().await;

    // The next life needs neither token nor file, and knows what it did.
    fixture.shutdown.cancel();
    fixture.ended().await.unwrap();
    let journal_id = session.hello.journal_id;
    let boot_id = session.hello.boot_id;
    fixture.options.join_token = None;
    fixture.options.ca_file = None;
    fixture.start();
    let mut session = fixture.gateway.session().await;
    assert_eq!(session.hello.entries, []);
    assert_eq!(session.hello.highest_seq, 1);
    assert_eq!(session.hello.journal_id, journal_id);
    assert_eq!(session.hello.boot_id, boot_id);
    session.send(command(1, "diag.nvml")).await;
    let again = session.until(1, UpdateState::Succeeded).await;
    assert_eq!(json_of(again.result), json!({ "done": true }));
}

#[tokio::test]
async fn d1_real_executors_run_on_the_host_that_they_are_given() {
    let machine = FakeMachine::new();
    let mut fixture = Fixture::new(Machine::Host(Box::new(machine.host()))).await;
    let mut session = fixture.gateway.session().await;
    session.send(command(1, "inventory.refresh")).await;
    let update = session.until(1, UpdateState::Succeeded).await;
    assert!(json_of(update.result).is_object());
    session.send(command(2, "gpu.reset")).await;
    let update = session.until(2, UpdateState::Rejected).await;
    assert_eq!(update.reason.as_deref(), Some("UNSUPPORTED"));
}

#[tokio::test]
async fn d6_a_result_that_came_without_a_session_is_said_in_the_next_one() {
    let mut fixture = Fixture::new(scripted(Duration::from_millis(300))).await;
    let mut session = fixture.gateway.session().await;
    session.send(command(1, "diag.nvml")).await;
    while session.update().await.state != UpdateState::Running {}
    drop(session);
    let mut session = fixture.gateway.hello().await;
    assert_eq!(session.hello.entries.len(), 1);
    session.welcome(Clock::system().wall()).await;
    session.until(1, UpdateState::Succeeded).await;
}

#[tokio::test]
async fn d7_a_command_that_ran_when_the_agent_died_is_interrupted() {
    let mut fixture = Fixture::new(scripted(FOREVER)).await;
    let mut session = fixture.gateway.session().await;
    session.send(command(1, "diag.nvml")).await;
    session.until(1, UpdateState::Running).await;
    fixture.crash().await;
    fixture.start();
    let mut session = fixture.gateway.session().await;
    assert_eq!(session.hello.entries[0].state, EntryState::Finished);
    let update = session.until(1, UpdateState::Failed).await;
    assert_eq!(update.reason.as_deref(), Some("interrupted"));
    session.send(command(1, "diag.nvml")).await;
    session.until(1, UpdateState::Failed).await;
}

#[tokio::test]
async fn d8_an_agent_whose_journal_was_damaged_says_so_by_a_new_journal_id() {
    let mut fixture = Fixture::new(scripted(FOREVER)).await;
    let mut session = fixture.gateway.session().await;
    let before = session.hello.journal_id;
    session.send(command(1, "gpu.reset")).await;
    session.until(1, UpdateState::Running).await;
    fixture.crash().await;
    fixture.damage_journal();
    fixture.start();
    let session = fixture.gateway.session().await;
    assert_ne!(session.hello.journal_id, before);
    assert_eq!(
        (session.hello.entries.len(), session.hello.highest_seq),
        (0, 0)
    );
    assert!(fixture.options.state_dir.join("journal.lost-1").exists());
}

#[tokio::test]
async fn d9_a_simulated_reboot_comes_back_under_a_new_boot_id_and_completes_the_command() {
    let machine = FakeMachine::new();
    let mut fixture = Fixture::new(Machine::Host(Box::new(machine.host()))).await;
    let mut session = fixture.gateway.session().await;
    let boot_id = session.hello.boot_id.clone();
    session.send(command(1, "node.reboot")).await;
    let mut session = fixture.gateway.session().await;
    assert_ne!(session.hello.boot_id, boot_id);
    assert_eq!(session.hello.entries[0].state, EntryState::Finished);
    let update = session.until(1, UpdateState::Succeeded).await;
    assert_eq!(json_of(update.result), json!({ "rebooted": true }));
    // A copy of the command does not reboot it again.
    session.send(command(1, "node.reboot")).await;
    session.until(1, UpdateState::Succeeded).await;
    session.settle().await;
}

#[tokio::test]
async fn d10_deadlines_are_decided_in_the_servers_time() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.hello().await;
    // The server says that it is an hour later than this machine believes.
    session
        .welcome(Clock::system().wall().plus_seconds(3_600))
        .await;
    session.send(command(1, "diag.nvml")).await;
    let update = session.until(1, UpdateState::Rejected).await;
    assert_eq!(update.reason.as_deref(), Some("EXPIRED"));
}

#[tokio::test]
async fn d10_a_node_whose_clock_is_behind_reaches_its_gateway() {
    let gateway = FakeGateway::start_with(Validity::NotYet).await;
    let mut fixture = Fixture::with(gateway, scripted(Duration::ZERO), TOKEN);
    fixture.gateway.session().await;
}

#[tokio::test]
async fn d1_a_gateway_whose_certificate_has_expired_is_not_joined() {
    let gateway = FakeGateway::start_with(Validity::NotAnyMore).await;
    let mut fixture = Fixture::with(gateway, scripted(Duration::ZERO), TOKEN);
    let error = fixture.ended().await.unwrap_err();
    assert!(error.chain().contains("expired"), "{}", error.chain());
}

#[tokio::test]
async fn p7_a_gateway_of_another_authority_is_not_joined() {
    let other = FakeGateway::start().await;
    let mut gateway = FakeGateway::start().await;
    gateway.ca_certificate = other.ca_certificate;
    let mut fixture = Fixture::with(gateway, scripted(Duration::ZERO), TOKEN);
    let error = fixture.ended().await.unwrap_err();
    assert!(matches!(error, Error::Join { .. }), "{error:?}");
}

#[tokio::test]
async fn p7_a_refused_join_ends_the_agent_with_the_gateways_reason() {
    let gateway = FakeGateway::start().await;
    let mut fixture = Fixture::with(gateway, scripted(Duration::ZERO), "wrong");
    let error = fixture.ended().await.unwrap_err();
    assert!(
        error.to_string().contains("the join token is unknown"),
        "{error}"
    );
    // The key stays, so that the node is asked for with the same one next time.
    let key = fixture.options.state_dir.join("key.pem");
    let before = std::fs::read(&key).unwrap();
    fixture.options.join_token = Some(TOKEN.to_owned());
    fixture.start();
    fixture.gateway.session().await;
    assert_eq!(std::fs::read(&key).unwrap(), before);
}

#[tokio::test]
async fn p7_an_agent_that_was_not_told_how_to_join_says_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let options = AgentOptions::new(folder.path(), "https://127.0.0.1:1");
    let error = run(options, CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, Error::NotJoined));
}

#[tokio::test]
async fn d5_a_second_agent_on_the_same_state_directory_ends_at_once() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    fixture.gateway.session().await;
    let second = run(fixture.options.clone(), CancellationToken::new()).await;
    assert!(matches!(second, Err(Error::StateDirTaken { .. })));
}

#[tokio::test]
async fn d1_a_refused_session_is_tried_again_slowly() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let session = fixture.gateway.session().await;
    fixture.gateway.status.store(403, Ordering::SeqCst);
    drop(session);
    let refused = Error::SessionRefused {
        gateway: String::new(),
        status: 403,
    };
    assert!(crate::connect::is_refusal(&refused));
    fixture.shutdown.cancel();
    fixture.ended().await.unwrap();
}

#[tokio::test]
async fn d13_an_oversized_frame_is_refused_and_the_session_lives_on() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    session.send_bytes(vec![0x92; FRAME_BYTES_MAX + 1]).await;
    session.send_bytes(vec![0x92, 120, 0x80]).await;
    session.send(command(1, "diag.nvml")).await;
    session.until(1, UpdateState::Succeeded).await;
}

#[tokio::test]
async fn d1_a_frame_that_cannot_be_read_ends_the_session_and_nothing_else() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    session.send_bytes(vec![0x00]).await;
    while session.frame().await.is_some() {}
    assert_eq!(fixture.agent.len(), 1);
    assert!(fixture.agent.try_join_next().is_none(), "the agent lives");
}

#[tokio::test]
async fn d12_a_running_command_is_stopped_and_the_real_outcome_is_told() {
    let mut fixture = Fixture::new(scripted(FOREVER)).await;
    let mut session = fixture.gateway.session().await;
    session.send(command(1, "diag.nvml")).await;
    session.until(1, UpdateState::Running).await;
    let command_id = command_id(1);
    session.send(Cancel { command_id }).await;
    session.until(1, UpdateState::Cancelled).await;
}

#[tokio::test]
async fn k3_the_commands_of_a_lane_run_at_once_and_one_more_is_busy() {
    let mut fixture = Fixture::new(scripted(FOREVER)).await;
    let mut session = fixture.gateway.session().await;
    let mut number = 0;
    for (kind, credits) in [("diag.nvml", 8), ("gpu.reset", 4), ("logs.collect", 2)] {
        // Nothing of the lane before is in the way.
        for _ in 0..credits {
            number += 1;
            session.send(command(number, kind)).await;
            session.until(number, UpdateState::Running).await;
        }
        number += 1;
        session.send(command(number, kind)).await;
        session.until(number, UpdateState::Busy).await;
    }
}

#[tokio::test]
async fn h7_a_stopped_agent_ends_what_runs_and_says_what_became_of_it() {
    let mut fixture = Fixture::new(scripted(FOREVER)).await;
    let mut session = fixture.gateway.session().await;
    session.send(command(1, "diag.nvml")).await;
    session.until(1, UpdateState::Running).await;
    let asked = Instant::now();
    fixture.shutdown.cancel();
    let update = session.update().await;
    assert_eq!(update.state, UpdateState::Failed);
    assert_eq!(update.reason.as_deref(), Some("interrupted"));
    while session.frame().await.is_some() {}
    fixture.ended().await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn d5_a_result_of_a_failed_command_keeps_reason_and_details() {
    let finished = Finished {
        outcome: Outcome::Failed,
        reason: Some("gpu-busy".to_owned()),
        details: Some(json!({ "why": "a hold" })),
        result: None,
    };
    let script = ScriptedExecutor {
        finished,
        ..ScriptedExecutor::succeeding(Duration::ZERO, json!({}))
    };
    let mut fixture = Fixture::new(Machine::Scripted(script)).await;
    let mut session = fixture.gateway.session().await;
    session.send(command(1, "gpu.reset")).await;
    let update = session.until(1, UpdateState::Failed).await;
    assert_eq!(update.reason.as_deref(), Some("gpu-busy"));
    assert_eq!(json_of(update.details), json!({ "why": "a hold" }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d5_an_agent_that_dies_at_any_moment_never_runs_a_command_twice() {
    // An effect that can be counted, and that leaves no trace that a next boot could complete.
    let reboot = |number| ledger_protocol::frame::Command {
        self_terminating: false,
        ..command(number, "node.reboot")
    };
    let effects = Arc::new(std::sync::Mutex::new(Vec::new()));
    let counted = effects.clone();
    let mut host = FakeMachine::new().host();
    host.reboot = Reboot::Injected(Arc::new(move |command| {
        counted.lock().unwrap().push(command.to_owned());
        Err("it is only counted".to_owned())
    }));
    let mut fixture = Fixture::new(Machine::Host(Box::new(host))).await;
    fixture.crash().await;
    fixture.options.boot = Boot::Machine;
    fixture.start();
    let mut settled = std::collections::BTreeMap::new();
    for round in 0..40_u64 {
        let mut session = fixture.gateway.session().await;
        for number in round * 4 + 1..=round * 4 + 4 {
            session.send(reboot(number)).await;
        }
        // Somewhere between nothing and everything.
        for _ in 0..round % 13 {
            let update = session.update().await;
            session.acknowledge(&update).await;
            note(&mut settled, &update);
        }
        if round % 3 == 0 {
            // What was acknowledged is taken in, so that it is not said again for ever.
            session.settle().await;
        }
        fixture.crash().await;
        fixture.start();
    }
    let mut session = fixture.gateway.session().await;
    assert!(settled.len() > 5);
    for (number, state) in settled.clone() {
        session.send(reboot(number)).await;
        session.until(number, state).await;
    }
    let mut ran = effects.lock().unwrap().clone();
    assert!(ran.len() > 10);
    let all = ran.len();
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), all, "a command took effect twice");
}

/// Remembers an end; a second end of the same command must be the same.
fn note(
    settled: &mut std::collections::BTreeMap<u64, UpdateState>,
    update: &ledger_protocol::frame::Update,
) {
    let is_end = !matches!(
        update.state,
        UpdateState::Busy | UpdateState::Acked | UpdateState::Running
    );
    if is_end {
        let number = u64::try_from(update.command_id.uuid().as_u128()).unwrap();
        let first = settled.entry(number).or_insert(update.state);
        assert_eq!(*first, update.state, "command {number} ended twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d14_a_process_holds_a_fleet_of_agents_without_a_disk() {
    const AGENTS: usize = 100;
    let mut gateway = FakeGateway::start().await;
    let clock = Clock::system();
    let address: GatewayAddress = gateway.url().parse().unwrap();
    let key = Credentials::generate_key().unwrap();
    let ca = gateway.ca_certificate.clone();
    let credentials = Credentials::join(&address, &ca, TOKEN, key, &clock)
        .await
        .unwrap();
    let connector = Connector::new(address, &credentials, &clock).unwrap();
    let script = ScriptedExecutor::succeeding(Duration::ZERO, json!({}));
    let executor = Arc::new(Executor::Scripted(script));
    let kinds = Arc::new(SupportedKinds::new(&Registry::builtin(), |_| true));
    let shutdown = CancellationToken::new();
    let mut agents = JoinSet::new();
    for _ in 0..AGENTS {
        let setup = Setup {
            identity: Identity {
                agent_version: "simulated".to_owned(),
                boot_id: "boot".to_owned(),
                node_id: credentials.node_id,
                role: credentials.role,
                kinds: kinds.clone(),
                pins: None,
            },
            journal: Opened::memory(JournalId::new(clock.wall(), random())),
            executor: executor.clone(),
            connector: connector.clone(),
            clock: clock.clone(),
            state_dir: None,
            rebooted: CancellationToken::new(),
            cut_every: None,
        };
        let agent = Agent::new(setup).unwrap();
        let shutdown = shutdown.clone();
        agents.spawn(async move { agent.run(&shutdown).await });
    }
    for _ in 0..AGENTS {
        let mut session = gateway.session().await;
        session.send(command(1, "diag.nvml")).await;
        session.until(1, UpdateState::Succeeded).await;
    }
    shutdown.cancel();
    while let Some(ended) = agents.join_next().await {
        assert_eq!(ended.unwrap(), Ended::Stopped);
    }
}
