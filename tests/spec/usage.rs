//! What the command line takes and refuses, as a script meets it (SPEC H2, A13).

use ledger_tests::process::Process;
use ledger_tests::serve::serve;
use ledger_tests::{api, database};
use serde_json::{Value, json};
use sqlx::PgPool;

/// Runs it to its end, which must be that of wrong usage; what it says.
async fn refused(arguments: &[&str]) -> String {
    let mut process = Process::start(arguments);
    let status = process.ended().await;
    assert_eq!(status.code(), Some(2), "{arguments:?}: {}", process.tail());
    assert_eq!(process.stdout(), "");
    process.stderr()
}

#[tokio::test]
async fn h2_watch_takes_positions_from_1_only() {
    for from in ["0", "-1", "1.5", "18446744073709551616"] {
        let from = format!("--from={from}");
        let said = refused(&["watch", "--nats", "nats://127.0.0.1:1", &from]).await;
        assert!(said.contains("start from 1"), "{said}");
    }
}

#[tokio::test]
async fn h2_a_nats_url_that_is_none_is_refused_at_the_start() {
    let postgres = ["--postgres", "postgres://127.0.0.1:1/ledger"];
    let nats = ["--nats", "http://hunter2@127.0.0.1:4222"];
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("none");
    let path = folder.to_str().unwrap();
    for command in [&["serve"][..], &["gateway", "--authority", path]] {
        let said = refused(&[command, &postgres, &nats].concat()).await;
        assert!(said.contains("--nats"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let said = refused(&[&["up", "--data", path][..], &nats].concat()).await;
    assert!(said.contains("--nats"), "{said}");
    assert!(!folder.exists());
}

#[tokio::test]
async fn h2_certificates_that_end_at_once_are_refused() {
    let gateway = ["gateway", "--postgres", "p", "--authority", "a"];
    for time in ["5", "59s", "0"] {
        let said = refused(&[&gateway[..], &["--certificates-for", time]].concat()).await;
        for part in ["--certificates-for", time, "the least is 60s"] {
            assert!(said.contains(part), "{said}");
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h2_tls_to_an_api_without_it_is_told_as_such(pool: PgPool) {
    let service = serve(&database::url(&pool), None).await;
    let api = format!("https://{}", service.address);
    let call = ["api", "nodes.list", "--api", &api, "--token", "token_x.y"];
    let mut process = Process::start(&call);
    let status = process.ended().await;
    let said = process.stderr();
    assert_eq!(status.code(), Some(5), "{said}");
    let plain = format!("http://{}", service.address);
    for part in [&plain, "speaks http"] {
        assert!(said.contains(part), "{said}");
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_a_token_for_nothing_that_there_is_is_not_made(pool: PgPool) {
    let url = database::url(&pool);
    let tenant = Process::output(&["tenant", "create", "acme", "--postgres", url.as_str()]).await;
    let create = [
        "token",
        "create",
        "--tenant",
        tenant.trim(),
        "--identity",
        "i",
    ];
    let create = [&create[..], &["--postgres", url.as_str()]].concat();
    let exec = "compute:nodes:exec@*#diag.nvml,node.rebot";
    let said = refused(&[&create[..], &["--grant", exec]].concat()).await;
    for part in ["--grant", "`node.rebot`", "node.reboot"] {
        assert!(said.contains(part), "{said}");
    }
    for time in ["0s", "0", "999ms"] {
        let said = refused(&[&create[..], &["--admin", "--expires", time]].concat()).await;
        for part in ["--expires", time, "1s"] {
            assert!(said.contains(part), "{said}");
        }
    }
    let tokens: i64 = sqlx::query_scalar("SELECT count(*) FROM api_tokens")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(tokens, 0);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h2_api_reads_its_whole_input_from_stdin(pool: PgPool) {
    let service = serve(&database::url(&pool), None).await;
    let admin = api::admin(&pool, service.address).await;
    let input = json!({"tenantId": admin.tenant, "name": "from stdin"}).to_string();
    let call = ["api", "nodes.register", "--json", "-"];
    let to = ["--api", &admin.api, "--token", &admin.token];
    let mut process = Process::start_reading(&[&call[..], &to[..]].concat(), &input);
    assert!(process.ended().await.success(), "{}", process.tail());
    let node: Value = serde_json::from_str(&process.stdout()).unwrap();
    assert_eq!(node["name"], "from stdin");
}
