//! Witnesses, each a process of its own, cosign what the log publishes, and see when its history is
//! another (SPEC U4).

use std::path::Path;

use ledger_protocol::tlog::{Checkpoint, Note, Policy, VerifierKey};
use ledger_tests::ground::{Ground, head};
use ledger_tests::process::Process;
use ledger_tests::serve::{Service, serve_with, witness};
use ledger_tests::up::Up;
use ledger_tests::wait::found;
use ledger_tests::{database, http};
use sqlx::PgPool;

use super::batches::folder;

const ORIGIN: &str = "log.example/witnessed";

/// What a witness's cosignatures are verified with: the line that it prints, which is also what
/// `audit witness-key` makes of its key.
async fn key_of(folder: &Path, witness: &Service, name: &str) -> String {
    let file = folder.join(format!("{name}.pem"));
    let file = file.to_str().unwrap();
    let key = ["audit", "witness-key", "--key", file, "--name", name];
    let key = Process::output(&key).await.trim().to_owned();
    assert_eq!(witness.process.stdout().trim(), key);
    key
}

/// `--log-witness` of a witness.
fn asked(key: &str, witness: &Service) -> String {
    format!("{key}=http://{}", witness.address)
}

async fn fetch(log: &str) -> Option<Note> {
    let url = format!("{log}/checkpoint");
    let answer = http::client().get(url).send().await.ok()?;
    Note::parse(&answer.bytes().await.ok()?).ok()
}

fn size(note: &Note) -> u64 {
    Checkpoint::parse(note.text()).unwrap().head().size
}

/// Waits for a checkpoint that is cosigned by exactly these witnesses, of this size at least.
async fn cosigned(log: &str, key: &VerifierKey, by: &[&str], size_min: u64) -> Note {
    let witnesses: Vec<VerifierKey> = by.iter().map(|key| key.parse().unwrap()).collect();
    let origin = key.name().as_str();
    let policy = Policy::new(origin, vec![key.clone()], witnesses, by.len()).unwrap();
    found("a checkpoint with these cosignatures", async || {
        let note = fetch(log).await?;
        let is_so = size(&note) >= size_min
            && note.signatures().len() == 1 + by.len()
            && policy.believe(&note).is_ok();
        is_so.then_some(note)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn u4_what_up_publishes_is_cosigned_and_an_auditor_asks_for_it() {
    let folder = folder();
    let data = folder.path().join("data");
    let up = Up::start(&data).await;
    let log_key = up.text("logPublicKey").to_owned();
    assert!(up.stop().await.success());
    let mut witnesses = Vec::new();
    for name in ["one.example", "two.example"] {
        let witness = witness(folder.path(), name, &[&log_key]).await;
        let key = key_of(folder.path(), &witness, name).await;
        witnesses.push((witness, key));
    }
    let asked: Vec<String> = witnesses.iter().map(|(at, key)| asked(key, at)).collect();
    let arguments = ["--log-witness", &asked[0], "--log-witness", &asked[1]];
    let up = Up::start_with(&data, &arguments).await;
    let command = up.run(0, "diag.nvml", "1").await;
    let command = up.settled(&command).await;
    let keys: Vec<&str> = witnesses.iter().map(|(_, key)| key.as_str()).collect();
    let key = log_key.parse().unwrap();
    let note = fetch(up.text("log")).await.unwrap();
    cosigned(up.text("log"), &key, &keys, size(&note)).await;

    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (export, receipt) = (path("ledger.export"), path("receipt.json"));
    let postgres = ["--postgres", up.text("postgres")];
    let make = [&["audit", "export", "--out", &export], &postgres[..]].concat();
    found("an export that ends cosigned", async || {
        let _ = std::fs::remove_file(&export);
        Process::output(&make).await;
        let verify = ["audit", "verify", &export, "--key", &log_key];
        let both = ["--witness", keys[0], "--witness", keys[1]];
        let quorum = ["--witness-quorum", "2"];
        let mut verify = Process::start(&[&verify[..], &both, &quorum].concat());
        let done = verify.ended().await.success();
        (done && verify.stdout().contains("witnesses: 2")).then_some(())
    })
    .await;
    let id = command["id"].as_str().unwrap();
    let make = ["audit", "receipt", id, "--out", &receipt];
    let make = [&make[..], &postgres].concat();
    let told = found("a receipt that is cosigned", async || {
        let _ = std::fs::remove_file(&receipt);
        // What is not signed yet has no receipt.
        let is_made = Process::start(&make).ended().await.success();
        let verify = ["audit", "verify-receipt", &receipt, "--key", &log_key];
        let mut verify = Process::start(&[&verify[..], &["--witness", keys[0]]].concat());
        let is_good = is_made && verify.ended().await.success();
        is_good.then(|| verify.stdout())
    })
    .await;
    assert!(told.contains("cosigned by 1 witness"), "{told}");
    assert!(up.stop().await.success());

    // Whoever asks for a witness that did not cosign is told so.
    let stranger = path("stranger.pem");
    Process::output(&["batch", "keygen", "--out", &stranger]).await;
    let stranger = [
        "audit",
        "witness-key",
        "--key",
        &stranger,
        "--name",
        "three",
    ];
    let stranger = Process::output(&stranger).await;
    let verify = ["audit", "verify", &export, "--key", &log_key];
    let more = ["--witness", keys[0], "--witness", stranger.trim()];
    let mut verify = Process::start(&[&verify[..], &more].concat());
    assert_eq!(verify.ended().await.code(), Some(1));
    let told = [verify.stdout(), verify.stderr()].concat();
    assert!(told.contains("2 must be"), "{told}");
}

/// A service that signs and serves the log of a database, with its key in a folder.
struct Signing {
    service: Service,
    log: String,
}

async fn sign(pool: &PgPool, folder: &Path, witnesses: &[String]) -> Signing {
    let key = folder.join("log.pem");
    let mut arguments = vec!["--log-key", key.to_str().unwrap(), "--log-origin", ORIGIN];
    arguments.extend(["--log-listen", "127.0.0.1:0"]);
    arguments.extend(
        witnesses
            .iter()
            .flat_map(|at| ["--log-witness", at.as_str()]),
    );
    sqlx::query("UPDATE leases SET expires_at = '-infinity' WHERE name = 'checkpointer'")
        .execute(pool)
        .await
        .unwrap();
    let mut service = serve_with(&database::url(pool), &arguments).await;
    let line = service.told("the log is served").await;
    let log = format!("http://{}", line["address"].as_str().unwrap());
    Signing { service, log }
}

async fn log_key(folder: &Path) -> String {
    let key = folder.join("log.pem");
    let key = key.to_str().unwrap();
    Process::output(&["batch", "keygen", "--out", key]).await;
    let arguments = ["audit", "key", "--key", key, "--origin", ORIGIN];
    Process::output(&arguments).await.trim().to_owned()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u4_a_witness_that_dies_is_missed_and_catches_up_when_it_is_back(pool: PgPool) {
    let folder = tempfile::tempdir().unwrap();
    let log_key = log_key(folder.path()).await;
    let key: VerifierKey = log_key.parse().unwrap();
    let ground = Ground::new(
        ledger::connect(database::url(&pool).as_str(), 4)
            .await
            .unwrap(),
    );
    let one = witness(folder.path(), "one", &[&log_key]).await;
    let mut two = witness(folder.path(), "two", &[&log_key]).await;
    let keys = [
        key_of(folder.path(), &one, "one").await,
        key_of(folder.path(), &two, "two").await,
    ];
    let both = [keys[0].as_str(), keys[1].as_str()];
    let asked = [asked(both[0], &one), asked(both[1], &two)];
    let mut signing = sign(&pool, folder.path(), &asked).await;
    ground.node("a").await;
    cosigned(&signing.log, &key, &both, head(&pool).await).await;

    two.process.kill().await;
    ground.node("b").await;
    cosigned(&signing.log, &key, &both[..1], head(&pool).await).await;
    let told = signing.service.told("a witness does not cosign").await;
    assert_eq!(told["witness"], "two", "{told}");
    two.revive().await;
    // Each checkpoint is published once, so that one more is needed.
    let mut number = 0;
    let policy = Policy::new(
        ORIGIN,
        vec![key.clone()],
        both.iter().map(|key| key.parse().unwrap()).collect(),
        2,
    )
    .unwrap();
    found("both cosign again", async || {
        number += 1;
        ground.node(&format!("more-{number}")).await;
        let note = fetch(&signing.log).await?;
        policy.believe(&note).is_ok().then_some(())
    })
    .await;
    // Another process that wants the same memory is refused.
    let (pem, state) = (folder.path().join("two.pem"), folder.path().join("two"));
    let pem = ["--key", pem.to_str().unwrap(), "--name", "two"];
    let rest = ["--log", &log_key, "--state", state.to_str().unwrap()];
    let listen = ["--listen", "127.0.0.1:0"];
    let mut twin = Process::start(&[&["witness"], &pem[..], &rest, &listen].concat());
    assert_eq!(twin.ended().await.code(), Some(2));
    assert!(
        twin.stderr().contains("another process uses"),
        "{}",
        twin.tail()
    );
    two.process.signal(rustix::process::Signal::TERM);
    assert!(two.process.ended().await.success());
}

/// What nobody may do who is not the owner of the database and of the machine with the key.
async fn rewrite(pool: &PgPool, memory: &Path, sql: &str) {
    let mut transaction = pool.begin().await.unwrap();
    for sql in [
        "SET LOCAL session_replication_role = replica",
        "DELETE FROM checkpoints",
        "DELETE FROM log_tiles",
        sql,
    ] {
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        done.execute(&mut *transaction).await.unwrap();
    }
    transaction.commit().await.unwrap();
    std::fs::remove_file(memory).unwrap();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u4_a_history_that_was_rewritten_or_put_back_is_not_cosigned_and_shows(pool: PgPool) {
    let folder = tempfile::tempdir().unwrap();
    let log_key = log_key(folder.path()).await;
    let key: VerifierKey = log_key.parse().unwrap();
    let ground = Ground::new(
        ledger::connect(database::url(&pool).as_str(), 4)
            .await
            .unwrap(),
    );
    for number in 0..5 {
        ground.node(&format!("n{number}")).await;
    }
    let mut one = witness(folder.path(), "one", &[&log_key]).await;
    let own = key_of(folder.path(), &one, "one").await;
    let asked = [asked(&own, &one)];
    let last = head(&pool).await;
    let memory = folder.path().join("log.pem.signed");
    let mut signing = sign(&pool, folder.path(), &asked).await;
    cosigned(&signing.log, &key, &[&own], last).await;
    signing.service.process.kill().await;

    // Another history of the same size, and then a longer one; then one that ends earlier.
    let changed = "UPDATE events SET body = body || '\\x00' WHERE position = 2";
    let appended = "INSERT INTO events (shard, position, stream, body)
                    SELECT shard, position + 1, stream, body FROM events ORDER BY position DESC LIMIT 1";
    let put_back = "DELETE FROM events WHERE position > 3";
    for (sql, size, problem) in [
        (changed, last, "it has cosigned another tree of size"),
        (appended, last + 1, "is no beginning of this log"),
        (put_back, 3, "which has 3"),
    ] {
        rewrite(&pool, &memory, sql).await;
        let mut signing = sign(&pool, folder.path(), &asked).await;
        // It is published, for nothing stops the log, and nobody who asks for the witness believes it.
        cosigned(&signing.log, &key, &[], size).await;
        let told = signing
            .service
            .told("a witness has seen another history of this log")
            .await;
        assert_eq!(told["level"], "ERROR", "{told}");
        assert!(
            told["problem"].as_str().unwrap().contains(problem),
            "{told}"
        );
        signing.service.process.kill().await;
    }
    let told = one.told("the log signed what is not shown to extend").await;
    assert_eq!(told["level"], "ERROR", "{told}");
}
