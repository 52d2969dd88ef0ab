//! A connection to NATS, with the credentials that its URL carries.

use std::sync::Arc;

use async_nats::jetstream;
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use clap::Args;
use reqwest::Url;
use tokio::sync::Notify;

use crate::exit::{Code, Failure, Meaning};
use crate::limits::WATCH_READY_WITHIN;
use crate::secret::Secret;

/// Where NATS is.
#[derive(Debug, Clone, Args)]
pub(crate) struct NatsOption {
    /// URL of NATS 2.10 or newer, `nats://host:4222`, with `TOKEN@` or `USER:PASSWORD@` before the
    /// host where it asks for one
    #[arg(
        long,
        env = "COMMAND_LEDGER_NATS",
        value_name = "URL",
        hide_env_values = true
    )]
    pub(crate) nats: Secret,
}

/// The oldest server that keeps to the subjects a consumer asks for.
const VERSION_MIN: (u64, u64) = (2, 10);

/// A connection that comes back by itself after every outage.
pub(crate) struct Connection {
    /// JetStream over it.
    pub(crate) jetstream: jetstream::Context,
    /// Told each time that it is there again; subscriptions of before may have lost something.
    pub(crate) connected: Arc<Notify>,
}

/// Refuses what cannot be the URL of a NATS server, before anything is started that needs one.
pub(crate) fn check(url: Option<&Secret>) -> Result<(), Failure> {
    url.map_or(Ok(()), |url| address(url).map(drop))
}

fn address(url: &Secret) -> Result<ServerAddr, Failure> {
    let url: Url = url.reveal().trim().parse().map_err(|_| wrong())?;
    ServerAddr::from_url(url).map_err(|_| wrong())
}

/// Nothing of the URL goes into this error: it may hold a password.
fn wrong() -> Failure {
    Failure::usage(
        "--nats (or COMMAND_LEDGER_NATS) is no URL of a NATS server, such as nats://host:4222",
    )
}

/// Connects, and checks that the server is new enough.
pub(crate) async fn connect(url: &Secret) -> Result<Connection, Failure> {
    let address = address(url)?;
    let (host, port) = (address.host().to_owned(), address.port());

    // The library takes no credentials from a URL.
    let decoded = |text: &str| percent_decode(text).ok_or_else(wrong);
    let options = match (address.username(), address.password()) {
        (Some(user), Some(password)) => {
            ConnectOptions::with_user_and_password(decoded(user)?, decoded(password)?)
        }
        (Some(token), None) => ConnectOptions::with_token(decoded(token)?),
        (None, _) => ConnectOptions::new(),
    };
    let connected = Arc::new(Notify::new());
    let told = connected.clone();
    let client: Client = options
        .name("command-ledger watch")
        .event_callback(move |event| {
            if matches!(event, Event::Connected) {
                told.notify_one();
            }
            async move { tracing::debug!(%event, "NATS") }
        })
        .connection_timeout(WATCH_READY_WITHIN)
        .connect(address)
        .await
        .or_unavailable(format!("could not connect to NATS at {host}:{port}"))?;

    let version = client.server_info().version;
    let mut numbers = version
        .split('.')
        .map(|part| part.parse::<u64>().unwrap_or(0));
    let major_minor = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if major_minor < VERSION_MIN {
        let (major, minor) = VERSION_MIN;
        return Err(Failure::new(
            Code::Unavailable,
            anyhow::anyhow!(
                "NATS at {host}:{port} is {version}; {major}.{minor} or newer is needed"
            ),
        ));
    }
    let jetstream = jetstream::new(client);
    Ok(Connection {
        jetstream,
        connected,
    })
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_credentials_in_a_url_are_percent_decoded() {
        assert_eq!(
            percent_decode("p%40ss%2fword").as_deref(),
            Some("p@ss/word")
        );
        assert_eq!(percent_decode("plain").as_deref(), Some("plain"));
        for broken in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(percent_decode(broken), None, "{broken}");
        }
    }

    #[tokio::test]
    async fn p6_a_nats_url_that_cannot_be_is_refused_without_being_shown() {
        for url in [
            "",
            "nats//hunter2",
            "http://hunter2@host",
            "nats://%zz:hunter2@host",
        ] {
            let failure = connect(&Secret::new(url)).await.err().unwrap();
            assert_eq!(failure.code, Code::Usage, "{url}");
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
    }
}
