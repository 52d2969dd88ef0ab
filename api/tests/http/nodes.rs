//! `nodes.*` (SPEC A11).

use ledger_api::Options;
use ledger_projections::join_tokens::{self, Admission};
use ledger_projections::refused_reports::{self, Refused};
use ledger_protocol::event::Actor;
use ledger_protocol::frame::UpdateState;
use ledger_protocol::id::CommandId;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::harness::World;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_registered_node_is_shown_and_listed(pool: PgPool) {
    let world = World::start(pool).await;
    let body = json!({"name": "site ü", "role": "site", "labels": {"rack": "7", "": ""}});
    assert_eq!(world.call("nodes.register", body).await.field(), "labels");
    let body = json!({"name": "site ü", "role": "site", "labels": {"rack": "7"}});
    let made = world.call("nodes.register", body).await.ok();
    for (field, expected) in [
        ("tenantId", json!(world.tenant)),
        ("name", json!("site ü")),
        ("role", json!("site")),
        ("labels", json!({"rack": "7"})),
        ("connected", json!(false)),
        ("epoch", json!(0)),
        ("generation", json!(0)),
        ("appliedGeneration", json!(0)),
    ] {
        assert_eq!(made[field], expected, "{field}");
    }
    assert!(made["registeredAt"].as_str().unwrap().ends_with('Z'));
    let got = world
        .call("nodes.get", json!({"nodeId": made["id"]}))
        .await
        .ok();
    assert_eq!(got, made);
    let page = world.call("nodes.list", json!({})).await.ok();
    assert_eq!(page, json!({"items": [made]}));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_session_is_shown_with_its_node(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let epoch = world.connect(node).await;
    let shown = world.call("nodes.get", json!({"nodeId": node})).await.ok();
    assert_eq!(shown["connected"], true);
    assert_eq!(shown["session"]["gateway"], "gateway-1");
    assert_eq!(shown["epoch"], json!(epoch));
    assert_eq!(shown["agentVersion"], "1.2.3");
    assert_eq!(shown["bootId"], "boot-1");
    let gateway = ledger_protocol::event::Actor::gateway("gateway-1");
    world
        .ledger
        .close_session(&gateway, node, epoch, "gone")
        .await
        .unwrap();
    let shown = world.call("nodes.get", json!({"nodeId": node})).await.ok();
    assert_eq!(shown["connected"], false);
    assert_eq!(shown["session"]["reason"], "gone");
    assert!(shown["session"]["since"].as_str().unwrap().ends_with('Z'));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p2_refused_reports_are_shown_with_their_node_the_newest_and_no_more(pool: PgPool) {
    let world = World::start(pool).await;
    let (node, other) = (world.node().await, world.node().await);
    let shown = world.call("nodes.get", json!({"nodeId": node})).await.ok();
    assert_eq!(shown["refusedReports"], Value::Null);

    let (gateway, begun) = (Actor::gateway("gateway-1"), world.ledger.now());
    let kept = usize::try_from(refused_reports::KEPT_PER_NODE_MAX).unwrap();
    let mut conn = world.pool.acquire().await.unwrap();
    let of = |number: u8, code| Refused {
        command: CommandId::new(begun, [number; 10]),
        state: UpdateState::Succeeded,
        code,
        problem: format!("problem {number}"),
    };
    for number in 0..60 {
        // Each is said twice in one frame, and the one in the middle again and again.
        let refused = [
            of(number, "BAD_ATTESTATION"),
            of(number, "BAD_ATTESTATION"),
            of(30, "UNATTESTED"),
        ];
        let at = begun.plus_seconds(u32::from(number));
        refused_reports::record(&mut conn, node, &gateway, &refused, at)
            .await
            .unwrap();
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM refused_reports")
        .fetch_one(&mut *conn)
        .await
        .unwrap();
    assert_eq!(rows, refused_reports::KEPT_PER_NODE_MAX);
    let shown = world.call("nodes.get", json!({"nodeId": node})).await.ok();
    let reports = shown["refusedReports"].as_array().unwrap();
    assert_eq!(reports.len(), kept);
    let newest = CommandId::new(begun, [59; 10]);
    let of_newest = reports.iter().find(|one| one["commandId"] == json!(newest));
    assert_eq!(
        *of_newest.unwrap(),
        json!({
            "commandId": newest, "state": "succeeded", "code": "BAD_ATTESTATION",
            "problem": "problem 59", "gateway": "gateway:gateway-1", "reports": 2,
            "firstAt": begun.plus_seconds(59).to_string(),
            "lastAt": begun.plus_seconds(59).to_string(),
        })
    );
    assert!(reports[..2].contains(of_newest.unwrap()));
    let repeated = reports.iter().find(|one| one["code"] == "UNATTESTED");
    assert_eq!(repeated.unwrap()["reports"], 60);
    let shown = world.call("nodes.get", json!({"nodeId": other})).await.ok();
    assert_eq!(shown["refusedReports"], Value::Null);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p7_a_revoked_certificate_is_shown_with_its_node(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let revoke = json!({"nodeId": node, "reason": "stolen"});
    let never = world.call("nodes.revokeCertificate", revoke.clone()).await;
    assert_eq!((never.status, never.code()), (409, "INVALID_STATE"));
    let now = world.ledger.now();
    let certified = ledger_protocol::event::NodeCertified {
        allowed_kinds: None,
        fingerprint: "ab".repeat(32),
        not_after: now.plus_seconds(3_600),
        not_before: now,
        public_key: vec![7; 32],
        renews: None,
    };
    let gateway = ledger_protocol::event::Actor::gateway("gateway-1");
    let joined = world.ledger.certify(&gateway, node, certified).await;
    joined.unwrap();
    world.connect(node).await;
    let shown = world.call("nodes.get", json!({"nodeId": node})).await.ok();
    assert!(shown["certificate"]["revoked"].is_null());
    for bad in [json!(""), json!("a\nb"), json!("r".repeat(201)), json!(7)] {
        let body = json!({"nodeId": node, "reason": bad});
        let refused = world.call("nodes.revokeCertificate", body).await;
        assert_eq!(refused.field(), "reason");
    }
    let revoked = world.call("nodes.revokeCertificate", revoke.clone()).await;
    let revoked = revoked.ok();
    assert_eq!(revoked["connected"], false);
    assert_eq!(revoked["session"]["reason"], "certificate-revoked");
    assert_eq!(revoked["certificate"]["revoked"]["reason"], "stolen");
    assert!(revoked["certificate"]["revoked"]["at"].is_string());
    // Once more changes nothing, also with another reason.
    let again = json!({"nodeId": node, "reason": "lost"});
    let again = world.call("nodes.revokeCertificate", again).await.ok();
    assert_eq!(again, revoked);
    let shown = world.call("nodes.get", json!({"nodeId": node})).await.ok();
    assert_eq!(shown, revoked);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_list_of_nodes_pages_through_all_of_them(pool: PgPool) {
    let world = World::start(pool).await;
    let mut nodes = Vec::new();
    for _ in 0..5 {
        nodes.push(json!(world.node().await));
    }
    nodes.sort_by_key(ToString::to_string);
    let mut seen = Vec::new();
    let mut body = json!({"limit": 2});
    loop {
        let page = world.call("nodes.list", body.clone()).await.ok();
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["id"].clone()),
        );
        match page.get("cursor") {
            Some(cursor) => body["cursor"] = cursor.clone(),
            None => break,
        }
    }
    assert_eq!(seen, nodes);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_deleted_nodes_pending_commands_end_and_its_history_stays(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let command = world.run(node, "k").await;
    let deleted = world
        .call("nodes.delete", json!({"nodeId": node}))
        .await
        .ok();
    assert!(deleted["deletedAt"].is_string());
    let body = json!({"nodeId": node, "commandId": command["id"]});
    let ended = world.call("commands.get", body.clone()).await.ok();
    assert_eq!(
        (&ended["state"], &ended["reason"]),
        (&json!("cancelled"), &json!("node-deleted"))
    );
    world.call("nodes.get", json!({"nodeId": node})).await.ok();
    world
        .call("commands.list", json!({"nodeId": node}))
        .await
        .ok();
    world.call("commands.timeline", body).await.ok();
    let page = world.call("nodes.list", json!({})).await.ok();
    assert_eq!(page, json!({"items": []}));
    let page = world
        .call("nodes.list", json!({"includeDeleted": true}))
        .await
        .ok();
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    for (method, body) in [
        ("nodes.delete", json!({"nodeId": node})),
        ("nodes.createJoinToken", json!({"nodeId": node})),
        (
            "nodes.setSpec",
            json!({"nodeId": node, "generation": 1, "spec": {}}),
        ),
        (
            "commands.run",
            json!({"nodeId": node, "kind": "diag.nvml", "idempotencyKey": "new"}),
        ),
    ] {
        assert_eq!(
            world.call(method, body).await.code(),
            "NOT_FOUND",
            "{method}"
        );
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_desired_state_moves_forward_only(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let spec = json!({"packages": ["a", {"b": 1.5}], "deep": {"er": null}});
    let body = json!({"nodeId": node, "generation": 7, "spec": spec});
    let set = world.call("nodes.setSpec", body.clone()).await.ok();
    assert_eq!((&set["generation"], &set["spec"]), (&json!(7), &spec));
    let shown = world.call("nodes.get", json!({"nodeId": node})).await.ok();
    assert_eq!((&shown["generation"], &shown["spec"]), (&json!(7), &spec));
    for generation in [7, 6] {
        let mut body = body.clone();
        body["generation"] = json!(generation);
        let answer = world.call("nodes.setSpec", body).await;
        assert_eq!(answer.code(), "CONFLICT");
        assert_eq!(answer.field(), "generation");
    }
    let large = json!({"nodeId": node, "generation": 8, "spec": {"x": "y".repeat(50_000)}});
    let answer = world.call("nodes.setSpec", large).await;
    assert_eq!((answer.code(), answer.field()), ("INVALID_INPUT", "spec"));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_join_token_is_good_for_its_node_once(pool: PgPool) {
    let options = Options {
        gateway: Some("https://127.0.0.1:7443".to_owned()),
        ca_certificate: Some("-----BEGIN CERTIFICATE-----".to_owned()),
    };
    let world = World::start_with(pool, options).await;
    let node = world.node().await;
    let body = json!({"nodeId": node, "expiresInSeconds": 60});
    let made = world.call("nodes.createJoinToken", body).await.ok();
    assert_eq!(made["nodeId"], json!(node));
    assert_eq!(made["gateway"], "https://127.0.0.1:7443");
    assert!(
        made["caCertificate"]
            .as_str()
            .unwrap()
            .starts_with("-----BEGIN")
    );
    let text = made["token"].as_str().unwrap();
    let mut connection = world.pool.acquire().await.unwrap();
    let now = world.ledger.now();
    let used = join_tokens::consume(&mut connection, text, &[1; 32], now)
        .await
        .unwrap();
    let admission = Admission {
        tenant: world.tenant,
        node,
        allowed_kinds: None,
    };
    assert_eq!(used, Some(admission));
    assert_eq!(
        join_tokens::consume(&mut connection, text, &[2; 32], now)
            .await
            .unwrap(),
        None
    );
    let stored: String = sqlx::query_scalar("SELECT t::text FROM join_tokens t")
        .fetch_one(&world.pool)
        .await
        .unwrap();
    let secret = text.split_once('.').unwrap().1;
    assert!(!stored.contains(secret), "the secret is stored");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d11_a_join_token_is_restricted_to_kinds_that_exist(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let make = |kinds: Value| {
        let body = json!({"nodeId": node, "allowedKinds": kinds});
        world.call("nodes.createJoinToken", body)
    };
    let made = make(json!(["node.reboot", "diag.nvml"])).await.ok();
    assert_eq!(made["allowedKinds"], json!(["diag.nvml", "node.reboot"]));
    let now = world.ledger.now();
    let mut connection = world.pool.acquire().await.unwrap();
    let text = made["token"].as_str().unwrap();
    let used = join_tokens::consume(&mut connection, text, &[1; 32], now)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(used.allowed_kinds.unwrap().len(), 2);
    for bad in [
        json!([]),
        json!(["node.rebot"]),
        json!(["diag.nvml", "diag.nvml"]),
        json!([7]),
        json!("diag.nvml"),
        json!(vec!["diag.nvml"; 101]),
    ] {
        let refused = make(bad.clone()).await;
        assert_eq!(refused.code(), "INVALID_INPUT", "{bad}");
        assert_eq!(refused.field(), "allowedKinds", "{bad}");
    }
}
