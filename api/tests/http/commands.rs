//! `commands.*` (SPEC A1-A7).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::SigningKey;
use ledger_protocol::attestation;
use ledger_protocol::canonical;
use ledger_protocol::dsse::PublicKey;
use ledger_protocol::event::{Actor, NodeCertified};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::{BatchId, CommandId, NodeId};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::harness::World;

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_run_queues_a_command_that_get_shows_at_once(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let body = json!({
        "nodeId": node, "kind": "logs.collect", "idempotencyKey": "k",
        "payload": {"sinceSeconds": 60, "units": ["sshd.service"]}, "notAfterSeconds": 10,
    });
    let command = world.call("commands.run", body).await.ok();
    let id = command["id"].as_str().unwrap();
    assert!(id.parse::<CommandId>().is_ok());
    for (field, expected) in [
        ("tenantId", json!(world.tenant)),
        ("nodeId", json!(node)),
        ("seq", json!(1)),
        ("kind", json!("logs.collect")),
        ("lane", json!("bulk")),
        ("state", json!("pending")),
        (
            "payload",
            json!({"sinceSeconds": 60, "units": ["sshd.service"]}),
        ),
        ("timeoutSeconds", json!(900)),
        ("retrySafe", json!(true)),
        ("selfTerminating", json!(false)),
        ("attested", json!(false)),
        ("destructive", json!(false)),
        ("attempts", json!(0)),
        ("issuedBy", json!("api:admin")),
    ] {
        assert_eq!(command[field], expected, "{field}");
    }
    let key = ledger_api::commands::idempotency::derived_key(world.tenant, "admin", "k");
    assert_eq!(command["idempotencyKey"], json!(key));
    let fields: Vec<_> = command
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let absent = [
        "reason",
        "details",
        "result",
        "resultTruncated",
        "nodeSig",
        "lateResult",
        "notBefore",
        "minGeneration",
        "batchId",
        "awaitingApproval",
        "bundleKey",
        "cancelRequestedAt",
        "dispatchedAt",
        "ackedAt",
        "runningAt",
        "settledAt",
        "replayed",
    ];
    for field in absent {
        assert!(!fields.contains(&field), "{field} says nothing yet");
    }
    assert_eq!(fields.len(), 18, "{fields:?}");
    let got = world
        .call("commands.get", json!({"nodeId": node, "commandId": id}))
        .await
        .ok();
    assert_eq!(got, command);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_the_deadline_is_ten_minutes_unless_said_otherwise(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    for (given, seconds) in [(None, 600), (Some(10), 10), (Some(3_600), 3_600)] {
        let mut body = json!({
            "nodeId": node, "kind": "diag.nvml", "idempotencyKey": format!("{given:?}"),
        });
        if let Some(given) = given {
            body["notAfterSeconds"] = json!(given);
        }
        let command = world.call("commands.run", body).await.ok();
        let micros = |field: &str| {
            let text = command[field].as_str().unwrap();
            ledger_protocol::time::Timestamp::parse_rfc3339(text)
                .unwrap()
                .as_micros()
        };
        let waits = micros("notAfter") - micros("queuedAt") - seconds * 1_000_000;
        assert!(waits.abs() < 2_000_000, "{waits} µs off for {given:?}");
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_a_kind_outside_the_api_is_unsupported(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    for kind in [
        "disk.wipe",
        "no.such",
        "NODE.REBOOT",
        "'; drop table events",
    ] {
        let body = json!({"nodeId": node, "kind": kind, "idempotencyKey": "k"});
        let answer = world.call("commands.run", body).await;
        assert_eq!(answer.code(), "UNSUPPORTED", "{kind}");
        assert_eq!(answer.field(), "kind");
    }
    assert_eq!(world.head().await, 1, "only the node was registered");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn k1_a_payload_outside_the_kinds_schema_is_invalid(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let long = "x".repeat(60_000);
    for (kind, payload) in [
        ("diag.nvml", json!({"level": 1})),
        ("node.reboot", json!({"now": true})),
        ("inventory.refresh", json!({"sections": []})),
        ("inventory.refresh", json!({"sections": ["cpu", "cpu"]})),
        ("inventory.refresh", json!({"sections": ["kitchen"]})),
        ("inventory.refresh", json!({"rescan": 1})),
        ("logs.collect", json!({"sinceSeconds": 59})),
        ("logs.collect", json!({"sinceSeconds": 604_801})),
        ("logs.collect", json!({"sinceSeconds": 60.5})),
        ("logs.collect", json!({"units": ["a b"]})),
        ("logs.collect", json!({"units": [long]})),
        ("logs.collect", json!({"x": long})),
    ] {
        let shown: String = payload.to_string().chars().take(60).collect();
        let body = json!({
            "nodeId": node, "kind": kind, "payload": payload, "idempotencyKey": "k",
        });
        let answer = world.call("commands.run", body).await;
        assert_eq!(answer.code(), "INVALID_INPUT", "{kind} {shown}");
        assert!(
            answer.field().starts_with("payload"),
            "{kind} {shown}: {}",
            answer.body
        );
    }
    assert_eq!(world.head().await, 1, "only the node was registered");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a3_get_shows_how_a_command_ended(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let key = SigningKey::from_bytes(&[1; 32]);
    let certified = NodeCertified {
        renews: None,
        allowed_kinds: None,
        fingerprint: "00".repeat(32),
        not_after: world.ledger.now().plus_seconds(3_600),
        not_before: world.ledger.now(),
        public_key: PublicKey::of(&key).as_bytes().to_vec(),
    };
    let gateway = Actor::gateway("gateway-1");
    world
        .ledger
        .certify(&gateway, node, certified)
        .await
        .unwrap();
    let command = world.run(node, "k").await;
    let epoch = world.connect(node).await;
    let id = world.dispatch(node, &command, epoch).await;
    world.tell(node, epoch, id, UpdateState::Acked).await;
    world.tell(node, epoch, id, UpdateState::Running).await;
    let mut end = Update {
        result: Some(canonical::from_json(&json!({"cpu": {"cores": 2}})).unwrap()),
        details: Some(canonical::from_json(&json!({"took": 1.5})).unwrap()),
        reason: Some("partly".to_owned()),
        ..Update::bare(id, UpdateState::Failed)
    };
    let signature = attestation::sign(&key, node, &end).unwrap().unwrap();
    end.node_sig = Some(signature.to_vec());
    world.report(node, epoch, end).await;
    let ended = world
        .call("commands.get", json!({"nodeId": node, "commandId": id}))
        .await
        .ok();
    for (field, expected) in [
        ("state", json!("failed")),
        ("reason", json!("partly")),
        ("result", json!({"cpu": {"cores": 2}})),
        ("details", json!({"took": 1.5})),
        ("nodeSig", json!(STANDARD.encode(signature))),
        ("attempts", json!(1)),
    ] {
        assert_eq!(ended[field], expected, "{field}");
    }
    for field in [
        "queuedAt",
        "dispatchedAt",
        "ackedAt",
        "runningAt",
        "settledAt",
        "notAfter",
    ] {
        let text = ended[field]
            .as_str()
            .unwrap_or_else(|| panic!("{field}: {ended}"));
        assert!(text.ends_with('Z') && text.len() == 27, "{field} is {text}");
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a7_the_nodes_word_after_the_end_is_shown_beside_it(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let command = world.run(node, "k").await;
    let epoch = world.connect(node).await;
    let id = world.dispatch(node, &command, epoch).await;
    world.tell(node, epoch, id, UpdateState::Cancelled).await;
    let late = Update {
        result: Some(canonical::from_json(&json!({"late": true})).unwrap()),
        ..Update::bare(id, UpdateState::Succeeded)
    };
    world.report(node, epoch, late).await;
    let ended = world
        .call("commands.get", json!({"nodeId": node, "commandId": id}))
        .await
        .ok();
    assert_eq!(ended["state"], "cancelled");
    assert_eq!(ended["lateResult"]["state"], "succeeded");
    assert_eq!(ended["lateResult"]["result"], json!({"late": true}));
    assert!(ended["lateResult"]["at"].as_str().unwrap().ends_with('Z'));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a4_a_list_is_newest_first_and_pages_by_seq(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    for number in 1..=7 {
        let command = world.run(node, &format!("key {number}")).await;
        assert_eq!(command["seq"], json!(number));
    }
    let mut seen = Vec::new();
    let mut cursor: Option<Value> = None;
    loop {
        let mut body = json!({"nodeId": node, "limit": 3});
        if let Some(cursor) = &cursor {
            body["cursor"] = cursor.clone();
        }
        let page = world.call("commands.list", body).await.ok();
        let seqs = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["seq"].as_u64());
        seen.extend(seqs.map(Option::unwrap));
        match page.get("cursor") {
            None => break,
            Some(next) => {
                assert_eq!(next.as_u64(), seen.last().copied());
                cursor = Some(next.clone());
            }
        }
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    let page = world
        .call("commands.list", json!({"nodeId": node, "cursor": "3"}))
        .await
        .ok();
    assert_eq!(
        page["items"].as_array().unwrap().len(),
        2,
        "a cursor may be text"
    );
    assert!(page.get("cursor").is_none());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a4_a_list_can_be_narrowed_to_a_state(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let first = world.run(node, "1").await;
    world.run(node, "2").await;
    let body = json!({"nodeId": node, "commandId": first["id"]});
    world.call("commands.cancel", body).await.ok();
    for (state, seqs) in [
        ("pending", vec![2]),
        ("cancelled", vec![1]),
        ("failed", vec![]),
    ] {
        let page = world
            .call("commands.list", json!({"nodeId": node, "state": state}))
            .await
            .ok();
        let items = page["items"].as_array().unwrap();
        let found: Vec<_> = items
            .iter()
            .map(|item| item["seq"].as_u64().unwrap())
            .collect();
        assert_eq!(found, seqs, "{state}");
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a5_a_pending_command_is_cancelled_at_once_and_stays_so(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let command = world.run(node, "k").await;
    let body = json!({"nodeId": node, "commandId": command["id"]});
    let cancelled = world.call("commands.cancel", body.clone()).await.ok();
    assert_eq!(cancelled["state"], "cancelled");
    assert!(cancelled["cancelRequestedAt"].is_string());
    let head = world.head().await;
    let again = world.call("commands.cancel", body).await.ok();
    assert_eq!(again, cancelled);
    assert_eq!(world.head().await, head, "an ended command gets no event");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a5_a_command_in_flight_keeps_its_state(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let command = world.run(node, "k").await;
    let epoch = world.connect(node).await;
    let id = world.dispatch(node, &command, epoch).await;
    let body = json!({"nodeId": node, "commandId": id});
    let asked = world.call("commands.cancel", body.clone()).await.ok();
    assert_eq!(asked["state"], "dispatched");
    assert!(asked["cancelRequestedAt"].is_string());
    assert_eq!(world.call("commands.cancel", body).await.ok(), asked);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a6_nothing_outside_the_tenants_view_is_found_in_any_method(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let other_node = world.node().await;
    let command = world.run(node, "k").await["id"].clone();
    let (stranger, stranger_token) = world.other_tenant().await;
    let nobody: NodeId = "node_01h455vb4pex5vsknk084sn02q".parse().unwrap();
    let nothing: CommandId = "cmd_01h455vb4pex5vsknk084sn02q".parse().unwrap();
    let batch: BatchId = "batch_01h455vb4pex5vsknk084sn02q".parse().unwrap();
    let run = |node: NodeId| json!({"nodeId": node, "kind": "diag.nvml", "idempotencyKey": "x"});
    let head = world.head().await;

    // The stranger in the own tenant's name, and in the name of the tenant that owns the node.
    for tenant in [stranger, world.tenant] {
        for (method, mut body) in [
            ("commands.run", run(node)),
            (
                "commands.get",
                json!({"nodeId": node, "commandId": command}),
            ),
            ("commands.list", json!({"nodeId": node})),
            (
                "commands.cancel",
                json!({"nodeId": node, "commandId": command}),
            ),
            (
                "commands.timeline",
                json!({"nodeId": node, "commandId": command}),
            ),
            ("nodes.get", json!({"nodeId": node})),
            ("nodes.list", json!({"cursor": node})),
            ("nodes.delete", json!({"nodeId": node})),
            (
                "nodes.revokeCertificate",
                json!({"nodeId": node, "reason": "r"}),
            ),
            (
                "nodes.setSpec",
                json!({"nodeId": node, "generation": 1, "spec": {}}),
            ),
            ("nodes.createJoinToken", json!({"nodeId": node})),
        ] {
            body["tenantId"] = json!(tenant);
            let answer = world.call_as(&stranger_token, method, body).await;
            assert_eq!(
                answer.code(),
                "NOT_FOUND",
                "{method} as {tenant}: {}",
                answer.body
            );
        }
    }
    let cursor = json!({"nodeId": node, "cursor": 2});
    let batched = json!({
        "nodeId": node, "kind": "diag.nvml", "idempotencyKey": "x", "batchId": batch,
    });
    for (method, body) in [
        ("commands.run", run(nobody)),
        ("commands.run", batched),
        (
            "commands.get",
            json!({"nodeId": node, "commandId": nothing}),
        ),
        (
            "commands.get",
            json!({"nodeId": other_node, "commandId": command}),
        ),
        (
            "commands.get",
            json!({"nodeId": nobody, "commandId": command}),
        ),
        ("commands.list", json!({"nodeId": nobody})),
        ("commands.list", cursor),
        (
            "commands.cancel",
            json!({"nodeId": node, "commandId": nothing}),
        ),
        (
            "commands.cancel",
            json!({"nodeId": other_node, "commandId": command}),
        ),
        (
            "commands.cancel",
            json!({"nodeId": nobody, "commandId": command}),
        ),
        (
            "commands.timeline",
            json!({"nodeId": other_node, "commandId": command}),
        ),
        ("nodes.get", json!({"nodeId": nobody})),
        ("nodes.list", json!({"cursor": nobody})),
        ("nodes.delete", json!({"nodeId": nobody})),
        (
            "nodes.revokeCertificate",
            json!({"nodeId": nobody, "reason": "r"}),
        ),
        (
            "nodes.setSpec",
            json!({"nodeId": nobody, "generation": 1, "spec": {}}),
        ),
        ("nodes.createJoinToken", json!({"nodeId": nobody})),
        (
            "tokens.list",
            json!({"cursor": "token_01h455vb4pex5vsknk084sn02q"}),
        ),
        (
            "tokens.revoke",
            json!({"tokenId": "token_01h455vb4pex5vsknk084sn02q"}),
        ),
    ] {
        let shown = body.to_string();
        let answer = world.call(method, body).await;
        assert_eq!(
            answer.code(),
            "NOT_FOUND",
            "{method} {shown}: {}",
            answer.body
        );
    }
    assert_eq!(world.head().await, head, "nothing was appended");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_the_timeline_tells_every_event_in_order(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let command = world.run(node, "k").await;
    let epoch = world.connect(node).await;
    let id = world.dispatch(node, &command, epoch).await;
    world.tell(node, epoch, id, UpdateState::Busy).await;
    world
        .call("commands.cancel", json!({"nodeId": node, "commandId": id}))
        .await
        .ok();
    let timeline = world
        .call(
            "commands.timeline",
            json!({"nodeId": node, "commandId": id}),
        )
        .await;
    let timeline = timeline.ok();
    let events = timeline["events"].as_array().unwrap();
    let types: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        types,
        [
            "command.queued",
            "command.dispatched",
            "command.returned",
            "command.cancel-requested",
            "command.settled",
        ]
    );
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["version"], json!(at + 1));
        assert!(event["id"].as_str().unwrap().starts_with("evt_"));
        assert!(event["at"].as_str().unwrap().ends_with('Z'));
    }
    assert!(events.is_sorted_by_key(|event| event["position"].as_u64()));
    assert_eq!(events[0]["actor"], "api:admin");
    assert_eq!(events[1]["actor"], "gateway:gateway-1");
    assert_eq!(events[0]["body"]["payload"], json!({}));
    assert_eq!(events[0]["body"]["notAfter"], command["notAfter"]);
    assert!(
        events[2]["body"]["retryAt"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
}
