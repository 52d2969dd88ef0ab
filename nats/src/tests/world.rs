//! A ledger on a database of its own, and a NATS server of its own.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, stream::Info};
use ledger::{Clock, Ledger, Options, Run};
use ledger_projections::log;
use ledger_protocol::command::Command;
use ledger_protocol::event::{Actor, Event, NodeRegistered};
use ledger_protocol::id::{NodeId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_servers::{Nats, NatsOptions as ServerOptions};
use serde_json::json;
use sqlx::PgPool;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::connection::{Address, Connection};
use crate::{NatsOptions, STREAM, subject};

/// How long anything may take before a test fails.
const DEADLINE: Duration = Duration::from_mins(1);

/// The shortest that JetStream allows.
pub(super) const ID_MEMORY: Duration = Duration::from_millis(100);

pub(super) struct World {
    pub(super) ledger: Ledger,
    pub(super) nats: Nats,
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    pub(super) tenant: TenantId,
    pub(super) node: NodeId,
    actor: Actor,
    _folder: tempfile::TempDir,
}

impl World {
    pub(super) async fn new(pool: PgPool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = ServerOptions::new(folder.path().join("nats")).throwaway();
        let nats = Nats::start(options).await.unwrap();
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let ledger = another_ledger(pool, &tasks, &shutdown);
        let tenant = TenantId::from_uuid(Uuid::from_u128(7));
        let actor = Actor::api("ada");
        let registered = NodeRegistered {
            labels: [].into(),
            name: "one".to_owned(),
            role: Role::Node,
        };
        let node = ledger
            .register_node(&actor, tenant, registered)
            .await
            .unwrap()
            .id;
        Self {
            ledger,
            nats,
            tasks,
            shutdown,
            tenant,
            node,
            actor,
            _folder: folder,
        }
    }

    /// Options with a name that no other publisher has, and a lease short enough for a test.
    pub(super) fn options(&self, holder: &str) -> NatsOptions {
        let mut options = NatsOptions::new(self.nats.url(), holder, "/ledger/test");
        options.lease = Duration::from_secs(2);
        options
    }

    pub(super) fn publisher(&self, holder: &str) -> tokio::task::JoinHandle<()> {
        self.publisher_to(&self.nats.url(), holder)
    }

    /// A publisher to a server that may be another one.
    pub(super) fn publisher_to(&self, url: &str, holder: &str) -> tokio::task::JoinHandle<()> {
        let (ledger, mut options) = (self.ledger.clone(), self.options(holder));
        url.clone_into(&mut options.url);
        let shutdown = self.shutdown.clone();
        self.tasks
            .spawn(async move { crate::run(ledger, options, shutdown).await.unwrap() })
    }

    pub(super) async fn connection(&self) -> Connection {
        let address = Address::parse(&self.nats.url()).unwrap();
        Connection::open(&address, "test").await.unwrap()
    }

    /// Makes the stream with the shortest memory for message ids that JetStream allows, so that
    /// nothing but the expected sequence keeps a repeat out.
    pub(super) async fn forget_ids(&self) {
        let config = async_nats::jetstream::stream::Config {
            duplicate_window: ID_MEMORY,
            ..crate::stream::config(&self.options("any"))
        };
        self.connection()
            .await
            .jetstream
            .create_stream(config)
            .await
            .unwrap();
    }

    /// Queues a command under a key.
    pub(super) async fn enqueue(&self, key: &str) -> Command {
        let run = Run {
            tenant: self.tenant,
            node: self.node,
            kind: "inventory.refresh".to_owned(),
            payload: json!({}),
            idempotency_key: key.to_owned(),
            not_after: self.ledger.now().plus_seconds(600),
            not_before: None,
            min_generation: None,
            batch_id: None,
        };
        self.ledger.enqueue(&self.actor, run).await.unwrap().command
    }

    /// Queues a command and cancels it: three events.
    pub(super) async fn enqueue_and_cancel(&self, key: &str) -> Command {
        let command = self.enqueue(key).await;
        self.ledger
            .cancel(&self.actor, self.tenant, self.node, command.id)
            .await
            .unwrap()
    }

    /// Who holds the publisher's lease.
    pub(super) async fn leader(&self) -> Option<String> {
        let held = "SELECT holder FROM leases WHERE name = 'publisher' AND expires_at > now()";
        sqlx::query_scalar(held)
            .fetch_optional(self.ledger.pool())
            .await
            .unwrap()
    }

    pub(super) async fn events(&self) -> Vec<Event> {
        self.log().await.1
    }

    /// The first position that the database has, and the events from there on.
    async fn log(&self) -> (u64, Vec<Event>) {
        let mut conn = self.ledger.pool().acquire().await.unwrap();
        let recorded = log::read(&mut conn, 0, 1_000_000).await.unwrap();
        let first = recorded.first().map_or(1, |first| first.position);
        let event = |recorded: &log::Recorded| Event::decode(&recorded.bytes).unwrap();
        (first, recorded.iter().map(event).collect())
    }

    /// Waits until the stream ends where the log does, then compares every message with its event.
    pub(super) async fn assert_whole(&self) {
        let connection = self.connection().await;
        let last = || async {
            match connection.jetstream.get_stream(STREAM).await {
                Ok(stream) => stream.cached_info().state.last_sequence,
                Err(_) => 0,
            }
        };
        let (first, events) = self.log().await;
        until("the stream has every event", async || {
            last().await == first - 1 + events.len() as u64
        })
        .await;
        let stream = connection.jetstream.get_stream(STREAM).await.unwrap();
        assert_eq!(stream.cached_info().state.messages, events.len() as u64);
        for (position, event) in (first..).zip(&events) {
            let (message_subject, headers) = message(&stream, position).await;
            assert_eq!(
                header(&headers, "Nats-Msg-Id"),
                event.id.to_string(),
                "at {position}"
            );
            assert_eq!(header(&headers, "ce-sequence"), position.to_string());
            assert_eq!(message_subject, subject::subject(event));
        }
    }

    pub(super) async fn end(mut self) {
        self.shutdown.cancel();
        self.tasks.close();
        tokio::time::timeout(DEADLINE, self.tasks.wait())
            .await
            .unwrap();
        self.nats.stop().await.unwrap();
    }
}

pub(super) fn another_ledger(
    pool: PgPool,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> Ledger {
    let options = Options::new(Registry::builtin(), Clock::system());
    Ledger::start(pool, options, tasks, shutdown.clone()).unwrap()
}

pub(super) async fn message(
    stream: &jetstream::stream::Stream<Info>,
    sequence: u64,
) -> (String, HeaderMap) {
    let message = stream.get_raw_message(sequence).await.unwrap();
    (message.subject.to_string(), message.headers)
}

pub(super) fn header(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).unwrap().to_string()
}

/// Waits for a condition, with a deadline.
pub(super) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// What comes on a subscription, in time.
pub(super) async fn next(subscriber: &mut async_nats::Subscriber) -> async_nats::Message {
    use futures_util::StreamExt as _;
    tokio::time::timeout(DEADLINE, subscriber.next())
        .await
        .unwrap()
        .unwrap()
}
