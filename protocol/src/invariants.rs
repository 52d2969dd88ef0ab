//! What must hold of any log, checked from the log alone (SPEC L1, S1–S4, K3, D2, D3, T1, T2,
//! P1–P3).
//!
//! A [`Checker`] is fed the events in the order of their positions and says what is wrong with
//! each. It keeps a fold of its own, much smaller than [`crate::command::Command::evolve`] and
//! written without it, so that a defect of the one is seen by the other. It is used by the
//! simulation after every step, by tests on real servers, and by the audit of a real log.
//!
//! To add a rule: a variant of [`Rule`], its check beside the event that could break it in
//! `invariants/`, a test that breaks it.

use std::collections::BTreeMap;
use std::fmt;

use crate::attestation::Unproved;
use crate::dsse::PublicKey;
use crate::event::{Body, Event, Outcome, Stream};
use crate::id::{BatchId, CommandId, NodeId};
use crate::kind::{Lane, Registry};
use crate::limits::{SWEEP_SECONDS, UNREGISTERED_TIMEOUT_SECONDS};
use crate::time::Timestamp;
use crate::trust::Certified;

mod attestation;
mod batch;
mod command;
mod dispatch;
mod ended;
mod node;
mod shelved;
#[cfg(test)]
mod tests;
mod trust;

use batch::TrackedBatch;
use command::Tracked;
use ended::Ended;
use node::TrackedNode;
pub use shelved::Shelved;
pub use trust::{BrokenChain, RootChain, roots};

/// A rule that an event breaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Rule {
    /// Positions are gapless, from 1 (SPEC L1).
    #[error("L1: the position before was {before}")]
    Position {
        /// The position of the event before; 0 before the first.
        before: u64,
    },
    /// Versions of a stream are gapless, from 1 (SPEC L1).
    #[error("L1: the stream's version {given} follows {before}")]
    Version {
        /// The version before.
        before: u64,
        /// The version of the event.
        given: u64,
    },
    /// `seq` of a node is gapless, from 1, but where a journal lifted it (SPEC A7, L11).
    #[error("A7: the node's seq {given} follows {before}")]
    Seq {
        /// The `seq` before.
        before: u64,
        /// The `seq` of the event.
        given: u64,
    },
    /// The first event of a stream says that it begins, and no other does.
    #[error("section 2: `{event}` is no event for a stream that is {state}")]
    Transition {
        /// Type of the event.
        event: &'static str,
        /// Where the stream stood.
        state: &'static str,
    },
    /// The event names another node, kind or `seq` than its command has.
    #[error("section 2: the event names another node, kind or seq than the command has")]
    Mismatch,
    /// A command is settled once (SPEC S4).
    #[error("S4: the command was settled before, as {first}")]
    SettledTwice {
        /// How.
        first: &'static str,
    },
    /// Nothing happens to a command that has ended, but one late result (SPEC S2).
    #[error("S2: `{event}` after the command had ended as {end}")]
    AfterTheEnd {
        /// Type of the event.
        event: &'static str,
        /// How it had ended.
        end: &'static str,
    },
    /// Only the newest session of a node that was not deleted sends and reports (SPEC D2).
    #[error("D2: by epoch {given}; the newest session has {newest}")]
    OldEpoch {
        /// The node's epoch.
        newest: u64,
        /// The epoch in the event.
        given: u64,
    },
    /// The node is not connected, or was deleted (SPEC D2, A11).
    #[error("D2: the node has no session")]
    NoSession,
    /// A node's word needs a command that was sent to it (SPEC S1).
    #[error("S1: the node reports on a command that was never dispatched")]
    NeverDispatched,
    /// The end of an attested command is signed by its node (SPEC P2).
    #[error("P2: the end of an attested command is not signed by the node")]
    Unattested,
    /// A node's signature over an end is by the certificate that it had then (SPEC P2).
    #[error("P2: the node's signature over the end does not hold: {0}")]
    BadAttestation(Unproved),
    /// A command belongs to a batch that there is, of its tenant (SPEC P3).
    #[error("P3: the batch that it names is not there")]
    UnknownBatch,
    /// A command of a batch carries the proof that the batch allows it (SPEC P3).
    #[error("P3: nothing proves that the batch allows it")]
    OutsideBatch,
    /// Nothing is approved or queued after a batch has expired (SPEC P3).
    #[error("P3: after the batch expired at {at}")]
    BatchExpired {
        /// When.
        at: Timestamp,
    },
    /// A batch holds its commands until enough have approved, and not longer (SPEC P3).
    #[error("P3: queued as held: {held}; its batch has {given} approvals of {quorum}")]
    WronglyHeld {
        /// How it was queued.
        held: bool,
        /// Approvals by then.
        given: usize,
        /// Approvals that are needed.
        quorum: u32,
    },
    /// Nothing is released before enough have approved (SPEC P3).
    #[error("P3: released with {given} approvals of {quorum}")]
    ReleasedEarly {
        /// Approvals by then.
        given: usize,
        /// Approvals that are needed.
        quorum: u32,
    },
    /// An approval is signed by one of the batch's approvers (SPEC P3).
    #[error("P3: no signature of an approver of the batch")]
    NotSigned,
    /// A key and a person count once, and who proposed the batch never does (SPEC P3).
    #[error("P3: approved by the proposer, or twice by one key or person")]
    NotDistinct,
    /// What waits for its batch is not dispatched (SPEC P3).
    #[error("P3: dispatched while its batch held it")]
    DispatchedHeld,
    /// Nothing is dispatched before `notBefore`, or within a backoff (SPEC T1, D4).
    #[error("T1: dispatched before {until}")]
    DispatchedEarly {
        /// When it would have been due.
        until: Timestamp,
    },
    /// Nothing is dispatched after `notAfter` (SPEC T1).
    #[error("T1: dispatched after {not_after}")]
    DispatchedLate {
        /// Its `notAfter`.
        not_after: Timestamp,
    },
    /// Nothing is dispatched before the node has applied its generation (SPEC T1).
    #[error("T1: dispatched at generation {applied}; it asks for {wanted}")]
    DispatchedBelowGeneration {
        /// What the node had applied.
        applied: u64,
        /// What it asks for.
        wanted: u64,
    },
    /// An identity is sent only the kinds that it accepts (SPEC D11).
    #[error("D11: dispatched to an identity that does not accept its kind")]
    DispatchedToRestricted,
    /// A lane is in order of `seq` (SPEC D3).
    #[error("D3: dispatched before seq {passed_over} of its lane, which was due")]
    OutOfOrder {
        /// `seq` of the one that was due.
        passed_over: u64,
    },
    /// No more is in flight than the lane has credits (SPEC K3).
    #[error("K3: dispatched with {in_flight} in flight in lane {lane}")]
    AboveCredits {
        /// The lane.
        lane: Lane,
        /// In flight before.
        in_flight: u32,
    },
    /// What time decides is decided after that time, not before (SPEC T2).
    #[error("T2: ended by time before {until}")]
    EndedEarly {
        /// When it would have been decided.
        until: Timestamp,
    },
    /// Only the node can say that what is in flight was cancelled (SPEC A5, D12).
    #[error("D12: cancelled in flight without the node's word")]
    CancelledInFlight,
    /// Every command ends, by its `notAfter`, its timeout and two sweeps (SPEC T2).
    #[error("T2: not ended by {until}")]
    Overdue {
        /// By when it was to have ended.
        until: Timestamp,
    },
    /// What is signed is signed by a worker key under a published root (SPEC P1, P5).
    #[error("P1: what the event says {why}")]
    Signature {
        /// What is wrong.
        why: String,
    },
    /// What is due goes out to a connected node with room in the lane (SPEC D3).
    #[error("D3: due since {since}, with room in its lane, and not dispatched")]
    LeftWaiting {
        /// Since when it could have gone out.
        since: Timestamp,
    },
}

/// A rule that was broken, and where.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Violation {
    /// Position of the event; of the newest one, where the time alone broke the rule.
    pub position: u64,
    /// The stream that it is about.
    pub stream: Stream,
    /// The rule.
    pub rule: Rule,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            position,
            stream,
            rule,
        } = self;
        write!(f, "position {position}: {stream}: {rule}")
    }
}

/// Checks a log event by event. Cheap: a few look-ups for each event; it keeps less than 40 bytes
/// for each command that has ended ([`Shelved`]: none), and some hundred for each other command, node
/// and batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Checker {
    /// A gateway reads what is due and then dispatches it. What changed in between, it could not
    /// know: so long, in microseconds.
    look_micros: i64,
    position: u64,
    /// Of all streams but those of known commands.
    versions: BTreeMap<Stream, u64>,
    nodes: BTreeMap<NodeId, TrackedNode>,
    /// Those that have not ended, but for oddities that [`Ended`] does not hold.
    commands: BTreeMap<CommandId, Tracked>,
    ended: Ended,
    batches: BTreeMap<BatchId, TrackedBatch>,
    /// Roots that signatures are held against.
    roots: Vec<PublicKey>,
    /// Certificates of worker keys that hold.
    certified: Certified,
    found: Vec<Violation>,
}

impl Checker {
    /// A checker of a log from its first event on. `look_micros` is how long a gateway may take
    /// from reading what is due to the event that dispatches it.
    pub fn new(look_micros: i64) -> Self {
        Self {
            look_micros,
            position: 0,
            versions: BTreeMap::new(),
            nodes: BTreeMap::new(),
            commands: BTreeMap::new(),
            ended: Ended::default(),
            batches: BTreeMap::new(),
            roots: Vec::new(),
            certified: Certified::default(),
            found: Vec::new(),
        }
    }

    /// Takes in the next event, and says which rules it breaks. The fold goes on after a broken
    /// rule as if the event had been right, so that one defect is not told of for ever.
    pub fn observe(&mut self, position: u64, event: &Event) -> Vec<Violation> {
        if position.checked_sub(1) != Some(self.position) {
            let before = self.position;
            self.breaks(position, event.stream, Rule::Position { before });
        }
        self.position = position;
        if let Stream::Command(id) = event.stream
            && let Some(ended) = self.ended.take(id)
        {
            self.commands.insert(id, ended);
        }
        let before = self.version_before(event.stream);
        if event.version.checked_sub(1) != Some(before) {
            let given = event.version;
            self.breaks(position, event.stream, Rule::Version { before, given });
        }
        self.check_signature(event);
        match event.stream {
            Stream::Command(id) => self.command_event(id, event),
            Stream::Node(id) => self.node_event(id, event),
            Stream::Batch(id) => self.batch_event(id, event),
        }
        self.keep_version(event);
        std::mem::take(&mut self.found)
    }

    fn version_before(&self, stream: Stream) -> u64 {
        let command = match stream {
            Stream::Command(id) => self.commands.get(&id),
            Stream::Node(_) | Stream::Batch(_) => None,
        };
        let other = || self.versions.get(&stream).copied().unwrap_or_default();
        command.map_or_else(other, |command| command.version)
    }

    /// Notes the version that the event has made, and puts away a command that has ended.
    fn keep_version(&mut self, event: &Event) {
        let known = match event.stream {
            Stream::Command(id) => self.commands.get_mut(&id).map(|command| (id, command)),
            Stream::Node(_) | Stream::Batch(_) => None,
        };
        let Some((id, command)) = known else {
            self.versions.insert(event.stream, event.version);
            return;
        };
        command.version = event.version;
        if self.ended.keep(id, command) {
            self.commands.remove(&id);
        }
    }

    fn breaks(&mut self, position: u64, stream: Stream, rule: Rule) {
        self.found.push(Violation {
            position,
            stream,
            rule,
        });
    }

    /// One more rule that the event at hand breaks.
    fn broken(&mut self, event: &Event, rule: Rule) {
        self.breaks(self.position, event.stream, rule);
    }

    /// Commands that should have ended by `now`, when a sweep may be `slack_micros` late. `kinds`
    /// says which kinds are registered still (SPEC K2).
    pub fn overdue(&self, now: Timestamp, slack_micros: i64, kinds: &Registry) -> Vec<Violation> {
        let live = self.commands.iter().filter(|(_, c)| c.phase.is_live());
        let overdue = live.filter_map(|(id, command)| {
            let timeout = match kinds.get(&command.kind) {
                Some(_) => command.timeout_seconds,
                None => UNREGISTERED_TIMEOUT_SECONDS,
            };
            let until = command
                .not_after
                .plus_seconds(timeout)
                .plus_seconds(2 * SWEEP_SECONDS)
                .plus_micros(slack_micros);
            (until < now).then(|| self.now_broken(*id, Rule::Overdue { until }))
        });
        overdue.collect()
    }

    /// Commands that could have gone out for more than `slack_micros`: due, to a connected node,
    /// with room in their lane.
    pub fn left_waiting(&self, now: Timestamp, slack_micros: i64) -> Vec<Violation> {
        let mut left = Vec::new();
        for (id, command) in &self.commands {
            let Some(node) = self.nodes.get(&command.node) else {
                continue;
            };
            let lane = node.lane(command.lane);
            if !lane.has_room() || !node.is_connected() || command.not_after < now {
                continue;
            }
            let Some(due) = command.dispatchable_since(node) else {
                continue;
            };
            let since = due.max(lane.changed_at).max(node.connected_at);
            if since.plus_micros(slack_micros) < now {
                left.push(self.now_broken(*id, Rule::LeftWaiting { since }));
            }
        }
        left
    }

    fn now_broken(&self, id: CommandId, rule: Rule) -> Violation {
        Violation {
            position: self.position,
            stream: Stream::Command(id),
            rule,
        }
    }

    /// The commands in flight in one lane of a node: the credits in use (SPEC D3).
    pub fn in_flight(&self, node: NodeId, lane: Lane) -> u32 {
        self.nodes
            .get(&node)
            .map_or(0, |node| node.lane(lane).in_flight)
    }

    /// The name of the state that a command has by this fold; nothing for one that is not known.
    pub fn state(&self, id: CommandId) -> Option<&'static str> {
        let live = self.commands.get(&id);
        live.map(|command| command.phase.as_str())
            .or_else(|| self.ended.end(id).map(Outcome::as_str))
    }

    /// How many commands there are.
    pub fn commands(&self) -> usize {
        self.commands.len() + self.ended.count()
    }

    /// How many commands have not ended.
    pub fn live(&self) -> usize {
        let live = self.commands.values().filter(|c| c.phase.is_live());
        live.count()
    }

    /// Whether every command has ended.
    pub fn is_over(&self) -> bool {
        !self.commands.values().any(|c| c.phase.is_live())
    }

    /// The bodies name node, kind and `seq`; they must be those of the command.
    fn check_names(&mut self, event: &Event, node: NodeId, kind: &str, seq: u64) {
        let Stream::Command(id) = event.stream else {
            return;
        };
        let own = self.commands.get(&id);
        if own.is_some_and(|own| (own.node, own.kind.as_str(), own.seq) != (node, kind, seq)) {
            self.broken(event, Rule::Mismatch);
        }
    }

    /// Refuses the word, or the dispatch, of any but the newest session.
    fn check_epoch(&mut self, event: &Event, node: NodeId, given: u64) {
        let Some(node) = self.nodes.get(&node) else {
            return self.broken(event, Rule::NoSession);
        };
        let newest = node.epoch;
        if given != newest {
            self.broken(event, Rule::OldEpoch { newest, given });
        } else if !node.is_connected() {
            self.broken(event, Rule::NoSession);
        }
    }
}

/// What an event says of the session that carried it, where it is one that a session carries.
fn carried_by(body: &Body) -> Option<u64> {
    match body {
        Body::CommandDispatched(body) => Some(body.epoch),
        Body::CommandReturned(body) => Some(body.epoch),
        Body::CommandAcked(body) => Some(body.epoch),
        Body::CommandRunning(body) => Some(body.epoch),
        Body::CommandSettled(body) => body.epoch,
        Body::CommandLateResult(body) => body.epoch,
        Body::CommandQueued(_)
        | Body::CommandReleased(_)
        | Body::CommandCancelRequested(_)
        | Body::NodeRegistered(_)
        | Body::NodeSessionOpened(_)
        | Body::NodeSessionClosed(_)
        | Body::NodeCertified(_)
        | Body::NodeCertificateRevoked(_)
        | Body::NodeSpecSet(_)
        | Body::NodeGenerationApplied(_)
        | Body::NodeDeleted(_)
        | Body::BatchCreated(_)
        | Body::BatchApproved(_) => None,
    }
}

/// Whether time alone can have decided this end.
fn is_by_time(outcome: Outcome, reason: Option<&str>) -> bool {
    outcome == Outcome::Expired || (outcome == Outcome::Failed && reason == Some("timeout"))
}
