//! The whole of it through `command-ledger up --json`, as a stranger uses it (SPEC section 12).

use futures_util::StreamExt as _;
use ledger_protocol::tlog::{Checkpoint, Note, VerifierKey};
use ledger_tests::http::{self, Caller};
use ledger_tests::nats::{self, Message, assert_whole};
use ledger_tests::process::Process;
use ledger_tests::tree;
use ledger_tests::up::{self, Up};
use ledger_tests::wait::{found, in_time, until};
use reqwest::Url;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::error::DatabaseError;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;

/// A folder that the account of the servers may walk through.
fn folder() -> TempDir {
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o711);
    tempfile::Builder::new()
        .permissions(mode)
        .tempdir()
        .unwrap()
}

async fn database(up: &Up) -> PgPool {
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect(up.text("postgres"));
    in_time("Postgres answers", pool).await.unwrap()
}

/// `audit replay`: whether the log makes the state that there is.
async fn replay(up: &Up) {
    let mut audit = Process::start(&["audit", "replay", "--postgres", up.text("postgres")]);
    let status = audit.ended().await;
    assert!(
        status.success(),
        "{status}: {}{}",
        audit.stdout(),
        audit.tail()
    );
}

async fn list(up: &Up) -> Vec<Value> {
    let listed = up
        .admin
        .call("commands.list", json!({"nodeId": up.node(0)}))
        .await
        .ok();
    listed["items"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn h1_up_runs_the_whole_loop_and_leaves_nothing_behind() {
    let folder = folder();
    let up = Up::start(folder.path()).await;
    a_checkpoint(&up).await;
    section_12(&up, folder.path());

    // Whoever subscribes sees the end, and whoever asks then sees it too (L8).
    let client = nats::connect(up.text("nats")).await;
    let mut ends = client.subscribe("command.settled").await.unwrap();
    client.flush().await.unwrap();
    let command = up.run(0, "inventory.refresh", "first").await;
    assert_eq!(
        (&command["state"], &command["seq"]),
        (&json!("pending"), &json!(1))
    );
    let told = in_time("the end is told", ends.next()).await.unwrap();
    let told = Message::of(&told).data;
    assert_eq!(told["commandId"], command["id"]);
    let command = up.command(&command).await;
    assert_eq!(command["state"], told["state"], "{command}");
    assert_eq!(command["state"], "succeeded", "{command}");
    the_truth(&command["result"]);

    // The log cannot be changed with the URL that everybody gets (L6), and is whole.
    let pool = database(&up).await;
    for sql in [
        "UPDATE events SET body = body WHERE position = 1",
        "DELETE FROM events WHERE position = 1",
        "TRUNCATE events",
        "UPDATE events_000000 SET body = body",
        "DELETE FROM events_000000",
        "DROP TABLE events",
        "ALTER TABLE events DISABLE TRIGGER ALL",
    ] {
        let refused = sqlx::query(sql).execute(&pool).await.unwrap_err();
        let code = refused.as_database_error().and_then(DatabaseError::code);
        assert_eq!(code.as_deref(), Some("42501"), "{sql}: {refused}");
    }
    assert_whole(&client, &pool).await;
    replay(&up).await;

    assert!(up.stop().await.success());
}

/// The log is signed by the key that the ready line names (SPEC U1).
async fn a_checkpoint(up: &Up) {
    let url = format!("{}/checkpoint", up.text("log"));
    let answer = http::client().get(url).send().await.unwrap();
    let note = Note::parse(&answer.bytes().await.unwrap()).unwrap();
    let key: VerifierKey = up.text("logPublicKey").parse().unwrap();
    note.verify(std::slice::from_ref(&key)).unwrap();
    let checkpoint = Checkpoint::parse(note.text()).unwrap();
    assert_eq!(checkpoint.origin(), key.name().as_str());
    assert!(checkpoint.head().size > 0);
}

/// The fields of the ready line.
fn section_12(up: &Up, folder: &std::path::Path) {
    assert_eq!(up.line["pid"], up.pid());
    let data = folder.canonicalize().unwrap();
    assert_eq!(up.text("dataDir"), data.to_str().unwrap());
    assert!(
        up.state_dir(0).is_dir() && up.state_dir(0).starts_with(&data),
        "{}",
        up.line
    );
    assert_eq!(up.line["nodes"].as_array().unwrap().len(), 1);
    assert!(up.node(0).starts_with("node_") && up.text("tenantId").starts_with("tenant_"));
    for (field, scheme) in [
        ("api", "http"),
        ("gateway", "https"),
        ("nats", "nats"),
        ("log", "http"),
    ] {
        let url: Url = up.text(field).parse().unwrap();
        assert_eq!(url.scheme(), scheme, "{url}");
        assert_eq!(url.host_str(), Some("127.0.0.1"), "only loopback: {url}");
    }
    assert!(up.text("postgres").starts_with("postgres://"));
}

/// What `inventory.refresh` says of this machine.
fn the_truth(result: &Value) {
    let sections = &result["sections"];
    for section in [
        "system", "cpu", "memory", "disks", "nics", "gpus", "bmc", "os",
    ] {
        let found = &sections[section];
        assert!(found.is_object(), "no {section}: {result}");
        // What the machine lacks is told as absent, with why.
        let absent = found["present"] == false;
        assert!(!absent || found["why"].is_string(), "{section}: {found}");
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let processors = read("/proc/cpuinfo").matches("\nprocessor").count() + 1;
    assert_eq!(
        sections["cpu"]["logicalCount"], processors,
        "{}",
        sections["cpu"]
    );
    let memory = read("/proc/meminfo");
    let total = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .unwrap();
    let total: u64 = total.trim().trim_end_matches(" kB").parse().unwrap();
    let text = sections["memory"].to_string();
    assert!(
        text.contains(&(total * 1024).to_string()),
        "{total} KiB: {text}"
    );
    let kernel = read("/proc/sys/kernel/osrelease");
    assert!(
        sections["os"].to_string().contains(kernel.trim()),
        "{kernel}: {}",
        sections["os"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn k7_a_reboot_ends_as_succeeded_under_a_new_boot_id() {
    let folder = folder();
    let unbatched = ["--unbatched-destructive-per-hour", "9"];
    let up = Up::start_with(folder.path(), &unbatched).await;
    let node = async || {
        up.admin
            .call("nodes.get", json!({"nodeId": up.node(0)}))
            .await
            .ok()
    };
    let before = node().await;
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();

    let command = up.run(0, "node.reboot", "reboot").await;
    let ended = up.settled(&command).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    assert_eq!(ended["result"]["rebooted"], true, "{ended}");
    let after = node().await;
    assert!(
        after["bootId"].is_string() && after["bootId"] != before["bootId"],
        "{after}"
    );
    assert!(
        after["epoch"].as_u64() > before["epoch"].as_u64(),
        "{after}"
    );
    let now = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(now, machine, "the machine itself was rebooted");

    // The same key never reboots again, and the node goes on working.
    let again = up.run(0, "node.reboot", "reboot").await;
    assert_eq!(
        (&again["id"], &again["replayed"]),
        (&command["id"], &json!(true))
    );
    let next = up.run(0, "inventory.refresh", "next").await;
    assert_eq!(up.settled(&next).await["state"], "succeeded");
    assert_eq!(node().await["bootId"], after["bootId"]);

    // A command of a node that is away waits, and ends at once when it is cancelled.
    let away = up
        .admin
        .call("nodes.register", json!({"name": "away"}))
        .await
        .ok();
    let input = json!({"nodeId": away["id"], "kind": "diag.nvml", "idempotencyKey": "waits"});
    let waiting = up.admin.call("commands.run", input).await.ok();
    let input = json!({"nodeId": away["id"], "commandId": waiting["id"]});
    let cancelled = up.admin.call("commands.cancel", input.clone()).await.ok();
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    assert_eq!(
        up.admin.call("commands.cancel", input).await.ok(),
        cancelled
    );
    replay(&up).await;
    assert!(up.stop().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_the_same_folder_starts_again_where_it_stopped_also_after_a_crash() {
    let folder = folder();
    let up = Up::start(folder.path()).await;
    let command = up.run(0, "inventory.refresh", "kept").await;
    let ended = up.settled(&command).await;
    let (line, tree) = (up.line.clone(), up.tree());

    // A second one on the folder says who has it, and does no harm.
    let mut second = Process::start(&up::arguments(folder.path()));
    let status = second.ended().await;
    assert!(!status.success());
    let pid = up.pid().to_string();
    assert!(
        second.stderr().contains(&pid),
        "{pid} is not named: {}",
        second.stderr()
    );
    assert_eq!(second.stdout(), "");
    assert_eq!(up.command(&command).await, ended);
    assert!(up.stop().await.success());

    let up = Up::start(folder.path()).await;
    is_the_same(&up, &line, &ended).await;
    let leases = leases(&up).await;
    // What was promised by then must survive; what runs then must end all the same.
    let promised = up.run(0, "logs.collect", "promised").await;
    let started = up.tree();
    up.kill().await;

    let up = Up::start(folder.path()).await;
    is_the_same(&up, &line, &ended).await;
    assert_ne!(up.tree(), tree);
    let left = tree::left(&started);
    assert!(left.is_empty(), "what the crash left still runs: {left:#?}");
    // The killed one's leases are taken again by the same holder, which needs not wait for their end,
    // under a term of their own.
    let again = leases
        .into_iter()
        .map(|(name, holder, term)| (name, holder, term + 1));
    let again: Vec<_> = again.collect();
    until("the leases are taken again", async || {
        self::leases(&up).await == again
    })
    .await;
    let promised = up.settled(&promised).await;
    assert!(promised["state"].is_string(), "{promised}");
    let next = up.run(0, "inventory.refresh", "next").await;
    assert_eq!(up.settled(&next).await["state"], "succeeded");
    let seqs: Vec<_> = list(&up)
        .await
        .iter()
        .map(|command| command["seq"].clone())
        .collect();
    assert_eq!(seqs, [3, 2, 1]);
    let pool = database(&up).await;
    assert_whole(&nats::connect(up.text("nats")).await, &pool).await;
    replay(&up).await;
    assert!(up.stop().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_a_node_that_was_deleted_is_replaced_and_the_others_stay() {
    let folder = folder();
    let three = ["--nodes", "3"];
    let up = Up::start_with(folder.path(), &three).await;
    let mut kept = Vec::new();
    for node in [0, 2] {
        let command = up.run(node, "inventory.refresh", "kept").await;
        kept.push((node, up.node(node).to_owned(), up.settled(&command).await));
    }
    let gone = up.node(1).to_owned();
    let input = json!({"nodeId": gone});
    up.admin.call("nodes.delete", input).await.ok();
    assert!(up.stop().await.success());

    let up = Up::start_with(folder.path(), &three).await;
    assert_ne!(up.node(1), gone);
    for (node, id, ended) in kept {
        assert_eq!(up.node(node), id);
        let again = up.run(node, "inventory.refresh", "kept").await;
        assert_eq!(
            (&again["id"], &again["replayed"]),
            (&ended["id"], &json!(true))
        );
    }
    // What the deleted node kept is put aside, and that of no other.
    let nodes = up.state_dir(0).parent().unwrap().to_owned();
    let names = std::fs::read_dir(nodes).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["1", "2", "2.old-1", "3"]);
    replay(&up).await;
    assert!(up.stop().await.success());
}

/// The leases of which one process holds each: name, holder and term.
async fn leases(up: &Up) -> Vec<(String, String, i64)> {
    let pool = database(up).await;
    found("every lease is held", async || {
        let rows = sqlx::query_as(
            "SELECT name, holder, term FROM leases WHERE name NOT LIKE 'gateway:%' ORDER BY name",
        );
        let rows: Vec<_> = rows.fetch_all(&pool).await.unwrap();
        (rows.len() == 3).then_some(rows)
    })
    .await
}

/// The same nodes, tenant and token, with their history.
async fn is_the_same(up: &Up, line: &Value, ended: &Value) {
    for field in ["tenantId", "token", "nodes", "dataDir"] {
        assert_eq!(up.line[field], line[field], "{field}");
    }
    let tenant = line["tenantId"].as_str().unwrap();
    let caller = Caller::new(up.text("api"), tenant, line["token"].as_str().unwrap());
    let input = json!({"nodeId": ended["nodeId"], "commandId": ended["id"]});
    assert_eq!(caller.call("commands.get", input).await.ok(), *ended);
    let again = up.run(0, "inventory.refresh", "kept").await;
    assert_eq!(
        (&again["id"], &again["replayed"]),
        (&ended["id"], &json!(true))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn h1_a_signal_before_it_is_ready_leaves_nothing_behind() {
    let folder = folder();
    let mut process = Process::start(&up::arguments(folder.path()));
    let pid = process.pid();
    // `initdb` runs a Postgres through a shell.
    let started = found("initdb has started something", async || {
        let tree = tree::descendants(pid);
        let shell = |one: &tree::Known| one.command.starts_with("sh -c");
        tree.iter().any(shell).then_some(tree)
    })
    .await;
    process.signal(Signal::INT);
    process.ended().await;
    let left = tree::left(&started);
    assert!(left.is_empty(), "left behind: {left:#?}");
    let left = tree::naming(folder.path().to_str().unwrap());
    assert!(left.is_empty(), "left behind: {left:#?}");
    let up = Up::start(folder.path()).await;
    assert!(up.stop().await.success());
}
