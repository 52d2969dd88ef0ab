//! What a service and a daemon notice at their start, and what they say of it (SPEC H2, H7, P7).

use ledger_tests::process::Process;
use ledger_tests::serve::gateway;
use ledger_tests::{api, database};
use reqwest::Url;
use serde_json::json;
use sqlx::PgPool;

/// Runs it to its end, which must be this one; what it says.
async fn ends(code: i32, arguments: &[&str]) -> String {
    let mut process = Process::start(arguments);
    let status = process.ended().await;
    let said = process.stderr();
    assert_eq!(status.code(), Some(code), "{arguments:?}: {said}");
    said
}

fn assert_told(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
}

#[sqlx::test(migrations = false)]
async fn h7_a_database_that_nobody_migrated_is_noticed_at_the_start(pool: PgPool) {
    let url = database::url(&pool);
    let url = url.as_str();
    let authority = tempfile::tempdir().unwrap();
    let authority = authority.path().to_str().unwrap();
    for command in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &[
            "gateway",
            "--listen",
            "127.0.0.1:0",
            "--authority",
            authority,
        ],
        &["sweeper"],
        &["tenant", "create", "acme"],
        &["audit", "replay"],
    ] {
        let said = ends(1, &[command, &["--postgres", url]].concat()).await;
        let name = pool.connect_options();
        let name = name.get_database().unwrap().to_owned();
        // Whether the server knows the role depends on the tests that ran before.
        assert_told(&said, &[&name, "`command-ledger migrate`", "as its owner"]);
    }
    Process::output(&["migrate", "--postgres", url]).await;
    Process::output(&["tenant", "create", "acme", "--postgres", url]).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h7_an_older_schema_is_refused_and_a_newer_one_is_not(pool: PgPool) {
    let url = database::url(&pool);
    let create = ["tenant", "create", "acme", "--postgres", url.as_str()];
    let migrations = "_sqlx_migrations";
    let change = async |sql: String| {
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .execute(&pool)
            .await
            .unwrap();
    };
    change(format!(
        "INSERT INTO {migrations} SELECT 9999, 'newer', now(), true, ''::bytea, 0"
    ))
    .await;
    Process::output(&create).await;

    let newest = ledger_migrations::MIGRATOR.iter().map(|one| one.version);
    let newest = newest.max().unwrap();
    change(format!(
        "DELETE FROM {migrations} WHERE version >= {newest}"
    ))
    .await;
    let said = ends(1, &create).await;
    let at = format!("is at version {} of its schema", newest - 1);
    assert_told(
        &said,
        &[&at, &format!("needs {newest}"), "`command-ledger migrate`"],
    );

    change(format!(
        "REVOKE SELECT ON {migrations} FROM command_ledger_service"
    ))
    .await;
    let said = ends(1, &create).await;
    assert_told(&said, &["before 6", "`command-ledger migrate`"]);

    change(format!("DELETE FROM {migrations}")).await;
    change(format!(
        "GRANT SELECT ON {migrations} TO command_ledger_service"
    ))
    .await;
    assert_told(&ends(1, &create).await, &["(none)"]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h2_only_a_role_that_is_missing_is_a_matter_of_migrating(pool: PgPool) {
    let url = database::url(&pool);
    let create = async |code: i32, url: &Url| {
        let said = ends(
            code,
            &["tenant", "create", "acme", "--postgres", url.as_str()],
        )
        .await;
        assert!(!said.contains("hunter2"), "{said}");
        said
    };
    let stranger: String = sqlx::query_scalar("SELECT 'stranger_' || txid_current()")
        .fetch_one(&pool)
        .await
        .unwrap();
    let mut other = url.clone();
    other.set_username(&stranger).unwrap();
    other.set_password(Some("hunter2")).unwrap();
    assert_told(&create(2, &other).await, &["does not let in", &stranger]);

    let role =
        |verb: &str, more: &str| sqlx::AssertSqlSafe(format!("{verb} ROLE {stranger}{more}"));
    sqlx::query(role("CREATE", " LOGIN PASSWORD 'hunter2'"))
        .execute(&pool)
        .await
        .unwrap();
    let said = create(1, &other).await;
    sqlx::query(role("DROP", "")).execute(&pool).await.unwrap();
    assert_told(
        &said,
        &["command_ledger_service", "`command-ledger migrate`"],
    );

    let mut other = url.clone();
    other.set_path("/no_such_database");
    let said = create(2, &other).await;
    assert_told(
        &said,
        &["database no_such_database", "has no database of that name"],
    );
    assert!(!said.contains("migrate"), "{said}");

    let other = Url::parse("postgres://u:hunter2@127.0.0.1:1/ledger").unwrap();
    let said = create(5, &other).await;
    assert_told(
        &said,
        &["could not connect to Postgres at 127.0.0.1:1, database ledger"],
    );
    assert!(!said.contains("migrate"), "{said}");
}

#[sqlx::test(migrations = false)]
async fn h7_who_may_not_migrate_is_told_what_an_owner_needs(pool: PgPool) {
    let owner: String = sqlx::query_scalar("SELECT 'owner_' || txid_current()")
        .fetch_one(&pool)
        .await
        .unwrap();
    let role = |verb: &str, more: &str| sqlx::AssertSqlSafe(format!("{verb} ROLE {owner}{more}"));
    sqlx::query(role("CREATE", " LOGIN"))
        .execute(&pool)
        .await
        .unwrap();
    let mut url = database::url(&pool);
    url.set_username(&owner).unwrap();
    let said = ends(1, &["migrate", "--postgres", url.as_str()]).await;
    sqlx::query(role("DROP", "")).execute(&pool).await.unwrap();
    assert_told(&said, &["the schema's owner", "CREATEROLE"]);
}

#[tokio::test]
async fn p7_a_private_key_is_not_handed_out_as_an_authority() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let certificate = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
    let path = folder.path().join("ca.pem");
    std::fs::write(&path, format!("{}{key}", certificate.cert.pem())).unwrap();
    let ca = path.to_str().unwrap();
    let nowhere = "postgres://127.0.0.1:1/ledger";
    let serve = ["serve", "--postgres", nowhere, "--gateway-ca", ca];
    assert_told(&ends(2, &serve).await, &["ca.pem holds a private key"]);
    // Alone, the certificate is fine, and Postgres is the next that is looked for.
    std::fs::write(&path, certificate.cert.pem()).unwrap();
    ends(5, &serve).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h2_a_daemon_that_cannot_join_ends_with_the_code_for_it(pool: PgPool) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let gateway = gateway(&database::url(&pool), &path("authority")).await;
    let url = format!("https://{}", gateway.address);
    let (state, ca) = (path("state"), path("authority/node-ca.pem"));
    let agent = ["agent", "--state", &state, "--gateway"];
    let said = ends(2, &[&agent[..], &[&url]].concat()).await;
    assert_told(
        &said,
        &["--join-token", "COMMAND_LEDGER_JOIN_TOKEN", "--gateway-ca"],
    );

    let token = ["--join-token", "join_01h455vb4pex5vsknk084sn02q.hunter2"];
    let missing = path("none.pem");
    let joining = [&agent[..], &[&url], &token, &["--gateway-ca", &missing]].concat();
    assert_told(&ends(2, &joining).await, &["--gateway-ca", "none.pem"]);
    let plain = [&agent[..], &["http://gateway:7443"], &token].concat();
    assert_told(&ends(2, &plain).await, &["--gateway", "https://host:port"]);
    let joining = [&agent[..], &[&url], &token, &["--gateway-ca", &ca]].concat();
    assert_told(&ends(3, &joining).await, &["refused to give a certificate"]);

    let other = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap();
    let wrong = path("other.pem");
    std::fs::write(&wrong, other.cert.pem()).unwrap();
    let joining = [&agent[..], &[&url], &token, &["--gateway-ca", &wrong]].concat();
    assert_told(
        &ends(2, &joining).await,
        &["--gateway-ca does not", "node-ca.pem"],
    );
    let nowhere = ["agent", "--state", "/proc/x", "--gateway", &url];
    assert_told(&ends(2, &nowhere).await, &["--state /proc/x"]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h2_a_simulated_fleet_that_cannot_join_registers_no_node(pool: PgPool) {
    let service = ledger_tests::serve::serve(&database::url(&pool), None).await;
    let admin = api::admin(&pool, service.address).await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("fleet");
    let to = ["--api", &admin.api, "--token", &admin.token];
    let fleet = ["agent", "--simulate", "3", "--tenant", &admin.tenant];
    let where_to = ["--state", state.to_str().unwrap(), "--gateway"];
    let fleet = [&fleet[..], &to, &where_to, &["https://127.0.0.1:1"]].concat();
    assert_told(&ends(2, &fleet).await, &["--gateway-ca", "fleet/00001"]);
    let nodes = admin.call("nodes.list", json!({})).await.ok();
    assert_eq!(nodes["items"], json!([]));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h7_a_port_that_is_taken_is_told_with_the_option(pool: PgPool) {
    let url = database::url(&pool);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().to_str().unwrap();
    for command in [&["serve"][..], &["gateway", "--authority", authority]] {
        let listen = ["--listen", &at, "--postgres", url.as_str()];
        let said = ends(1, &[command, &listen].concat()).await;
        assert_told(&said, &["--listen", &at, "in use"]);
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a13_what_the_api_does_not_know_is_answered_with_what_it_knows(pool: PgPool) {
    let service = ledger_tests::serve::serve(&database::url(&pool), None).await;
    let admin = api::admin(&pool, service.address).await;
    let to = ["--api", &admin.api, "--token", &admin.token];
    for method in ["commands.foo", "help"] {
        let said = ends(4, &[&["api", method][..], &to].concat()).await;
        assert_told(
            &said,
            &[
                "NOT_FOUND",
                method,
                "commands.cancel, commands.get",
                "tokens.revoke",
            ],
        );
    }
    let run = ["api", "commands.run", "idempotencykey="];
    let said = ends(3, &[&run[..], &to].concat()).await;
    assert_told(
        &said,
        &[
            "idempotencykey is not a field",
            "did you mean idempotencyKey?",
        ],
    );
}
