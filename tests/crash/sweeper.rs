//! A sweeper that stands still while another takes its place (SPEC T2).

use ledger_tests::ground::{Ground, events_of, head};
use ledger_tests::process::Process;
use ledger_tests::wait::{found, until};
use ledger_tests::{api, database, serve};
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::PgPool;

async fn term(pool: &PgPool) -> i64 {
    let sql = "SELECT coalesce(max(term), 0) FROM leases WHERE name LIKE '%sweep%'";
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t2_when_the_leading_sweeper_freezes_another_ends_what_is_overdue_and_it_does_no_harm(
    pool: PgPool,
) {
    let url = database::url(&pool);
    let sweeper = || Process::start(&["sweeper", "--postgres", url.as_str()]);
    let mut first = sweeper();
    until("the first sweeper leads", async || term(&pool).await > 0).await;
    let led = term(&pool).await;
    let mut second = sweeper();
    let service = serve::serve(&url, None).await;
    let admin = api::admin(&pool, service.address).await;
    let node = admin
        .call("nodes.register", json!({"name": "n"}))
        .await
        .ok()["id"]
        .clone();
    let run = async |key: &str| {
        let kind = "inventory.refresh";
        let input =
            json!({"nodeId": node, "kind": kind, "idempotencyKey": key, "notAfterSeconds": 10});
        admin.call("commands.run", input).await.ok()
    };
    let ended = async |command: &Value| {
        let input = json!({"nodeId": node, "commandId": command["id"]});
        let ended = found("the command ends", async || {
            let now = admin.call("commands.get", input.clone()).await.ok();
            now["settledAt"].is_string().then_some(now)
        })
        .await;
        assert_eq!(
            (&ended["state"], &ended["reason"]),
            (&json!("expired"), &json!("not_after"))
        );
    };

    first.signal(Signal::STOP);
    let overdue = run("while it stands still").await;
    ended(&overdue).await;
    assert!(term(&pool).await > led, "nobody took over");
    // It wakes up as a leader that is none any more.
    let next = run("after it woke up").await;
    first.signal(Signal::CONT);
    ended(&next).await;
    for command in [&overdue, &next] {
        // Queued and ended, once each.
        let id = command["id"].as_str().unwrap().parse().unwrap();
        assert_eq!(events_of(&pool, id).await, 2);
    }
    assert!(first.runs() && second.runs());
    let before = head(&pool).await;
    let ground = Ground::new(pool.clone());
    ground.node("the log goes on").await;
    assert_eq!(head(&pool).await, before + 1);
}
