//! A NATS server of a test, and what its stream holds.

use std::collections::BTreeMap;

use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::{Client, ConnectOptions, HeaderMap, jetstream};
use futures_util::StreamExt as _;
use ledger_protocol::event::{Body, Event};
use ledger_servers::{Nats, NatsOptions};
use reqwest::Url;
use serde_json::Value;
use sqlx::PgPool;
use tempfile::TempDir;

use crate::ground::{events, head};
use crate::wait::{in_time, until};

const STREAM: &str = "LEDGER";

/// A server that is thrown away.
#[derive(Debug)]
pub struct Server {
    /// The server.
    pub nats: Nats,
    _folder: TempDir,
}

impl Server {
    /// Starts one.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = NatsOptions::new(folder.path().join("nats")).throwaway();
        let nats = Nats::start(options).await.unwrap();
        Self {
            nats,
            _folder: folder,
        }
    }

    /// Removes everything that JetStream has kept; the server must not run.
    pub fn lose_data(&self) {
        std::fs::remove_dir_all(self.nats.store_folder()).unwrap();
    }
}

/// A lease outlives its holder by some seconds, which a test does not wait for: what a publisher
/// that was killed held is over at once.
pub async fn end_lease(pool: &PgPool) {
    sqlx::query("UPDATE leases SET expires_at = '-infinity' WHERE name = 'publisher'")
        .execute(pool)
        .await
        .unwrap();
}

/// Connects; the URL may hold a token.
pub async fn connect(url: &str) -> Client {
    let url: Url = url.parse().unwrap();
    let token = url.username().to_owned();
    let options = ConnectOptions::with_token(token);
    let address = format!("nats://{}:{}", url.host_str().unwrap(), url.port().unwrap());
    options.connect(address).await.unwrap()
}

/// The last sequence of the stream; 0 while there is none.
pub async fn last_sequence(client: &Client) -> u64 {
    match jetstream::new(client.clone()).get_stream(STREAM).await {
        Ok(stream) => stream.cached_info().state.last_sequence,
        Err(_) => 0,
    }
}

/// A message of the stream, or a copy of one.
#[derive(Debug)]
pub struct Message {
    /// Where it was published.
    pub subject: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its data.
    pub data: Value,
}

impl Message {
    /// Reads a message.
    pub fn of(message: &async_nats::Message) -> Self {
        Self {
            subject: message.subject.to_string(),
            headers: message.headers.clone().unwrap(),
            data: serde_json::from_slice(&message.payload).unwrap(),
        }
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value
            .unwrap_or_else(|| panic!("no {name}: {self:?}"))
            .as_str()
    }
}

/// Every message of the stream by its sequence.
pub async fn messages(client: &Client) -> BTreeMap<u64, Message> {
    let stream = jetstream::new(client.clone())
        .get_stream(STREAM)
        .await
        .unwrap();
    let last = stream.cached_info().state.last_sequence;
    let consumer = stream
        .create_consumer(OrderedConfig::default())
        .await
        .unwrap();
    let mut found = BTreeMap::new();
    if last == 0 {
        return found;
    }
    let mut incoming = consumer.messages().await.unwrap();
    loop {
        let message = in_time("a message of the stream", incoming.next()).await;
        let message = message.unwrap().unwrap();
        let sequence = message.info().unwrap().stream_sequence;
        found.insert(sequence, Message::of(&message));
        if sequence == last {
            return found;
        }
    }
}

/// Waits until the stream ends where the log does, and compares every message with its event
/// (SPEC L9).
pub async fn assert_whole(client: &Client, pool: &PgPool) {
    until("the stream has every event", async || {
        last_sequence(client).await == head(pool).await
    })
    .await;
    // Read in this order: what is appended meanwhile is no message yet.
    let messages = messages(client).await;
    let mut events = events(pool).await;
    assert!(messages.len() <= events.len(), "what is not in the ledger");
    events.truncate(messages.len());
    for ((position, event), (sequence, message)) in (1..).zip(&events).zip(&messages) {
        assert_eq!(*sequence, position);
        assert_is(message, position, event);
        assert_eq!(message.subject, subject(message.header("ce-type"), event));
    }
}

/// Compares a message, or a copy of one, with an event of the ledger.
#[track_caller]
pub fn assert_is(message: &Message, position: u64, event: &Event) {
    let id = event.id.to_string();
    assert_eq!(message.header("Nats-Msg-Id"), id, "at {position}");
    assert_eq!(message.header("ce-id"), id);
    assert_eq!(message.header("ce-sequence"), position.to_string());
    assert_eq!(message.header("ce-specversion"), "1.0");
    let subject = event.stream.to_string();
    assert_eq!(message.header("ce-subject"), subject);
    assert!(
        message.header("ce-type").ends_with(event.body.type_name()),
        "{message:?}"
    );
    let data = &message.data;
    assert_eq!(data["position"], position, "{data}");
    assert_eq!(data["tenantId"], event.tenant.to_string(), "{data}");
    let node = event.node_id().map(|node| node.to_string());
    assert_eq!(data["nodeId"].as_str(), node.as_deref(), "{data}");
    if let Body::CommandSettled(settled) = &event.body {
        assert_eq!(data["commandId"], subject, "{data}");
        assert_eq!(data["kind"], settled.kind, "{data}");
        assert_eq!(data["state"], settled.state.as_str(), "{data}");
        assert_eq!(data["reason"].as_str(), settled.reason.as_deref(), "{data}");
        assert_eq!(data["seq"], settled.seq, "{data}");
    }
}

fn subject(name: &str, event: &Event) -> String {
    let node = event.node_id().map(|node| format!(".{node}"));
    format!("{name}.{}{}", event.tenant, node.unwrap_or_default())
}
