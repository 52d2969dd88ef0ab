//! `watch`: the events as NATS carries them, in order, one a line.

use std::io::Write as _;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use clap::Args;
use futures_util::StreamExt as _;
use ledger_nats::STREAM;
use ledger_protocol::id::{CommandId, NodeId, TenantId};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::exit::{Code, Failure};
use crate::limits::{WATCH_READY_WITHIN, WATCH_RETRY_AFTER_MAX, WATCH_RETRY_AFTER_MIN};
use crate::nats::{self, Connection, NatsOption};
use crate::output::{Output, printable};

/// Follow the events of the ledger on NATS, one a line, in the order of the log.
///
/// Begins with what happens from now on, goes on through outages of NATS without a gap, and says on
/// stderr when it has begun.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only events of this node and its commands
    #[arg(long, value_name = "NODE", conflicts_with_all = ["command", "tenant"])]
    node: Option<NodeId>,
    /// Only events of this command
    #[arg(long, value_name = "COMMAND", conflicts_with = "tenant")]
    command: Option<CommandId>,
    /// Only events of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// Begin with the event at this position of the log; 1 is the first
    #[arg(long, value_name = "POSITION", value_parser = position)]
    from: Option<u64>,
    /// Print each event as a CloudEvent in JSON
    #[arg(long)]
    json: bool,
    /// End after this many events
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time, such as 30s; with --count, fewer events by then are a failure
    #[arg(long = "for", value_name = "TIME", value_parser = crate::duration::parse)]
    for_time: Option<Duration>,
    #[command(flatten)]
    nats: NatsOption,
}

fn position(text: &str) -> Result<u64, String> {
    let position = text.parse().ok().filter(|position| *position > 0);
    position.ok_or_else(|| "positions of the log are whole numbers and start from 1".to_owned())
}

/// Prints events until the end that the options name, or until a signal.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let deadline = options.for_time.map(|time| Instant::now() + time);
    let connection = nats::connect(&options.nats.nats).await?;
    let mut follower = Follower::start(connection, &options).await?;
    // On stderr, for people and for scripts that wait for it; nobody reading it is fine.
    let _ = writeln!(
        std::io::stderr(),
        "watching from position {}",
        follower.next
    );
    let mut printed = 0;
    loop {
        let next = follower.next();
        let event = match deadline {
            Some(deadline) => timeout_at(deadline, next).await.ok(),
            None => Some(next.await),
        };
        let Some(event) = event else {
            return match options.count {
                Some(count) => Err(Failure::failed(format!(
                    "{printed} events of {count} arrived in the given time"
                ))),
                None => Ok(()),
            };
        };
        if !options.wants(&event) {
            continue;
        }
        if options.json {
            output.json_line(&event.to_json())?;
        } else {
            output.line(&event.to_line())?;
        }
        printed += 1;
        if options.count == Some(printed) {
            return Ok(());
        }
    }
}

impl Options {
    /// The subjects that the server is asked for; none means all.
    fn subjects(&self) -> Vec<String> {
        if let Some(node) = self.node {
            vec![
                format!("node.command.*.*.{node}"),
                format!("command.*.*.{node}"),
                format!("node.*.*.{node}"),
            ]
        } else if let Some(tenant) = self.tenant {
            vec![
                format!("node.command.*.{tenant}.*"),
                format!("command.*.{tenant}.*"),
                format!("node.*.{tenant}.*"),
                format!("batch.*.{tenant}"),
            ]
        } else if self.command.is_some() {
            vec!["node.command.*.*.*".to_owned(), "command.*.*.*".to_owned()]
        } else {
            Vec::new()
        }
    }

    /// A command has no subject of its own, so its events are picked here.
    fn wants(&self, event: &CloudEvent) -> bool {
        self.command
            .is_none_or(|command| event.header("subject") == Some(command.to_string().as_str()))
    }
}

/// A subscription that knows where it is, and comes back there whatever breaks in between.
struct Follower {
    connection: Connection,
    subjects: Vec<String>,
    /// The first position that has not been seen.
    next: u64,
    messages: Option<Ordered>,
    retry_after: Duration,
}

impl Follower {
    async fn start(connection: Connection, options: &Options) -> Result<Self, Failure> {
        let subjects = options.subjects();
        let begin = async {
            let mut after = WATCH_RETRY_AFTER_MIN;
            loop {
                // The publisher makes the stream, and may only be starting.
                match Self::subscribe(&connection.jetstream, &subjects, options.from).await {
                    Ok(subscribed) => return subscribed,
                    Err(error) => tracing::debug!("no subscription yet: {error:#}"),
                }
                sleep(after).await;
                after = (after * 2).min(WATCH_RETRY_AFTER_MAX);
            }
        };
        let subscribed = timeout(WATCH_READY_WITHIN, begin).await.map_err(|_| {
            let seconds = WATCH_READY_WITHIN.as_secs();
            let why = "is the publisher (`serve` or `up`) running?";
            let error = anyhow::anyhow!("NATS has had no stream {STREAM} for {seconds} s; {why}");
            Failure::new(Code::Unavailable, error)
        })?;
        let (next, messages) = subscribed;
        Ok(Self {
            connection,
            subjects,
            next,
            messages: Some(messages),
            retry_after: WATCH_RETRY_AFTER_MIN,
        })
    }

    /// A subscription that begins at a position, or after the last one that there is.
    async fn subscribe(
        context: &jetstream::Context,
        subjects: &[String],
        from: Option<u64>,
    ) -> anyhow::Result<(u64, Ordered)> {
        let stream = context.get_stream(STREAM).await?;
        let next = from.unwrap_or(stream.cached_info().state.last_sequence + 1);
        let consumer = stream
            .create_consumer(OrderedConfig {
                filter_subjects: subjects.to_vec(),
                deliver_policy: DeliverPolicy::ByStartSequence {
                    start_sequence: next,
                },
                ..OrderedConfig::default()
            })
            .await?;
        Ok((next, consumer.messages().await?))
    }

    /// The next event. May be dropped and called again.
    async fn next(&mut self) -> CloudEvent {
        loop {
            let Some(messages) = &mut self.messages else {
                sleep(self.retry_after).await;
                self.retry_after = (self.retry_after * 2).min(WATCH_RETRY_AFTER_MAX);
                match Self::subscribe(&self.connection.jetstream, &self.subjects, Some(self.next))
                    .await
                {
                    Ok((_, messages)) => self.messages = Some(messages),
                    Err(error) => tracing::warn!("watching is interrupted: {error:#}"),
                }
                continue;
            };
            let message = tokio::select! {
                // The library would find out by itself, but only after two missed heartbeats.
                () = self.connection.connected.notified() => None,
                message = messages.next() => message,
            };
            match message {
                Some(Ok(message)) => {
                    self.retry_after = WATCH_RETRY_AFTER_MIN;
                    let Some(event) = CloudEvent::read(&message) else {
                        tracing::warn!("a message of {STREAM} has no position; it is left out");
                        continue;
                    };
                    // A subscription that the library renews may begin at the beginning again.
                    if event.position >= self.next {
                        self.next = event.position + 1;
                        return event;
                    }
                }
                Some(Err(error)) => {
                    tracing::warn!("watching is interrupted: {error:#}");
                    self.messages = None;
                }
                None => self.messages = None,
            }
        }
    }
}

/// A CloudEvent in binary mode: attributes in `ce-` headers, data in the body.
struct CloudEvent {
    position: u64,
    nats_subject: String,
    /// The attributes, without the `ce-` of their headers.
    attributes: Vec<(String, String)>,
    data: Value,
}

impl CloudEvent {
    fn read(message: &jetstream::Message) -> Option<Self> {
        let position = message.info().ok()?.stream_sequence;
        let mut attributes: Vec<(String, String)> = Vec::new();
        for (name, values) in message.headers.iter().flat_map(|headers| headers.iter()) {
            let name = name.to_string().to_ascii_lowercase();
            if let (Some(name), Some(value)) = (name.strip_prefix("ce-"), values.first()) {
                attributes.push((name.to_owned(), value.to_string()));
            }
        }
        attributes.sort();
        Some(Self {
            position,
            nats_subject: message.subject.to_string(),
            attributes,
            data: serde_json::from_slice(&message.payload).unwrap_or_default(),
        })
    }

    fn header(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The event in CloudEvents' JSON form. `position` and `natssubject` are extensions.
    fn to_json(&self) -> Value {
        let mut event = Map::new();
        for (name, value) in &self.attributes {
            event.insert(name.clone(), Value::from(value.as_str()));
        }
        event.insert("position".to_owned(), json!(self.position));
        event.insert("natssubject".to_owned(), json!(self.nats_subject));
        event.insert("data".to_owned(), self.data.clone());
        Value::from(event)
    }

    /// The event for people: where and when, what, about whom, and how it stands.
    fn to_line(&self) -> String {
        let mut parts = vec![
            format!("{:>6}", self.position),
            self.header("time").unwrap_or("-").to_owned(),
            format!("{:<29}", self.header("type").unwrap_or(&self.nats_subject)),
            self.header("subject").unwrap_or("-").to_owned(),
        ];
        for field in ["nodeId", "kind", "state", "approver", "reason"] {
            let text = self.data.get(field).and_then(Value::as_str);
            parts.extend(
                text.filter(|text| !parts.iter().any(|part| part == text))
                    .map(str::to_owned),
            );
        }
        printable(&parts.join("  "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> CloudEvent {
        let attributes = [
            ("id", "evt_1"),
            ("subject", "cmd_1"),
            ("time", "2026-11-30T08:06:40.123456Z"),
            ("type", "command.settled"),
        ];
        CloudEvent {
            position: 7,
            nats_subject: "command.settled.tenant_1.node_1".to_owned(),
            attributes: attributes
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .to_vec(),
            data: json!({"nodeId": "node_1", "kind": "diag.nvml", "state": "failed", "reason": "a\nb"}),
        }
    }

    #[test]
    fn h2_an_event_is_one_line_for_people() {
        assert_eq!(
            event().to_line(),
            "     7  2026-11-30T08:06:40.123456Z  command.settled                cmd_1  node_1  \
             diag.nvml  failed  a\u{fffd}b"
        );
    }

    #[test]
    fn h2_an_event_is_a_cloudevent_for_machines() {
        assert_eq!(
            event().to_json(),
            json!({
                "id": "evt_1",
                "subject": "cmd_1",
                "time": "2026-11-30T08:06:40.123456Z",
                "type": "command.settled",
                "position": 7,
                "natssubject": "command.settled.tenant_1.node_1",
                "data": {"nodeId": "node_1", "kind": "diag.nvml", "state": "failed", "reason": "a\nb"},
            })
        );
    }
}
