//! The program that gives a command servers of its own.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use crate::support::{exists, processes_naming, psql, temporary};
use ledger_servers::{ADMIN, Postgres, PostgresOptions};
use rustix::process::{Pid, Signal, kill_process};

const END_WITHIN: Duration = Duration::from_secs(30);

fn with_servers(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_with-servers"));
    command
        .env("TMPDIR", temporary)
        .args(arguments)
        .stdin(Stdio::null());
    command
}

fn run(temporary: &Path, arguments: &[&str]) -> Output {
    with_servers(temporary, arguments).output().unwrap()
}

/// Starts a command that tells its pid and its database, and then waits for ever.
fn start(temporary: &Path, arguments: &[&str]) -> (Child, i32, String) {
    let script = "echo $$ $DATABASE_URL; exec sleep 600";
    let arguments = [arguments, &["sh", "-c", script]].concat();
    let mut child = with_servers(temporary, &arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let (pid, url) = line.trim().split_once(' ').expect("a pid and a URL");
    (child, pid.parse().unwrap(), url.to_owned())
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + END_WITHIN;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time");
        std::thread::yield_now();
    }
}

#[test]
fn h1_the_command_gets_a_database_and_its_exit_code_is_passed_on() {
    let base = temporary();
    let script = r#"echo "$DATABASE_URL"; "${COMMAND_LEDGER_TOOLS%%:*}/psql" -Atc "SELECT current_user, current_database()" "$DATABASE_URL"; exit 7"#;
    let output = run(base.path(), &["--", "sh", "-c", script]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(
        said.starts_with("postgres://ledger_admin@localhost/ledger_tests?host="),
        "{said}"
    );
    assert!(said.contains("ledger_admin|ledger_tests"), "{output:?}");
    assert_eq!(entries(base.path()), Vec::<PathBuf>::new());
    assert_eq!(processes_naming(base.path()), Vec::<i32>::new());
}

#[test]
fn h1_wrong_usage_and_a_missing_command_have_codes_of_their_own() {
    let base = temporary();
    for wrong in [
        &[][..],
        &["--"],
        &["--unknown", "true"],
        &["--postgres-bin"],
    ] {
        assert_eq!(run(base.path(), wrong).status.code(), Some(2), "{wrong:?}");
    }
    let missing = run(base.path(), &["/no/such/command"]);
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
    let empty = base.path().to_string_lossy().into_owned();
    let no_servers = run(base.path(), &["--postgres-bin", &empty, "true"]);
    assert_eq!(no_servers.status.code(), Some(125), "{no_servers:?}");
    assert!(String::from_utf8_lossy(&no_servers.stderr).contains("holds no postgres"));
    assert_eq!(entries(base.path()), Vec::<PathBuf>::new());
}

#[test]
fn h1_a_signal_reaches_the_command_and_everything_is_stopped() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let base = temporary();
        let (mut child, command, _) = start(base.path(), &[]);
        send(child.id().cast_signed(), signal);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{status:?}");
        assert!(!exists(command));
        assert_eq!(processes_naming(base.path()), Vec::<i32>::new());
        assert_eq!(entries(base.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn h1_what_a_killed_run_left_is_removed_by_the_next() {
    let base = temporary();
    let (mut child, command, _) = start(base.path(), &[]);
    send(child.id().cast_signed(), Signal::KILL);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    send(command, Signal::KILL);
    assert_eq!(entries(base.path()).len(), 1);
    assert!(
        !processes_naming(base.path()).is_empty(),
        "Postgres still runs"
    );

    let other = start(base.path(), &[]);
    assert_eq!(entries(base.path()).len(), 1, "only the new run's");
    let (mut other, _, _) = other;
    let beside = run(base.path(), &["true"]);
    assert!(beside.status.success());
    assert_eq!(entries(base.path()).len(), 1, "a running one is left alone");
    send(other.id().cast_signed(), Signal::TERM);
    other.wait().unwrap();
    assert_eq!(entries(base.path()), Vec::<PathBuf>::new());
    wait_until(|| processes_naming(base.path()).is_empty());
}

#[tokio::test]
async fn h1_a_kept_cluster_is_taken_over_after_kill_9() {
    let base = temporary();
    let kept = base.path().join("kept");
    let (mut child, command, url) = start(base.path(), &["--keep", &kept.to_string_lossy()]);
    send(child.id().cast_signed(), Signal::KILL);
    child.wait().unwrap();
    send(command, Signal::KILL);
    assert!(!processes_naming(&kept).is_empty(), "Postgres still runs");

    let options = PostgresOptions::new(kept.join("postgres")).throwaway();
    let postgres = Postgres::start(options).await.unwrap();
    assert_eq!(postgres.url("ledger_tests", ADMIN), url);
    assert_eq!(psql(&postgres, "ledger_tests", "SELECT 1").await, "1");
    postgres.destroy().await.unwrap();
    wait_until(|| processes_naming(base.path()).is_empty());
}
