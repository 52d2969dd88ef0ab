//! The connection to NATS: address, version gate, and reconnecting for ever.

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::{self, context::ContextBuilder};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use tokio::sync::Notify;

use crate::{Error, limits};

/// The oldest version that does what the publisher relies on.
const VERSION_MIN: (u64, u64) = (2, 10);

/// Where a server is, and what lets us in. The client takes no credentials from a URL.
#[derive(Clone)]
pub(crate) struct Address {
    server: ServerAddr,
    username: Option<String>,
    password: Option<String>,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let server: ServerAddr = url.trim().parse().map_err(Error::Url)?;
        Ok(Self {
            username: server.username().map(percent_decoded),
            password: server.password().map(percent_decoded),
            server,
        })
    }

    /// Host and port, for logs.
    fn name(&self) -> String {
        format!("{}:{}", self.server.host(), self.server.port())
    }

    fn options(&self) -> ConnectOptions {
        match (&self.username, &self.password) {
            (Some(user), Some(password)) => {
                ConnectOptions::with_user_and_password(user.clone(), password.clone())
            }
            (Some(token), None) => ConnectOptions::with_token(token.clone()),
            (None, _) => ConnectOptions::new(),
        }
    }
}

fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| str::from_utf8(two).ok());
        let byte = hex.and_then(|two| u8::from_str_radix(two, 16).ok());
        match byte {
            Some(byte) if first == b'%' => {
                decoded.push(byte);
                rest = &after[2..];
            }
            Some(_) | None => {
                decoded.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// A client that comes back by itself after every outage.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    /// Told each time the client is connected again.
    pub(crate) connected: Arc<Notify>,
}

impl Connection {
    /// Connects once; `name` is what the server's operator sees.
    pub(crate) async fn open(address: &Address, name: &str) -> Result<Self, Error> {
        let connected = Arc::new(Notify::new());
        let told = Arc::clone(&connected);
        let client = address
            .options()
            .name(name)
            .connection_timeout(limits::CONNECT_WITHIN)
            .request_timeout(Some(limits::ANSWER_WITHIN))
            .ping_interval(limits::PING_EVERY)
            .client_capacity(limits::UNSENT_COMMANDS_MAX)
            .subscription_capacity(limits::UNREAD_MESSAGES_MAX)
            .max_reconnects(None)
            .reconnect_delay_callback(backoff)
            .event_callback(move |event| {
                if matches!(event, Event::Connected) {
                    told.notify_one();
                }
                async move { tracing::debug!(%event, "NATS") }
            })
            .connect(address.server.clone())
            .await
            .map_err(|source| Error::Connect {
                server: address.name(),
                source,
            })?;
        let jetstream = ContextBuilder::new()
            .timeout(limits::ANSWER_WITHIN)
            .ack_timeout(limits::ANSWER_WITHIN)
            .max_ack_inflight(limits::UNRESOLVED_ACKS_MAX)
            // A full client is an error like any other, not a wait without end.
            .backpressure_on_inflight(false)
            .build(client.clone());
        let connection = Self {
            client,
            jetstream,
            connected,
        };
        connection.check_version()?;
        Ok(connection)
    }

    /// Whether the server is there, as far as the client knows.
    pub(crate) fn is_open(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Refuses a server that would silently do something else. Asked again after each reconnect,
    /// which may lead to another server.
    pub(crate) fn check_version(&self) -> Result<(), Error> {
        check_version(&self.client.server_info().version)
    }
}

fn check_version(version: &str) -> Result<(), Error> {
    let mut numbers = version
        .trim_start_matches('v')
        .split('.')
        .map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= VERSION_MIN => Ok(()),
        _ => Err(Error::ServerTooOld {
            version: version.to_owned(),
        }),
    }
}

/// The wait before the attempt with this number, from 1.
pub(crate) fn backoff(attempt: usize) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(16);
    (limits::BACKOFF_MIN * 2_u32.pow(doublings)).min(limits::BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_a_server_older_than_2_10_is_refused_by_name() {
        for version in [
            "2.10.0",
            "2.10.25",
            "2.11.0-RC.1",
            "2.15.1",
            "3.0.0",
            "v2.12.8",
        ] {
            check_version(version).unwrap();
        }
        for version in ["2.9.10", "2.9.25", "1.4.1", "2", "", "unknown"] {
            let refusal = check_version(version).unwrap_err().to_string();
            assert_eq!(
                refusal,
                format!("NATS server {version} is too old; the ledger needs 2.10 or newer")
            );
        }
    }

    #[test]
    fn l9_waits_between_attempts_grow_and_are_bounded() {
        assert_eq!(backoff(1), limits::BACKOFF_MIN);
        assert_eq!(backoff(2), limits::BACKOFF_MIN * 2);
        assert_eq!(backoff(usize::MAX), limits::BACKOFF_MAX);
    }

    #[test]
    fn p6_credentials_come_from_the_url_and_stay_out_of_names() {
        let token = Address::parse("nats://s3cr%20et@127.0.0.1:4333").unwrap();
        assert_eq!(token.username.as_deref(), Some("s3cr et"));
        assert_eq!(token.password, None);
        assert_eq!(token.name(), "127.0.0.1:4333");
        let user = Address::parse("nats://ada:p%40ss%zz@nats.example").unwrap();
        assert_eq!(user.password.as_deref(), Some("p@ss%zz"));
        assert_eq!(user.name(), "nats.example:4222");
        let refusal = Address::parse("http://s3cret@nowhere")
            .err()
            .unwrap()
            .to_string();
        assert!(!refusal.contains("s3cret"), "{refusal}");
    }
}
