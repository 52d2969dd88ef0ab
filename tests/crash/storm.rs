//! A gateway dies, and all its nodes come at once to another, which has nodes of its own
//! (SPEC D14). `STORM_NODES` makes more of them; each takes three open files, and longer than the
//! test runner waits.

use std::time::Duration;

use futures_util::future::try_join_all;
use ledger_tests::fleet::Fleet;
use ledger_tests::front::{Front, Order};
use ledger_tests::http::Caller;
use ledger_tests::nats::Server;
use ledger_tests::process::Process;
use ledger_tests::serve::{Service, gateway_of_many, install, serve};
use ledger_tests::wait::{DEADLINE, found, setting, until_within};
use ledger_tests::{database, tree};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

const NODES_DEFAULT: u64 = 1_000;
/// Nodes of the gateway that lives on.
const OTHERS: usize = 20;
/// What each node may add to the time of the storm, on a machine that does everything at once.
const NODE_WITHIN: Duration = Duration::from_millis(30);
/// Connections that say nothing.
const SILENT: usize = 1_000;
/// Connections that a gateway lets in before they are sessions, by default.
const ADMISSIONS: usize = 256;
/// Files that a gateway may open for itself meanwhile, such as connections to Postgres.
const OWN_FILES: usize = 32;
/// What one more session may take of the gateway's memory.
const SESSION_KIB: usize = 256;
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How many nodes this gateway holds, by what the API shows.
async fn held(admin: &Caller, gateway: &str) -> usize {
    let (mut held, mut cursor) = (0, Value::Null);
    loop {
        let mut input = json!({"limit": 200});
        if !cursor.is_null() {
            input["cursor"] = cursor;
        }
        let page = admin.call("nodes.list", input).await.ok();
        let items = page["items"].as_array().unwrap();
        let mine = items
            .iter()
            .filter(|node| node["session"]["gateway"] == gateway);
        held += mine.count();
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            return held;
        }
    }
}

/// Runs a command on a node to its end.
async fn run(admin: &Caller, node: &Value, key: &str) {
    let input = json!({"nodeId": node, "kind": "inventory.refresh", "idempotencyKey": key});
    let command = admin.call("commands.run", input).await.ok();
    let input = json!({"nodeId": node, "commandId": command["id"]});
    let state = found("the command ends", async || {
        let now = admin.call("commands.get", input.clone()).await.ok();
        let state = now["state"].clone();
        now["settledAt"].is_string().then_some(state)
    })
    .await;
    assert_eq!(state, "succeeded");
}

/// Holds many connections that say nothing: they must not cost the gateway more than it admits.
async fn crowd(gateway: &Service, admin: &Caller, others: &Fleet) {
    let before = tree::open_files(gateway.process.pid());
    // Those that it does not let in are connected too: they wait in its backlog.
    let silent = try_join_all((0..SILENT).map(|_| TcpStream::connect(gateway.address)));
    let _silent = timeout(DEADLINE, silent).await.unwrap().unwrap();
    for (number, (node, _)) in others.nodes.iter().enumerate() {
        run(admin, node, &format!("crowd:{number}")).await;
        let files = tree::open_files(gateway.process.pid());
        let max = before + ADMISSIONS + OWN_FILES;
        assert!(files <= max, "{files} open files; there were {before}");
    }
}

#[sqlx::test(migrations = false)]
async fn d14_every_node_of_a_dead_gateway_gets_in_at_another_whose_commands_go_on(pool: PgPool) {
    let count = usize::try_from(setting("STORM_NODES", NODES_DEFAULT)).unwrap();
    let within = DEADLINE + NODE_WITHIN * u32::try_from(count).unwrap();
    let (url, server) = (database::url(&pool), Server::start().await);
    let (nats, folder) = (server.nats.url(), tempfile::tempdir().unwrap());
    let admin = install(&url).await;
    let authority = folder.path().join("authority");
    let gateway =
        async |name: &str| gateway_of_many(&url, authority.to_str().unwrap(), name, &nats).await;
    let service = serve(&url, Some(&nats)).await;
    let (mut dies, lives) = (gateway("dies").await, gateway("lives").await);
    let front = Front::start(vec![dies.address, lives.address], Order::Listed).await;
    let admin = admin.at(service.address);
    let fleet = async |nodes, name: &str, address| {
        let (state, ca) = (folder.path().join(name), authority.join("node-ca.pem"));
        let at = (&*format!("https://{address}"), ca.as_path());
        let fleet = Fleet::start(nodes, &state, at, &admin, &["--run-time", "5ms"]).await;
        fleet.joined().await;
        fleet
    };
    let others = fleet(OTHERS, "others", lives.address).await;
    let storm = fleet(count, "storm", front.address).await;
    for (gateway, nodes) in [("lives", OTHERS), ("dies", count)] {
        until_within(within, "every node is connected", async || {
            sleep(LOOK_EVERY).await;
            held(&admin, gateway).await == nodes
        })
        .await;
    }
    crowd(&lives, &admin, &others).await;

    let memory = tree::memory_peak_kib(lives.process.pid());
    dies.process.kill().await;
    let began = Instant::now();
    let all_are_here = until_within(within, "every node gets in", async || {
        sleep(LOOK_EVERY).await;
        held(&admin, "lives").await == OTHERS + count
    });
    let mut all_are_here = std::pin::pin!(all_are_here);
    let (mut ran, mut longest) = (0, Duration::ZERO);
    loop {
        let (node, _) = &others.nodes[ran % OTHERS];
        let asked = Instant::now();
        let key = format!("storm:{ran}");
        tokio::select! {
            biased;
            () = run(&admin, node, &key) => {
                ran += 1;
                longest = longest.max(asked.elapsed());
            }
            () = &mut all_are_here => break,
        }
    }
    let took = began.elapsed();
    let memory = tree::memory_peak_kib(lives.process.pid()) - memory;
    println!(
        "{count} nodes came back within {took:?}; of the others' commands {ran} ran meanwhile, \
         the slowest within {longest:?}; the gateway took {memory} KiB more"
    );
    assert!(ran > 0, "nothing ran during the storm");
    assert!(
        memory < SESSION_KIB * count,
        "{memory} KiB for {count} nodes"
    );
    for (number, (node, _)) in storm.nodes.iter().enumerate().step_by(count / 20) {
        run(&admin, node, &format!("after:{number}")).await;
    }
    Process::output(&["audit", "check", "--postgres", url.as_str()]).await;
}
