//! The log outlives its database: in a folder, and in a bucket (SPEC section 10).

use std::net::TcpListener;
use std::path::PathBuf;

use ledger_tests::bucket::{Bucket, NAME};
use ledger_tests::process::Process;
use ledger_tests::wait::found;
use ledger_tests::{api, database, serve};
use reqwest::Url;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use tempfile::TempDir;

use super::batches::folder;

/// Positions of a partition.
const SPAN: u64 = 400;

/// Where a log is kept, and how a program finds that.
struct Place {
    archive: String,
    variables: Vec<(String, String)>,
    /// Its files.
    root: PathBuf,
}

impl Place {
    async fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let variables: Vec<(&str, &str)> = self
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let mut process = Process::start_with(arguments, &variables);
        let code = process.ended().await.code().unwrap();
        (code, process.stdout(), process.tail())
    }

    async fn ok(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(arguments).await;
        assert_eq!(code, 0, "{arguments:?}: {stdout} {stderr}");
        stdout
    }
}

/// Partitions that a test can fill; where they lie is the schema owner's to say.
async fn small_partitions(pool: &PgPool) {
    let mut statements = vec!["DROP TABLE events_000000, events_000001, events_000002".to_owned()];
    for number in 0..8 {
        let (first, end) = (number * SPAN, (number + 1) * SPAN);
        statements.push(format!(
            "CREATE TABLE events_{number:06} PARTITION OF events FOR VALUES FROM ({first}) TO ({end})"
        ));
    }
    for statement in statements {
        let done = sqlx::query(AssertSqlSafe(statement)).execute(pool).await;
        done.unwrap();
    }
}

/// A port that was free a moment ago.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

async fn get(url: String) -> (u16, Vec<u8>) {
    let answer = ledger_tests::http::client().get(url).send().await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.bytes().await.unwrap().to_vec())
}

/// What leaves the database is found in the archive, by everything that looks for it.
async fn old_events_leave(pool: &PgPool, folder: &TempDir, place: &Place) {
    small_partitions(pool).await;
    let (url, log) = (database::url(pool), free_address());
    let (url, archive): (&Url, &str) = (&url, &place.archive);
    let key_file = folder.path().join("log.pem");
    let key_file = key_file.to_str().unwrap();
    place.ok(&["batch", "keygen", "--out", key_file]).await;
    let origin = "tests.example/log";
    let key = ["audit", "key", "--key", key_file, "--origin", origin];
    let key = place.ok(&key).await;
    let key = key.trim();
    let arguments = [
        "--log-key",
        key_file,
        "--log-origin",
        origin,
        "--log-listen",
        &log,
        "--log-archive",
        archive,
    ];
    let service = serve::serve_in(url, &arguments, &place.variables).await;
    let admin = api::admin(pool, service.address).await;
    let node = admin
        .call("nodes.register", json!({"name": "n"}))
        .await
        .ok();
    let mut commands = Vec::new();
    for number in 0..350 {
        let input = json!({
            "nodeId": node["id"], "kind": "inventory.refresh", "idempotencyKey": number.to_string(),
        });
        let queued = admin.call("commands.run", input).await.ok();
        let input = json!({"nodeId": node["id"], "commandId": queued["id"]});
        admin.call("commands.cancel", input.clone()).await.ok();
        commands.push(input);
    }
    // The archive follows the log by itself.
    let size = 1_051_u64;
    found("the archive has the log", async || {
        let checkpoint = std::fs::read_to_string(place.root.join("checkpoint")).ok()?;
        let there: u64 = checkpoint.lines().nth(1)?.parse().ok()?;
        (there == size).then_some(())
    })
    .await;
    let bundles = ["000", "001", "002", "003", "004.p/27"];
    let mut served = Vec::new();
    for bundle in bundles {
        let (status, bytes) = get(format!("http://{log}/tile/entries/{bundle}")).await;
        assert_eq!(status, 200, "{bundle}");
        let kept = std::fs::read(place.root.join("tile/entries").join(bundle)).unwrap();
        assert!(kept == bytes, "{bundle}");
        served.push(bytes);
    }
    let at = ["--postgres", url.as_str()];
    let from = [&at[..], &["--archive", archive]].concat();
    let receipt = [
        "audit",
        "receipt",
        commands[0]["commandId"].as_str().unwrap(),
    ];
    let receipt_before = place.ok(&[&receipt[..], &at].concat()).await;

    let retention = [
        "retention",
        "--key",
        key,
        "--keep-events-days",
        "0",
        "--json",
    ];
    let retention = [&retention[..], &from].concat();
    let dry = place.ok(&[&retention[..], &["--dry-run"]].concat()).await;
    let dry: Value = serde_json::from_str(&dry).unwrap();
    assert_eq!(
        (&dry["dryRun"], &dry["through"]),
        (&json!(true), &json!(799))
    );
    let done: Value = serde_json::from_str(&place.ok(&retention).await).unwrap();
    assert_eq!(
        (&done["archived"], &done["through"]),
        (&json!(size), &json!(799))
    );
    assert_eq!(done["dropped"].as_array().unwrap().len(), 2, "{done}");
    let left: i64 = sqlx::query_scalar("SELECT min(position) FROM events")
        .fetch_one(pool)
        .await
        .unwrap();
    assert_eq!(left, 800);

    for (bundle, before) in bundles.iter().zip(&served) {
        let (status, bytes) = get(format!("http://{log}/tile/entries/{bundle}")).await;
        assert!(status == 200 && bytes == *before, "{bundle}: {status}");
    }
    let old = admin.call("commands.get", commands[0].clone()).await.ok();
    assert_eq!(old["state"], "cancelled");
    let timeline = admin
        .call("commands.timeline", commands[0].clone())
        .await
        .ok();
    assert_eq!(timeline, json!({ "archivedEvents": 3, "events": [] }));
    let timeline = admin
        .call("commands.timeline", commands[349].clone())
        .await
        .ok();
    assert_eq!(timeline["archivedEvents"], Value::Null);
    assert_eq!(timeline["events"].as_array().unwrap().len(), 3);

    let (code, _, told) = place.run(&[&["audit", "replay"], &at[..]].concat()).await;
    assert!(code == 2 && told.contains("--archive"), "{code} {told}");
    place.ok(&[&["audit", "replay"], &from[..]].concat()).await;
    place.ok(&[&["audit", "check"], &from[..]].concat()).await;
    let receipt_after = place.ok(&[&receipt[..], &from].concat()).await;
    assert_eq!(receipt_after, receipt_before);
    let file = folder.path().join("ledger.export");
    let file = file.to_str().unwrap();
    place
        .ok(&[&["audit", "export", "--out", file], &from[..]].concat())
        .await;
    place.ok(&["audit", "verify", file, "--key", key]).await;

    // Damage in the archive is told of, and never served.
    let bundle = place.root.join("tile/entries/001");
    let mut damaged = std::fs::read(&bundle).unwrap();
    damaged[1_000] ^= 1;
    std::fs::write(&bundle, damaged).unwrap();
    let (status, _) = get(format!("http://{log}/tile/entries/001")).await;
    assert_eq!(status, 503);
    let (code, _, told) = place.run(&[&["audit", "replay"], &from[..]].concat()).await;
    assert!(
        code == 1 && told.contains("tile/entries/001"),
        "{code} {told}"
    );
    let mut stopping = service.process;
    stopping.signal(Signal::TERM);
    assert!(stopping.ended().await.success(), "{}", stopping.tail());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_old_events_leave_for_a_folder_and_are_found_there(pool: PgPool) {
    let folder = folder();
    let root = folder.path().join("archive");
    let place = Place {
        archive: root.to_str().unwrap().to_owned(),
        variables: Vec::new(),
        root,
    };
    old_events_leave(&pool, &folder, &place).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_old_events_leave_for_a_bucket_and_are_found_there(pool: PgPool) {
    let folder = folder();
    let bucket = Bucket::start(&folder.path().join("buckets")).await;
    let variables = bucket.variables();
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let place = Place {
        archive: format!("s3://{NAME}/logs/one"),
        variables: variables.to_vec(),
        root: bucket.folder.join("logs/one"),
    };
    // Whoever has not the secret is told so, and gets nothing.
    let mut stranger = place.variables.clone();
    stranger[1].1 = "another".to_owned();
    old_events_leave(&pool, &folder, &place).await;
    let place = Place {
        variables: stranger,
        ..place
    };
    let url = database::url(&pool);
    let replay = [
        "audit",
        "replay",
        "--postgres",
        url.as_str(),
        "--archive",
        &place.archive,
    ];
    let (code, _, told) = place.run(&replay).await;
    assert!(code == 1 && told.contains("403"), "{code} {told}");
}
