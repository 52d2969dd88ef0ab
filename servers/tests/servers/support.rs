//! What the tests of real servers need.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use ledger_servers::{ADMIN, Nats, Postgres};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::timeout,
};

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A folder that the account of Postgres may walk through.
pub(crate) fn temporary() -> tempfile::TempDir {
    let mode = fs::Permissions::from_mode(0o711);
    tempfile::Builder::new()
        .prefix("ledger-servers-")
        .permissions(mode)
        .tempdir()
        .unwrap()
}

/// What a statement answers, through the client of the same version.
pub(crate) async fn psql(postgres: &Postgres, database: &str, statement: &str) -> String {
    let mut command = Command::new(postgres.tools().join("psql"));
    command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"]);
    command
        .args(["-c", statement, "-d", &postgres.url(database, ADMIN)])
        .kill_on_drop(true);
    let output = timeout(ANSWER_WITHIN, command.output())
        .await
        .expect("psql ends")
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{statement}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// What NATS answers to a client's first words.
pub(crate) async fn nats_ping(port: u16, connect: &str) -> String {
    talk(port, &format!("CONNECT {connect}\r\nPING\r\n"), "\r\nPONG").await
}

/// A request to JetStream, without a client library.
pub(crate) async fn nats_request(nats: &Nats, subject: &str, body: &str) -> String {
    let url = nats.url();
    let token = url
        .strip_prefix("nats://")
        .and_then(|rest| rest.split_once('@'))
        .unwrap()
        .0;
    let words = format!(
        "CONNECT {{\"verbose\":false,\"auth_token\":\"{token}\"}}\r\nSUB reply 1\r\nPUB {subject} reply {}\r\n{body}\r\n",
        body.len()
    );
    talk(nats.port(), &words, "}\r\n").await
}

/// Says something and listens until the end of the answer or of the connection.
async fn talk(port: u16, words: &str, end: &str) -> String {
    let answer = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(words.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let bytes = stream.read(&mut piece).await.unwrap_or(0);
            heard.extend(piece.iter().take(bytes));
            let text = String::from_utf8_lossy(&heard).into_owned();
            // The first line is the server's own.
            let after_info = text.split_once("\r\n").map_or("", |(_, rest)| rest);
            if bytes == 0
                || format!("\r\n{after_info}")
                    .trim_end_matches(' ')
                    .contains(end)
            {
                return text;
            }
        }
    };
    timeout(ANSWER_WITHIN, answer).await.expect("NATS answers")
}

/// A program that prints a text and ends.
pub(crate) fn fake(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\necho '{text}'\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Whether a process runs; one that only waits to be waited for does not.
pub(crate) fn exists(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The effective user id of a process.
pub(crate) fn uid_of(pid: i32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let ids = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .unwrap();
    ids.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Every process and its parent.
pub(crate) fn parents() -> Vec<(i32, i32)> {
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?
            .1
            .split_ascii_whitespace()
            .nth(1)?
            .parse()
            .ok()
    };
    pids()
        .into_iter()
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect()
}

/// The processes that work in a folder or name a path below it in their command line.
pub(crate) fn processes_naming(folder: &Path) -> Vec<i32> {
    let name = folder.to_string_lossy().into_owned();
    let names = |pid: &i32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let cwd: PathBuf = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(&name) || cwd.starts_with(folder)
    };
    pids()
        .into_iter()
        .filter(names)
        .filter(|pid| exists(*pid))
        .collect()
}

fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
