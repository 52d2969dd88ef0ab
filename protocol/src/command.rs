//! A command: the fold of its events, and what may happen to it next (SPEC section 2).
//!
//! One file per request, each with a `decide`; [`Command::evolve`] is the only way a command
//! changes. To add a request: a file here, an arm in `ledger/src/append/`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::canonical;
use crate::event::{Actor, Body, CommandQueued, CommandSettled, Ending, Event, Outcome, Stream};
use crate::id::{CommandId, NodeId, TenantId};
use crate::time::Timestamp;

pub mod cancel;
pub mod dispatch;
pub mod enqueue;
pub mod expire;
pub mod rejoin;
pub mod release;
pub mod report;
#[cfg(test)]
mod tests;

/// A command as its events tell it. Fields stand in the order of their wire names, because the
/// read tables keep it as canonical bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    /// When the node's acceptance was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acked_at: Option<Timestamp>,
    /// How often it was dispatched.
    pub attempts: u32,
    /// When somebody first asked for it to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<Timestamp>,
    /// When it was last dispatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatched_at: Option<Timestamp>,
    /// Its id.
    pub id: CommandId,
    /// Who queued it.
    pub issued_by: Actor,
    /// What was frozen when it was queued.
    pub queued: CommandQueued,
    /// When it was queued.
    pub queued_at: Timestamp,
    /// When its start was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Timestamp>,
    /// Where it stands.
    pub state: State,
    /// Whose it is.
    pub tenant: TenantId,
    /// Version of its stream.
    pub version: u64,
}

/// Where a command stands, with what is true there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum State {
    /// It waits.
    Pending {
        /// It waits for its batch, and has no `notBefore` yet.
        held: bool,
        /// Not dispatched before this time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
        /// Not dispatched again before this time, because the node was busy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_at: Option<Timestamp>,
    },
    /// A gateway has sent it.
    Dispatched {
        /// Epoch of the session that carried it.
        epoch: u64,
    },
    /// The node has it in its journal.
    Acked {
        /// Epoch of the session that reported it, or that sent it to a journal which was lost
        /// before the node took it on again (SPEC D8).
        epoch: u64,
    },
    /// The node has started it.
    Running {
        /// Epoch as in [`Acked`](Self::Acked).
        epoch: u64,
    },
    /// It has ended.
    Settled(Box<Settled>),
}

/// How a command ended, and what the node said afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settled {
    /// When the end was recorded.
    pub at: Timestamp,
    /// The end.
    pub end: CommandSettled,
    /// The node's word that came too late to change the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<LateResult>,
}

/// The node's word that came after the end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LateResult {
    /// When it was recorded.
    pub at: Timestamp,
    /// What the node said.
    pub word: CommandSettled,
}

/// The names of the states (SPEC A7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateName {
    /// It waits.
    Pending,
    /// A gateway has sent it.
    Dispatched,
    /// The node has it in its journal.
    Acked,
    /// The node has started it.
    Running,
    /// It has ended.
    Ended(Outcome),
}

impl StateName {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Dispatched,
        Self::Acked,
        Self::Running,
        Self::Ended(Outcome::Succeeded),
        Self::Ended(Outcome::Failed),
        Self::Ended(Outcome::Rejected),
        Self::Ended(Outcome::Expired),
        Self::Ended(Outcome::Cancelled),
    ];

    /// The name in the API, in events and in the tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Dispatched => "dispatched",
            Self::Acked => "acked",
            Self::Running => "running",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }

    /// The state with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether it is an end.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An event that cannot follow in its stream: the log was altered, or a defect wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// The stream's versions do not follow each other.
    #[error("{stream}: version {given} follows version {current}")]
    Version {
        /// The stream.
        stream: Stream,
        /// The version before.
        current: u64,
        /// The version of the event.
        given: u64,
    },
    /// The event's type cannot happen in the state that its stream has.
    #[error("{stream}: `{event}` cannot follow in state {state}")]
    Transition {
        /// The stream.
        stream: Stream,
        /// Type of the event.
        event: &'static str,
        /// The state before it.
        state: String,
    },
    /// The event names another node, kind or `seq` than its command has.
    #[error("{stream}: `{event}` names another node, kind or seq than the command has")]
    Mismatch {
        /// The stream.
        stream: Stream,
        /// Type of the event.
        event: &'static str,
    },
}

impl Command {
    /// Folds one more event of the command's stream into it; `None` before the first. Pure: the
    /// same events give the same command, always (SPEC L7).
    pub fn evolve(command: Option<Self>, event: &Event) -> Result<Self, Corrupt> {
        let stream = event.stream;
        let current = command.as_ref().map_or(0, |command| command.version);
        if event.version != current + 1 {
            return Err(Corrupt::Version {
                stream,
                current,
                given: event.version,
            });
        }
        let impossible = |state: String| Corrupt::Transition {
            stream,
            event: event.body.type_name(),
            state,
        };
        match (command, &event.body, stream) {
            (None, Body::CommandQueued(queued), Stream::Command(id)) => Ok(Self {
                acked_at: None,
                attempts: 0,
                cancel_requested_at: None,
                dispatched_at: None,
                id,
                issued_by: event.actor.clone(),
                queued: queued.clone(),
                queued_at: event.at,
                running_at: None,
                state: State::Pending {
                    held: queued.held,
                    not_before: queued.not_before,
                    retry_at: None,
                },
                tenant: event.tenant,
                version: 1,
            }),
            (Some(command), _, Stream::Command(_)) => command.apply(event),
            (command, _, _) => Err(impossible(
                command.map_or("none".to_owned(), |c| c.state_name().to_string()),
            )),
        }
    }

    fn apply(mut self, event: &Event) -> Result<Self, Corrupt> {
        self.check_reference(event)?;
        let state = self.state_name();
        self.version = event.version;
        let at = event.at;
        match (&event.body, &mut self.state) {
            (
                Body::CommandReleased(body),
                State::Pending {
                    held: held @ true,
                    not_before,
                    ..
                },
            ) => {
                *held = false;
                *not_before = Some(body.not_before);
            }
            (Body::CommandDispatched(body), State::Pending { held: false, .. }) => {
                self.attempts = body.attempt;
                self.dispatched_at = Some(at);
                self.state = State::Dispatched { epoch: body.epoch };
            }
            (Body::CommandReturned(body), State::Dispatched { .. }) => {
                self.state = State::Pending {
                    held: false,
                    not_before: self.queued.not_before,
                    retry_at: Some(body.retry_at),
                };
            }
            (
                Body::CommandAcked(body),
                State::Pending { held: false, .. } | State::Dispatched { .. },
            ) => {
                self.acked_at = Some(at);
                let epoch = body.sent_epoch.unwrap_or(body.epoch);
                self.state = State::Acked { epoch };
            }
            (
                Body::CommandRunning(body),
                State::Pending { held: false, .. } | State::Dispatched { .. } | State::Acked { .. },
            ) => {
                self.running_at = Some(at);
                let epoch = body.sent_epoch.unwrap_or(body.epoch);
                self.state = State::Running { epoch };
            }
            (
                Body::CommandCancelRequested(_),
                State::Pending { .. }
                | State::Dispatched { .. }
                | State::Acked { .. }
                | State::Running { .. },
            ) => {
                self.cancel_requested_at = Some(self.cancel_requested_at.unwrap_or(at));
            }
            (
                Body::CommandSettled(end),
                State::Pending { .. }
                | State::Dispatched { .. }
                | State::Acked { .. }
                | State::Running { .. },
            ) => {
                self.state = State::Settled(Box::new(Settled {
                    at,
                    end: end.clone(),
                    late: None,
                }));
            }
            (Body::CommandLateResult(word), State::Settled(settled)) if settled.late.is_none() => {
                settled.late = Some(LateResult {
                    at,
                    word: word.0.clone(),
                });
            }
            (
                Body::CommandQueued(_)
                | Body::CommandReleased(_)
                | Body::CommandDispatched(_)
                | Body::CommandReturned(_)
                | Body::CommandAcked(_)
                | Body::CommandRunning(_)
                | Body::CommandCancelRequested(_)
                | Body::CommandSettled(_)
                | Body::CommandLateResult(_)
                | Body::NodeRegistered(_)
                | Body::NodeSessionOpened(_)
                | Body::NodeSessionClosed(_)
                | Body::NodeCertified(_)
                | Body::NodeCertificateRevoked(_)
                | Body::NodeSpecSet(_)
                | Body::NodeGenerationApplied(_)
                | Body::NodeDeleted(_)
                | Body::BatchCreated(_)
                | Body::BatchApproved(_),
                State::Pending { .. }
                | State::Dispatched { .. }
                | State::Acked { .. }
                | State::Running { .. }
                | State::Settled(_),
            ) => {
                return Err(Corrupt::Transition {
                    stream: event.stream,
                    event: event.body.type_name(),
                    state: state.to_string(),
                });
            }
        }
        Ok(self)
    }

    fn check_reference(&self, event: &Event) -> Result<(), Corrupt> {
        let named = match &event.body {
            Body::CommandReleased(b) => Some((b.node_id, &b.kind, b.seq)),
            Body::CommandDispatched(b) => Some((b.node_id, &b.kind, b.seq)),
            Body::CommandReturned(b) => Some((b.node_id, &b.kind, b.seq)),
            Body::CommandAcked(b) => Some((b.node_id, &b.kind, b.seq)),
            Body::CommandRunning(b) => Some((b.node_id, &b.kind, b.seq)),
            Body::CommandCancelRequested(b) => Some((b.node_id, &b.kind, b.seq)),
            Body::CommandSettled(b) => Some((b.node_id, &b.kind, b.seq)),
            Body::CommandLateResult(b) => Some((b.node_id, &b.kind, b.seq)),
            // Those that name no command are refused as transitions.
            Body::CommandQueued(_)
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
        };
        let own = (self.queued.node_id, &self.queued.kind, self.queued.seq);
        let same = named.is_none_or(|named| named == own)
            && event.stream == Stream::Command(self.id)
            && event.tenant == self.tenant;
        if same {
            Ok(())
        } else {
            Err(Corrupt::Mismatch {
                stream: event.stream,
                event: event.body.type_name(),
            })
        }
    }

    /// The name of its state.
    pub fn state_name(&self) -> StateName {
        match &self.state {
            State::Pending { .. } => StateName::Pending,
            State::Dispatched { .. } => StateName::Dispatched,
            State::Acked { .. } => StateName::Acked,
            State::Running { .. } => StateName::Running,
            State::Settled(settled) => StateName::Ended(settled.end.state),
        }
    }

    /// Whether it is with its node: sent, and not known to have ended.
    pub fn is_in_flight(&self) -> bool {
        match self.state {
            State::Dispatched { .. } | State::Acked { .. } | State::Running { .. } => true,
            State::Pending { .. } | State::Settled(_) => false,
        }
    }

    /// How far it has come with its node, as `details.phase` says it when nobody hears its end
    /// (SPEC S3); nothing when it is not in flight.
    fn phase(&self) -> Option<&'static str> {
        match self.state {
            State::Dispatched { .. } => Some("delivered"),
            State::Acked { .. } => Some("accepted"),
            State::Running { .. } => Some("started"),
            State::Pending { .. } | State::Settled(_) => None,
        }
    }

    /// The end of a command in flight of which the node's word will not come: `failed`, with the
    /// phase.
    fn unheard(&self, phase: &str, reason: &str) -> Body {
        let ending = Ending {
            details: canonical::from_json(&json!({ "phase": phase })).ok(),
            ..Ending::because(Outcome::Failed, reason)
        };
        self.settled(ending, None)
    }

    /// Its node.
    pub fn node_id(&self) -> NodeId {
        self.queued.node_id
    }

    /// The end of a command of this kind, as an event of its stream.
    fn settled(&self, ending: Ending, epoch: Option<u64>) -> Body {
        Body::CommandSettled(self.end(ending, epoch))
    }

    fn end(&self, ending: Ending, epoch: Option<u64>) -> CommandSettled {
        CommandSettled {
            details: ending.details,
            epoch,
            kind: self.queued.kind.clone(),
            node_id: self.queued.node_id,
            node_sig: ending.node_sig,
            reason: ending.reason,
            result: ending.result,
            result_truncated: ending.result_truncated,
            seq: self.queued.seq,
            state: ending.outcome,
        }
    }
}
