//! A fleet whose agents die, lose their connections and lose their journals while commands flow;
//! what the ledger says is held against what the nodes did.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use ledger::{Clock, HeldRoot, Ledger, Options, Run, Signer};
use ledger_protocol::event::Actor;
use ledger_protocol::kind::Registry;
use ledger_tests::fleet::{Effects, Fleet, assert_booted};
use ledger_tests::process::Process;
use ledger_tests::up::Up;
use ledger_tests::wait::DEADLINE;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const NODES: usize = 20;
const COMMANDS: usize = 600;
const SEED: u64 = 5;
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Kinds with and without the flags that decide what a crash means (SPEC D7–D9), and a payload.
const KINDS: [(&str, &str); 6] = [
    ("inventory.refresh", "{}"),
    ("diag.nvml", "{}"),
    ("logs.collect", "{}"),
    ("gpu.reset", "{}"),
    (
        "disk.wipe",
        r#"{"devices":["/dev/simulated"],"method":"zero"}"#,
    ),
    ("node.reboot", "{}"),
];

/// Half of the kinds are destructive, and nobody approves batches here.
const UNBATCHED: [&str; 2] = ["--unbatched-destructive-per-hour", "1024"];

/// What signs as `up` does, whose nodes take nothing else.
async fn signer(up: &Up) -> Arc<Signer> {
    let file = Path::new(up.text("dataDir")).join("signing/root.pem");
    let root = std::fs::read_to_string(file).unwrap();
    let root = SigningKey::from_pkcs8_pem(&root).unwrap();
    let root = Arc::new(HeldRoot::new(root));
    let signer = Arc::new(Signer::new(root, Vec::new(), Clock::system()));
    assert!(signer.renew().await.unwrap());
    signer
}

/// A fleet in which whatever can go wrong does.
async fn start(up: &Up, state: &Path) -> Fleet {
    let ca = Path::new(up.text("dataDir")).join("authority/node-ca.pem");
    let gateway = (up.text("gateway"), ca.as_path());
    let script = ["--run-time", "5ms..800ms", "--failing", "10"];
    let faults = ["--crash-every", "4s", "--cut-every", "4s"];
    let losses = ["--lose-journal-every", "12s"];
    let more = [&script[..], &faults[..], &losses[..]].concat();
    Fleet::start(NODES, state, gateway, &up.admin, &more).await
}

/// Every command of a node, as the API shows it.
async fn commands(up: &Up, node: &Value) -> Vec<Value> {
    let input = json!({"nodeId": node, "limit": 200});
    let page = up.admin.call("commands.list", input).await.ok();
    assert!(page["cursor"].is_null(), "more than a page");
    page["items"].as_array().unwrap().clone()
}

/// The commands of the fleet that have not ended and could have.
async fn open_commands(up: &Up, fleet: &Fleet) -> Vec<Value> {
    let mut open = Vec::new();
    for (node, _) in &fleet.nodes {
        open.extend(commands(up, node).await);
    }
    open.retain(|command| command["settledAt"].is_null() && !awaits_a_boot(command));
    open
}

/// Whether the node is still waiting for a boot that a crash took from it: it can only be known
/// by the timeout (SPEC D9).
fn awaits_a_boot(command: &Value) -> bool {
    command["kind"] == "node.reboot" && command["state"] == "running"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s4_every_command_of_a_fleet_that_keeps_dying_ends_once_with_at_most_one_effect() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start_with(&folder.path().join("up"), &UNBATCHED).await;
    let mut fleet = start(&up, &folder.path().join("fleet")).await;
    let random = &mut StdRng::seed_from_u64(SEED);

    // A module: the API takes only some of the kinds.
    let pool = ledger::connect(up.text("postgres"), 4).await.unwrap();
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let mut options = Options::new(Registry::builtin(), Clock::system());
    options.signer = Some(signer(&up).await);
    let ledger = Ledger::start(pool.clone(), options, &tasks, stop.clone()).unwrap();
    let actor = Actor::module("fleet");
    for number in 0..COMMANDS {
        let (kind, payload) = KINDS[number % KINDS.len()];
        let (node, _) = &fleet.nodes[random.random_range(0..NODES)];
        let run = Run {
            tenant: up.text("tenantId").parse().unwrap(),
            node: node.as_str().unwrap().parse().unwrap(),
            kind: kind.to_owned(),
            payload: serde_json::from_str(payload).unwrap(),
            idempotency_key: format!("wf:fleet:{number}"),
            not_after: ledger.now().plus_seconds(3_600),
            not_before: None,
            min_generation: None,
            batch_id: None,
        };
        let (tenant, at) = (run.tenant, run.node);
        let queued = ledger.enqueue(&actor, run).await.unwrap().command;
        if random.random_range(0..10) == 0 {
            ledger.cancel(&actor, tenant, at, queued.id).await.unwrap();
        }
    }

    let deadline = Instant::now() + DEADLINE;
    loop {
        let open = open_commands(&up, &fleet).await;
        if open.is_empty() {
            break;
        }
        let tail = fleet.process.tail();
        assert!(Instant::now() < deadline, "in vain: {open:#?} {tail}");
        sleep(LOOK_EVERY).await;
    }
    fleet.process.signal(Signal::TERM);
    assert!(fleet.process.ended().await.success());

    let effects = fleet.effects();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut total = 0;
    for (node, _) in &fleet.nodes {
        let mine = commands(&up, node).await;
        assert_booted(&mine, &effects);
        for command in mine {
            total += 1;
            let id = command["id"].as_str().unwrap();
            let none = Effects::default();
            let effect = effects.get(id).unwrap_or(&none);
            if command["retrySafe"] == false {
                assert!(effect.started <= 1, "{effect:?}: {command}");
            }
            let state = command["state"].as_str().unwrap();
            match state {
                "succeeded" if command["kind"] == "node.reboot" => {}
                "succeeded" => assert!(effect.finished >= 1, "{command}"),
                "cancelled" => assert_eq!(effect.finished, 0, "{command}"),
                _ => {}
            }
            let reason = command["reason"].as_str().unwrap_or("-");
            *counts.entry(format!("{state} {reason}")).or_default() += 1;
        }
    }
    assert_eq!(total, COMMANDS, "{counts:?}");
    // A run in which nothing went wrong would have shown nothing.
    let at_least = [
        ("succeeded -", COMMANDS / 3),
        ("failed scripted", 10),
        ("failed interrupted", 10),
        ("failed journal-lost", 1),
    ];
    for (what, least) in at_least {
        let found = counts.get(what).copied().unwrap_or_default();
        assert!(found >= least, "{what}: {counts:?}");
    }

    stop.cancel();
    tasks.close();
    tasks.wait().await;
    pool.close().await;
    for verb in ["replay", "check"] {
        Process::output(&["audit", verb, "--postgres", up.text("postgres")]).await;
    }
    assert!(up.stop().await.success());
}
