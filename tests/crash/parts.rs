//! The parts as processes of their own, as they run in production, dying in turn.

use std::time::Duration;

use ledger_protocol::id::CommandId;
use ledger_tests::database;
use ledger_tests::ground::{events, steps};
use ledger_tests::http::Caller;
use ledger_tests::nats::{self, Server, assert_whole};
use ledger_tests::process::Process;
use ledger_tests::serve::{Service, agent, gateway, install, serve};
use ledger_tests::wait::{found, until};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::Url;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::sleep;

const ROUNDS: usize = 32;
/// Up to this long after a round's commands were sent, somebody dies, in microseconds: about what
/// a command takes.
const LIFE_MICROS: u64 = 20_000;
const SEED: u64 = 3;

pub(super) struct Parts {
    pub(super) url: Url,
    serve: Service,
    pub(super) gateway: Service,
    sweeper: Process,
    agent: Process,
    pub(super) admin: Caller,
    pub(super) node: Value,
    folder: tempfile::TempDir,
}

impl Parts {
    /// Everything from an empty database on, by the program's own commands.
    pub(super) async fn start(pool: &PgPool, nats: &str) -> Self {
        let url = database::url(pool);
        let folder = tempfile::tempdir().unwrap();
        let admin = install(&url).await;
        let authority = folder.path().join("authority");
        let (serve, gateway) = tokio::join!(
            serve(&url, Some(nats)),
            gateway(&url, authority.to_str().unwrap())
        );
        let sweeper = Process::start(&["sweeper", "--postgres", url.as_str()]);
        let admin = admin.at(serve.address);
        let node = admin
            .call("nodes.register", json!({"name": "n"}))
            .await
            .ok()["id"]
            .clone();
        let joins = admin
            .call("nodes.createJoinToken", json!({"nodeId": node}))
            .await
            .ok();
        let agent = agent(&gateway, folder.path(), joins["token"].as_str());
        let parts = Self {
            url,
            serve,
            gateway,
            sweeper,
            agent,
            admin,
            node,
            folder,
        };
        parts.connected(0).await;
        parts
    }

    /// Waits for a session with a later epoch than this one; its epoch.
    pub(super) async fn connected(&self, after: u64) -> u64 {
        found("the node is connected", async || {
            let node = self
                .admin
                .call("nodes.get", json!({"nodeId": self.node}))
                .await
                .ok();
            let epoch = node["epoch"].as_u64().filter(|epoch| *epoch > after);
            epoch.filter(|_| node["connected"] == true)
        })
        .await
    }

    fn order(&self, key: &str) -> Value {
        json!({
            "nodeId": self.node, "kind": "inventory.refresh", "idempotencyKey": key,
            "payload": {"sections": ["cpu", "memory"]},
        })
    }

    /// Asks under a key until there is an answer, as a client does whose service dies.
    async fn run(&self, key: &str) -> Value {
        found("the API answers", async || {
            let answer = self
                .admin
                .attempt("commands.run", self.order(key))
                .await
                .ok()?;
            (answer.status != 503).then(|| answer.ok())
        })
        .await
    }
}

#[sqlx::test(migrations = false)]
async fn d7_whichever_part_dies_every_command_ends_once_and_has_at_most_one_effect(pool: PgPool) {
    let server = Server::start().await;
    let mut parts = Parts::start(&pool, &server.nats.url()).await;
    let mut random = StdRng::seed_from_u64(SEED);
    let (mut commands, mut caught) = (Vec::new(), 0);
    for round in 0..ROUNDS {
        let keys: Vec<String> = (0..3).map(|number| format!("{round}:{number}")).collect();
        let pause = Duration::from_micros(random.random_range(0..LIFE_MICROS));
        // Each in turn, so that each dies in several states of its commands.
        match round % 4 {
            0 => {
                commands.extend(queue(&parts, &keys).await);
                sleep(pause).await;
                caught += under_way(&pool).await;
                parts.gateway.crash().await;
            }
            1 => {
                commands.extend(queue(&parts, &keys).await);
                sleep(pause).await;
                caught += under_way(&pool).await;
                parts.agent.kill().await;
                parts.agent = agent(&parts.gateway, parts.folder.path(), None);
            }
            2 => {
                // While requests are under way: their keys find out what became of them.
                let asking = parts.admin.clone();
                let orders: Vec<Value> = keys.iter().map(|key| parts.order(key)).collect();
                let under_way = async {
                    for order in orders {
                        let _ = asking.attempt("commands.run", order).await;
                    }
                };
                let dies = async {
                    sleep(pause / 4).await;
                    nats::end_lease(&pool).await;
                    parts.serve.crash().await;
                };
                tokio::join!(under_way, dies);
                commands.extend(queue(&parts, &keys).await);
            }
            _ => {
                commands.extend(queue(&parts, &keys).await);
                parts.sweeper.kill().await;
                parts.sweeper = Process::start(&["sweeper", "--postgres", parts.url.as_str()]);
            }
        }
    }
    assert_eq!(commands.len(), 3 * ROUNDS);
    assert!(
        caught > 0,
        "everything had ended before its gateway or daemon died"
    );

    let mut succeeded = 0;
    for command in &commands {
        let input = json!({"nodeId": parts.node, "commandId": command["id"]});
        let ended = found("the command ends", async || {
            let now = parts.admin.call("commands.get", input.clone()).await.ok();
            now["settledAt"].is_string().then_some(now)
        })
        .await;
        match ended["state"].as_str().unwrap() {
            "succeeded" => succeeded += 1,
            // A daemon that died in the middle of it says so, and does not do it again.
            "failed" => assert_eq!(ended["reason"], "interrupted", "{ended}"),
            other => panic!("{other}: {ended}"),
        }
    }
    assert!(succeeded > ROUNDS, "{succeeded}");

    let steps = steps(&events(&pool).await);
    for command in &commands {
        let id: CommandId = command["id"].as_str().unwrap().parse().unwrap();
        let [queued, running, settled] = steps[&id];
        assert!(
            queued == 1 && running <= 1 && settled == 1,
            "{id}: {:?}",
            steps[&id]
        );
    }
    let listed = parts
        .admin
        .call("commands.list", json!({"nodeId": parts.node}))
        .await
        .ok();
    assert_eq!(listed["items"].as_array().unwrap().len(), commands.len());
    for verb in ["replay", "check"] {
        Process::output(&["audit", verb, "--postgres", parts.url.as_str()]).await;
    }
    assert_whole(&nats::connect(&server.nats.url()).await, &pool).await;
    until("the agent still runs", async || {
        parts.agent.runs() && parts.sweeper.runs()
    })
    .await;
}

/// How many commands have not ended.
async fn under_way(pool: &PgPool) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM commands_live");
    count.fetch_one(pool).await.unwrap()
}

async fn queue(parts: &Parts, keys: &[String]) -> Vec<Value> {
    let mut commands = Vec::new();
    for key in keys {
        commands.push(parts.run(key).await);
    }
    commands
}
