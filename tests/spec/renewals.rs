//! Certificates that end while a daemon works: it goes on (SPEC P7).

use std::time::Duration;

use ledger_protocol::event::Body;
use ledger_tests::database;
use ledger_tests::ground::events;
use ledger_tests::process::Process;
use ledger_tests::serve::{agent, gateway_with, install, serve_with};
use ledger_tests::wait::{found, until_within};
use serde_json::json;
use sqlx::PgPool;
use tokio::time::sleep;

/// The shortest life that a certificate can be given.
const LIFE: Duration = Duration::from_mins(1);
/// Certificates after which two lives are over: that of the join, one at once, because so short a life
/// is dated back by more than half of it, and four at half of a life each.
const CERTIFICATES: u32 = 6;
/// Between two commands.
const PAUSE: Duration = Duration::from_secs(1);

#[sqlx::test(migrations = false)]
async fn p7_a_daemon_outlives_its_certificates_and_no_command_is_lost(pool: PgPool) {
    let (url, folder) = (database::url(&pool), tempfile::tempdir().unwrap());
    let admin = install(&url).await;
    let authority = folder.path().join("authority");
    let (authority, life) = (authority.to_str().unwrap(), ["--certificates-for", "60s"]);
    let (serve, sessions) =
        tokio::join!(serve_with(&url, &[]), gateway_with(&url, authority, &life));
    let admin = admin.at(serve.address);
    let node = admin.call("nodes.register", json!({"name": "n"})).await;
    let node = node.ok()["id"].clone();
    let joins = admin.call("nodes.createJoinToken", json!({"nodeId": node}));
    let joins = joins.await.ok();
    let mut daemon = agent(&sessions, folder.path(), joins["token"].as_str());

    let mut ran = 0;
    // Three times as long as it takes: this bounds the test and nothing in it.
    until_within(CERTIFICATES * LIFE, "it renews", async || {
        let order = json!({
            "nodeId": node, "kind": "inventory.refresh", "idempotencyKey": ran.to_string(),
            "payload": {"sections": ["os"]},
        });
        let id = admin.call("commands.run", order).await.ok()["id"].clone();
        let input = json!({"nodeId": node, "commandId": id});
        let ended = found("the command ends", async || {
            let command = admin.call("commands.get", input.clone()).await.ok();
            command["settledAt"].is_string().then_some(command)
        })
        .await;
        assert_eq!(ended["state"], "succeeded", "{ended}");
        ran += 1;
        let certified = certified(&pool).await;
        assert!(daemon.runs(), "{}", daemon.tail());
        sleep(PAUSE).await;
        certified >= CERTIFICATES
    })
    .await;
    assert!(ran > CERTIFICATES, "only {ran} commands were run");

    // The session that was opened with the first certificate ended with it.
    let now = admin.call("nodes.get", json!({"nodeId": node})).await.ok();
    assert!(now["epoch"].as_u64() > Some(1), "{now}");
    for verb in ["replay", "check"] {
        Process::output(&["audit", verb, "--postgres", url.as_str()]).await;
    }
}

/// How many certificates were given.
async fn certified(pool: &PgPool) -> u32 {
    let events = events(pool).await;
    let certified = events
        .iter()
        .filter(|event| matches!(event.body, Body::NodeCertified(_)));
    u32::try_from(certified.count()).unwrap()
}
