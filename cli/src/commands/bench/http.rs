//! `run`s per second through HTTP, from 256 connections of this same process: client and server
//! share the machine's cores, as the figures say.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use ledger_api::auth::{Grant, NewToken, create_token};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::exit::{Failure, Meaning};
use crate::lifecycle::Phase;
use crate::limits::STOP_EDGE_WITHIN;

use super::Ground;
use super::append::per_second;

const CONNECTIONS: usize = 256;

pub(super) async fn measure(ground: &Ground, span: Duration) -> Result<Value, Failure> {
    let phase = Phase::new("the API");
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let options = ledger_api::Options {
        gateway: None,
        ca_certificate: None,
    };
    let api = ledger_api::Api::new(ground.ledger.clone(), options, phase.tasks());
    phase.tasks().spawn(ledger_api::serve(
        "the API",
        listener,
        ledger_api::router(api),
        phase.token(),
    ));
    let new = NewToken {
        tenant: ground.tenant,
        identity: "bench".to_owned(),
        grants: Grant::all(),
        expires_at: None,
    };
    let (_, token) = create_token(ground.ledger.pool(), &new, ground.ledger.now())
        .await
        .or_unavailable("could not make a token")?;

    let started = Instant::now();
    let until = started + span;
    let clients = (0..CONNECTIONS).map(|_| client(ground, address, &token, until));
    let done: u64 = try_join_all(clients).await?.into_iter().sum();
    let elapsed = started.elapsed();
    phase.stop(STOP_EDGE_WITHIN).await;
    Ok(json!({
        "connections": CONNECTIONS,
        "runs": done,
        "perSecond": per_second(done, elapsed),
    }))
}

async fn client(
    ground: &Ground,
    address: SocketAddr,
    token: &str,
    until: Instant,
) -> Result<u64, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut done = 0;
    while Instant::now() < until {
        let run = ground.run();
        let body = json!({
            "tenantId": run.tenant,
            "nodeId": run.node,
            "kind": run.kind,
            "payload": run.payload,
            "idempotencyKey": run.idempotency_key,
            "notAfterSeconds": 3_600,
        })
        .to_string();
        let request = format!(
            "POST /api/compute/commands/run HTTP/1.1\r\nhost: {address}\r\n\
             authorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        answer(&mut stream).await?;
        done += 1;
    }
    Ok(done)
}

/// Reads one answer, which must be a 200 with a length.
async fn answer(stream: &mut BufReader<TcpStream>) -> Result<(), Failure> {
    let (mut line, mut status, mut length) = (String::new(), String::new(), 0);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err(Failure::failed("the API closed the connection"));
        }
        let text = line.trim_end();
        if status.is_empty() {
            text.clone_into(&mut status);
        } else if text.is_empty() {
            break;
        } else if let Some((name, value)) = text.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    if status.contains(" 200 ") {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{status}: {}",
        String::from_utf8_lossy(&body)
    )))
}
