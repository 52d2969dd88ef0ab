//! From the log to the stream, window by window (SPEC L9).
//!
//! Correctness does not rest on who runs this: every message says which sequence must be the
//! stream's last (`Nats-Expected-Last-Sequence`), so a second publisher, a repeat or a gap is
//! refused by JetStream. The stream's last sequence is the cursor, read again after any error.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Info, Stream};
use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use ledger::Ledger;
use ledger_projections::log::{self, Recorded};
use ledger_protocol::event::{Body, Event};
use sqlx::PgConnection;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::checkpoints::Checkpoints;
use crate::connection::Connection;
use crate::error::{database, in_time};
use crate::options::NatsOptions;
use crate::workflows::Workflows;
use crate::{Error, STREAM, cancel, cloud_event, data, limits, mark, stream, subject};

/// An event with what is sent of it.
struct Entry {
    position: u64,
    event: Event,
    headers: HeaderMap,
    data: Bytes,
}

pub(crate) struct Publisher<'a> {
    ledger: &'a Ledger,
    connection: &'a Connection,
    source: &'a str,
    stream: Stream<Info>,
    workflows: Workflows,
    checkpoints: Checkpoints,
    /// The stream's last sequence.
    stored: u64,
    /// The last position whose copy and wakes were sent.
    told: u64,
}

impl<'a> Publisher<'a> {
    /// Looks at the stream and compares it with the ledger.
    pub(crate) async fn open(
        ledger: &'a Ledger,
        connection: &'a Connection,
        options: &'a NatsOptions,
    ) -> Result<Self, Error> {
        connection.check_version()?;
        let stream = stream::ensure(connection, options, ledger.pool()).await?;
        let stored = stream::verify(&stream, ledger.pool()).await?;
        // What has left the database is told to nobody.
        let through = stream::archived_through(ledger.pool()).await?;
        let told = mark::read(ledger.pool(), STREAM).await?.max(through);
        tracing::debug!(stored, told, "publishes from the stream's last sequence");
        Ok(Self {
            ledger,
            connection,
            source: &options.source,
            stream,
            workflows: Workflows::default(),
            checkpoints: Checkpoints::open(ledger.pool()).await?,
            stored,
            told,
        })
    }

    /// Publishes what comes, until something fails. `progress` is called after each window, and
    /// whenever the stream has everything.
    pub(crate) async fn tail(&mut self, mut progress: impl FnMut()) -> Result<Never, Error> {
        let mut news = Some(self.ledger.subscribe());
        let mut checked = Instant::now();
        loop {
            while self.advance().await? {
                progress();
                checked = Instant::now();
                self.tell_checkpoint().await?;
            }
            self.tell_checkpoint().await?;
            progress();
            let heard = async {
                match news.as_mut() {
                    // A receiver that lagged has news, too.
                    Some(receiver) => !matches!(receiver.recv().await, Err(RecvError::Closed)),
                    None => std::future::pending().await,
                }
            };
            let reconnected = tokio::select! {
                open = heard => {
                    if !open {
                        news = None;
                    }
                    false
                }
                () = tokio::time::sleep(limits::POLL_EVERY) => false,
                () = self.connection.connected.notified() => true,
            };
            if reconnected || checked.elapsed() >= limits::STREAM_CHECK_EVERY {
                self.check().await?;
                checked = Instant::now();
            }
        }
    }

    async fn tell_checkpoint(&mut self) -> Result<(), Error> {
        let (pool, client) = (self.ledger.pool(), &self.connection.client);
        self.checkpoints.tell(pool, client, self.source).await
    }

    /// Whether the stream is still as this publisher left it; one that was wiped while nothing
    /// happened is found here.
    async fn check(&self) -> Result<(), Error> {
        let found = stream::info(&self.stream).await?.state.last_sequence;
        if found == self.stored {
            Ok(())
        } else {
            Err(Error::Moved {
                expected: self.stored,
                found,
            })
        }
    }

    /// Publishes one window; false when there is nothing new. What was stored by someone who then
    /// died is told here, what was told before the stream was lost is only stored.
    async fn advance(&mut self) -> Result<bool, Error> {
        let after = self.stored.min(self.told);
        let window = database(self.read(after)).await?;
        let Some(last) = window.last().map(|entry| entry.position) else {
            return Ok(false);
        };
        self.store(&window).await?;
        self.stored = self.stored.max(last);
        if last > self.told {
            in_time("NATS", limits::COPIES_WITHIN, self.tell(&window)).await?;
            mark::advance(self.ledger.pool(), STREAM, last).await?;
            self.told = last;
        }
        Ok(true)
    }

    async fn read(&mut self, after: u64) -> Result<Vec<Entry>, Error> {
        let mut conn = self.ledger.pool().acquire().await?;
        let recorded = log::read(&mut conn, after, limits::WINDOW_EVENTS).await?;
        let mut window = Vec::with_capacity(recorded.len());
        for (expected, recorded) in (after + 1..).zip(recorded) {
            if recorded.position != expected {
                return Err(Error::Gap { position: expected });
            }
            window.push(self.entry(&mut conn, recorded).await?);
        }
        let told = self.told;
        let to_tell = window.iter().filter(|entry| entry.position > told);
        self.workflows
            .learn(&mut conn, to_tell.map(|entry| &entry.event))
            .await?;
        Ok(window)
    }

    async fn entry(&self, conn: &mut PgConnection, recorded: Recorded) -> Result<Entry, Error> {
        let position = recorded.position;
        let event = Event::decode(&recorded.bytes)
            .map_err(|source| Error::Unreadable { position, source })?;
        let cancelled_in = match &event.body {
            Body::CommandCancelRequested(_) => {
                Some(cancel::state_after(conn, &event, position).await?)
            }
            _ => None,
        };
        let headers = cloud_event::headers(&event, position, self.source);
        let data = data::data(&event, position, cancelled_in)
            .to_string()
            .into();
        Ok(Entry {
            position,
            event,
            headers,
            data,
        })
    }

    /// Sends the events that the stream lacks, each saying what must be the last before it, and
    /// awaits every acknowledgement.
    async fn store(&self, window: &[Entry]) -> Result<(), Error> {
        in_time("JetStream", limits::WINDOW_WITHIN, async {
            let mut acknowledgements = Vec::with_capacity(window.len());
            for entry in window.iter().filter(|entry| entry.position > self.stored) {
                let message = PublishMessage::build()
                    .headers(entry.headers.clone())
                    .expected_stream(subject::STREAM)
                    .expected_last_sequence(entry.position - 1)
                    .payload(entry.data.clone());
                let position = entry.position;
                let sent = self
                    .connection
                    .jetstream
                    .send_publish(subject::subject(&entry.event), message);
                let acknowledgement = sent
                    .await
                    .map_err(|source| Error::Publish { position, source })?;
                acknowledgements.push((position, acknowledgement));
            }
            for (position, acknowledgement) in acknowledgements {
                let stored = acknowledgement
                    .await
                    .map_err(|source| Error::Publish { position, source })?;
                // An id that JetStream has already is answered with where it stands.
                if stored.sequence != position {
                    return Err(Error::Moved {
                        expected: position,
                        found: stored.sequence,
                    });
                }
            }
            Ok::<_, Error>(())
        })
        .await
    }

    /// Sends copies on the bare names, and wakes whom the events concern, once per window.
    async fn tell(&self, window: &[Entry]) -> Result<(), Error> {
        let client = &self.connection.client;
        let mut wakes = BTreeSet::new();
        for entry in window.iter().filter(|entry| entry.position > self.told) {
            let bare = Subject::from_static(subject::bare_name(&entry.event.body));
            client
                .publish_with_headers(bare, entry.headers.clone(), entry.data.clone())
                .await
                .map_err(Error::copy)?;
            wakes.extend(entry.event.node_id().map(subject::wake_node));
            let workflow = entry
                .event
                .command_id()
                .and_then(|id| self.workflows.of(id));
            wakes.extend(workflow.map(subject::wake_workflow));
        }
        for wake in wakes {
            client
                .publish(wake, Bytes::new())
                .await
                .map_err(Error::copy)?;
        }
        client.flush().await.map_err(Error::copy)
    }
}

/// What a loop without end returns.
pub(crate) enum Never {}

/// Waits after a failure, longer each time, until something works again.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: usize,
}

impl Backoff {
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// How often it failed since it last worked, this time included.
    pub(crate) fn failed(&mut self) -> usize {
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    pub(crate) fn wait(&self) -> Duration {
        crate::connection::backoff(self.failures)
    }
}
