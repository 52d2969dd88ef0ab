//! What the service says when the database does not take what it writes: a defect, and whose
//! (SPEC section 4).

use ledger_tests::serve::serve;
use ledger_tests::wait::found;
use ledger_tests::{api, database};
use serde_json::{Value, json};
use sqlx::PgPool;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_a_broken_constraint_is_internal_and_the_log_names_it(pool: PgPool) {
    let service = serve(&database::url(&pool), None).await;
    let admin = api::admin(&pool, service.address).await;
    let node = admin
        .call("nodes.register", json!({"name": "n"}))
        .await
        .ok();
    // One table that the ledger writes, and one that the API writes itself.
    for statement in [
        "ALTER TABLE commands_live ADD CONSTRAINT planted_live CHECK (seq < 1)",
        "ALTER TABLE api_tokens ADD CONSTRAINT planted_tokens CHECK (identity <> 'bad')",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    let grants = json!([{"permission": "compute:nodes:read", "resource": "*"}]);
    for (method, input, parts) in [
        (
            "commands.run",
            json!({"nodeId": node["id"], "kind": "diag.nvml", "idempotencyKey": "k"}),
            ["commands_live", "planted_live"],
        ),
        (
            "tokens.create",
            json!({"identity": "bad", "grants": grants}),
            ["api_tokens", "planted_tokens"],
        ),
    ] {
        let answer = admin.call(method, input).await;
        assert_eq!(answer.code(), "INTERNAL", "{}", answer.body);
        assert!(
            !answer.body.to_string().contains("planted"),
            "{}",
            answer.body
        );
        let line = found("it is logged", async || {
            let text = service.process.stderr();
            let line = text.lines().find(|line| line.contains(parts[1]));
            line.map(|line| serde_json::from_str::<Value>(line).unwrap())
        })
        .await;
        assert_eq!(line["level"], "ERROR", "{line}");
        let told = format!(
            "table {} does not take this: constraint {}",
            parts[0], parts[1]
        );
        assert!(line.to_string().contains(&told), "{line}");
        assert!(!line.to_string().contains("not available"), "{line}");
    }
    admin
        .call("nodes.register", json!({"name": "good"}))
        .await
        .ok();
}
