//! The daemon's half of a session, as a machine (SPEC D1–D14): acceptance checks, journal, lanes,
//! resume, crash, cancel, server time. It is told what came in, and when by a clock that never
//! jumps, and answers with what is to be done, in order. It reads nothing, waits for nothing and
//! draws nothing; `agent/` drives it.
//!
//! The promise that all of it serves: a command takes effect at most once, and what the node says
//! of it is in the journal before it is said.
//!
//! To add a frame that a gateway may send: an arm in [`Daemon::frame`]. To add an acceptance
//! check: `daemon/admit.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::frame::{self, Frame, Hello, Ping, Spec};
use crate::id::{CommandId, JournalId, NodeId};
use crate::kind::{Lane, Registry, Role};
use crate::secret::{OneTimeKey, Sealed};
use crate::time::Timestamp;

mod admit;
mod approval;
mod book;
mod cancel;
mod clock;
mod launch;
pub mod limits;
mod mend;
mod outcome;
mod reconnect;
mod record;
mod recover;
mod report;
mod secrets;
mod signature;
#[cfg(test)]
mod tests;
mod trust;

use book::{Book, Run};
use clock::ServerClock;
use secrets::Asked;
use trust::Wanted;

pub use book::Inconsistent;
pub use clock::Monotonic;
pub use outcome::{End, Report, fit_result};
pub use reconnect::reconnect_delay;
pub use record::{Confirmed, Ended, Forgotten, Record, Started};
pub use report::update_frames;
pub use trust::{Distrust, Doubt, Pins};

/// A kind that the daemon can run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Supported {
    destructive: bool,
    version: u32,
    roles: Vec<Role>,
}

/// The kinds that the daemon can run. Shared by all daemons of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SupportedKinds(BTreeMap<String, Supported>);

impl SupportedKinds {
    /// Those of the registry that have an executor.
    pub fn new(registry: &Registry, has_executor: impl Fn(&str) -> bool) -> Self {
        let kinds = registry.iter().filter(|kind| has_executor(&kind.name));
        let supported = kinds.map(|kind| {
            let supported = Supported {
                destructive: kind.destructive,
                version: kind.version,
                roles: kind.roles.to_vec(),
            };
            (kind.name.to_string(), supported)
        });
        Self(supported.collect())
    }
}

/// Who the daemon is, for the life of its process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Version of the agent.
    pub agent_version: String,
    /// The machine's boot id.
    pub boot_id: String,
    /// The node.
    pub node_id: NodeId,
    /// What the agent is.
    pub role: Role,
    /// What it can run.
    pub kinds: Arc<SupportedKinds>,
    /// What it has pinned; once there is something, nothing unsigned is accepted (SPEC P1).
    pub pins: Option<Pins>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A connection to a gateway is open, its WebSocket upgraded.
    Connected,
    /// A frame came.
    Frame(Frame),
    /// The connection is gone.
    Disconnected,
    /// An executor is done.
    Finished {
        /// The command.
        command_id: CommandId,
        /// How it ended.
        report: Report,
    },
    /// An executor needs a secret, and has made a key for the answer (SPEC P6).
    SecretWanted {
        /// The command that it runs.
        command_id: CommandId,
        /// The public half of the key.
        key: OneTimeKey,
        /// The secret.
        secret_ref: String,
    },
    /// A desired state was applied.
    Applied {
        /// Its generation.
        generation: u64,
    },
    /// The time that [`Daemon::next_deadline`] named has come.
    Timer,
    /// The journal could not be written, or the roots not be pinned. These effects were not performed: the failed one and
    /// all that followed it.
    JournalFailed {
        /// In their order.
        unperformed: Vec<Effect>,
    },
    /// The process is about to end: nothing new is accepted, what runs is stopped.
    Stopping,
}

/// What the driver is to do. A record must be durable before any later effect is performed; a
/// driver may write records earlier than their place, never later.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Append this to the journal.
    Journal(Record),
    /// Put these in the place of the whole journal, at once or not at all.
    Rewrite(Vec<Record>),
    /// Run this.
    Start(Job),
    /// Ask the executor of this command to stop.
    Stop(CommandId),
    /// Send this frame.
    Send(Frame),
    /// Apply this desired state, then give [`Input::Applied`].
    Apply(Spec),
    /// Keep these where a lost journal does not take them, in the place of what was pinned before.
    /// They must be durable before any later effect is performed, and after any earlier record is.
    Pin(Pins),
    /// Give the executor of a command what came for a key of its.
    Secret {
        /// The command.
        command_id: CommandId,
        /// The key.
        key: OneTimeKey,
        /// The sealed value, or the code of a refusal.
        answer: Result<Sealed, String>,
    },
    /// Tell the node's people of this; nothing else comes of it.
    Doubt(Doubt),
    /// Close the connection, for this reason.
    Close(String),
}

/// One accepted and journaled command, for its executor.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The command.
    pub command_id: CommandId,
    /// Its kind.
    pub kind: String,
    /// Its lane.
    pub lane: Lane,
    /// Its payload.
    pub payload: Value,
    /// How long it may run, in microseconds.
    pub timeout_micros: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Link {
    Down,
    /// `Hello` was sent.
    Greeting {
        since: Monotonic,
    },
    /// `Welcome` came.
    Up(Up),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Up {
    ping_seconds: u32,
    heard_at: Monotonic,
    ping_at: Monotonic,
    /// The newest ping that was not answered.
    asked: Option<(u64, Monotonic)>,
}

/// The daemon's half of a session. Comparable, so that a model checker can tell its states apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Daemon {
    identity: Identity,
    journal_id: JournalId,
    book: Book,
    clock: ServerClock,
    link: Link,
    nonce: u64,
    /// Not accepted yet, because they ask for a newer desired state.
    waiting: BTreeMap<CommandId, Box<frame::Command>>,
    wanted: Wanted,
    /// Questions for secrets that are not answered, by their keys.
    secrets: BTreeMap<OneTimeKey, Asked>,
    resend_at: Option<Monotonic>,
    /// The journal cannot be written; when to try again.
    broken_until: Option<Monotonic>,
    stopping: bool,
}

impl Daemon {
    /// What a session begins with (SPEC D6).
    pub fn hello(&self) -> Hello {
        Hello {
            agent_version: self.identity.agent_version.clone(),
            applied_generation: self.book.applied_generation(),
            boot_id: self.identity.boot_id.clone(),
            entries: self.book.entries(),
            highest_seq: self.book.highest_seq(),
            journal_id: self.journal_id,
            node_id: self.identity.node_id,
            role: self.identity.role,
            trust_version: self.trust_version(),
        }
    }

    /// The server's time, once a gateway has told it (SPEC D10).
    pub fn server_time(&self, now: Monotonic) -> Option<Timestamp> {
        self.clock.now(now)
    }

    /// Whether `Welcome` came on the connection at hand.
    pub fn is_welcome(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Whether an executor has work.
    pub fn is_running(&self) -> bool {
        self.book.open().any(|open| open.run == Run::Launched)
    }

    /// Ends that the ledger will never take, each with the ledger's reason (SPEC D5).
    pub fn refused(&self) -> impl Iterator<Item = (CommandId, &str)> {
        self.book.refused()
    }

    /// Takes one input in; the effects are to be performed in their order.
    pub fn handle(&mut self, input: Input, now: Monotonic) -> Vec<Effect> {
        let mut effects = Vec::new();
        let out = &mut effects;
        match input {
            Input::Connected => {
                self.link = Link::Greeting { since: now };
                out.push(Effect::Send(self.hello().into()));
            }
            Input::Frame(frame) => self.frame(frame, now, out),
            Input::Disconnected => self.disconnected(),
            Input::Finished { command_id, report } => self.finished(command_id, report, now, out),
            Input::SecretWanted {
                command_id,
                key,
                secret_ref,
            } => self.want_secret(command_id, key, secret_ref, now, out),
            Input::Applied { generation } => self.applied(generation, now, out),
            Input::Timer => self.timer(now, out),
            Input::JournalFailed { unperformed } => self.journal_failed(unperformed, now, out),
            Input::Stopping => self.stop_all(out),
        }
        if self.broken_until.is_none() && self.book.wants_rewrite() {
            self.book.forget(self.clock.now(now));
            out.push(Effect::Rewrite(self.book.snapshot()));
        }
        effects
    }

    fn frame(&mut self, frame: Frame, now: Monotonic, out: &mut Vec<Effect>) {
        match &mut self.link {
            Link::Down => return,
            Link::Greeting { since } => {
                let since = *since;
                match frame {
                    Frame::Welcome(welcome) => self.welcome(&welcome, since, now, out),
                    other => self.close(format!("`{}` came before `Welcome`", other.name()), out),
                }
                return;
            }
            Link::Up(up) => up.heard_at = now,
        }
        match frame {
            Frame::Command(command) => self.admit(Box::new(command), now, out),
            Frame::Cancel(cancel) => self.cancel(cancel.command_id, now, out),
            Frame::UpdateAck(ack) => self.acknowledged(ack, out),
            Frame::Spec(spec) => self.told_spec(spec, now, out),
            Frame::Trust(trust) => self.told_trust(&trust.bundles, now, out),
            Frame::Secret(secret) => self.told_secret(secret, now, out),
            Frame::Ping(ping) => self.ping(&ping, now, out),
            Frame::Hello(_)
            | Frame::Welcome(_)
            | Frame::CommandUpdate(_)
            | Frame::Status(_)
            | Frame::SecretRequest(_) => {
                let name = frame.name();
                self.close(format!("`{name}` is not for a gateway to send now"), out);
            }
        }
    }

    fn welcome(
        &mut self,
        welcome: &frame::Welcome,
        asked: Monotonic,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        self.clock.answered(welcome.server_time, asked, now);
        let ping_seconds = welcome
            .ping_seconds
            .clamp(limits::PING_SECONDS_MIN, limits::PING_SECONDS_MAX);
        self.link = Link::Up(Up {
            ping_seconds,
            heard_at: now,
            ping_at: now.plus_seconds(ping_seconds),
            asked: None,
        });
        self.believe(&welcome.trust, out);
        self.say_what_is_due(None, now, out);
        self.launch_due(now, out);
        self.ask_for_all_secrets(now, out);
    }

    fn ping(&mut self, ping: &Ping, now: Monotonic, out: &mut Vec<Effect>) {
        let Link::Up(up) = &mut self.link else { return };
        if !ping.reply {
            let reply = Ping {
                nonce: ping.nonce,
                reply: true,
                server_time: None,
            };
            out.push(Effect::Send(reply.into()));
        }
        let Some(server) = ping.server_time else {
            return;
        };
        match up.asked {
            Some((nonce, asked)) if ping.reply && nonce == ping.nonce => {
                up.asked = None;
                self.clock.answered(server, asked, now);
            }
            _ => self.clock.told(server, now),
        }
    }

    fn disconnected(&mut self) {
        self.link = Link::Down;
        self.resend_at = None;
        // The gateway sends them again on the next connection.
        self.waiting.clear();
        self.wanted.let_go();
    }

    fn close(&mut self, reason: String, out: &mut Vec<Effect>) {
        self.disconnected();
        out.push(Effect::Close(reason));
    }

    fn applied(&mut self, generation: u64, now: Monotonic, out: &mut Vec<Effect>) {
        if generation <= self.book.applied_generation() {
            return;
        }
        self.write(Record::Applied(generation), out);
        if self.is_welcome() {
            out.push(self.status(false, false));
        }
        let mut waiting: Vec<_> = std::mem::take(&mut self.waiting).into_values().collect();
        waiting.sort_by_key(|command| command.seq);
        for command in waiting {
            self.admit(command, now, out);
        }
    }

    /// When [`Input::Timer`] is due; nothing is waited for when `None`.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        let mut deadlines = vec![self.broken_until];
        match &self.link {
            Link::Down => {}
            Link::Greeting { since } => {
                deadlines.push(Some(since.plus_seconds(limits::WELCOME_SECONDS_MAX)));
            }
            Link::Up(up) => {
                deadlines.push(Some(up.ping_at));
                deadlines.push(Some(up.silent_at()));
                deadlines.push(self.resend_at);
                deadlines.extend(self.secrets.values().map(|asked| Some(asked.again_at)));
            }
        }
        for command in self.waiting.values() {
            deadlines.push(command.not_after.and_then(|at| self.clock.after(at)));
        }
        deadlines.extend(self.wanted.deadlines().map(Some));
        for open in self.book.open().filter(|open| open.run == Run::Underway) {
            deadlines.push(open.timeout_at().and_then(|at| self.clock.after(at)));
        }
        deadlines.into_iter().flatten().min()
    }

    fn timer(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        if self.broken_until.is_some_and(|at| at <= now) {
            self.mend(now, out);
        }
        self.time_out_underway(now, out);
        self.refuse_stale(now, out);
        self.refuse_unknown(now, out);
        match &mut self.link {
            Link::Down => {}
            Link::Greeting { since } => {
                if since.plus_seconds(limits::WELCOME_SECONDS_MAX) <= now {
                    let seconds = limits::WELCOME_SECONDS_MAX;
                    self.close(format!("no `Welcome` within {seconds} s"), out);
                }
            }
            Link::Up(up) if up.silent_at() <= now => {
                let seconds = up.ping_seconds.saturating_mul(limits::SILENT_PINGS_MAX);
                self.close(format!("nothing was heard for {seconds} s"), out);
            }
            Link::Up(up) => {
                if up.ping_at <= now {
                    self.nonce += 1;
                    up.ping_at = now.plus_seconds(up.ping_seconds);
                    up.asked = Some((self.nonce, now));
                    let ping = Ping {
                        nonce: self.nonce,
                        reply: false,
                        server_time: None,
                    };
                    out.push(Effect::Send(ping.into()));
                }
                if self.resend_at.is_some_and(|at| at <= now) {
                    self.resend(now, out);
                }
                self.ask_for_secrets(now, out);
            }
        }
    }

    /// Changes the book, and the journal with it. While the journal cannot be written the book
    /// alone changes: the rewrite that mends the journal catches up.
    fn write(&mut self, record: Record, out: &mut Vec<Effect>) {
        // Every caller has looked up what it changes, so the record follows what stands there.
        if self.book.apply(&record).is_ok() && self.broken_until.is_none() {
            out.push(Effect::Journal(record));
        }
    }
}

impl Up {
    fn silent_at(&self) -> Monotonic {
        let seconds = self.ping_seconds.saturating_mul(limits::SILENT_PINGS_MAX);
        self.heard_at.plus_seconds(seconds)
    }
}
