//! Tokens and grants (SPEC A13).

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use ledger_api::Options;
use ledger_api::auth::{Grant, NewToken, create_tenant, create_token};
use ledger_protocol::id::TenantId;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::harness::{World, request, send, start};

/// Every method with fields that it takes, and the permission that it asks for.
fn methods(node: &Value, command: &Value) -> Vec<(&'static str, Value, &'static str)> {
    let on_node = || json!({"nodeId": node});
    let on_command = || json!({"nodeId": node, "commandId": command});
    let grants = json!([{"permission": "compute:nodes:read", "resource": "*"}]);
    vec![
        (
            "commands.run",
            json!({"nodeId": node, "kind": "diag.nvml", "idempotencyKey": "k"}),
            "compute:nodes:exec",
        ),
        ("commands.get", on_command(), "compute:nodes:read"),
        ("commands.list", on_node(), "compute:nodes:read"),
        ("commands.timeline", on_command(), "compute:nodes:read"),
        ("commands.cancel", on_command(), "compute:nodes:exec"),
        (
            "nodes.register",
            json!({"name": "n"}),
            "compute:nodes:admin",
        ),
        ("nodes.get", on_node(), "compute:nodes:read"),
        ("nodes.list", json!({}), "compute:nodes:read"),
        ("nodes.createJoinToken", on_node(), "compute:nodes:admin"),
        (
            "nodes.setSpec",
            json!({"nodeId": node, "generation": 1, "spec": {}}),
            "compute:nodes:admin",
        ),
        (
            "tokens.create",
            json!({"identity": "i", "grants": grants}),
            "compute:nodes:admin",
        ),
        ("tokens.list", json!({}), "compute:nodes:admin"),
        (
            "tokens.revoke",
            json!({"tokenId": "token_01h455vb4pex5vsknk084sn02q"}),
            "compute:nodes:admin",
        ),
        (
            "nodes.revokeCertificate",
            json!({"nodeId": node, "reason": "stolen"}),
            "compute:nodes:admin",
        ),
        ("nodes.delete", on_node(), "compute:nodes:admin"),
    ]
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_every_method_asks_for_a_token_and_for_its_permission(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let command = world.run(node, "first").await["id"].clone();
    for (method, body, permission) in methods(&json!(node), &command) {
        let mut with_tenant = body.clone();
        with_tenant["tenantId"] = json!(world.tenant);
        let anonymous = Request::post(format!("/api/compute/{}", method.replace('.', "/")))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(with_tenant.to_string()))
            .unwrap();
        assert_eq!(
            world.raw(anonymous).await.code(),
            "UNAUTHENTICATED",
            "{method}"
        );

        let others = Grant::all().iter().map(Grant::to_json).collect::<Vec<_>>();
        let others: Vec<_> = others
            .into_iter()
            .filter(|grant| grant["permission"] != permission)
            .collect();
        let token = world.token("limited", json!(others)).await;
        let answer = world.call_as(&token, method, body.clone()).await;
        assert_eq!(answer.code(), "PERMISSION_DENIED", "{method}");
        assert_eq!(
            answer.body["error"]["details"]["permission"], permission,
            "{method}"
        );

        let grants = json!([
            {"permission": permission, "resource": "*"},
            {"permission": "compute:nodes:read", "resource": "*"},
        ]);
        let token = world.token("exact", grants).await;
        let answer = world.call_as(&token, method, body).await;
        let expected = match method {
            "tokens.revoke" => 404,
            // The node never joined.
            "nodes.revokeCertificate" => 409,
            _ => 200,
        };
        assert_eq!(answer.status, expected, "{method}: {}", answer.body);
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_a_token_that_is_wrong_in_any_way_is_refused_alike(pool: PgPool) {
    let world = World::start(pool).await;
    let before = world.ledger.now().plus_micros(-2);
    let expired = NewToken {
        tenant: world.tenant,
        identity: "late".to_owned(),
        grants: Grant::all(),
        expires_at: Some(before.plus_micros(1)),
    };
    let made = create_token(&world.pool, &expired, world.ledger.now()).await;
    assert_eq!(made.unwrap_err().code(), ledger_api::Code::InvalidInput);
    let (_, expired) = create_token(&world.pool, &expired, before).await.unwrap();
    let (id, secret) = world.token.split_once('.').unwrap();
    let other_secret = secret.chars().rev().collect::<String>();
    world.call("nodes.list", json!({})).await.ok();
    for token in [
        expired,
        format!("{id}.{other_secret}"),
        format!("{id}.{}", &secret[1..]),
        format!("token_01h455vb4pex5vsknk084sn02q.{secret}"),
        "x".to_owned(),
        "x".repeat(5_000),
    ] {
        let answer = world.call_as(&token, "nodes.list", json!({})).await;
        assert_eq!(answer.code(), "UNAUTHENTICATED", "{token}");
    }
    // A wrong guess must not have cost the right token its place in the memory.
    world.call("nodes.list", json!({})).await.ok();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_a_grant_on_one_node_says_nothing_of_another(pool: PgPool) {
    let world = World::start(pool).await;
    let (mine, other) = (world.node().await, world.node().await);
    let resource = format!("compute-node/{mine}");
    let grants = json!([
        {"permission": "compute:nodes:read", "resource": resource},
        {"permission": "compute:nodes:exec", "resource": resource},
    ]);
    let token = world.token("one", grants).await;
    let get = |node| world.call_as(&token, "nodes.get", json!({"nodeId": node}));
    get(json!(mine)).await.ok();
    assert_eq!(get(json!(other)).await.code(), "PERMISSION_DENIED");
    let nobody = json!("node_01h455vb4pex5vsknk084sn02q");
    assert_eq!(
        get(nobody).await.code(),
        "NOT_FOUND",
        "A6: never denied when not in view"
    );
    let list = world.call_as(&token, "nodes.list", json!({})).await;
    assert_eq!(list.code(), "PERMISSION_DENIED");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_a_grant_for_a_kind_that_there_is_not_is_refused(pool: PgPool) {
    let world = World::start(pool).await;
    let kinds = ["diag.nvml", "node.rebot"];
    let grants = json!([{"permission": "compute:nodes:exec", "resource": "*", "kinds": kinds}]);
    let answer = world
        .call("tokens.create", json!({"identity": "i", "grants": grants}))
        .await;
    assert_eq!((answer.code(), answer.field()), ("INVALID_INPUT", "grants"));
    let message = answer.body["error"]["message"].as_str().unwrap();
    for part in ["`node.rebot`", "node.reboot", "diag.nvml"] {
        assert!(message.contains(part), "{message}");
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_a_grant_for_some_kinds_runs_and_cancels_those_only(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let inventory = world.run(node, "k").await["id"].clone();
    let grants = json!([{
        "permission": "compute:nodes:exec", "resource": "compute-node/*", "kinds": ["diag.nvml"],
    }]);
    let token = world.token("diagnostician", grants).await;
    let run = |kind: &str| {
        let body = json!({"nodeId": node, "kind": kind, "idempotencyKey": "d"});
        world.call_as(&token, "commands.run", body)
    };
    let diag = run("diag.nvml").await.ok()["id"].clone();
    assert_eq!(run("node.reboot").await.code(), "PERMISSION_DENIED");
    let cancel = |command: &Value| {
        let body = json!({"nodeId": node, "commandId": command});
        world.call_as(&token, "commands.cancel", body)
    };
    assert_eq!(cancel(&inventory).await.code(), "PERMISSION_DENIED");
    assert_eq!(cancel(&diag).await.ok()["state"], "cancelled");
    let nothing = json!("cmd_01h455vb4pex5vsknk084sn02q");
    assert_eq!(cancel(&nothing).await.code(), "NOT_FOUND");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_a_token_is_made_shown_once_listed_and_revoked(pool: PgPool) {
    let world = World::start(pool).await;
    let grants = json!([
        {"permission": "compute:nodes:exec", "resource": "compute-node/*", "kinds": ["diag.nvml"]},
        {"permission": "compute:nodes:read", "resource": "compute-node/*"},
    ]);
    let body = json!({"identity": "ops@acme", "grants": grants, "expiresInSeconds": 3600});
    let made = world.call("tokens.create", body).await.ok();
    let text = made["token"].as_str().unwrap().to_owned();
    let secret = text.split_once('.').unwrap().1;
    assert_eq!(made["grants"], grants);
    assert!(made["expiresAt"].as_str().unwrap().ends_with('Z'));
    world.call_as(&text, "nodes.list", json!({})).await.ok();

    let page = world.call("tokens.list", json!({})).await.ok();
    let shown = page["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["id"] == made["id"]);
    assert_eq!(shown.unwrap()["identity"], "ops@acme");
    assert!(!page.to_string().contains(secret), "a list shows no secret");
    let stored: Vec<String> = sqlx::query_scalar("SELECT t::text FROM api_tokens t")
        .fetch_all(&world.pool)
        .await
        .unwrap();
    assert!(
        !stored.iter().any(|row| row.contains(secret)),
        "the secret is stored"
    );

    let body = json!({"tokenId": made["id"]});
    let revoked = world.call("tokens.revoke", body.clone()).await.ok();
    assert!(revoked["revokedAt"].is_string());
    let answer = world.call_as(&text, "nodes.list", json!({})).await;
    assert_eq!(
        answer.code(),
        "UNAUTHENTICATED",
        "here the revocation counts at once"
    );
    assert_eq!(
        world.call("tokens.revoke", body).await.ok(),
        revoked,
        "it keeps its time"
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_a_revocation_reaches_the_other_services_within_seconds(pool: PgPool) {
    let world = World::start(pool.clone()).await;
    let (_ledger, other) = start(pool, Options::default());
    let token = world
        .token("gone", Grant::all().iter().map(Grant::to_json).collect())
        .await;
    let id = token.split_once('.').unwrap().0;
    let body = json!({"tenantId": world.tenant}).to_string();
    let ask = || send(&other, request(&token, "nodes.list", body.clone()));
    ask().await.ok();
    world
        .call("tokens.revoke", json!({"tokenId": id}))
        .await
        .ok();
    let refused = async {
        while ask().await.status == 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), refused)
        .await
        .expect("still accepted");
    assert_eq!(ask().await.code(), "UNAUTHENTICATED");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_nobody_can_give_away_more_than_they_hold(pool: PgPool) {
    let world = World::start(pool).await;
    let grants = json!([
        {"permission": "compute:nodes:admin", "resource": "*"},
        {"permission": "compute:nodes:exec", "resource": "compute-node/*", "kinds": ["diag.nvml"]},
    ]);
    let token = world.token("half", grants).await;
    let make = |grant: Value| {
        world.call_as(
            &token,
            "tokens.create",
            json!({"identity": "x", "grants": [grant]}),
        )
    };
    let exec = |kinds: Value| json!({"permission": "compute:nodes:exec", "resource": "compute-node/*", "kinds": kinds});
    make(exec(json!(["diag.nvml"]))).await.ok();
    for more in [
        exec(json!(["diag.nvml", "node.reboot"])),
        json!({"permission": "compute:nodes:exec", "resource": "compute-node/*"}),
        json!({"permission": "compute:nodes:exec", "resource": "*", "kinds": ["diag.nvml"]}),
        json!({"permission": "compute:nodes:read", "resource": "*"}),
    ] {
        assert_eq!(
            make(more.clone()).await.code(),
            "PERMISSION_DENIED",
            "{more}"
        );
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_the_functions_of_the_command_line_refuse_what_does_not_fit(pool: PgPool) {
    let world = World::start(pool).await;
    let now = world.ledger.now();
    for name in [
        String::new(),
        "x".repeat(201),
        "a\nb".to_owned(),
        "a\0b".to_owned(),
    ] {
        assert!(
            create_tenant(&world.pool, &name, now).await.is_err(),
            "{name:?}"
        );
    }
    let tenant: TenantId = "tenant_01h455vb4pex5vsknk084sn02q".parse().unwrap();
    let token = |tenant, identity: &str| NewToken {
        tenant,
        identity: identity.to_owned(),
        grants: Grant::all(),
        expires_at: None,
    };
    let refused = create_token(&world.pool, &token(tenant, "x"), now)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), ledger_api::Code::NotFound);
    let refused = create_token(&world.pool, &token(world.tenant, ""), now)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), ledger_api::Code::InvalidInput);
}
