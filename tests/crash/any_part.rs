//! Two minutes in which every part dies at random under the load of a fleet, each a process of its
//! own, as it runs in production: APIs with their publisher, gateways, the sweeper, the daemons.
//!
//! `CRASH_SECONDS` makes it longer or shorter, and `CRASH_SEED` draws other deaths. What the parts
//! had in hand when they died is never the same twice, whatever the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use ledger_protocol::id::{CommandId, NodeId};
use ledger_tests::database;
use ledger_tests::fleet::{Effects, Fleet, assert_booted, boots};
use ledger_tests::front::{Front, Order};
use ledger_tests::ground::{events, steps};
use ledger_tests::http::Caller;
use ledger_tests::nats::{self, Server, assert_whole};
use ledger_tests::process::Process;
use ledger_tests::serve::{Service, gateway_of_many, install, serve};
use ledger_tests::wait::{self, setting};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::types::Uuid;
use tokio::time::{Instant, sleep};

const NODES: usize = 200;
const CALLERS: usize = 8;
const SECONDS_DEFAULT: u64 = 120;
const SEED_DEFAULT: u64 = 7;
/// From one round of deaths to the next.
const LIFE_MILLIS: Range<u64> = 500..4_000;
/// How long the dead stay dead.
const DOWN_MILLIS: Range<u64> = 0..1_500;
/// Between two commands of one caller.
const REST_MILLIS: Range<u64> = 50..350;
const NOT_AFTER_SECONDS: Range<u64> = 10..31;
/// Once nobody dies any more, everything ends within the longest `notAfter` and two sweeps, and
/// what a busy machine adds to it. No timeout is waited for: those of the kinds are minutes.
const ENDS_WITHIN: Duration = Duration::from_secs(NOT_AFTER_SECONDS.end + 2 * 5 + 20);
/// Between two boots of a node whose reboot is waited for.
const BOOT_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Serve(usize),
    Gateway(usize),
    Sweeper,
    Fleet,
}

const PARTS: [Part; 6] = [
    Part::Serve(0),
    Part::Serve(1),
    Part::Gateway(0),
    Part::Gateway(1),
    Part::Sweeper,
    Part::Fleet,
];

struct Town {
    pool: PgPool,
    serves: [Service; 2],
    gateways: [Service; 2],
    sweeper: Process,
    fleet: Fleet,
    /// How often each part died.
    deaths: BTreeMap<&'static str, usize>,
    _front: Front,
}

fn sweeper(pool: &PgPool) -> Process {
    Process::start(&["sweeper", "--postgres", database::url(pool).as_str()])
}

impl Town {
    /// Everything from an empty database on, and who may ask.
    async fn start(pool: &PgPool, nats: &str, folder: &Path) -> (Self, Caller) {
        let url = database::url(pool);
        let admin = install(&url).await;
        let authority = folder.join("authority");
        let authority = authority.to_str().unwrap();
        // The first makes the authority that both have.
        let first = gateway_of_many(&url, authority, "first", nats).await;
        let (second, one, other) = tokio::join!(
            gateway_of_many(&url, authority, "second", nats),
            serve(&url, Some(nats)),
            serve(&url, Some(nats)),
        );
        let front = Front::start(vec![first.address, second.address], Order::Turns).await;
        let admin = admin.at(one.address);
        let at = format!("https://{}", front.address);
        let ca = folder.join("authority/node-ca.pem");
        let script = ["--run-time", "5ms..500ms", "--failing", "5"];
        let faults = ["--crash-every", "60s", "--cut-every", "60s"];
        let more = [script, faults].concat();
        let state = folder.join("fleet");
        let fleet = Fleet::start(NODES, &state, (&at, &ca), &admin, &more).await;
        fleet.joined().await;
        let town = Self {
            pool: pool.clone(),
            serves: [one, other],
            gateways: [first, second],
            sweeper: sweeper(pool),
            fleet,
            deaths: BTreeMap::new(),
            _front: front,
        };
        (town, admin)
    }

    async fn kill(&mut self, part: Part, random: &mut StdRng) {
        let name = match part {
            Part::Serve(index) => {
                let process = &mut self.serves[index].process;
                let publishes = process.stderr().contains("became the publisher");
                process.kill().await;
                // Else its lease runs out by itself, as in production, and few ever publish.
                if publishes && random.random_bool(0.7) {
                    nats::end_lease(&self.pool).await;
                }
                if publishes { "publisher" } else { "api" }
            }
            Part::Gateway(index) => {
                self.gateways[index].process.kill().await;
                "gateway"
            }
            Part::Sweeper => {
                self.sweeper.kill().await;
                "sweeper"
            }
            Part::Fleet => {
                self.fleet.process.kill().await;
                "daemons"
            }
        };
        *self.deaths.entry(name).or_default() += 1;
    }

    async fn revive(&mut self, part: Part) {
        match part {
            Part::Serve(index) => self.serves[index].revive().await,
            Part::Gateway(index) => self.gateways[index].revive().await,
            Part::Sweeper => self.sweeper = sweeper(&self.pool),
            Part::Fleet => self.fleet.revive(),
        }
    }

    /// Lets one to three parts die at a time, until then.
    async fn torment(&mut self, until: Instant, random: &mut StdRng) {
        while Instant::now() < until {
            let count = random.random_range(1..=3);
            let victims = PARTS.into_iter().sample(random, count);
            for victim in &victims {
                self.kill(*victim, random).await;
            }
            sleep(Duration::from_millis(random.random_range(DOWN_MILLIS))).await;
            for victim in victims {
                self.revive(victim).await;
            }
            sleep(Duration::from_millis(random.random_range(LIFE_MILLIS))).await;
        }
    }

    fn tails(&self) -> String {
        let [one, other] = &self.gateways;
        let parts = [&one.process, &other.process, &self.sweeper];
        parts.map(Process::tail).join("\n---\n")
    }
}

/// Someone whose service may be anywhere in dying and coming back.
struct Client {
    /// The same caller at each API.
    apis: [Caller; 2],
    nodes: Vec<Value>,
    /// A node without a daemon: only the sweeper ends its commands.
    dead: Value,
}

impl Client {
    /// Asks until there is an answer: with the same key, where what became of the first try is not
    /// known.
    async fn ask(&self, method: &str, input: Value) -> Value {
        let mut tries = 0;
        wait::found(method, async || {
            tries += 1;
            let answer = self.apis[tries % 2].attempt(method, input.clone()).await;
            let answer = answer.ok()?;
            let is_later = matches!(answer.status, 429 | 503);
            (!is_later).then(|| answer.ok())
        })
        .await
    }

    async fn run(&self, node: &Value, kind: &str, key: &str, seconds: u64) -> Value {
        let input = json!({
            "nodeId": node, "kind": kind, "idempotencyKey": key, "notAfterSeconds": seconds,
        });
        self.ask("commands.run", input).await
    }

    /// Queues commands until then, and cancels some of them; all that were accepted.
    async fn queue(&self, caller: usize, until: Instant, seed: u64) -> Vec<Value> {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut accepted = Vec::new();
        while Instant::now() < until {
            let kind = match random.random_range(0..10) {
                0..=3 => "inventory.refresh",
                4 | 5 => "diag.nvml",
                6 | 7 => "logs.collect",
                _ => "node.reboot",
            };
            let node = if random.random_range(0..20) == 0 {
                &self.dead
            } else {
                &self.nodes[random.random_range(0..self.nodes.len())]
            };
            let key = format!("{caller}:{}", accepted.len());
            let seconds = random.random_range(NOT_AFTER_SECONDS);
            let command = self.run(node, kind, &key, seconds).await;
            if random.random_range(0..8) == 0 {
                sleep(Duration::from_millis(random.random_range(0..300))).await;
                let input = json!({"nodeId": command["nodeId"], "commandId": command["id"]});
                self.ask("commands.cancel", input).await;
            }
            accepted.push(command);
            sleep(Duration::from_millis(random.random_range(REST_MILLIS))).await;
        }
        accepted
    }

    /// Every command of a node, as the API shows it.
    async fn commands(&self, node: &Value) -> Vec<Value> {
        let (mut commands, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let mut input = json!({"nodeId": node, "limit": 200});
            if !cursor.is_null() {
                input["cursor"] = cursor;
            }
            let page = self.ask("commands.list", input).await;
            commands.extend(page["items"].as_array().unwrap().iter().cloned());
            cursor = page["cursor"].clone();
            if cursor.is_null() {
                return commands;
            }
        }
    }
}

/// Waits until every command has ended; the boots that this took.
///
/// A daemon that died between a reboot's start and the reboot cannot know whether it will still
/// come, so that only the timeout ends such a command, or the next boot (SPEC D9): that is made.
async fn all_end(town: &Town, client: &Client) -> Vec<Value> {
    let deadline = Instant::now() + ENDS_WITHIN;
    let (mut boots, mut booted) = (Vec::new(), BTreeMap::new());
    loop {
        let sql = "SELECT node, kind, state FROM commands_live";
        let open: Vec<(Uuid, String, String)> =
            sqlx::query_as(sql).fetch_all(&town.pool).await.unwrap();
        if open.is_empty() {
            return boots;
        }
        let in_vain = Instant::now() >= deadline;
        assert!(!in_vain, "not ended: {open:#?}\n{}", town.tails());
        for (node, kind, state) in open {
            let waits = kind == "node.reboot" && state == "running";
            let last = booted.entry(node).or_insert_with(Instant::now);
            if waits && last.elapsed() > BOOT_EVERY {
                *last = Instant::now();
                let (id, key) = (NodeId::from_uuid(node), format!("boot:{}", boots.len()));
                boots.push(client.run(&json!(id), "node.reboot", &key, 10).await);
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Compares what a command says of itself with what its node did.
fn judge(command: &Value, effect: &Effects) -> String {
    // No journal was lost, so nothing ever runs twice, whether or not it might (SPEC D5, D7).
    assert!(effect.started <= 1, "{effect:?}: {command}");
    let (state, reason) = (command["state"].as_str(), command["reason"].as_str());
    match (state.unwrap(), reason) {
        ("succeeded", None) if command["kind"] == "node.reboot" => {}
        ("succeeded", None) => assert_eq!(effect.finished, 1, "{command}"),
        ("failed", Some("interrupted" | "scripted")) => {}
        ("cancelled", _) => assert_eq!(effect.finished, 0, "{effect:?}: {command}"),
        ("expired", Some("not_after")) | ("rejected", Some("EXPIRED")) => {
            assert_eq!(effect.started, 0, "{effect:?}: {command}");
        }
        other => panic!("{other:?}: {command}"),
    }
    format!("{} {}", state.unwrap(), reason.unwrap_or("-"))
}

#[sqlx::test(migrations = false)]
async fn s4_while_any_part_dies_at_any_time_every_command_ends_once_with_at_most_one_effect(
    pool: PgPool,
) {
    let seed = setting("CRASH_SEED", SEED_DEFAULT);
    let seconds = setting("CRASH_SECONDS", SECONDS_DEFAULT);
    println!("CRASH_SEED={seed} CRASH_SECONDS={seconds}");
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let (mut town, admin) = Town::start(&pool, &server.nats.url(), folder.path()).await;
    let node = admin.call("nodes.register", json!({"name": "dead"})).await;
    let apis = [&town.serves[0], &town.serves[1]].map(|service| admin.at(service.address));
    let client = Client {
        apis,
        nodes: town.fleet.nodes.iter().map(|(id, _)| id.clone()).collect(),
        dead: node.ok()["id"].clone(),
    };

    let until = Instant::now() + Duration::from_secs(seconds);
    let random = &mut StdRng::seed_from_u64(seed);
    let callers = (0..CALLERS).map(|caller| client.queue(caller, until, random.random()));
    let callers = join_all(callers.collect::<Vec<_>>());
    let (accepted, ()) = tokio::join!(callers, town.torment(until, random));
    let mut accepted = accepted.concat();
    accepted.extend(all_end(&town, &client).await);

    let (effects, none) = (town.fleet.effects(), Effects::default());
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut commands = BTreeSet::new();
    for node in client.nodes.iter().chain([&client.dead]) {
        let mine = client.commands(node).await;
        assert_booted(&mine, &effects);
        for command in mine {
            let id = command["id"].as_str().unwrap();
            let end = judge(&command, effects.get(id).unwrap_or(&none));
            *counts.entry(end).or_default() += 1;
            commands.insert(id.to_owned());
        }
    }
    let (deaths, count) = (&town.deaths, accepted.len());
    println!("{count} commands, {counts:?}, {deaths:?}");

    // What was accepted is there, and nothing else: a key that was tried again made one command.
    let ids = accepted.iter().map(|command| &command["id"]);
    let ids: BTreeSet<String> = ids.map(|id| id.as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), accepted.len());
    assert_eq!(ids, commands);
    let steps = steps(&events(&pool).await);
    assert_eq!(steps.len(), commands.len());
    for id in &commands {
        let id: CommandId = id.parse().unwrap();
        let [queued, running, settled] = steps[&id];
        let is_once = queued == 1 && running <= 1 && settled == 1;
        assert!(is_once, "{id}: {:?}", steps[&id]);
    }
    // At most one boot for each reboot (SPEC D9).
    for (node, state_dir) in &town.fleet.nodes {
        let mine = accepted.iter().filter(|command| command["nodeId"] == *node);
        let reboots = mine.filter(|command| command["kind"] == "node.reboot");
        assert!(boots(state_dir).len() <= 1 + reboots.count(), "{node}");
    }
    // A run in which nothing happened would have shown nothing.
    let seconds = usize::try_from(seconds).unwrap();
    let at_least = [
        ("succeeded -", 4 * seconds),
        ("cancelled -", seconds / 10),
        ("expired not_after", seconds / 10),
        ("failed scripted", seconds / 10),
        ("failed interrupted", seconds / 20),
    ];
    for (what, least) in at_least {
        let found = counts.get(what).copied().unwrap_or_default();
        assert!(found >= least, "{what}: {counts:?}");
    }
    for part in ["api", "publisher", "gateway", "sweeper", "daemons"] {
        let died = deaths.get(part).copied().unwrap_or_default();
        assert!(died > seconds / 60, "{part}: {deaths:?}");
    }

    let url = database::url(&pool);
    for verb in ["replay", "check"] {
        Process::output(&["audit", verb, "--postgres", url.as_str()]).await;
    }
    assert_whole(&nats::connect(&server.nats.url()).await, &pool).await;
}
