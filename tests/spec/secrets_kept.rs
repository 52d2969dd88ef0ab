//! A secret in the processes of the product: whoever has no need to know does not (SPEC P6).

use ed25519_dalek::SigningKey;
use ledger::{Clock, Ledger, Options};
use ledger_protocol::event::{Actor, NodeCertified, NodeRegistered};
use ledger_protocol::frame::SecretRequest;
use ledger_protocol::id::{JournalId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::node::OpenSession;
use ledger_protocol::secret::{Exchange, PrivateKey};
use ledger_tests::process::Process;
use ledger_tests::serve::{install, serve_with};
use ledger_tests::{database, wait};
use rustix::process::Signal;
use serde_json::json;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const CANARY: &str = "canary-8f2d41";
const NAME: &str = "site/bmc";

/// How many rows of each table hold the canary, as text or as bytes.
async fn found(pool: &PgPool) -> Vec<(String, i64)> {
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT c.oid::regclass::text FROM pg_class AS c
         JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname = 'public' AND c.relkind = 'r' ORDER BY 1",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    let mut found = Vec::new();
    for table in tables {
        let sql = format!(
            "SELECT count(*) FROM {table} AS t WHERE position($1 IN t::text) > 0
                 OR position(encode(convert_to($1, 'UTF8'), 'hex') IN t::text) > 0"
        );
        let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(CANARY)
            .fetch_one(pool)
            .await
            .unwrap();
        found.push((table, rows));
    }
    found
}

/// The value that a node gets of the keeper in another process, asked as a gateway asks.
async fn exchanged(pool: &PgPool, tenant: TenantId) -> Vec<u8> {
    let clock = Clock::system();
    let tasks = TaskTracker::new();
    let options = Options::new(Registry::builtin(), clock);
    let stop = CancellationToken::new();
    let ledger = Ledger::start(pool.clone(), options, &tasks, stop.clone()).unwrap();
    let actor = Actor::gateway("gateway-1");
    let registered = NodeRegistered {
        labels: std::collections::BTreeMap::default(),
        name: "site".to_owned(),
        role: Role::Site,
    };
    let node = ledger.register_node(&actor, tenant, registered).await;
    let node = node.unwrap().id;
    let key = SigningKey::from_bytes(&[9; 32]);
    let now = ledger.now();
    let certified = NodeCertified {
        allowed_kinds: None,
        fingerprint: "00".repeat(32),
        not_after: now.plus_seconds(1_000),
        not_before: now,
        public_key: key.verifying_key().to_bytes().to_vec(),
        renews: None,
    };
    ledger.certify(&actor, node, certified).await.unwrap();
    let open = OpenSession {
        agent_version: "1".to_owned(),
        applied_generation: 0,
        boot_id: "b".to_owned(),
        certificate: None,
        gateway: "gateway-1".to_owned(),
        gateway_lease: None,
        journal_id: JournalId::new(now, [1; 10]),
        highest_seq: 0,
        role: Role::Site,
    };
    let opened = ledger.open_session(&actor, node, open, Vec::new()).await;
    let epoch = opened.unwrap().node.epoch;
    let run = ledger::Run {
        tenant,
        node,
        kind: "site.httpProxy".to_owned(),
        payload: json!({"url": "https://bmc.example", "method": "GET", "secretRef": NAME}),
        idempotency_key: "wf:a:1".to_owned(),
        not_after: now.plus_seconds(600),
        not_before: None,
        min_generation: None,
        batch_id: None,
    };
    let command = ledger.enqueue(&actor, run).await.unwrap().command.id;
    let sent = ledger.dispatch(&actor, node, command, epoch).await;
    sent.unwrap();
    let one_time = PrivateKey::derive(&[7; 32].into());
    let exchange = Exchange {
        command_id: command,
        key: one_time.public(),
        node_id: node,
        secret_ref: NAME,
    };
    let request = SecretRequest {
        command_id: command,
        key: one_time.public(),
        node_sig: Some(exchange.sign(&key).unwrap().to_vec()),
        secret_ref: NAME.to_owned(),
    };
    let answer = wait::found("the keeper's answer", async || {
        ledger.exchange_secret(node, &request).await.unwrap()
    })
    .await;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    let value = one_time.open(&exchange, &answer.sealed.unwrap()).unwrap();
    value.reveal().to_vec()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_secret_stands_in_no_log_and_in_no_row(pool: PgPool) {
    let postgres = database::url(&pool);
    let caller = install(&postgres).await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("secrets.key");
    let key = key.to_str().unwrap();
    let id = Process::output(&["secret", "keygen", key]).await;
    // The libraries too tell all that they can.
    let level = "trace,sqlx=trace,hyper=trace,rustls=trace";
    let more = ["--secrets-key", key, "--log-level", level];
    let mut service = serve_with(&postgres, &more).await;
    let caller = caller.at(service.address);
    let to = [
        "--api",
        &caller.api,
        "--token",
        &caller.token,
        "--tenant",
        &caller.tenant,
    ];

    // From standard input, and from a file.
    let put = ["secret", "put", NAME];
    let mut from_stdin =
        Process::start_reading(&[&put[..], &to].concat(), &format!("first {CANARY}\n"));
    assert!(from_stdin.ended().await.success(), "{}", from_stdin.tail());
    assert_eq!(from_stdin.stdout(), "site/bmc has version 1\n");
    let file = folder.path().join("value");
    std::fs::write(&file, format!("Bearer {CANARY}\n")).unwrap();
    let file = ["--file", file.to_str().unwrap(), "--json"];
    let told = Process::output(&[&put[..], &file, &to].concat()).await;
    assert!(told.contains("\"version\":2"), "{told}");
    let listed = Process::output(&[&["secret", "list"][..], &to].concat()).await;
    assert!(
        listed.contains(NAME) && listed.contains(id.trim()),
        "{listed}"
    );
    for text in [&told, &listed, &from_stdin.stderr()] {
        assert!(!text.contains(CANARY), "{text}");
    }
    for input in ["", "\n", &CANARY.repeat(17 * 1024 / CANARY.len())] {
        let mut refused = Process::start_reading(&[&put[..], &to].concat(), input);
        assert_eq!(refused.ended().await.code(), Some(2));
        assert!(!refused.stderr().contains(CANARY), "{}", refused.stderr());
    }
    for body in [
        json!({"name": NAME, "value": [CANARY]}),
        json!({"name": NAME, "valeu": CANARY}),
        json!({"name": CANARY.to_uppercase(), "value": CANARY}),
    ] {
        let refused = caller.call("secrets.put", body).await;
        assert_eq!(refused.code(), "INVALID_INPUT");
        assert!(
            !refused.body.to_string().contains(CANARY),
            "{:?}",
            refused.body
        );
    }

    let tenant = caller.tenant.parse().unwrap();
    let value = exchanged(&pool, tenant).await;
    assert_eq!(value, format!("Bearer {CANARY}").as_bytes());
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM secret_exchanges")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(rows, 1);
    let found = found(&pool).await;
    assert!(found.iter().any(|(table, _)| table == "secrets"));
    assert!(found.iter().all(|(_, rows)| *rows == 0), "{found:?}");

    service.process.signal(Signal::TERM);
    assert!(service.process.ended().await.success());
    let log = service.process.stderr();
    assert!(log.contains("DEBUG") && log.contains("a secret is put"));
    assert!(log.contains("a node gets a secret"));
    // Neither as text nor as bytes.
    assert!(!log.contains(CANARY), "the log holds a secret");
    let decimal: Vec<String> = CANARY.bytes().map(|byte| byte.to_string()).collect();
    assert!(!log.contains(&decimal.join(", ")), "the log holds a secret");
    let master = std::fs::read_to_string(key).unwrap();
    assert!(!log.contains(master.trim()), "the log holds the master key");
}
