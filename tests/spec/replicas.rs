//! What one process has answered, another one shows at once (SPEC L8).

use ledger_tests::serve::serve;
use ledger_tests::{api, database};
use serde_json::json;
use sqlx::PgPool;

const ROUNDS: usize = 100;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l8_what_one_process_has_answered_another_shows_at_once(pool: PgPool) {
    let url = database::url(&pool);
    let (one, two) = tokio::join!(serve(&url, None), serve(&url, None));
    let here = api::admin(&pool, one.address).await;
    let there = here.at(two.address);
    let node = here.call("nodes.register", json!({"name": "n"})).await.ok();
    assert_eq!(
        there
            .call("nodes.get", json!({"nodeId": node["id"]}))
            .await
            .ok(),
        node
    );
    for round in 0..ROUNDS {
        let (asked, other) = if round % 2 == 0 {
            (&here, &there)
        } else {
            (&there, &here)
        };
        let kind = "inventory.refresh";
        let key = round.to_string();
        let input = json!({"nodeId": node["id"], "kind": kind, "idempotencyKey": key});
        let queued = asked.call("commands.run", input).await.ok();
        let input = json!({"nodeId": node["id"], "commandId": queued["id"]});
        assert_eq!(other.call("commands.get", input.clone()).await.ok(), queued);
        let newest = json!({"nodeId": node["id"], "limit": 1});
        assert_eq!(
            other.call("commands.list", newest.clone()).await.ok()["items"],
            json!([queued])
        );
        let cancelled = other.call("commands.cancel", input.clone()).await.ok();
        assert_eq!(cancelled["state"], "cancelled");
        assert_eq!(asked.call("commands.get", input).await.ok(), cancelled);
        assert_eq!(
            asked.call("commands.list", newest).await.ok()["items"],
            json!([cancelled])
        );
    }
}
