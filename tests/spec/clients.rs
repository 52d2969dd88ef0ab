//! A client that nobody here wrote verifies the log that is served (SPEC U1).

use std::path::{Path, PathBuf};
use std::process::Stdio;

use ledger_tests::http::client;
use ledger_tests::repository::root;
use ledger_tests::up::Up;
use ledger_tests::wait::{found, in_time};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::batches::folder;

/// Exit code and output of tlog-scales on a log.
async fn verify(url: &str, key: &str, seen: &Path) -> (Option<i32>, String) {
    let tools = root().join(".dev/client-tools");
    assert!(
        tools.join("tlog_scales").is_dir(),
        "tlog-scales is not there: run `make client-tools`"
    );
    let run = Command::new("python3")
        .arg("-B")
        .arg(root().join("tests/clients/verify_log.py"))
        .args([url, key])
        .arg(seen)
        .env("PYTHONPATH", tools)
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let run = in_time("the client ends", run).await.unwrap();
    let told = [run.stdout, run.stderr].concat();
    (
        run.status.code(),
        String::from_utf8_lossy(&told).into_owned(),
    )
}

/// What a front changes: a byte of the answers whose path begins so.
#[derive(Clone)]
struct Flip {
    path: &'static str,
    byte: fn(usize) -> usize,
}

/// A front of a log that alters what it passes on.
struct Front {
    url: String,
    _serving: JoinSet<()>,
}

impl Front {
    async fn start(log: &str, flip: Flip) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = log.to_owned();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // The client asks for one thing after the other.
            while let Ok((socket, _)) = listener.accept().await {
                answer(socket, &log, &flip).await;
            }
        });
        Self {
            url,
            _serving: serving,
        }
    }
}

async fn answer(mut socket: TcpStream, log: &str, flip: &Flip) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = socket.read_u8().await else {
            return;
        };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    let passed = client().get(format!("{log}{path}")).send().await.unwrap();
    let status = passed.status().as_u16();
    let mut body = passed.bytes().await.unwrap().to_vec();
    if path.starts_with(flip.path) {
        let at = (flip.byte)(body.len());
        body[at] ^= 1;
    }
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} -\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    // A client that has seen enough may be gone.
    let _ = socket.write_all(&[head.as_bytes(), &body].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn u1_a_client_that_nobody_here_wrote_verifies_the_log_and_refuses_an_altered_one() {
    let folder = folder();
    let up = Up::start(&folder.path().join("data")).await;
    let (log, key) = (
        up.text("log").to_owned(),
        up.text("logPublicKey").to_owned(),
    );
    let size = async || {
        let checkpoint = client()
            .get(format!("{log}/checkpoint"))
            .send()
            .await
            .ok()?;
        let checkpoint = checkpoint.text().await.ok()?;
        checkpoint.lines().nth(1)?.parse::<u64>().ok()
    };
    let signed = async |at_least: u64| {
        found("the log is signed", async || {
            size().await.filter(|size| *size >= at_least)
        })
        .await
    };
    signed(2).await;
    let seen = folder.path().join("seen");
    let (code, told) = verify(&log, &key, &seen).await;
    assert_eq!(code, Some(0), "{told}");
    let small = std::fs::read_to_string(&seen).unwrap();
    let small: u64 = small.lines().nth(1).unwrap().parse().unwrap();

    let mut commands = Vec::new();
    for number in 0..70 {
        commands.push(up.run(0, "inventory.refresh", &number.to_string()).await);
    }
    for command in &commands {
        up.settled(command).await;
    }
    // A full tile, partial ones, and two levels of them.
    signed(300).await;
    let copy = |name: &str| -> PathBuf {
        let copy = folder.path().join(name);
        std::fs::copy(&seen, &copy).unwrap();
        copy
    };
    let (code, told) = verify(&log, &key, &copy("whole")).await;
    assert_eq!(code, Some(0), "{told}");
    let (entries, rest) = told.split_once(' ').unwrap();
    assert!(entries.parse::<u64>().unwrap() >= 300, "{told}");
    assert_eq!(
        rest.trim(),
        format!("entries, consistent with the first {small}")
    );

    let stranger = folder.path().join("other.pem");
    let stranger = stranger.to_str().unwrap();
    ledger_tests::process::Process::output(&["batch", "keygen", "--out", stranger]).await;
    let origin = key.split('+').next().unwrap();
    let arguments = ["audit", "key", "--key", stranger, "--origin", origin];
    let stranger = ledger_tests::process::Process::output(&arguments).await;
    let (code, told) = verify(&log, stranger.trim(), &copy("stranger")).await;
    assert_eq!(code, Some(1), "{told}");

    for (number, (path, byte)) in [
        ("/tile/entries/000", (|_| 40) as fn(usize) -> usize),
        ("/tile/entries/001", |length| length - 1),
        ("/tile/0/000", |_| 0),
        ("/tile/0/001", |length| length - 1),
        ("/tile/1/000", |_| 7),
        // The last byte but the line's end is of the signature.
        ("/checkpoint", |length| length - 4),
    ]
    .into_iter()
    .enumerate()
    {
        let front = Front::start(&log, Flip { path, byte }).await;
        let (code, told) = verify(&front.url, &key, &copy(&number.to_string())).await;
        assert_eq!(code, Some(1), "{path}: {told}");
    }
    assert!(up.stop().await.success());
}
