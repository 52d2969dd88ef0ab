//! Bad input in every field of every method, byte by byte against a process (SPEC section 4).
//!
//! To add a method: a line in `METHODS`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use ledger_tests::ground::head;
use ledger_tests::http::{Caller, exchange, receive};
use ledger_tests::serve::{Service, serve};
use ledger_tests::{api, database};
use serde_json::json;
use sqlx::PgPool;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

const BODY_BYTES_MAX: usize = 1024 * 1024;

/// A field with a value that is taken, as JSON; one with `?` may be absent.
type Field = (&'static str, &'static str);

const TENANT: Field = ("tenantId", "\"TENANT\"");
const NODE: Field = ("nodeId", "\"NODE\"");
const COMMAND: Field = ("commandId", "\"COMMAND\"");
const LIMIT: Field = ("limit?", "7");
const BATCH: Field = ("batchId", "\"batch_01h455vb4pex5vsknk084sn02q\"");
const SCOPE: &str = r#"[{"subject":"NODE","kind":"node.reboot"}]"#;
const SIGNATURE: &str =
    "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\"";
const GRANTS: &str = r#"[{"permission":"compute:nodes:read","resource":"*"}]"#;

const METHODS: &[(&str, &[Field])] = &[
    (
        "commands.run",
        &[
            TENANT,
            NODE,
            ("kind", "\"inventory.refresh\""),
            ("idempotencyKey", "\"key\""),
            ("payload?", "{}"),
            ("notAfterSeconds?", "10"),
            ("batchId?", "\"batch_01h455vb4pex5vsknk084sn02q\""),
        ],
    ),
    (
        "commandBatches.create",
        &[
            TENANT,
            ("reason", "\"because\""),
            ("scope", SCOPE),
            ("idempotencyKey", "\"key\""),
            ("expiresInSeconds?", "60"),
        ],
    ),
    ("commandBatches.get", &[TENANT, BATCH]),
    (
        "commandBatches.list",
        &[
            TENANT,
            LIMIT,
            ("cursor?", "\"batch_01h455vb4pex5vsknk084sn02q\""),
        ],
    ),
    (
        "commandBatches.scope",
        &[TENANT, BATCH, LIMIT, ("cursor?", "1")],
    ),
    (
        "commandBatches.approve",
        &[
            TENANT,
            BATCH,
            (
                "publicKey",
                "\"Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\"",
            ),
            ("signature", SIGNATURE),
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
            ("state?", "\"pending\""),
            ("cursor?", "1"),
        ],
    ),
    (
        "nodes.register",
        &[
            TENANT,
            ("name", "\"n\""),
            ("role?", "\"node\""),
            ("labels?", "{\"a\":\"b\"}"),
        ],
    ),
    ("nodes.get", &[TENANT, NODE]),
    (
        "nodes.list",
        &[
            TENANT,
            LIMIT,
            ("cursor?", "\"NODE\""),
            ("includeDeleted?", "true"),
        ],
    ),
    ("nodes.delete", &[TENANT, NODE]),
    (
        "nodes.revokeCertificate",
        &[TENANT, NODE, ("reason", "\"stolen\"")],
    ),
    (
        "nodes.createJoinToken",
        &[TENANT, NODE, ("expiresInSeconds?", "60")],
    ),
    (
        "nodes.setSpec",
        &[TENANT, NODE, ("generation", "1"), ("spec", "{}")],
    ),
    (
        "tokens.create",
        &[
            TENANT,
            ("identity", "\"i\""),
            ("grants", GRANTS),
            ("expiresInSeconds?", "60"),
        ],
    ),
    (
        "tokens.list",
        &[
            TENANT,
            LIMIT,
            ("cursor?", "\"token_01h455vb4pex5vsknk084sn02q\""),
        ],
    ),
    (
        "tokens.revoke",
        &[TENANT, ("tokenId", "\"token_01h455vb4pex5vsknk084sn02q\"")],
    ),
];

/// What no field takes, each with the name of what is wrong with it.
fn bad_values() -> Vec<(&'static str, Vec<u8>)> {
    let deep = |levels: usize| [vec![b'['; levels], vec![b']'; levels]].concat();
    vec![
        ("null", b"null".to_vec()),
        ("a list of a list", b"[[]]".to_vec()),
        ("a fraction", b"0.5".to_vec()),
        ("a NUL", b"\"a\\u0000b\"".to_vec()),
        ("a NUL in a key", b"{\"\\u0000\":\"x\"}".to_vec()),
        ("a lone surrogate", b"\"\\ud800\"".to_vec()),
        ("a lone surrogate in a key", b"{\"\\udc00\":\"x\"}".to_vec()),
        ("a raw control character", b"\"\x01\"".to_vec()),
        ("no UTF-8", b"\"\xff\xfe\"".to_vec()),
        ("an encoded surrogate", b"\"\xed\xa0\x80\"".to_vec()),
        ("a huge number", b"99999999999999999999999999".to_vec()),
        (
            "a huge negative number",
            b"-99999999999999999999999999".to_vec(),
        ),
        ("a huge exponent", b"1e999999999".to_vec()),
        ("a number that is none", b"NaN".to_vec()),
        (
            "too long a text",
            [b"\"", &vec![b'x'; 100_000][..], b"\""].concat(),
        ),
        ("nesting", deep(40)),
        ("deep nesting", deep(200_000)),
        ("a bomb of objects", b"{\"a\":".repeat(100_000)),
        ("a key twice", b"{\"a\":\"1\",\"a\":\"1\"}".to_vec()),
        ("a cut text", b"\"abc".to_vec()),
    ]
}

/// Values of another type than the field's own.
fn other_types(good: &str) -> Vec<(&'static str, Vec<u8>)> {
    let is = |start: &[char]| good.starts_with(start);
    let mut bad = vec![("a boolean", "true"), ("text", "\"\""), ("a number", "-1")];
    bad.push(if is(&['{']) {
        ("a list", "[]")
    } else {
        ("an object", "{\"a\":1}")
    });
    let taken = |what: &str| what == "a boolean" && is(&['t']);
    bad.retain(|(what, _)| !taken(what));
    bad.into_iter()
        .map(|(what, value)| (what, value.as_bytes().to_vec()))
        .collect()
}

/// A body of these fields.
fn body(fields: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![b'{'];
    for (at, (name, value)) in fields.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(json!(name).to_string().as_bytes());
        body.push(b':');
        body.extend_from_slice(value);
    }
    body.push(b'}');
    body
}

struct World {
    service: Service,
    admin: Caller,
    node: String,
    command: String,
}

impl World {
    async fn start(pool: &PgPool) -> Self {
        let service = serve(&database::url(pool), None).await;
        let admin = api::admin(pool, service.address).await;
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let node = text(
            &admin
                .call("nodes.register", json!({"name": "n"}))
                .await
                .ok()["id"],
        );
        let input = json!({"nodeId": node, "kind": "diag.nvml", "idempotencyKey": "first"});
        let command = text(&admin.call("commands.run", input).await.ok()["id"]);
        Self {
            service,
            admin,
            node,
            command,
        }
    }

    fn good(&self, value: &str) -> Vec<u8> {
        let value = value
            .replace("TENANT", &self.admin.tenant)
            .replace("NODE", &self.node);
        value.replace("COMMAND", &self.command).into_bytes()
    }

    async fn stream(&self) -> TcpStream {
        TcpStream::connect(self.service.address).await.unwrap()
    }
}

/// Rows that no refused request may add to.
async fn rows(pool: &PgPool) -> (u64, Vec<i64>) {
    let mut counts = Vec::new();
    for sql in [
        "SELECT count(*) FROM nodes",
        "SELECT count(*) FROM commands_live",
        "SELECT count(*) FROM command_keys",
        "SELECT count(*) FROM node_specs",
        "SELECT count(*) FROM api_tokens",
        "SELECT count(*) FROM api_tokens WHERE revoked_at IS NOT NULL",
        "SELECT count(*) FROM join_tokens",
    ] {
        counts.push(sqlx::query_scalar(sql).fetch_one(pool).await.unwrap());
    }
    (head(pool).await, counts)
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_every_field_of_every_method_refuses_bad_input_by_name_and_writes_nothing(pool: PgPool) {
    let mut world = World::start(&pool).await;
    let before = rows(&pool).await;
    let mut stream = world.stream().await;
    let mut asked = 0;
    for (method, fields) in METHODS {
        let whole: Vec<(String, Vec<u8>)> = fields
            .iter()
            .map(|(name, good)| (name.trim_end_matches('?').to_owned(), world.good(good)))
            .collect();
        let mut cases = Vec::new();
        for (at, (name, good)) in fields.iter().enumerate() {
            let mut bad = bad_values();
            bad.extend(other_types(good));
            for (what, value) in bad {
                let mut given = whole.clone();
                given[at].1 = value;
                cases.push((what, whole[at].0.clone(), given));
            }
            if !name.ends_with('?') {
                let mut given = whole.clone();
                let (missing, _) = given.remove(at);
                cases.push(("nothing", missing, given));
            }
            let mut twice = whole.clone();
            twice.push(whole[at].clone());
            cases.push(("a field twice", whole[at].0.clone(), twice));
        }
        for unknown in ["surprise", "tenantid", "__proto__", ""] {
            let mut given = whole.clone();
            given.push((unknown.to_owned(), b"1".to_vec()));
            cases.push(("an unknown field", unknown.to_owned(), given));
        }
        for (what, field, given) in cases {
            let request = world.admin.bytes(method, &body(&given));
            let (answer, reusable) = exchange(&mut stream, &request).await;
            let shown = format!("{method}, {what} as {field}: {}", answer.body);
            assert_eq!(answer.code(), "INVALID_INPUT", "{shown}");
            let named = answer.field();
            // What is no JSON at all has no field.
            assert!(named == field || named == "body", "{shown}");
            if !reusable {
                stream = world.stream().await;
            }
            asked += 1;
        }
    }
    assert!(asked > 1_000, "{asked}");
    assert_eq!(rows(&pool).await, before);
    assert!(world.service.process.runs());
    let input = json!({"nodeId": world.node, "commandId": world.command});
    assert_eq!(
        world.admin.call("commands.get", input).await.ok()["state"],
        "pending"
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_bodies_over_the_limit_are_refused_while_they_stream(pool: PgPool) {
    let mut world = World::start(&pool).await;
    let before = rows(&pool).await;
    // One that says how large it is.
    let mut stream = world.stream().await;
    let head = world
        .admin
        .head("commands.run", "content-length: 1048577\r\n");
    let (answer, _) = exchange(&mut stream, head.as_bytes()).await;
    assert_eq!((answer.code(), answer.field()), ("INVALID_INPUT", "body"));
    // One that is sent all the same.
    let mut stream = world.stream().await;
    let request = world
        .admin
        .bytes("commands.run", &vec![b' '; BODY_BYTES_MAX + 1]);
    let (answer, _) = exchange(&mut stream, &request).await;
    assert_eq!((answer.code(), answer.field()), ("INVALID_INPUT", "body"));
    // One that never says.
    let mut stream = world.stream().await;
    let mut chunks = world
        .admin
        .head("commands.run", "transfer-encoding: chunked\r\n");
    for _ in 0..=BODY_BYTES_MAX / 0x1000 {
        write!(chunks, "1000\r\n{}\r\n", " ".repeat(0x1000)).unwrap();
    }
    let (answer, _) = exchange(&mut stream, chunks.as_bytes()).await;
    assert_eq!((answer.code(), answer.field()), ("INVALID_INPUT", "body"));
    // One that fits, with much white space.
    let mut stream = world.stream().await;
    let mut fits = json!({"tenantId": world.admin.tenant, "nodeId": world.node}).to_string();
    fits.push_str(&" ".repeat(BODY_BYTES_MAX - fits.len()));
    let request = world.admin.bytes("nodes.get", fits.as_bytes());
    assert_eq!(
        exchange(&mut stream, &request).await.0.ok()["id"],
        world.node
    );
    assert_eq!(rows(&pool).await, before);
    assert!(world.service.process.runs());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_a_body_that_trickles_is_refused_and_delays_nobody(pool: PgPool) {
    let mut world = World::start(&pool).await;
    let before = rows(&pool).await;
    let mut slow = world.stream().await;
    let head = world.admin.head("commands.run", "content-length: 1000\r\n");
    slow.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = slow.split();
    let began = Instant::now();
    let trickle = async {
        // Ends when the server does not listen any more.
        while writing.write_all(b" ").await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    let refused = async {
        let mut byte = [0];
        tokio::io::AsyncReadExt::read_exact(&mut reading, &mut byte)
            .await
            .unwrap();
        began.elapsed()
    };
    let others = async {
        loop {
            world
                .admin
                .call("nodes.get", json!({"nodeId": world.node}))
                .await
                .ok();
            sleep(Duration::from_millis(50)).await;
        }
    };
    let took = tokio::select! {
        took = refused => took,
        () = trickle => panic!("it was cut off without an answer"),
        () = others => unreachable!(),
    };
    assert!((5..30).contains(&took.as_secs()), "{took:?}");
    assert_eq!(rows(&pool).await, before);
    assert!(world.service.process.runs());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_what_is_no_http_leaves_the_process_alive(pool: PgPool) {
    let mut world = World::start(&pool).await;
    let before = rows(&pool).await;
    for bytes in [
        &b"\0\0\0\0\0\0\0\0\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /api/compute/commands/run HTTP/9.9\r\n\r\n",
        b"POST  HTTP/1.1\r\n\r\n",
        b"POST /api/compute/commands/run HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/compute/commands/run HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"POST /api/compute/commands/run HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = world.stream().await;
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer);
        let _ = ledger_tests::wait::in_time("it is answered or cut off", read).await;
        assert!(
            !answer.starts_with(b"HTTP/1.1 2"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    let mut stream = world.stream().await;
    let request = world.admin.bytes("nodes.list", b"{}");
    stream.write_all(&request).await.unwrap();
    let (answer, _) = receive(&mut stream).await;
    assert_eq!(
        (answer.code(), answer.field()),
        ("INVALID_INPUT", "tenantId")
    );
    assert_eq!(rows(&pool).await, before);
    assert!(world.service.process.runs());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a_a_head_that_is_not_one_of_http_1_1_is_refused_in_the_form_of_all_errors(pool: PgPool) {
    let service = serve(&database::url(&pool), None).await;
    let admin = api::admin(&pool, service.address).await;
    let body = json!({"tenantId": admin.tenant}).to_string();
    let good = String::from_utf8(admin.bytes("nodes.list", body.as_bytes())).unwrap();
    let host = "\r\nhost: x";
    assert!(good.contains(host));
    for (request, field, word) in [
        (
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            "head",
            "HTTP/2",
        ),
        (good.replacen(host, "", 1), "host", "0 times"),
        (
            good.replacen(host, "\r\nhost: x\r\nhost: y", 1),
            "host",
            "2 times",
        ),
        (
            "POST /api HTTP/1.1\r\nhost: x\r\nx: y".to_owned(),
            "head",
            "broke off",
        ),
    ] {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        if word == "broke off" {
            stream.shutdown().await.unwrap();
        }
        let (answer, reusable) = receive(&mut stream).await;
        assert_eq!(
            (answer.code(), answer.field()),
            ("INVALID_INPUT", field),
            "{request:?}"
        );
        let message = answer.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{request:?}: {message}");
        assert!(!reusable, "{request:?}");
    }
    // HTTP/1.0 knows no host.
    let old = good
        .replacen(host, "", 1)
        .replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    exchange(&mut stream, old.as_bytes()).await.0.ok();

    // Two lengths: the chunks count, and what follows them is not read as a request.
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let both = format!(
        "content-length: {}\r\ntransfer-encoding: chunked\r\n",
        chunked.len()
    );
    let smuggled = admin.head("nodes.list", &both) + &chunked + &good;
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let (answer, reusable) = exchange(&mut stream, smuggled.as_bytes()).await;
    answer.ok();
    assert!(!reusable);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert_eq!(String::from_utf8_lossy(&rest), "");
}
