//! Bad input in every field of every method: a named error, and nothing half done.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, header};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use sqlx::PgPool;

use crate::harness::{World, request};

/// What a field takes.
#[derive(Clone, Copy)]
enum Takes {
    /// The tenant's own id.
    Tenant,
    Id,
    /// Text of at most so many characters or bytes.
    Text(usize),
    Word,
    Integer(u64, u64),
    Flag,
    Object,
    Texts,
    Grants,
    /// A batch's leaves.
    Scope,
    /// So many bytes as base64.
    Base64(usize),
    Cursor,
    SecretName,
    Value,
    Kinds,
    Nodes,
}

use Takes::{
    Base64, Cursor, Flag, Grants, Id, Integer, Kinds, Nodes, Object, Scope, SecretName, Tenant,
    Text, Texts, Value, Word,
};

struct Field {
    name: &'static str,
    takes: Takes,
    /// A value that is taken, as JSON text.
    good: &'static str,
    required: bool,
}

const fn required(name: &'static str, takes: Takes, good: &'static str) -> Field {
    Field {
        name,
        takes,
        good,
        required: true,
    }
}

const fn optional(name: &'static str, takes: Takes, good: &'static str) -> Field {
    Field {
        name,
        takes,
        good,
        required: false,
    }
}

const NODE: Field = required("nodeId", Id, "\"NODE\"");
const COMMAND: Field = required("commandId", Id, "\"COMMAND\"");
const TENANT: Field = required("tenantId", Tenant, "\"TENANT\"");
const BATCH: Field = required("batchId", Id, "\"batch_01h455vb4pex5vsknk084sn02q\"");
const LIMIT: Field = optional("limit", Integer(1, 200), "7");

const METHODS: &[(&str, &[Field])] = &[
    (
        "commands.run",
        &[
            TENANT,
            NODE,
            required("kind", Text(100), "\"inventory.refresh\""),
            required("idempotencyKey", Text(200), "\"key\""),
            optional("payload", Object, "{}"),
            optional("notAfterSeconds", Integer(10, 3_600), "10"),
            optional("batchId", Id, "\"batch_01h455vb4pex5vsknk084sn02q\""),
        ],
    ),
    (
        "commandBatches.create",
        &[
            TENANT,
            required("reason", Text(1_000), "\"because\""),
            required(
                "scope",
                Scope,
                "[{\"subject\":\"NODE\",\"kind\":\"node.reboot\"}]",
            ),
            required("idempotencyKey", Text(200), "\"key\""),
            optional("expiresInSeconds", Integer(60, 604_800), "60"),
        ],
    ),
    ("commandBatches.get", &[TENANT, BATCH]),
    (
        "commandBatches.list",
        &[
            TENANT,
            LIMIT,
            optional("cursor", Id, "\"batch_01h455vb4pex5vsknk084sn02q\""),
        ],
    ),
    (
        "commandBatches.scope",
        &[
            TENANT,
            BATCH,
            LIMIT,
            optional("cursor", Integer(1, 10_000), "1"),
        ],
    ),
    (
        "commandBatches.approve",
        &[
            TENANT,
            BATCH,
            required(
                "publicKey",
                Base64(32),
                "\"Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\"",
            ),
            required(
                "signature",
                Base64(64),
                "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\"",
            ),
        ],
    ),
    ("commands.get", &[TENANT, NODE, COMMAND]),
    ("commands.cancel", &[TENANT, NODE, COMMAND]),
    ("commands.timeline", &[TENANT, NODE, COMMAND]),
    (
        "commands.list",
        &[
            TENANT,
            NODE,
            LIMIT,
            optional("state", Word, "\"pending\""),
            optional("cursor", Cursor, "1"),
        ],
    ),
    (
        "nodes.register",
        &[
            TENANT,
            required("name", Text(200), "\"n\""),
            optional("role", Word, "\"node\""),
            optional("labels", Texts, "{\"a\":\"b\"}"),
        ],
    ),
    ("nodes.get", &[TENANT, NODE]),
    (
        "nodes.list",
        &[
            TENANT,
            LIMIT,
            optional("cursor", Id, "\"NODE\""),
            optional("includeDeleted", Flag, "true"),
        ],
    ),
    ("nodes.delete", &[TENANT, NODE]),
    (
        "nodes.revokeCertificate",
        &[TENANT, NODE, required("reason", Text(200), "\"stolen\"")],
    ),
    (
        "nodes.createJoinToken",
        &[
            TENANT,
            NODE,
            optional("expiresInSeconds", Integer(60, 604_800), "60"),
        ],
    ),
    (
        "nodes.setSpec",
        &[
            TENANT,
            NODE,
            required("generation", Integer(1, 9_007_199_254_740_991), "1"),
            required("spec", Object, "{}"),
        ],
    ),
    (
        "secrets.put",
        &[
            TENANT,
            required("name", SecretName, "\"site/bmc\""),
            required("value", Value, "\"hunter2\""),
            optional("kinds", Kinds, "[\"bmc.power\"]"),
            optional("nodeIds", Nodes, "[\"NODE\"]"),
        ],
    ),
    (
        "secrets.list",
        &[
            TENANT,
            LIMIT,
            optional("cursor", SecretName, "\"site/bmc\""),
        ],
    ),
    (
        "secrets.delete",
        &[TENANT, required("name", SecretName, "\"site/bmc\"")],
    ),
    (
        "tokens.create",
        &[
            TENANT,
            required("identity", Text(200), "\"i\""),
            required(
                "grants",
                Grants,
                "[{\"permission\":\"compute:nodes:read\",\"resource\":\"*\"}]",
            ),
            optional("expiresInSeconds", Integer(1, 316_224_000), "60"),
        ],
    ),
    (
        "tokens.list",
        &[
            TENANT,
            LIMIT,
            optional("cursor", Id, "\"token_01h455vb4pex5vsknk084sn02q\""),
        ],
    ),
    (
        "tokens.revoke",
        &[
            TENANT,
            required("tokenId", Id, "\"token_01h455vb4pex5vsknk084sn02q\""),
        ],
    ),
];

/// Values that the field must refuse, as JSON text.
fn bad_values(takes: Takes) -> Vec<String> {
    let mut bad: Vec<String> = [
        "null",
        "\"a\\u0000b\"",
        "{\"\\u0000\":\"\"}",
        "99999999999999999999999999",
        "-99999999999999999999999999",
        "1e300",
        "1e-400000",
        "{\"a\":\"1\",\"a\":\"1\"}",
    ]
    .map(str::to_owned)
    .into();
    bad.push(format!("{}{}", "[".repeat(40), "]".repeat(40)));
    bad.push(format!("{}1{}", "{\"a\":".repeat(5_000), "}".repeat(5_000)));
    let other_types = |kept: &[&str]| {
        let types = ["true", "0.5", "\"\"", "[]", "[1]"];
        types
            .into_iter()
            .filter(|text| !kept.contains(text))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    match takes {
        Tenant | Id => {
            bad.extend(other_types(&[]));
            for text in [
                "x",
                "node_",
                "node_8zzzzzzzzzzzzzzzzzzzzzzzzz",
                "NODE_01h455vb4pex5vsknk084sn02q",
                "evt_01h455vb4pex5vsknk084sn02q",
                " node_01h455vb4pex5vsknk084sn02q",
                "node_01h455vb4pex5vsknk084sn02q' or 1=1",
            ] {
                bad.push(format!("\"{text}\""));
            }
            bad.push(format!("\"{}\"", "x".repeat(100_000)));
            bad.push("{}".to_owned());
        }
        Text(max) => {
            bad.extend(other_types(&[]));
            bad.push(format!("\"{}\"", "x".repeat(max + 1)));
            bad.push(format!("\"{}\"", "\u{e9}".repeat(max + 1)));
            bad.extend(
                [
                    "\"a\\nb\"",
                    "\"\\u0007\"",
                    "\"\\u0085\"",
                    "\"\\u2028\"",
                    "{}",
                ]
                .map(str::to_owned),
            );
        }
        Word => {
            bad.extend(other_types(&[]));
            bad.extend(["\"PENDING\"", "\"no such\"", "{}"].map(str::to_owned));
        }
        Integer(min, max) => {
            bad.extend(other_types(&[]));
            bad.push((max + 1).to_string());
            bad.push((min - 1).to_string());
            bad.extend(["-1", "-0.0", "7.5", "\"7\"", "{}"].map(str::to_owned));
        }
        Flag => bad.extend(["0", "1", "\"true\"", "[]", "{}"].map(str::to_owned)),
        Object => bad.extend(other_types(&[])),
        Texts => {
            bad.extend(other_types(&[]));
            for object in [
                "{\"a\":1}",
                "{\"a\":null}",
                "{\"\":\"x\"}",
                "{\"a\":\"\\n\"}",
            ] {
                bad.push(object.to_owned());
            }
            bad.push(format!("{{\"{}\":\"\"}}", "k".repeat(201)));
            let many: Vec<_> = (0..65).map(|number| format!("\"{number}\":\"\"")).collect();
            bad.push(format!("{{{}}}", many.join(",")));
        }
        Grants => {
            bad.extend(other_types(&[]));
            for list in [
                "[{}]",
                "[null]",
                "[{\"permission\":\"compute:nodes:read\"}]",
            ] {
                bad.push(list.to_owned());
            }
            let many = vec!["{\"permission\":\"compute:nodes:read\",\"resource\":\"*\"}"; 101];
            bad.push(format!("[{}]", many.join(",")));
        }
        Scope => {
            bad.extend(other_types(&[]));
            let leaf = |leaf: &str| {
                let node = "node_01h455vb4pex5vsknk084sn02q";
                format!("[{}]", leaf.replace("NODE", node))
            };
            let zeros = "0".repeat(64);
            for text in [
                "{}",
                "null",
                "{\"subject\":\"NODE\"}",
                "{\"subject\":\"x\",\"kind\":\"node.reboot\"}",
                "{\"subject\":1,\"kind\":\"node.reboot\"}",
                "{\"subject\":\"NODE\",\"kind\":\"\"}",
                "{\"subject\":\"NODE\",\"kind\":\"node.reboot\",\"more\":1}",
                "{\"subject\":\"NODE\",\"kind\":\"node.reboot\",\"payloadSha256\":\"ab\"}",
                "{\"subject\":\"NODE\",\"kind\":\"node.reboot\",\"payloadSha256\":null}",
            ] {
                bad.push(leaf(text));
            }
            let one = "{\"subject\":\"NODE\",\"kind\":\"node.reboot\"}";
            bad.push(leaf(&one.replace(
                '}',
                &format!(",\"payloadSha256\":\"{}\"}}", zeros.replace('0', "g")),
            )));
            bad.push(format!("[{}]", vec!["1"; 10_001].join(",")));
        }
        Base64(bytes) => {
            bad.extend(other_types(&[]));
            let chars = bytes.div_ceil(3) * 4;
            bad.push(format!("\"{}\"", "A".repeat(chars)));
            bad.push(format!("\"{}\"", "*".repeat(chars)));
            bad.push(format!("\"{}\"", "A".repeat(chars + 4)));
            bad.push("{}".to_owned());
        }
        SecretName => {
            bad.extend(other_types(&[]));
            for text in ["A", "a b", "/a", "a/", "-a", "a\\n", "ä", "a:b"] {
                bad.push(format!("\"{text}\""));
            }
            bad.push(format!("\"{}\"", "a".repeat(201)));
            bad.push("{}".to_owned());
        }
        Value => {
            bad.extend(other_types(&[]));
            bad.push(format!("\"{}\"", "a".repeat(16 * 1024 + 1)));
            bad.push("{}".to_owned());
        }
        Kinds | Nodes => {
            bad.extend(other_types(&[]));
            for list in ["[\"\"]", "[\"nothing\"]", "[null]", "[{}]", "[[]]", "{}"] {
                bad.push(list.to_owned());
            }
            bad.push(format!("[{}]", vec!["\"x\""; 1_001].join(",")));
        }
        Cursor => {
            bad.extend(other_types(&[]));
            bad.extend(
                ["0", "-1", "\"x\"", "\"-1\"", "\" 1\"", "\"1.0\"", "{}"].map(str::to_owned),
            );
            bad.push("\"99999999999999999999\"".to_owned());
            bad.push("9007199254740992".to_owned());
        }
    }
    bad
}

fn body(fields: &[(&str, String)]) -> String {
    let fields = fields
        .iter()
        .map(|(name, value)| format!("{}:{value}", json!(name)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_every_field_of_every_method_refuses_bad_input_by_name(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let command = world.run(node, "first").await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let head = world.head().await;
    let good = |field: &Field| {
        let value = field.good.replace("NODE", &node.to_string());
        let value = value.replace("COMMAND", &command);
        value.replace("TENANT", &world.tenant.to_string())
    };
    let mut asked = 0;
    for (method, fields) in METHODS {
        let whole: Vec<_> = fields
            .iter()
            .map(|field| (field.name, good(field)))
            .collect();
        let mut cases = Vec::new();
        for (at, field) in fields.iter().enumerate() {
            for bad in bad_values(field.takes) {
                let mut given = whole.clone();
                given[at].1 = bad;
                cases.push((given, field.name));
            }
            if field.required {
                let mut given = whole.clone();
                given.remove(at);
                cases.push((given, field.name));
            }
            let mut twice = whole.clone();
            twice.push(twice[at].clone());
            cases.push((twice, field.name));
        }
        for unknown in ["surprise", "tenantid", "dryRun", "", "__proto__"] {
            let mut given = whole.clone();
            given.push((unknown, "1".to_owned()));
            cases.push((given, unknown));
        }
        for (given, field) in cases {
            let body = body(&given);
            let shown: String = body.chars().take(300).collect();
            let answer = world.raw(request(&world.token, method, body)).await;
            assert_eq!(
                answer.code(),
                "INVALID_INPUT",
                "{method} {shown}: {}",
                answer.body
            );
            let named = answer.field();
            // What the grammar itself forbids is the body's fault.
            let grammar = shown.contains("e-400000") && named == "body";
            assert!(
                named == field || grammar,
                "{method} {shown}: {}",
                answer.body
            );
            let message = answer.body["error"]["message"].as_str().unwrap();
            assert!(message.len() < 1_000, "{message}");
            asked += 1;
        }
    }
    assert!(asked > 500, "{asked}");
    assert_eq!(world.head().await, head, "nothing was appended");
    for table in ["join_tokens", "api_tokens", "secrets"] {
        let sql = format!("SELECT count(*) FROM {table}");
        let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&world.pool)
            .await
            .unwrap();
        assert_eq!(rows, i64::from(table == "api_tokens"), "{table}");
    }
    world.run(node, "last").await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_a_key_has_200_printable_characters_of_any_script(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    for key in [
        "k".to_owned(),
        "\u{1f600}".repeat(200),
        "two words".to_owned(),
        "a'\"\\;--".to_owned(),
    ] {
        let command = world.run(node, &key).await;
        let again = world.run(node, &key).await;
        assert_eq!(again["id"], command["id"]);
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_what_nobody_sees_stands_in_no_key_and_no_name(pool: PgPool) {
    let world = World::start(pool).await;
    let node = world.node().await;
    let head = world.head().await;
    for (text, given) in [
        ("a\u{202e}b", "U+202E"),
        ("a\u{2066}b", "U+2066"),
        ("a\u{200b}b", "U+200B"),
        ("a\u{200d}b", "U+200D"),
        ("a\u{ad}b", "U+00AD"),
        ("a\u{a0}b", "U+00A0"),
        ("a\u{e0041}b", "U+E0041"),
        ("a\u{fe0f}", "U+FE0F"),
        ("a\u{85}", "U+0085"),
        ("a\n", "U+000A"),
        (" ", "space"),
        (" a", "space"),
        ("a ", "space"),
    ] {
        let run = json!({"nodeId": node, "kind": "diag.nvml", "idempotencyKey": text});
        let grants = json!([{"permission": "compute:nodes:read", "resource": "*"}]);
        for (method, field, input) in [
            ("commands.run", "idempotencyKey", run),
            ("nodes.register", "name", json!({"name": text})),
            (
                "nodes.register",
                "labels",
                json!({"name": "n", "labels": {"rack": text}}),
            ),
            (
                "nodes.register",
                "labels",
                json!({"name": "n", "labels": {text: "7"}}),
            ),
            (
                "tokens.create",
                "identity",
                json!({"identity": text, "grants": grants}),
            ),
        ] {
            let answer = world.call(method, input).await;
            assert_eq!(
                (answer.code(), answer.field()),
                ("INVALID_INPUT", field),
                "{text:?}"
            );
            let message = answer.body["error"]["message"].as_str().unwrap();
            assert!(message.contains(given), "{method} {text:?}: {message}");
            assert!(!message.contains('\u{202e}'), "{message}");
        }
        let made = ledger_api::auth::create_tenant(&world.pool, text, world.ledger.now()).await;
        let refused = made.unwrap_err();
        assert_eq!(refused.code(), ledger_api::Code::InvalidInput, "{refused}");
    }
    assert_eq!(world.head().await, head, "nothing was appended");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_a_request_that_is_not_json_over_post_gets_a_code_of_the_table(pool: PgPool) {
    let world = World::start(pool).await;
    let build = |http: Method, path: &str, headers: &[(header::HeaderName, &str)], body: &str| {
        let mut request = Request::builder().method(http).uri(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        request.body(Body::from(body.to_owned())).unwrap()
    };
    let bearer = format!("Bearer {}", world.token);
    let auth = (header::AUTHORIZATION, bearer.as_str());
    let json_type = (header::CONTENT_TYPE, "application/json");
    let list = "/api/compute/nodes/list";
    let good = format!("{{\"tenantId\":\"{}\"}}", world.tenant);
    let full = [auth.clone(), json_type.clone()];
    for path in [
        "/",
        "/api",
        "/api/compute/nodes/nope",
        "/api/compute/nodes/list/",
        "/favicon.ico",
    ] {
        let answer = world.raw(build(Method::POST, path, &full, &good)).await;
        assert_eq!(answer.code(), "NOT_FOUND", "{path}");
        let answer = world.raw(build(Method::GET, path, &[], "")).await;
        assert_eq!(answer.code(), "NOT_FOUND", "{path}");
    }
    let custom = Method::from_bytes(b"BREW").unwrap();
    for http in [
        Method::GET,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
        custom,
    ] {
        let answer = world.raw(build(http.clone(), list, &full, &good)).await;
        assert_eq!(
            (answer.code(), answer.field()),
            ("INVALID_INPUT", "method"),
            "{http}"
        );
    }
    for media in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonx",
        "",
        "é",
    ] {
        let headers = [auth.clone(), (header::CONTENT_TYPE, media)];
        let answer = world.raw(build(Method::POST, list, &headers, &good)).await;
        assert_eq!(
            (answer.code(), answer.field()),
            ("INVALID_INPUT", "content-type"),
            "{media}"
        );
    }
    let answer = world
        .raw(build(
            Method::POST,
            list,
            std::slice::from_ref(&auth),
            &good,
        ))
        .await;
    assert_eq!(answer.field(), "content-type");
    let latin = [
        auth.clone(),
        (header::CONTENT_TYPE, "application/json; charset=latin1"),
    ];
    assert_eq!(
        world
            .raw(build(Method::POST, list, &latin, &good))
            .await
            .field(),
        "content-type"
    );
    let gzip = [
        auth.clone(),
        json_type.clone(),
        (header::CONTENT_ENCODING, "gzip"),
    ];
    assert_eq!(
        world
            .raw(build(Method::POST, list, &gzip, &good))
            .await
            .field(),
        "content-encoding"
    );
    let utf_8 = [
        auth.clone(),
        (header::CONTENT_TYPE, "Application/JSON; charset=\"UTF-8\""),
    ];
    world
        .raw(build(Method::POST, list, &utf_8, &good))
        .await
        .ok();
    for body in ["", "[]", "nope", "{", "\u{feff}{}", "1"] {
        let answer = world.raw(build(Method::POST, list, &full, body)).await;
        assert_eq!(
            (answer.code(), answer.field()),
            ("INVALID_INPUT", "body"),
            "{body:?}"
        );
    }
    let bytes = request(&world.token, "nodes.list", vec![0x7b, 0xff, 0x7d]);
    assert_eq!(world.raw(bytes).await.field(), "body");
    world
        .raw(build(Method::POST, list, &full, &good))
        .await
        .ok();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h7_liveness_and_readiness_answer(pool: PgPool) {
    let world = World::start(pool).await;
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    assert_eq!(
        world.raw(get("/healthz")).await.ok(),
        json!({"alive": true})
    );
    assert_eq!(world.raw(get("/readyz")).await.ok(), json!({"ready": true}));
    let post = Request::post("/healthz").body(Body::empty()).unwrap();
    assert_eq!(world.raw(post).await.code(), "INVALID_INPUT");
    world.pool.close().await;
    assert_eq!(world.raw(get("/readyz")).await.code(), "UNAVAILABLE");
    assert_eq!(
        world.raw(get("/healthz")).await.ok(),
        json!({"alive": true})
    );
    // The token was never seen here, so only the database could tell whose it is.
    let answer = world.call("nodes.list", json!({})).await;
    assert_eq!(answer.code(), "UNAVAILABLE");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_more_requests_than_the_service_takes_are_refused_at_once(pool: PgPool) {
    let world = World::start(pool).await;
    let body = || Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, Infallible>>());
    let mut endless: FuturesUnordered<_> = (0..=ledger_api::limits::REQUESTS_IN_FLIGHT_MAX)
        .map(|_| world.raw(request(&world.token, "nodes.list", body())))
        .collect();
    let refused = tokio::time::timeout(Duration::from_secs(5), endless.next()).await;
    let refused = refused.expect("one more than the limit waits").unwrap();
    assert_eq!(refused.code(), "LIMIT_EXCEEDED");
    drop(endless);
    world.call("nodes.list", json!({})).await.ok();
}
