//! What an auditor does with a log, through the real program (SPEC U2).

use ledger_tests::process::Process;
use ledger_tests::up::Up;
use ledger_tests::wait::found;
use serde_json::Value;

use super::batches::folder;

#[tokio::test(flavor = "multi_thread")]
async fn u2_the_audit_is_measured_on_a_log_that_keeps_every_rule() {
    let arguments = ["bench", "audit", "--events", "2000", "--nodes", "16"];
    let measured = Process::output(&arguments).await;
    let measured: Value = serde_json::from_str(&measured).unwrap();
    let events = measured["events"].as_u64().unwrap();
    assert!(events >= 2_000, "{measured}");
    // Each of queued, dispatched, acked, running, settled.
    assert!(measured["commands"].as_u64().unwrap() * 5 < events);
    assert!(measured["batches"].as_u64().unwrap() > 10);
    for phase in ["export", "hashesAndOrder", "verification"] {
        let phase = &measured[phase];
        assert!(
            phase["eventsPerSecond"].as_f64().unwrap() > 0.0,
            "{measured}"
        );
        assert!(
            phase["peakMemoryBytes"].as_u64().unwrap() > 1 << 20,
            "{measured}"
        );
    }
}

/// Runs it to its end: exit code, stdout, stderr.
async fn ran(arguments: &[&str]) -> (i32, String, String) {
    let mut process = Process::start(arguments);
    let code = process.ended().await.code().unwrap();
    (code, process.stdout(), process.tail())
}

#[tokio::test(flavor = "multi_thread")]
async fn u2_the_past_is_shown_as_it_was_from_the_database_and_from_an_export() {
    let folder = folder();
    let up = Up::start(&folder.path().join("data")).await;
    let key = up.text("logPublicKey").to_owned();
    let (first, second) = ("inventory.refresh", "diag.nvml");
    let first = up.settled(&up.run(0, first, "1").await).await;
    let second = up.settled(&up.run(0, second, "2").await).await;
    let database = ["--postgres", up.text("postgres")];
    let audit =
        async |words: &[&str], source: &[&str]| ran(&[&["audit"], words, source].concat()).await;
    let changes = async |from: &str, to: &str, source: &[&str]| {
        let (code, told, error) = audit(&["diff", from, to, "--json"], source).await;
        assert_eq!(code, 0, "{error}");
        let lines = told.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    let far = "2999-01-01T00:00:00Z";
    let all = changes("0", far, &database).await;
    let of = |command: &Value| {
        let change = all.iter().find(|change| change["command"] == command["id"]);
        change.unwrap().clone()
    };
    assert_eq!(of(&first)["before"], Value::Null);
    assert_eq!(of(&first)["after"]["state"], first["state"]);
    // The second command began after the first had ended.
    let middle = (of(&second)["position"].as_u64().unwrap() - 1).to_string();
    let later = changes(&middle, far, &database).await;
    assert!(later.iter().any(|change| change["command"] == second["id"]));
    assert!(!later.iter().any(|change| change["command"] == first["id"]));
    let (code, text, _) = audit(&["diff", &middle, far], &database).await;
    assert_eq!(code, 0);
    assert!(text.contains("queued → "), "{text}");
    assert!(changes(&middle, &middle, &database).await.is_empty());
    let (code, _, told) = audit(&["diff", far, "0"], &database).await;
    assert_eq!(code, 2, "{told}");

    let shown = async |at: &str, command: &Value, source: &[&str]| {
        let id = command["id"].as_str().unwrap();
        audit(&["replay", "--at", at, "--command", id, "--json"], source).await
    };
    let (code, told, error) = shown(far, &first, &database).await;
    assert_eq!(code, 0, "{error}");
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), first);
    let (code, _, told) = shown(&middle, &second, &database).await;
    assert_eq!(code, 4, "{told}");
    let (code, _, told) = audit(&["replay", "--at", "999999"], &database).await;
    assert_eq!(code, 2);
    assert!(
        told.contains("is beyond the log, which ends at position"),
        "{told}"
    );
    let (code, text, _) = audit(&["replay", "--at", "0"], &database).await;
    assert_eq!(
        (code, text.lines().next()),
        (0, Some("before the first event:"))
    );
    let (code, lines, _) = audit(&["replay", "--at", &middle, "--json"], &database).await;
    assert_eq!(code, 0);
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(last["position"].to_string(), middle);
    assert_eq!(last["counts"]["nodes"], 1);

    let end = of(&second)["position"].as_u64().unwrap() + 3;
    found("the log is signed", async || {
        let url = format!("{}/checkpoint", up.text("log"));
        let checkpoint = reqwest::get(url).await.unwrap().text().await.unwrap();
        let size: u64 = checkpoint.lines().nth(1)?.parse().ok()?;
        (size >= end).then_some(())
    })
    .await;
    let file = folder.path().join("log.export");
    let file = file.to_str().unwrap();
    let export = ["audit", "export", "--out", file];
    Process::output(&[&export[..], &database].concat()).await;
    let (code, from_database, _) = audit(&["replay", "--at", &middle, "--json"], &database).await;
    assert_eq!(code, 0);
    assert!(up.stop().await.success());
    let source = ["--file", file, "--key", &key];
    let (code, from_file, told) = audit(&["replay", "--at", &middle, "--json"], &source).await;
    assert_eq!((code, from_file), (0, from_database), "{told}");
    let (code, _, told) = audit(&["replay", "--file", file], &[]).await;
    assert_eq!(code, 2, "{told}");
    let mut damaged = std::fs::read(file).unwrap();
    let half = damaged.len() / 2;
    damaged[half] ^= 1;
    std::fs::write(file, damaged).unwrap();
    let (code, _, told) = audit(&["replay", "--at", &middle, "--json"], &source).await;
    assert_eq!(code, 1, "{told}");
}
