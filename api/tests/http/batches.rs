//! `commandBatches.*` (SPEC A6, A10, P3).

use serde_json::{Value, json};
use sqlx::PgPool;

use crate::harness::World;

fn leaf(node: impl std::fmt::Display) -> Value {
    json!({"subject": node.to_string(), "kind": "node.reboot"})
}

fn propose(scope: &[Value], key: &str) -> Value {
    json!({"reason": "kernel update", "scope": scope, "idempotencyKey": key})
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a10_a_batch_is_proposed_once_and_shown_leaf_by_leaf(pool: PgPool) {
    let world = World::start(pool).await;
    let mut scope = Vec::new();
    for _ in 0..3 {
        scope.push(leaf(world.node().await));
    }
    let head = world.head().await;
    let body = || propose(&scope, "one");
    let batch = world.call("commandBatches.create", body()).await.ok();
    // Nobody is listed as an approver here.
    assert_eq!(
        (&batch["state"], &batch["quorum"]),
        (&json!("recorded"), &json!(0))
    );
    assert_eq!(batch["leafCount"], 3);
    assert_eq!(batch["createdBy"], "api:admin");
    let again = world.call("commandBatches.create", body()).await.ok();
    assert_eq!(
        (&again["id"], &again["replayed"]),
        (&batch["id"], &json!(true))
    );
    assert_eq!(world.head().await, head + 1);
    let mut other = body();
    other["scope"] = json!(scope[..2]);
    let conflict = world.call("commandBatches.create", other).await;
    assert_eq!((conflict.code(), conflict.field()), ("CONFLICT", "scope"));

    let id = json!({"batchId": batch["id"]});
    assert_eq!(
        world.call("commandBatches.get", id.clone()).await.ok(),
        batch
    );
    let page = json!({"batchId": batch["id"], "limit": 2});
    let first = world.call("commandBatches.scope", page).await.ok();
    assert_eq!(
        (&first["items"], &first["cursor"]),
        (&json!(scope[..2]), &json!(2))
    );
    let rest = json!({"batchId": batch["id"], "limit": 2, "cursor": 2});
    let rest = world.call("commandBatches.scope", rest).await.ok();
    assert_eq!(rest, json!({"items": scope[2..]}));
    let second = world.call("commandBatches.create", propose(&scope, "two"));
    let second = second.await.ok();
    let newest = world.call("commandBatches.list", json!({"limit": 1})).await;
    let newest = newest.ok();
    assert_eq!(
        (&newest["items"][0]["id"], &newest["cursor"]),
        (&second["id"], &second["id"])
    );
    let older = json!({"limit": 1, "cursor": second["id"]});
    let older = world.call("commandBatches.list", older).await.ok();
    assert_eq!(older, json!({"items": [batch]}));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a6_a_batch_outside_the_tenants_view_is_not_found(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let batch = world.call("commandBatches.create", propose(&[leaf(node)], "one"));
    let id = batch.await.ok()["id"].clone();
    let (stranger, token) = world.other_tenant().await;
    let (key, signature) = (
        "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=",
        "A".repeat(86) + "==",
    );
    let head = world.head().await;
    for (method, mut body) in [
        ("commandBatches.create", propose(&[leaf(node)], "one")),
        ("commandBatches.get", json!({"batchId": id})),
        ("commandBatches.scope", json!({"batchId": id})),
        ("commandBatches.list", json!({"cursor": id})),
        (
            "commandBatches.approve",
            json!({"batchId": id, "publicKey": key, "signature": signature}),
        ),
    ] {
        for tenant in [stranger, world.tenant] {
            body["tenantId"] = json!(tenant);
            let answer = world.call_as(&token, method, body.clone()).await;
            assert_eq!(answer.code(), "NOT_FOUND", "{method}: {}", answer.body);
        }
    }
    assert_eq!(world.head().await, head);
    let mut gone = propose(&[leaf(node)], "two");
    world
        .call("nodes.delete", json!({"nodeId": node}))
        .await
        .ok();
    gone["tenantId"] = json!(world.tenant);
    let gone = world.call("commandBatches.create", gone).await;
    assert_eq!(gone.code(), "NOT_FOUND");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_proposing_approving_and_reading_are_permissions_of_their_own(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let batch = world.call("commandBatches.create", propose(&[leaf(node)], "one"));
    let id = batch.await.ok()["id"].clone();
    let (key, signature) = (
        "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=",
        "A".repeat(86) + "==",
    );
    let methods = [
        ("commandBatches.create", propose(&[leaf(node)], "two")),
        (
            "commandBatches.approve",
            json!({"batchId": id, "publicKey": key, "signature": signature}),
        ),
        ("commandBatches.get", json!({"batchId": id})),
        ("commandBatches.scope", json!({"batchId": id})),
        ("commandBatches.list", json!({})),
    ];
    for (permission, resource, may) in [
        (
            "compute:batches:create",
            "*",
            [true, false, true, true, true],
        ),
        (
            "compute:batches:approve",
            "*",
            [false, true, true, true, true],
        ),
        (
            "compute:nodes:read",
            "compute-node/*",
            [false, false, true, true, true],
        ),
        ("compute:nodes:exec", "*", [false; 5]),
    ] {
        let grants = json!([{"permission": permission, "resource": resource}]);
        let token = world.token(permission, grants).await;
        for ((method, body), may) in methods.iter().zip(may) {
            let answer = world.call_as(&token, method, body.clone()).await;
            let denied = answer.status == 403;
            assert_eq!(denied, !may, "{permission}: {method}: {}", answer.body);
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a10_one_item_of_a_scope_names_as_many_subjects_as_a_batch_may_have(pool: PgPool) {
    let world = World::start(pool).await;
    let mut subjects = Vec::new();
    for _ in 0..3 {
        subjects.push(world.node().await.to_string());
    }
    let bound = "ab".repeat(32);
    let each =
        |subject: &String| json!({"subject": subject, "kind": "disk.wipe", "payloadSha256": bound});
    let apart: Vec<_> = subjects.iter().map(each).collect();
    let first = world.call("commandBatches.create", propose(&apart, "one"));
    let first = first.await.ok();
    let grouped = |subjects: &[String]| json!({"subjects": subjects, "kind": "disk.wipe", "payloadSha256": bound});
    let again = propose(&[grouped(&subjects)], "one");
    let again = world.call("commandBatches.create", again).await.ok();
    assert_eq!(again["id"], first["id"], "it is the same scope");

    // A full scope fits a request, and one more leaf is refused by its limit.
    let many = vec![subjects[0].clone(); 10_001];
    for (subjects, problem) in [
        (&many[..10_000], "stands in the scope before"),
        (&many, "at most 10000 leaves"),
    ] {
        let refused = propose(&[grouped(subjects)], "many");
        let refused = world.call("commandBatches.create", refused).await;
        assert_eq!(
            (refused.code(), refused.field()),
            ("INVALID_INPUT", "scope")
        );
        assert!(
            refused.body.to_string().contains(problem),
            "{}",
            refused.body
        );
    }
    for (item, problem) in [
        (json!({"kind": "node.reboot"}), "subject or subjects"),
        (
            json!({"kind": "node.reboot", "subjects": []}),
            "subjects must be a list",
        ),
        (
            json!({"kind": "node.reboot", "subjects": ["x"]}),
            "subjects must be a list",
        ),
        (
            json!({"kind": "node.reboot", "subjects": subjects, "subject": subjects[0]}),
            "subject or subjects",
        ),
    ] {
        let refused = world.call("commandBatches.create", propose(&[item], "wrong"));
        let refused = refused.await;
        assert_eq!(
            (refused.code(), refused.field()),
            ("INVALID_INPUT", "scope")
        );
        assert!(
            refused.body.to_string().contains(problem),
            "{}",
            refused.body
        );
    }
}
