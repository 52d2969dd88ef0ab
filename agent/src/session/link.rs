//! The connection to the gateway: made, lost, made again (SPEC D1, D14).

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use ledger_protocol::daemon::{Input, reconnect_delay, update_frames};
use ledger_protocol::frame::{self, Frame};
use ledger_protocol::id::NodeId;
use ledger_protocol::session::Close;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};
use tracing::{debug, error, info, warn};

use crate::clock::random;
use crate::connect::{
    Connector, Socket, is_certificate_refusal, is_own_certificate_expired, is_refusal,
};
use crate::error::Error;
use crate::limits::{
    GOODBYE_SECONDS_MAX, REFUSED_RETRY_SECONDS_MAX, REFUSED_RETRY_SECONDS_MIN,
    REVOKED_RETRY_SECONDS_MAX, REVOKED_RETRY_SECONDS_MIN, SEND_SECONDS_MAX, STABLE_SESSION_SECONDS,
};

/// Longest reason in a close frame, in bytes (RFC 6455: 125 with the code).
const CLOSE_REASON_BYTES_MAX: usize = 123;

type Connecting = Pin<Box<dyn Future<Output = Result<Socket, Error>> + Send>>;

/// The connection, or the wait for one.
pub(super) struct Link {
    connector: Connector,
    node: NodeId,
    state: State,
    /// Connections that failed, or did not last, since the last one that did.
    failures: u32,
}

enum State {
    Waiting {
        until: Instant,
    },
    Connecting(Connecting),
    Up {
        socket: Box<Socket>,
        welcomed_at: Option<Instant>,
    },
}

/// Whether a quick next connection would be refused as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    No,
    Yes,
    /// Nothing that this node does by itself changes it.
    UntilAPersonComes,
}

pub(super) enum LinkEvent {
    WaitIsOver,
    Connected(Result<Box<Socket>, Error>),
    Message(Option<Result<Message, tungstenite::Error>>),
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("connector", &self.connector)
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(connector: Connector, node: NodeId) -> Self {
        Self {
            connector,
            node,
            state: State::Waiting {
                until: Instant::now(),
            },
            failures: 0,
        }
    }

    /// What happens next. May be dropped at any time without losing anything.
    pub(super) async fn next(&mut self) -> LinkEvent {
        match &mut self.state {
            State::Waiting { until } => {
                sleep_until(*until).await;
                LinkEvent::WaitIsOver
            }
            State::Connecting(connecting) => LinkEvent::Connected(connecting.await.map(Box::new)),
            State::Up { socket, .. } => LinkEvent::Message(socket.next().await),
        }
    }

    /// A message that has arrived already.
    pub(super) fn message_at_hand(&mut self) -> Option<LinkEvent> {
        match &mut self.state {
            State::Up { socket, .. } => socket.next().now_or_never().map(LinkEvent::Message),
            State::Waiting { .. } | State::Connecting(_) => None,
        }
    }

    pub(super) fn take_in(&mut self, event: LinkEvent, inbox: &mut VecDeque<Input>) {
        match event {
            LinkEvent::WaitIsOver => {
                let connector = self.connector.clone();
                let connecting = Box::pin(async move { connector.connect().await });
                self.state = State::Connecting(connecting);
            }
            LinkEvent::Connected(Ok(socket)) => {
                self.state = State::Up {
                    socket,
                    welcomed_at: None,
                };
                inbox.push_back(Input::Connected);
            }
            LinkEvent::Connected(Err(error)) => {
                let refused = is_refusal(&error);
                self.tell_expired(&error);
                let wait = self.wait(if refused { Refused::Yes } else { Refused::No });
                let error = &error as &dyn std::error::Error;
                let (node, wait_ms) = (self.node, wait.as_millis());
                if refused {
                    error!(%node, error, wait_ms, "the gateway and this node do not accept each other");
                } else {
                    warn!(%node, error, wait_ms, "no session with the gateway");
                }
            }
            LinkEvent::Message(Some(Ok(message))) => self.message(message, inbox),
            LinkEvent::Message(Some(Err(error))) => {
                self.broken(&error, inbox);
            }
            LinkEvent::Message(None) => self.lost("the connection ended", Refused::No, inbox),
        }
    }

    fn message(&mut self, message: Message, inbox: &mut VecDeque<Input>) {
        match message {
            Message::Binary(bytes) => match Frame::decode(&bytes) {
                Ok(frame) => inbox.push_back(Input::Frame(frame)),
                // What is too large, or newer than this agent, harms nothing but itself.
                Err(
                    unread @ (frame::Error::TooLarge { .. } | frame::Error::UnknownType { .. }),
                ) => {
                    error!(node = %self.node, %unread, "a frame was refused");
                }
                Err(broken @ (frame::Error::Envelope | frame::Error::Body { .. })) => {
                    let cause = std::error::Error::source(&broken).map(ToString::to_string);
                    error!(node = %self.node, %broken, cause, "a frame cannot be read");
                    let reason = "the gateway sent a frame that cannot be read";
                    self.lost(reason, Refused::Yes, inbox);
                }
            },
            Message::Text(_) => self.lost("the gateway sent text", Refused::Yes, inbox),
            Message::Close(close) => {
                let refused = match close.as_ref().map(|close| u16::from(close.code)) {
                    Some(Close::CERTIFICATE_REVOKED) => Refused::UntilAPersonComes,
                    Some(code) if code == u16::from(CloseCode::Policy) => Refused::Yes,
                    Some(_) | None => Refused::No,
                };
                let reason = close.map(|close| close.reason.to_string());
                self.lost(&reason.unwrap_or_default(), refused, inbox);
            }
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }

    /// The gateway has let the daemon in.
    pub(super) fn welcomed(&mut self) {
        info!(node = %self.node, "session open");
        if let State::Up { welcomed_at, .. } = &mut self.state {
            *welcomed_at = Some(Instant::now());
        }
    }

    /// The WebSocket failed.
    fn broken(&mut self, error: &tungstenite::Error, inbox: &mut VecDeque<Input>) {
        self.tell_expired(error);
        let refused = if is_certificate_refusal(error) {
            Refused::Yes
        } else {
            Refused::No
        };
        self.lost(&error.to_string(), refused, inbox);
    }

    /// Says what helps a node whose certificate ended before it could be renewed.
    fn tell_expired(&self, error: &(dyn std::error::Error + 'static)) {
        if is_own_certificate_expired(error) {
            error!(node = %self.node, "{}", crate::renewal::EXPIRED);
        }
    }

    fn lost(&mut self, reason: &str, refused: Refused, inbox: &mut VecDeque<Input>) {
        let State::Up { welcomed_at, .. } = &self.state else {
            return;
        };
        let stable = Duration::from_secs(STABLE_SESSION_SECONDS);
        if welcomed_at.is_some_and(|at| at.elapsed() >= stable) {
            self.failures = 0;
        }
        let wait_ms = self.wait(refused).as_millis();
        match refused {
            Refused::No => info!(node = %self.node, reason, wait_ms, "session lost"),
            Refused::Yes => {
                error!(node = %self.node, reason, wait_ms, "the gateway refused this node");
            }
            Refused::UntilAPersonComes => error!(
                node = %self.node, reason, wait_ms,
                "this node's certificate was revoked: to let it in again, start it with a new join \
                 token and an empty state directory"
            ),
        }
        inbox.push_back(Input::Disconnected);
    }

    /// Waits before the next connection: jittered, and long when a quick one would be refused
    /// as well.
    fn wait(&mut self, refused: Refused) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let within = |min: u64, max: u64| {
            let drawn = (max - min) * 1_000 * u64::from(random::<u32>()) / u64::from(u32::MAX);
            Duration::from_secs(min) + Duration::from_millis(drawn)
        };
        let wait = match refused {
            Refused::No => reconnect_delay(self.failures, random()),
            Refused::Yes => within(REFUSED_RETRY_SECONDS_MIN, REFUSED_RETRY_SECONDS_MAX),
            Refused::UntilAPersonComes => {
                within(REVOKED_RETRY_SECONDS_MIN, REVOKED_RETRY_SECONDS_MAX)
            }
        };
        self.state = State::Waiting {
            until: Instant::now() + wait,
        };
        wait
    }

    /// Writes frames, of which neighbours that report are sent as one.
    pub(super) async fn send(&mut self, mut frames: Vec<Frame>, inbox: &mut VecDeque<Input>) {
        let State::Up { socket, .. } = &mut self.state else {
            // The machine says it again in the next session.
            return;
        };
        if frames.is_empty() {
            return;
        }
        let node = self.node;
        for frame in &mut frames {
            self.connector.sign(node, frame);
        }
        let write = async {
            for frame in merge_updates(frames) {
                match frame.encode() {
                    Ok(bytes) => socket.feed(Message::binary(bytes)).await?,
                    Err(error) => error!(%node, %error, frame = frame.name(), "cannot be encoded"),
                }
            }
            socket.flush().await
        };
        match timeout(Duration::from_secs(SEND_SECONDS_MAX), write).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.broken(&error, inbox);
            }
            Err(_) => self.lost("the gateway does not read", Refused::No, inbox),
        }
    }

    /// Breaks off the connection, as a fault would.
    pub(super) fn cut(&mut self, inbox: &mut VecDeque<Input>) {
        self.lost("cut, as it was asked to be", Refused::No, inbox);
    }

    /// Ends the connection because the machine wants it to end.
    pub(super) async fn close(&mut self, reason: &str, inbox: &mut VecDeque<Input>) {
        self.goodbye(CloseCode::Protocol, reason).await;
        self.lost(reason, Refused::No, inbox);
    }

    /// Ends the connection because the agent ends.
    pub(super) async fn say_goodbye(&mut self, reason: &str) {
        self.goodbye(CloseCode::Away, reason).await;
    }

    async fn goodbye(&mut self, code: CloseCode, reason: &str) {
        let State::Up { socket, .. } = &mut self.state else {
            return;
        };
        let end = reason.floor_char_boundary(CLOSE_REASON_BYTES_MAX);
        let frame = CloseFrame {
            code,
            reason: reason[..end].into(),
        };
        let goodbye = async {
            (**socket).close(Some(frame)).await?;
            // What the gateway still sends is read, or a reset could take from it what was said.
            while socket.next().await.is_some_and(|message| message.is_ok()) {}
            Ok::<_, tungstenite::Error>(())
        };
        let within = Duration::from_secs(GOODBYE_SECONDS_MAX);
        if !matches!(timeout(within, goodbye).await, Ok(Ok(()))) {
            debug!(node = %self.node, "the gateway did not take the goodbye in");
        }
    }
}

/// Puts the updates of neighbouring frames into as few frames as there can be.
fn merge_updates(frames: Vec<Frame>) -> Vec<Frame> {
    let mut merged = Vec::new();
    let mut updates = Vec::new();
    for frame in frames {
        match frame {
            Frame::CommandUpdate(body) => updates.extend(body.updates),
            other => {
                merged.extend(update_frames(std::mem::take(&mut updates)));
                merged.push(other);
            }
        }
    }
    merged.extend(update_frames(updates));
    merged
}
