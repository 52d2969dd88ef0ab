//! `secrets.*` (SPEC P6): what goes in never comes out.

use axum::body::Body;
use ledger::{Clock, Ledger};
use ledger_api::{Api, Options};
use ledger_protocol::kind::Registry;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::harness::{Answer, World, request, send};

/// What stands in no answer, in whatever field it came.
const CANARY: &str = "canary-8f2d";

#[track_caller]
fn silent(answer: &Answer) {
    let body = answer.body.to_string();
    assert!(!body.contains(CANARY), "{body}");
}

async fn put(world: &World, name: &str) -> Value {
    let body = json!({"name": name, "value": format!("Bearer {CANARY}")});
    let answer = world.call("secrets.put", body).await;
    silent(&answer);
    answer.ok()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_secret_is_put_replaced_listed_and_deleted_and_never_shown(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let made = put(&world, "site/bmc").await;
    assert_eq!(made["tenantId"], json!(world.tenant));
    assert_eq!(
        (&made["name"], &made["version"], &made["putBy"]),
        (&json!("site/bmc"), &json!(1), &json!("api:admin"))
    );
    assert_eq!(made["keyId"].as_str().unwrap().len(), 16, "{made}");
    assert!(made["putAt"].as_str().unwrap().ends_with('Z'), "{made}");
    let fields: Vec<_> = made.as_object().unwrap().keys().collect();
    assert_eq!(
        fields,
        ["keyId", "name", "putAt", "putBy", "tenantId", "version"]
    );

    let whom = json!({"kinds": ["site.httpProxy", "bmc.power"], "nodeIds": [node]});
    let mut body = whom.clone();
    body["name"] = json!("site/bmc");
    body["value"] = json!(CANARY);
    let replaced = world.call("secrets.put", body).await;
    silent(&replaced);
    let replaced = replaced.ok();
    assert_eq!(replaced["version"], 2);
    assert_eq!(replaced["kinds"], json!(["bmc.power", "site.httpProxy"]));
    assert_eq!(replaced["nodeIds"], json!([node]));

    let listed = world.call("secrets.list", json!({})).await;
    silent(&listed);
    assert_eq!(listed.ok(), json!({"items": [replaced]}));
    let deleted = world.call("secrets.delete", json!({"name": "site/bmc"}));
    assert_eq!(deleted.await.ok(), replaced);
    let again = world.call("secrets.delete", json!({"name": "site/bmc"}));
    assert_eq!(again.await.code(), "NOT_FOUND");
    let listed = world.call("secrets.list", json!({})).await.ok();
    assert_eq!(listed, json!({"items": []}));
    assert_eq!(put(&world, "site/bmc").await["version"], 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_secrets_are_listed_page_by_page_by_name(pool: PgPool) {
    let world = World::start(pool).await;
    let names = ["0", "a", "a-b", "a.b", "a/b", "a0", "a_b", "b"];
    let mut sorted = names;
    sorted.sort_unstable();
    for name in names.iter().rev() {
        put(&world, name).await;
    }
    let mut seen = Vec::new();
    let mut input = json!({"limit": 3});
    loop {
        let page = world.call("secrets.list", input.clone()).await.ok();
        let items = page["items"].as_array().unwrap();
        let name = |item: &Value| item["name"].as_str().unwrap().to_owned();
        seen.extend(items.iter().map(name));
        let Some(cursor) = page.get("cursor") else {
            break;
        };
        // A page goes on after a secret that is gone by now.
        let gone = world.call("secrets.delete", json!({"name": cursor}));
        gone.await.ok();
        input["cursor"] = cursor.clone();
    }
    assert_eq!(seen, sorted);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_secrets_are_for_who_may_administer_them_in_their_own_tenant(pool: PgPool) {
    let world = World::start(pool).await;
    put(&world, "bmc").await;
    let every_other = ledger_api::auth::Permission::ALL
        .map(ledger_api::auth::Permission::as_str)
        .into_iter()
        .filter(|permission| *permission != "compute:secrets:admin")
        .map(|permission| json!({"permission": permission, "resource": "*"}));
    let every_other = world.token("ops", every_other.collect()).await;
    let own = json!([{"permission": "compute:secrets:admin", "resource": "*"}]);
    let own = world.token("keeper", own).await;
    let nodes = json!([{"permission": "compute:secrets:admin", "resource": "compute-node/*"}]);
    let nodes = world.token("nodes", nodes).await;
    for (method, body) in [
        ("secrets.put", json!({"name": "bmc", "value": CANARY})),
        ("secrets.list", json!({})),
        ("secrets.delete", json!({"name": "bmc"})),
    ] {
        for token in [&every_other, &nodes] {
            let refused = world.call_as(token, method, body.clone()).await;
            silent(&refused);
            assert_eq!(refused.code(), "PERMISSION_DENIED", "{method}");
        }
        let (_, stranger) = world.other_tenant().await;
        let refused = world.call_as(&stranger, method, body.clone()).await;
        silent(&refused);
        assert_eq!(refused.code(), "NOT_FOUND", "{method}");
        world.call_as(&own, method, body).await.ok();
    }

    // What another tenant has under the same name is another secret.
    put(&world, "bmc").await;
    let (tenant, stranger) = world.other_tenant().await;
    let listed = json!({"tenantId": tenant});
    let listed = world.call_as(&stranger, "secrets.list", listed).await.ok();
    assert_eq!(listed, json!({"items": []}));
    let deleted = json!({"tenantId": tenant, "name": "bmc"});
    let deleted = world.call_as(&stranger, "secrets.delete", deleted).await;
    assert_eq!(deleted.code(), "NOT_FOUND");
    let node = world.node().await;
    let body = json!({"tenantId": tenant, "name": "bmc", "value": CANARY, "nodeIds": [node]});
    let refused = world.call_as(&stranger, "secrets.put", body).await;
    silent(&refused);
    assert_eq!(refused.code(), "NOT_FOUND");
    let listed = world.call("secrets.list", json!({})).await.ok();
    assert_eq!(listed["items"][0]["version"], 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_no_refusal_repeats_a_value_wherever_it_stands(pool: PgPool) {
    let world = World::start(pool).await;
    let head = world.head().await;
    let tenant = world.tenant;
    let long = CANARY.repeat(17 * 1024 / CANARY.len());
    let number = "8675309424242";
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for fields in [
        // A value of another type, also one with a key twice.
        format!(r#""name":"bmc","value":{number}"#),
        format!(r#""name":"bmc","value":{number}{number}"#),
        format!(r#""name":"bmc","value":{number}.5e300"#),
        r#""name":"bmc","value":true"#.to_owned(),
        r#""name":"bmc","value":null"#.to_owned(),
        r#""name":"bmc","value":"""#.to_owned(),
        format!(r#""name":"bmc","value":["{CANARY}"]"#),
        format!(r#""name":"bmc","value":{{"{CANARY}":"{CANARY}"}}"#),
        format!(r#""name":"bmc","value":{{"{CANARY}":1,"{CANARY}":2}}"#),
        format!(r#""name":"bmc","value":[{{"{CANARY}":1,"{CANARY}":2}}]"#),
        format!(r#""name":"bmc","value":{{"{CANARY}\u0000":1}}"#),
        // Too long, with a NUL, twice.
        format!(r#""name":"bmc","value":"{long}""#),
        format!(r#""name":"bmc","value":"{CANARY}\u0000""#),
        format!(r#""name":"bmc","value":"{CANARY}\ud800""#),
        format!(r#""name":"bmc","value":"{CANARY}\x""#),
        format!(r#""name":"bmc","value":"{CANARY}","value":"{CANARY}""#),
        // Beside a fault of another field, and in the wrong one.
        format!(r#""name":"bmc","vlaue":"{CANARY}""#),
        format!(r#""name":"bmc","value":"{CANARY}","more":"{CANARY}""#),
        format!(r#""value":"{CANARY}""#),
        format!(r#""name":7,"value":"{CANARY}""#),
        format!(r#""name":"Bearer {CANARY}","value":"{CANARY}""#),
        format!(r#""name":"bmc","value":"x","kinds":["{CANARY}"]"#),
        format!(r#""name":"bmc","value":"x","kinds":[{{"{CANARY}":1}}]"#),
        format!(r#""name":"bmc","value":"x","kinds":"{CANARY}""#),
        format!(r#""name":"bmc","value":"x","nodeIds":["{CANARY}"]"#),
        format!(r#""name":"bmc","value":"x","nodeIds":"{CANARY}""#),
        r#""name":"bmc","value":"x","kinds":["bmc.power","bmc.power"]"#.to_owned(),
        r#""name":"bmc","value":"x","kinds":[]"#.to_owned(),
    ] {
        bodies.push(format!(r#"{{"tenantId":"{tenant}",{fields}}}"#).into());
    }
    let whole = format!(r#"{{"tenantId":"{tenant}","name":"bmc","value":"{CANARY}"}}"#);
    for end in [1, 2, 5, CANARY.len() + 1] {
        bodies.push(whole.as_bytes()[..whole.len() - end].to_vec());
    }
    bodies.push(format!("{whole}{CANARY}").into());
    bodies.push(format!("{CANARY}{whole}").into());
    bodies.push(whole.replace('"', "'").into());
    bodies.push(format!("[{whole}]").into());
    bodies.push(format!("\"{CANARY}\"").into());
    let mut invalid = whole.clone().into_bytes();
    let end = invalid.len() - 2;
    invalid.insert(end, 0xff);
    bodies.push(invalid);
    let mut nul = whole.into_bytes();
    nul.insert(end, 0);
    bodies.push(nul);
    for body in bodies {
        let shown: String = String::from_utf8_lossy(&body).chars().take(200).collect();
        let sent = request(&world.token, "secrets.put", Body::from(body));
        let answer = world.raw(sent).await;
        silent(&answer);
        assert!(!answer.body.to_string().contains(number), "{}", answer.body);
        assert_eq!(answer.code(), "INVALID_INPUT", "{shown}");
    }
    let listed = world.call("secrets.list", json!({})).await.ok();
    assert_eq!(listed, json!({"items": []}), "nothing was put");
    assert_eq!(world.head().await, head);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_value_has_up_to_16_kib_of_any_text(pool: PgPool) {
    let world = World::start(pool).await;
    let longest = "\u{fc}".repeat(8 * 1024);
    for value in [
        longest.as_str(),
        "a",
        "line\nline\r\n",
        "\u{7f}\u{202e}",
        " ",
    ] {
        let body = json!({"name": "bmc", "value": value});
        world.call("secrets.put", body).await.ok();
    }
    let body = json!({"name": "bmc", "value": format!("{longest}a")});
    let refused = world.call("secrets.put", body).await;
    assert_eq!(
        (refused.code(), refused.field()),
        ("INVALID_INPUT", "value")
    );
    let told = refused.body["error"]["message"].as_str().unwrap();
    assert!(told.contains("16384") && told.contains("16385"), "{told}");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_service_without_a_master_key_says_so(pool: PgPool) {
    let world = World::start(pool).await;
    put(&world, "bmc").await;
    let tasks = TaskTracker::new();
    let setting = ledger::Options::new(Registry::builtin(), Clock::system());
    let ledger = Ledger::start(
        world.pool.clone(),
        setting,
        &tasks,
        CancellationToken::new(),
    );
    let router = ledger_api::router(Api::new(ledger.unwrap(), Options::default(), &tasks));
    let ask = async |method: &str, body: Value| {
        let sent = request(&world.token, method, body.to_string());
        send(&router, sent).await
    };
    let tenant = world.tenant;
    let body = json!({"tenantId": tenant, "name": "bmc", "value": CANARY});
    let refused = ask("secrets.put", body).await;
    silent(&refused);
    assert_eq!(refused.code(), "INVALID_STATE");
    assert_eq!(refused.body["error"]["details"]["reason"], "no-master-key");
    let told = refused.body["error"]["message"].as_str().unwrap();
    assert!(told.contains("--secrets-key"), "{told}");
    // What needs no key works.
    let listed = ask("secrets.list", json!({"tenantId": tenant})).await.ok();
    assert_eq!(listed["items"][0]["version"], 1);
    let body = json!({"tenantId": tenant, "name": "bmc"});
    ask("secrets.delete", body).await.ok();
}
