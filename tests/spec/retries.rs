//! Retries of one request against two API processes (SPEC A2).

use std::collections::BTreeSet;

use ledger_tests::ground::{events_of, head};
use ledger_tests::serve::serve;
use ledger_tests::wait::in_time;
use ledger_tests::{api, database};
use serde_json::json;
use sqlx::PgPool;
use tokio::task::JoinSet;

const RETRIES: usize = 1_000;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_1000_concurrent_retries_against_two_processes_make_one_command_and_one_event(
    pool: PgPool,
) {
    let url = database::url(&pool);
    let (one, two) = tokio::join!(serve(&url, None), serve(&url, None));
    let here = api::admin(&pool, one.address).await;
    let there = here.at(two.address);
    let node = here.call("nodes.register", json!({"name": "n"})).await.ok();
    let before = head(&pool).await;

    let input = json!({
        "nodeId": node["id"], "kind": "inventory.refresh", "idempotencyKey": "the same",
        "payload": {"sections": ["cpu", "memory"]},
    });
    let mut calls = JoinSet::new();
    for number in 0..RETRIES {
        let caller = if number % 2 == 0 {
            here.clone()
        } else {
            there.clone()
        };
        let input = input.clone();
        calls.spawn(async move { caller.call("commands.run", input).await.ok() });
    }
    let (mut ids, mut first) = (BTreeSet::new(), 0);
    for answer in in_time("every retry is answered", calls.join_all()).await {
        ids.insert(answer["id"].as_str().unwrap().to_owned());
        first += usize::from(answer["replayed"] != true);
    }
    assert_eq!((ids.len(), first), (1, 1));
    assert_eq!(head(&pool).await, before + 1);
    let id = ids.first().unwrap();
    assert_eq!(events_of(&pool, id.parse().unwrap()).await, 1);

    for caller in [&here, &there] {
        let listed = caller
            .call("commands.list", json!({"nodeId": node["id"]}))
            .await
            .ok();
        let listed = listed["items"].as_array().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0]["id"], *id);
        let mut other = input.clone();
        other["payload"] = json!({"sections": ["memory", "cpu"]});
        let refused = caller.call("commands.run", other).await;
        assert_eq!((refused.code(), refused.field()), ("CONFLICT", "payload"));
    }
    assert_eq!(head(&pool).await, before + 1);
}
