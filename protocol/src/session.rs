//! The gateway's half of a session (SPEC D1–D13), as a machine: it is told what came in and how
//! time goes on, and answers with what is to be done. It reads nothing, waits for nothing and
//! asks no clock; `gateway/` drives it.
//!
//! Time comes in twice: `elapsed` since the connection began, by a clock that never jumps, decides
//! what is late; the server's time only travels in frames (SPEC D10).
//!
//! To add a frame that a daemon may send: an arm in [`Session::receive_open`].

use std::collections::BTreeSet;
use std::time::Duration;

use crate::canonical;
use crate::command;
use crate::frame::{
    CommandUpdate, Frame, Hello, JournalEntry, Ping, SecretRequest, Status, Update, Welcome,
};
use crate::id::{CommandId, NodeId};
use crate::limits;
use crate::node::{Node, OpenSession, Presented};
use crate::refusal::Refusal;
use crate::time::Timestamp;
use crate::trust::Published;

mod acknowledge;
mod backoff;
mod cancels;
mod close;
mod deliver;
mod expiry;
mod resume;
#[cfg(test)]
mod tests;
mod trust;
mod wakes;

pub use acknowledge::{Answer, acknowledge};
pub use backoff::busy_backoff;
pub use cancels::Cancels;
pub use close::Close;
pub use deliver::{Batches, command, command_frame, spec_frame};
pub use wakes::Wakes;

use expiry::Expiry;

/// Who the other side is, by its certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The kinds that the identity may run; all when absent (SPEC D11).
    pub allowed_kinds: Option<Vec<String>>,
    /// The certificate; unknown where there is none, as in a simulation.
    pub certificate: Option<Presented>,
    /// The node.
    pub node_id: NodeId,
}

impl Peer {
    /// Why the node's certificates let this one in no more, if they do not: it was revoked, or
    /// replaced by a later join.
    pub fn refusal(&self, node: &Node) -> Option<Refusal> {
        let shown = self.certificate.as_ref()?;
        node.check_certificate(shown).err()
    }

    /// Whether the identity may run this kind.
    pub fn accepts(&self, kind: &str) -> bool {
        let allowed = self.allowed_kinds.as_ref();
        allowed.is_none_or(|allowed| allowed.iter().any(|name| name == kind))
    }
}

/// How a gateway holds its sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Name of the gateway, as it stands in the ledger.
    pub gateway: String,
    /// Lease of the gateway's process, where it has one.
    pub gateway_lease: Option<String>,
    /// Longest wait for `Hello`.
    pub hello_within: Duration,
    /// How often a `Ping` is sent, in seconds; three times as long a silence ends the session.
    pub ping_seconds: u32,
}

/// A message of the WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A binary one: a frame.
    Binary(&'a [u8]),
    /// A text, which is never a frame.
    Text,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Open the session in the ledger, then call [`Session::opened`]. Nothing is received before.
    Open {
        /// What the daemon says of itself.
        open: OpenSession,
        /// What its journal holds.
        entries: Vec<JournalEntry>,
    },
    /// Report these updates, all at once and in this order, then send what [`acknowledge`] makes
    /// of the answers.
    Report(Vec<Update>),
    /// Tell the ledger what the node has applied, then call [`Session::generation_recorded`].
    ApplyGeneration(u64),
    /// Read the desired state and send it, if there is one.
    SendSpec,
    /// Read the trust bundles above this version, then call [`Session::trust`].
    SendTrust {
        /// The version that the node believes.
        above: u64,
    },
    /// Have this question answered by whoever keeps the secrets, and send the answer.
    Exchange(SecretRequest),
    /// Keep that the node believes this version of the trust bundle; 0 for none.
    RecordTrust(u64),
    /// Send this frame.
    Send(Frame),
    /// End the session.
    Close(Close),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// Nothing was received yet.
    Greeting,
    /// The ledger opens the session.
    Opening {
        accepted: BTreeSet<CommandId>,
        batches: Batches,
        trust: Vec<Published>,
    },
    /// The session is open.
    Open,
}

/// One session, from the gateway's side. Comparable, so that a model checker can tell its states
/// apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Session {
    peer: Peer,
    expiry: Expiry,
    terms: Terms,
    state: State,
    /// When something was last heard of the daemon.
    heard: Duration,
    /// When the next `Ping` goes out.
    ping_at: Duration,
    pings: u64,
    /// The generation that the daemon last named.
    generation_told: u64,
    /// The generation that the ledger has.
    generation_recorded: u64,
    trust: trust::Told,
}

impl Session {
    /// A session whose connection has just opened.
    pub fn new(peer: Peer, terms: Terms) -> Self {
        Self {
            expiry: Expiry::new(&peer),
            peer,
            terms,
            state: State::Greeting,
            heard: Duration::ZERO,
            ping_at: Duration::ZERO,
            pings: 0,
            generation_told: 0,
            generation_recorded: 0,
            trust: trust::Told::default(),
        }
    }

    /// Who the other side is.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A sign of life that is not a frame.
    pub fn heard(&mut self, elapsed: Duration) {
        self.heard = self.heard.max(elapsed);
    }

    /// Takes in one message.
    pub fn receive(
        &mut self,
        message: Message<'_>,
        elapsed: Duration,
        now: Timestamp,
    ) -> Vec<Effect> {
        self.heard(elapsed);
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text => return vec![Effect::Close(Close::text())],
        };
        let is_open = matches!(self.state, State::Open);
        if bytes.len() > limits::FRAME_BYTES_MAX && is_open {
            return refuse_oversized(bytes)
                .map(Effect::Send)
                .into_iter()
                .collect();
        }
        let frame = match Frame::decode(bytes) {
            Ok(frame) => frame,
            Err(error @ crate::frame::Error::TooLarge { .. }) => {
                return vec![Effect::Close(Close::too_large(&error.to_string()))];
            }
            Err(error) => return vec![Effect::Close(Close::protocol_error(&chain(&error)))],
        };
        if is_open {
            return self.receive_open(frame, now);
        }
        let effect = match self.greet(frame) {
            Ok(open) => open,
            Err(close) => Effect::Close(close),
        };
        vec![effect]
    }

    /// The first frame.
    fn greet(&mut self, frame: Frame) -> Result<Effect, Close> {
        let name = frame.name();
        let (State::Greeting, Frame::Hello(hello)) = (&self.state, frame) else {
            let reason = format!("the first frame must be Hello, and once; this was {name}");
            return Err(Close::protocol_error(&reason));
        };
        let Hello {
            agent_version,
            applied_generation,
            boot_id,
            entries,
            highest_seq,
            journal_id,
            node_id,
            role,
            trust_version,
        } = hello;
        if node_id != self.peer.node_id {
            let own = self.peer.node_id;
            let reason = format!("Hello names {node_id}; the certificate is that of {own}");
            return Err(Close::policy(&reason));
        }
        if entries.len() > limits::HELLO_ENTRIES_MAX {
            let (given, max) = (entries.len(), limits::HELLO_ENTRIES_MAX);
            let reason = format!("Hello has {given} entries; the limit is {max}");
            return Err(Close::policy(&reason));
        }
        self.generation_told = applied_generation;
        self.trust.believes(trust_version);
        self.state = State::Opening {
            accepted: entries.iter().map(|entry| entry.command_id).collect(),
            batches: Batches::default(),
            trust: Vec::new(),
        };
        let open = OpenSession {
            agent_version,
            applied_generation,
            boot_id,
            certificate: self.peer.certificate.clone(),
            gateway: self.terms.gateway.clone(),
            gateway_lease: self.terms.gateway_lease.clone(),
            journal_id,
            highest_seq,
            role,
        };
        Ok(Effect::Open { open, entries })
    }

    /// The newest trust bundle that the node believes or was sent; 0 for none.
    pub fn trust_version(&self) -> u64 {
        self.trust.sent
    }

    /// What the opening session is to bring beside the commands: the trust bundles above the node's
    /// [`trust_version`](Self::trust_version), and the batches that the commands name.
    pub fn bring(&mut self, bundles: Vec<Published>, named: Batches) {
        if let State::Opening { batches, trust, .. } = &mut self.state {
            *batches = named;
            *trust = bundles;
        }
    }

    /// The ledger has opened the session: `node` as it now is, `replay` what is in flight to it.
    pub fn opened(
        &mut self,
        node: &Node,
        replay: &[command::Command],
        elapsed: Duration,
        now: Timestamp,
    ) -> Vec<Effect> {
        let (accepted, batches, bundles) = match std::mem::replace(&mut self.state, State::Open) {
            State::Opening {
                accepted,
                batches,
                trust,
            } => (accepted, batches, trust),
            State::Greeting | State::Open => Default::default(),
        };
        if let Some(close) = self.expiry.look(elapsed, now) {
            return vec![Effect::Close(close)];
        }
        let mut pieces = self.trust.pieces(&bundles).into_iter();
        let ping = Duration::from_secs(self.terms.ping_seconds.into());
        self.heard = elapsed;
        self.ping_at = elapsed + ping;
        self.generation_recorded = node.applied_generation;
        let welcome = Welcome {
            epoch: node.epoch,
            ping_seconds: self.terms.ping_seconds,
            server_time: now,
            trust: pieces.next().unwrap_or_default(),
        };
        let mut effects = vec![Effect::Send(welcome.into())];
        effects.extend(pieces.map(|piece| Effect::Send(trust::frame(piece))));
        let resumed = resume::frames(replay, &accepted, &self.peer, &batches);
        effects.extend(resumed.into_iter().map(Effect::Send));
        if node.generation > self.generation_told {
            effects.push(Effect::SendSpec);
        }
        if self.trust.sent > 0 {
            effects.push(Effect::RecordTrust(self.trust.believed));
        }
        effects
    }

    /// Trust bundles that the node may not have yet.
    pub fn trust(&mut self, bundles: &[Published]) -> Vec<Effect> {
        let pieces = self.trust.pieces(bundles).into_iter();
        pieces
            .map(|piece| Effect::Send(trust::frame(piece)))
            .collect()
    }

    /// The ledger has this generation of the node.
    pub fn generation_recorded(&mut self, generation: u64) {
        self.generation_recorded = generation;
    }

    fn receive_open(&mut self, frame: Frame, now: Timestamp) -> Vec<Effect> {
        let effect = match frame {
            Frame::CommandUpdate(CommandUpdate { updates }) => {
                let max = limits::UPDATES_PER_FRAME_MAX;
                if (1..=max).contains(&updates.len()) {
                    Effect::Report(updates)
                } else {
                    let given = updates.len();
                    let reason =
                        format!("CommandUpdate has {given} updates; it may have 1 to {max}");
                    Effect::Close(Close::policy(&reason))
                }
            }
            Frame::Status(Status {
                applied_generation: given,
                ..
            }) if given > limits::COUNT_MAX => {
                let max = limits::COUNT_MAX;
                let reason =
                    format!("Status names appliedGeneration {given}; it must be at most {max}");
                Effect::Close(Close::policy(&reason))
            }
            Frame::Status(status) => return self.receive_status(&status),
            Frame::SecretRequest(request) => {
                let (given, max) = (request.secret_ref.len(), limits::SECRET_NAME_BYTES_MAX);
                if given <= max {
                    Effect::Exchange(request)
                } else {
                    let reason = format!(
                        "SecretRequest names {given} bytes of secretRef; the limit is {max}"
                    );
                    Effect::Close(Close::policy(&reason))
                }
            }
            Frame::Ping(Ping { reply: true, .. }) => return Vec::new(),
            Frame::Ping(Ping { nonce, .. }) => Effect::Send(Frame::Ping(Ping {
                nonce,
                reply: true,
                server_time: Some(now),
            })),
            Frame::Hello(_)
            | Frame::Welcome(_)
            | Frame::Command(_)
            | Frame::Cancel(_)
            | Frame::UpdateAck(_)
            | Frame::Spec(_)
            | Frame::Trust(_)
            | Frame::Secret(_) => {
                let reason = format!("a daemon does not send {} in an open session", frame.name());
                Effect::Close(Close::protocol_error(&reason))
            }
        };
        vec![effect]
    }

    fn receive_status(&mut self, status: &Status) -> Vec<Effect> {
        self.generation_told = status.applied_generation;
        let news = self.trust.believes(status.trust_version);
        let believed = self.trust.believed;
        if status.wants_trust {
            self.trust.asks();
        }
        let spec = status.wants_spec.then_some(Effect::SendSpec);
        let trust = status
            .wants_trust
            .then_some(Effect::SendTrust { above: believed });
        let recorded = news.then_some(Effect::RecordTrust(believed));
        self.untold_generation()
            .into_iter()
            .chain(spec)
            .chain(trust)
            .chain(recorded)
            .collect()
    }

    fn untold_generation(&self) -> Option<Effect> {
        let news = self.generation_told != self.generation_recorded;
        news.then_some(Effect::ApplyGeneration(self.generation_told))
    }

    /// When [`tick`](Self::tick) is to be called next.
    pub fn next_tick(&self) -> Duration {
        match self.state {
            State::Greeting => self.terms.hello_within,
            State::Opening { .. } | State::Open => {
                let next = self.ping_at.min(self.silent_at());
                self.expiry.look_at().map_or(next, |at| at.min(next))
            }
        }
    }

    fn silent_at(&self) -> Duration {
        self.heard + 3 * Duration::from_secs(self.terms.ping_seconds.into())
    }

    /// Time went on.
    pub fn tick(&mut self, elapsed: Duration, now: Timestamp) -> Vec<Effect> {
        match self.state {
            State::Greeting if elapsed >= self.terms.hello_within => {
                let seconds = self.terms.hello_within.as_secs();
                let reason = format!("no Hello within {seconds} seconds");
                return vec![Effect::Close(Close::policy(&reason))];
            }
            State::Greeting | State::Opening { .. } => return Vec::new(),
            State::Open => {}
        }
        if let Some(close) = self.expiry.look(elapsed, now) {
            return vec![Effect::Close(close)];
        }
        if elapsed >= self.silent_at() {
            let seconds = 3 * self.terms.ping_seconds;
            let reason = format!("nothing was heard of the daemon for {seconds} seconds");
            return vec![Effect::Close(Close::policy(&reason))];
        }
        if elapsed < self.ping_at {
            return Vec::new();
        }
        self.ping_at = elapsed + Duration::from_secs(self.terms.ping_seconds.into());
        self.pings += 1;
        let ping = Ping {
            nonce: self.pings,
            reply: false,
            server_time: Some(now),
        };
        // What the ledger could not take in when the daemon said it, it may take in now.
        let again = self.untold_generation();
        [Effect::Send(ping.into())]
            .into_iter()
            .chain(again)
            .collect()
    }
}

/// The answer to a frame above the limit (SPEC D13): its updates are refused by name, anything
/// else is left without an answer. The session lives on either way.
fn refuse_oversized(bytes: &[u8]) -> Option<Frame> {
    const COMMAND_UPDATE: u8 = 5;
    let [0x92, COMMAND_UPDATE, body @ ..] = bytes else {
        return None;
    };
    let update: CommandUpdate = canonical::decode_lenient(body).ok()?;
    let why = crate::frame::Error::TooLarge { bytes: bytes.len() }.to_string();
    let refused = update
        .updates
        .into_iter()
        .take(limits::UPDATES_PER_FRAME_MAX);
    let refused = refused.map(|u| {
        let (code, why) = ("TOO_LARGE", why.clone());
        (u.command_id, u.state, Answer::Refused { code, why })
    });
    acknowledge(refused)
}

/// An error and what caused it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
