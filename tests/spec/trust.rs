//! What nodes are told to trust, by services that differ and after a restore (SPEC P1, L11).

use ledger_tests::process::Process;
use ledger_tests::serve::{agent, gateway, install, serve_with};
use ledger_tests::wait::found;
use ledger_tests::{database, http::Caller};
use serde_json::{Value, json};
use sqlx::PgPool;

/// Waits until the node says that it believes this version.
async fn believed(admin: &Caller, node: &Value, version: u64) {
    found("the node believes it", async || {
        let node = json!({"nodeId": node});
        let node = admin.call("nodes.get", node).await.ok();
        (node["trust"]["version"] == version).then_some(())
    })
    .await;
}

/// Runs a command to its good end.
async fn succeeds(admin: &Caller, node: &Value, key: &str) {
    let order = json!({"nodeId": node, "kind": "inventory.refresh", "idempotencyKey": key});
    let id = admin.call("commands.run", order).await.ok()["id"].clone();
    let input = json!({"nodeId": node, "commandId": id});
    let ended = found("the command ends", async || {
        let command = admin.call("commands.get", input.clone()).await.ok();
        command["settledAt"].is_string().then_some(command)
    })
    .await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
}

#[sqlx::test(migrations = false)]
async fn l11_services_that_differ_hear_of_it_and_a_daemon_that_is_ahead_is_caught_up_with(
    pool: PgPool,
) {
    let (url, folder) = (database::url(&pool), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (root, ada, listed) = (path("root.pem"), path("ada.pem"), path("approvers.json"));
    Process::output(&["batch", "keygen", "--out", &root]).await;
    let key = Process::output(&["batch", "keygen", "--out", &ada]).await;
    let approvers = json!([{"name": "ada", "publicKey": key.trim()}]);
    std::fs::write(
        &listed,
        json!({"quorum": 1, "approvers": approvers}).to_string(),
    )
    .unwrap();
    let signed = ["--command-root", root.as_str()];

    let admin = install(&url).await;
    let mut plain = serve_with(&url, &signed).await;
    let mut sessions = gateway(&url, &path("authority")).await;
    let admin = admin.at(plain.address);
    let node = admin.call("nodes.register", json!({"name": "n"})).await;
    let node = node.ok()["id"].clone();
    let joins = admin.call("nodes.createJoinToken", json!({"nodeId": node}));
    let joins = joins.await.ok();
    let mut daemon = agent(&sessions, folder.path(), joins["token"].as_str());
    believed(&admin, &node, 1).await;

    // The second has approvers: it says what it changes, and the first that it was overruled.
    let other = [&signed[..], &["--approvers", &listed]].concat();
    let mut other = serve_with(&url, &other).await;
    let changed = other.told("this trust bundle changes").await;
    assert_eq!(changed["level"], "WARN", "{changed}");
    assert_eq!(changed["added"], r#"["ada"]"#, "{changed}");
    let quorum = (&changed["quorum_before"], &changed["quorum"]);
    assert_eq!(quorum, (&json!(0), &json!(1)));
    let differs = plain.told("nodes are told by this trust bundle").await;
    assert_eq!(differs["fields"], r#"["approvers", "quorum"]"#, "{differs}");
    assert!(!differs.to_string().contains(key.trim()));
    believed(&admin, &node, 2).await;

    // A restore to before that: the database has lost what the daemon believes.
    for service in [&mut plain, &mut other, &mut sessions] {
        service.process.kill().await;
    }
    let lost = "DELETE FROM trust_bundles WHERE version = 2";
    sqlx::query(lost).execute(&pool).await.unwrap();
    let lost = sqlx::query("DELETE FROM node_trust").execute(&pool);
    lost.await.unwrap();
    sessions.revive().await;
    plain.revive().await;
    let ahead = plain.told("nodes say that they believe").await;
    assert_eq!((&ahead["nodes"], &ahead["highest"]), (&json!(1), &json!(2)));
    let message = ahead["message"].as_str().unwrap();
    assert!(message.ends_with("--trust-version-min 3"), "{message}");

    plain.process.kill().await;
    let again = [&signed[..], &["--trust-version-min", "3"]].concat();
    let again = serve_with(&url, &again).await;
    let admin = admin.at(again.address);
    believed(&admin, &node, 3).await;
    succeeds(&admin, &node, "1").await;
    Process::output(&["audit", "check", "--postgres", url.as_str()]).await;
    assert!(daemon.runs());

    let far = ["--trust-version-min", "9999999", "--listen", "127.0.0.1:0"];
    let far = [&["serve", "--postgres", url.as_str()], &signed[..], &far].concat();
    let mut far = Process::start(&far);
    assert_eq!(far.ended().await.code(), Some(2));
    let told = far.tail();
    assert!(
        told.contains("--trust-version-min cannot be used"),
        "{told}"
    );
}
