//! Idempotency (SPEC A2).

use ledger_api::Options;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::harness::{World, request, send, start};

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_a_retry_returns_the_first_command_whatever_its_state(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let first = world.run(node, "k").await;
    let head = world.head().await;
    let again = world.run(node, "k").await;
    assert_eq!(again["replayed"], true);
    assert_eq!(again["id"], first["id"]);
    assert_eq!(world.head().await, head, "a retry appends nothing");
    let body = json!({"nodeId": node, "commandId": first["id"]});
    world.call("commands.cancel", body).await.ok();
    let again = world.run(node, "k").await;
    assert_eq!(
        (&again["id"], &again["state"]),
        (&first["id"], &json!("cancelled"))
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_the_same_key_for_something_else_is_a_conflict_that_names_the_field(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    world.run(node, "k").await;
    for (field, kind, payload) in [
        ("kind", "diag.nvml", json!({})),
        ("payload", "inventory.refresh", json!({"rescan": true})),
    ] {
        let body = json!({
            "nodeId": node, "kind": kind, "payload": payload, "idempotencyKey": "k",
        });
        let answer = world.call("commands.run", body).await;
        assert_eq!(answer.code(), "CONFLICT");
        assert_eq!(answer.field(), field);
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_a_retry_may_write_its_numbers_in_another_way(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let run = async |since: &str, wait: &str| {
        let body = format!(
            r#"{{"tenantId":"{}","nodeId":"{node}","kind":"logs.collect","idempotencyKey":"k",
                "payload":{{"sinceSeconds":{since}}},"notAfterSeconds":{wait}}}"#,
            world.tenant
        );
        send(&world.router, request(&world.token, "commands.run", body)).await
    };
    let first = run("60.0", "600.0").await.ok();
    // An integer in the event too, whose bytes every reader decodes.
    assert_eq!(first["payload"].to_string(), r#"{"sinceSeconds":60}"#);
    for (since, wait) in [("60", "600"), ("6e1", "6E2"), ("60.000", "600")] {
        let again = run(since, wait).await.ok();
        assert_eq!(
            (&again["id"], &again["replayed"]),
            (&first["id"], &json!(true))
        );
    }
    assert_eq!(run("61", "600").await.code(), "CONFLICT");
    assert_eq!(run("60.5", "600").await.field(), "payload");
    assert_eq!(run("60", "600.5").await.field(), "notAfterSeconds");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_a_key_is_the_callers_own_on_one_node(pool: PgPool) {
    let world = World::start(pool).await;
    let (node, other_node) = (world.node().await, world.node().await);
    let grants = json!([{"permission": "compute:nodes:exec", "resource": "*"}]);
    let other = world.token("other", grants.clone()).await;
    let twin = world.token("admin", grants).await;
    let first = world.run(node, "k").await;
    let body = json!({"nodeId": node, "kind": "inventory.refresh", "idempotencyKey": "k"});
    let run = |token: String| {
        let (world, body) = (&world, body.clone());
        async move { world.call_as(&token, "commands.run", body).await.ok() }
    };
    assert_ne!(run(other).await["id"], first["id"], "another identity");
    assert_eq!(
        run(twin).await["id"],
        first["id"],
        "another token of the identity"
    );
    assert_ne!(
        world.run(other_node, "k").await["id"],
        first["id"],
        "another node"
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_a_thousand_retries_at_two_services_make_one_command_and_one_event(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    let node = world.node().await;
    let (_other_ledger, other) = start(pool, Options::default());
    let body = json!({
        "tenantId": world.tenant, "nodeId": node, "kind": "diag.nvml", "idempotencyKey": "k",
    });
    let body = body.to_string();
    let head = world.head().await;
    let mut calls = JoinSet::new();
    for number in 0..1_000 {
        let router = if number % 2 == 0 {
            world.router.clone()
        } else {
            other.clone()
        };
        let request = request(&world.token, "commands.run", body.clone());
        calls.spawn(async move { send(&router, request).await.ok() });
    }
    let answers = calls.join_all().await;
    let ids: std::collections::BTreeSet<_> = answers
        .iter()
        .map(|answer| answer["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), 1);
    let first = |answer: &&Value| answer.get("replayed").is_none();
    assert_eq!(answers.iter().filter(first).count(), 1);
    assert_eq!(world.head().await, head + 1);
}
