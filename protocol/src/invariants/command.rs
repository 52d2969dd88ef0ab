//! The events of a command's life.

use super::node::TrackedNode;
use super::{Checker, Rule, carried_by, is_by_time};
use crate::event::{Body, CommandQueued, CommandSettled, Event, Outcome};
use crate::id::{BatchId, CommandId, NodeId};
use crate::kind::Lane;
use crate::time::Timestamp;

/// A command, as far as the rules ask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Tracked {
    pub(super) node: NodeId,
    pub(super) kind: String,
    pub(super) batch: Option<BatchId>,
    pub(super) lane: Lane,
    pub(super) seq: u64,
    pub(super) not_before: Option<Timestamp>,
    pub(super) not_after: Timestamp,
    pub(super) min_generation: Option<u64>,
    pub(super) timeout_seconds: u32,
    pub(super) retry_at: Option<Timestamp>,
    pub(super) phase: Phase,
    /// It was dispatched at least once.
    pub(super) sent: bool,
    pub(super) attested: bool,
    /// The node's late word has come.
    pub(super) late: bool,
    /// Version of its stream.
    pub(super) version: u64,
}

impl Tracked {
    /// Since when a pending command could have gone out, as far as it and its node's generation
    /// and certificate go. Nothing when it cannot, or is not pending.
    pub(super) fn dispatchable_since(&self, node: &TrackedNode) -> Option<Timestamp> {
        let Phase::Pending { held: false, since } = self.phase else {
            return None;
        };
        let mut since = since
            .max(self.not_before.unwrap_or(since))
            .max(self.retry_at.unwrap_or(since));
        if let Some(wanted) = self.min_generation {
            if wanted > node.applied_generation {
                return None;
            }
            since = since.max(node.generation_at);
        }
        if !node.accepts(&self.kind) {
            return None;
        }
        if let Some(certified_at) = node.certified_at {
            since = since.max(certified_at);
        }
        Some(since)
    }
}

/// Where a command stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Pending {
        held: bool,
        /// Of the event that made it so.
        since: Timestamp,
    },
    InFlight(Step),
    Ended(Outcome),
}

/// How far a command in flight has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Step {
    Dispatched,
    Acked,
    Running,
}

impl Phase {
    pub(super) fn is_live(self) -> bool {
        !matches!(self, Self::Ended(_))
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pending { .. } => "pending",
            Self::InFlight(Step::Dispatched) => "dispatched",
            Self::InFlight(Step::Acked) => "acked",
            Self::InFlight(Step::Running) => "running",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }
}

impl Checker {
    pub(super) fn command_event(&mut self, id: CommandId, event: &Event) {
        let name = event.body.type_name();
        let Some(command) = self.commands.get(&id) else {
            if let Body::CommandQueued(queued) = &event.body {
                self.queued(id, queued, event);
            } else {
                let state = "not there";
                self.broken(event, Rule::Transition { event: name, state });
            }
            return;
        };
        let (phase, node, sent) = (command.phase, command.node, command.sent);
        if let Some(epoch) = carried_by(&event.body) {
            self.check_epoch(event, node, epoch);
            if !sent && !matches!(event.body, Body::CommandDispatched(_)) {
                self.broken(event, Rule::NeverDispatched);
            }
        }
        if let Phase::Ended(end) = phase
            && !matches!(event.body, Body::CommandLateResult(_))
        {
            let end = end.as_str();
            let rule = match &event.body {
                Body::CommandSettled(_) => Rule::SettledTwice { first: end },
                _ => Rule::AfterTheEnd { event: name, end },
            };
            return self.broken(event, rule);
        }
        let state = phase.as_str();
        let impossible = Rule::Transition { event: name, state };
        match &event.body {
            Body::CommandReleased(body) => {
                self.check_names(event, body.node_id, &body.kind, body.seq);
                if !matches!(phase, Phase::Pending { held: true, .. }) {
                    self.broken(event, impossible);
                }
                self.check_release(id, event);
                let not_before = Some(body.not_before);
                self.change(id, event.at, |command, since| {
                    command.not_before = not_before;
                    command.phase = Phase::Pending { held: false, since };
                });
            }
            Body::CommandDispatched(body) => {
                self.check_names(event, body.node_id, &body.kind, body.seq);
                self.check_dispatch(id, event);
                self.change(id, event.at, |command, _| {
                    command.sent = true;
                    command.phase = Phase::InFlight(Step::Dispatched);
                });
            }
            Body::CommandReturned(body) => {
                self.check_names(event, body.node_id, &body.kind, body.seq);
                if phase != Phase::InFlight(Step::Dispatched) {
                    self.broken(event, impossible);
                }
                let retry_at = Some(body.retry_at);
                self.change(id, event.at, |command, since| {
                    command.retry_at = retry_at;
                    command.phase = Phase::Pending { held: false, since };
                });
            }
            Body::CommandAcked(body) => {
                self.check_names(event, body.node_id, &body.kind, body.seq);
                self.report(id, event, Step::Acked);
            }
            Body::CommandRunning(body) => {
                self.check_names(event, body.node_id, &body.kind, body.seq);
                self.report(id, event, Step::Running);
            }
            Body::CommandCancelRequested(body) => {
                self.check_names(event, body.node_id, &body.kind, body.seq);
            }
            Body::CommandSettled(body) => {
                self.check_names(event, body.node_id, &body.kind, body.seq);
                self.check_end(id, body, event);
                self.check_attestation(id, body, event);
                let outcome = body.state;
                self.change(id, event.at, |command, _| {
                    command.phase = Phase::Ended(outcome);
                });
            }
            Body::CommandLateResult(body) => {
                self.check_names(event, body.node_id, &body.kind, body.seq);
                let first = self
                    .commands
                    .get_mut(&id)
                    .is_none_or(|command| !std::mem::replace(&mut command.late, true));
                if phase.is_live() || !first {
                    self.broken(event, impossible);
                }
                self.check_attestation(id, body, event);
            }
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
            | Body::BatchApproved(_) => self.broken(event, impossible),
        }
    }

    fn queued(&mut self, id: CommandId, queued: &CommandQueued, event: &Event) {
        let Some(node) = self.nodes.get_mut(&queued.node_id) else {
            return self.broken(event, Rule::NoSession);
        };
        let before = std::mem::replace(&mut node.seq, queued.seq);
        let deleted = node.deleted;
        node.lane_mut(queued.lane).pending.insert(queued.seq, id);
        if queued.seq.checked_sub(1) != Some(before) {
            let given = queued.seq;
            self.broken(event, Rule::Seq { before, given });
        }
        if deleted {
            self.broken(event, Rule::NoSession);
        }
        self.check_batch(queued, event);
        let command = Tracked {
            node: queued.node_id,
            kind: queued.kind.clone(),
            batch: queued.batch_id,
            lane: queued.lane,
            seq: queued.seq,
            not_before: queued.not_before,
            not_after: queued.not_after,
            min_generation: queued.min_generation,
            timeout_seconds: queued.timeout_seconds,
            retry_at: None,
            phase: Phase::Pending {
                held: queued.held,
                since: event.at,
            },
            sent: false,
            attested: queued.attested,
            late: false,
            version: event.version,
        };
        self.commands.insert(id, command);
    }

    /// A word of the node that leads on; one that is behind is no event.
    fn report(&mut self, id: CommandId, event: &Event, step: Step) {
        let Some(command) = self.commands.get(&id) else {
            return;
        };
        let leads_on = match command.phase {
            Phase::Pending { held, .. } => !held,
            Phase::InFlight(known) => known < step,
            Phase::Ended(_) => false,
        };
        if !leads_on {
            let rule = Rule::Transition {
                event: event.body.type_name(),
                state: command.phase.as_str(),
            };
            self.broken(event, rule);
        }
        self.change(id, event.at, |command, _| {
            command.phase = Phase::InFlight(step);
        });
    }

    fn check_end(&mut self, id: CommandId, end: &CommandSettled, event: &Event) {
        let Some(command) = self.commands.get(&id) else {
            return;
        };
        let pending = matches!(command.phase, Phase::Pending { .. });
        let by_ledger = end.epoch.is_none();
        let until = if pending {
            command.not_after
        } else {
            command.not_after.plus_seconds(command.timeout_seconds)
        };
        let state = command.phase.as_str();
        let by_time = by_ledger && is_by_time(end.state, end.reason.as_deref());
        if by_time && event.at <= until {
            self.broken(event, Rule::EndedEarly { until });
        }
        if by_ledger && !pending && end.state == Outcome::Cancelled {
            self.broken(event, Rule::CancelledInFlight);
        }
        // What waits was never tried, so time alone cannot make it fail; what is in flight may
        // have had its effect, so that it does not just expire.
        let impossible = match end.state {
            Outcome::Expired => !by_ledger || !pending,
            Outcome::Failed => by_ledger && pending,
            Outcome::Succeeded | Outcome::Rejected => by_ledger,
            Outcome::Cancelled => false,
        };
        if impossible {
            let event_name = event.body.type_name();
            self.broken(
                event,
                Rule::Transition {
                    event: event_name,
                    state,
                },
            );
        }
    }

    /// Changes a command, and with it what is counted in its lane.
    fn change(
        &mut self,
        id: CommandId,
        at: Timestamp,
        change: impl FnOnce(&mut Tracked, Timestamp),
    ) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let before = command.phase;
        change(command, at);
        let Some(node) = self.nodes.get_mut(&command.node) else {
            return;
        };
        let lane = node.lane_mut(command.lane);
        lane.changed_at = at;
        match before {
            Phase::Pending { .. } => _ = lane.pending.remove(&command.seq),
            Phase::InFlight(_) => lane.in_flight = lane.in_flight.saturating_sub(1),
            Phase::Ended(_) => {}
        }
        match command.phase {
            Phase::Pending { .. } => _ = lane.pending.insert(command.seq, id),
            Phase::InFlight(step) => {
                lane.in_flight += 1;
                if step != Step::Dispatched && matches!(before, Phase::Pending { .. }) {
                    lane.reported.insert(command.seq, at);
                }
            }
            Phase::Ended(_) => {}
        }
        if !matches!(command.phase, Phase::InFlight(_)) {
            lane.reported.remove(&command.seq);
        }
    }
}
