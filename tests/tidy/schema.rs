//! `migrations/schema.sql` is what the migrations make: the one page to read (STYLE 9).
//!
//! After a new migration, `make snapshots` writes it again; the change is then read like any other.

use std::path::PathBuf;
use std::process::Command;

use ledger_tests::database;
use ledger_tests::repository::root;
use sqlx::PgPool;

const HEAD: &str = "\
-- The schema as the migrations make it, for reading: nothing runs this file. A test compares it
-- with the migrations; `make snapshots` writes it again.
";

fn file() -> PathBuf {
    root().join("migrations/schema.sql")
}

/// What Postgres says of this database, without what differs from one version or run to another.
fn dump(pool: &PgPool) -> String {
    let folders = std::env::var_os("COMMAND_LEDGER_TOOLS")
        .expect("no COMMAND_LEDGER_TOOLS: run the tests under `with-servers`, as `make test` does");
    let mut folders = std::env::split_paths(&folders).map(|folder| folder.join("pg_dump"));
    let program = folders
        .find(|path| path.is_file())
        .expect("no pg_dump beside the server");
    let done = Command::new(program)
        .args([
            "--schema-only",
            "--no-owner",
            "--exclude-table=_sqlx_migrations",
        ])
        .arg(database::url(pool).as_str())
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = String::from_utf8(done.stdout).unwrap();
    // Settings of the dump's session, and what protects psql from a dump by a stranger.
    let noise = [
        "--",
        "SET ",
        "\\restrict",
        "\\unrestrict",
        "SELECT pg_catalog.set_config",
    ];
    let mut dump = HEAD.to_owned();
    let mut blank = false;
    for line in text.lines().map(str::trim_end) {
        if noise.iter().any(|noise| line.starts_with(noise)) {
            continue;
        }
        if line.is_empty() {
            blank = true;
            continue;
        }
        if blank {
            dump.push('\n');
            blank = false;
        }
        dump.push_str(line);
        dump.push('\n');
    }
    dump
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h_the_schema_that_is_read_is_the_schema_that_is_made(pool: PgPool) {
    let kept = std::fs::read_to_string(file()).unwrap_or_default();
    let made = dump(&pool);
    let differs = kept
        .lines()
        .zip(made.lines())
        .position(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "migrations/schema.sql is not what the migrations make, from line {}: run \
         `make snapshots` and read the change",
        differs.unwrap_or_else(|| kept.lines().count().min(made.lines().count())) + 1
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
#[ignore = "writes migrations/schema.sql: `make snapshots` runs it"]
async fn writes_the_schema(pool: PgPool) {
    std::fs::write(file(), dump(&pool)).unwrap();
}
