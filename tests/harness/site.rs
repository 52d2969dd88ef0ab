//! A site's agent with real executors, and what it reaches: a server that says back what it was told.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::process::Process;
use crate::up::Up;
use crate::wait::{found, until};

/// A site's agent.
#[derive(Debug)]
pub struct Site {
    /// The process.
    pub process: Process,
    /// Its node.
    pub node: String,
}

impl Site {
    /// Registers it, lets it join through the gateway at `gateway`, and waits until it is connected.
    /// `state` becomes its folder.
    pub async fn start(up: &Up, gateway: &str, state: &Path) -> Self {
        let name = state.file_name().unwrap().to_str().unwrap();
        let registered = json!({"name": name, "role": "site"});
        let node = up.admin.call("nodes.register", registered).await.ok();
        let node = node["id"].as_str().unwrap().to_owned();
        let asked = json!({"nodeId": node});
        let token = up.admin.call("nodes.createJoinToken", asked).await.ok();
        let ca = Path::new(up.text("dataDir")).join("authority/node-ca.pem");
        let process = Process::start(&[
            "--log-level",
            "trace",
            "agent",
            "--role",
            "site",
            "--gateway",
            gateway,
            "--gateway-ca",
            ca.to_str().unwrap(),
            "--join-token",
            token["token"].as_str().unwrap(),
            "--state",
            state.to_str().unwrap(),
        ]);
        until("the site is connected", async || {
            let input = json!({"nodeId": node});
            let node = up.admin.call("nodes.get", input).await.ok();
            node["connected"] == true || node["session"].is_object()
        })
        .await;
        Self { process, node }
    }
}

/// A server that answers each request with the request itself.
#[derive(Debug)]
pub struct Echo {
    /// Where it listens.
    pub address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
    _stop: DropGuard,
}

impl Echo {
    /// Listens on a free port.
    #[expect(
        clippy::disallowed_methods,
        reason = "the guard in the value ends the task"
    )]
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let (answering, stopped) = (answer_all(listener, heard.clone()), stop.clone());
        tokio::spawn(async move { stopped.run_until_cancelled(answering).await });
        Self {
            address,
            heard,
            _stop: stop.drop_guard(),
        }
    }

    /// The requests that came, whole.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    /// Waits for a request that holds this text.
    pub async fn hears(&self, text: &str) -> String {
        found("the request comes", async || {
            self.heard().into_iter().find(|heard| heard.contains(text))
        })
        .await
    }
}

async fn answer_all(listener: TcpListener, heard: Arc<Mutex<Vec<String>>>) {
    let mut answers = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        answers.spawn(answer(stream, heard.clone()));
        while answers.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: TcpStream, heard: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    // None of these requests has a body.
    while !request.ends_with(b"\r\n\r\n") {
        let mut chunk = [0; 4_096];
        match stream.read(&mut chunk).await {
            Ok(read @ 1..) => request.extend_from_slice(&chunk[..read]),
            _ => return,
        }
    }
    let request = String::from_utf8(request).unwrap();
    heard.lock().unwrap().push(request.clone());
    let bytes = request.len();
    let answer =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\nconnection: close\r\n\r\n{request}");
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}
