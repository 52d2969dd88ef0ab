//! A gateway's dispatcher: what `gateway/src/dispatcher.rs` does, each of its waits a step apart.

use std::collections::{BTreeSet, VecDeque};

use ledger_protocol::command::{Command, State, StateName};
use ledger_protocol::event::{Body, Stream};
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::limits::lane_credits;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::command_frame;
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};

use crate::bug::Bug;
use crate::ledger::LOOK_MICROS;
use crate::world::World;

/// What one look at a node has found, to be dispatched.
pub(crate) struct Round {
    node: NodeId,
    epoch: u64,
    looked_at: i64,
    due: VecDeque<Command>,
}

impl World {
    /// The gateway is told of some of what was committed.
    pub(crate) fn gateway_notices(&mut self, g: usize) -> bool {
        let end = self.ledger.log.len();
        let told = self.gateways[g].told;
        if told >= end {
            return false;
        }
        let until = told + 1 + self.chance.below(end - told);
        self.gateways[g].told = until;
        if self.bug == Some(Bug::WakesLost) {
            return true;
        }
        let mut cancelled = Vec::new();
        for position in told..until {
            let event = &self.ledger.log[position];
            let Some(node) = event.node_id() else {
                continue;
            };
            let command = event.command_id();
            let gateway = &mut self.gateways[g];
            if !gateway.sessions.iter().any(|held| held.node == node) {
                continue;
            }
            let own = |held: &&mut crate::gateway::Held| held.node == node;
            match (&event.body, event.stream, command) {
                (
                    Body::CommandQueued(_)
                    | Body::CommandReleased(_)
                    | Body::NodeGenerationApplied(_),
                    ..,
                ) => gateway.wakes.wake(node),
                (Body::CommandReturned(_) | Body::CommandSettled(_), _, Some(id)) => {
                    for held in gateway.sessions.iter_mut().filter(own) {
                        held.left_flight(id);
                    }
                    gateway.wakes.wake(node);
                }
                (Body::CommandDispatched(_), _, Some(id)) => {
                    let unknown = gateway
                        .open(node)
                        .is_some_and(|held| !held.sent.contains(&id));
                    if unknown {
                        gateway.doubts.wake(node);
                    }
                }
                (Body::CommandCancelRequested(_), _, Some(id)) => {
                    for held in gateway.sessions.iter_mut().filter(own) {
                        held.cancels.request(id);
                    }
                    cancelled.push(node);
                }
                (Body::NodeSpecSet(spec), ..) => {
                    let epoch = gateway.open(node).map_or(0, |held| held.epoch);
                    let frame = ledger_protocol::session::spec_frame(spec.clone());
                    self.send_to(g, node, epoch, frame);
                }
                (Body::NodeSessionOpened(_), ..) => {
                    let mut elsewhere = false;
                    for held in gateway.sessions.iter_mut().filter(own) {
                        held.openings += 1;
                        elsewhere |= held.openings > 1;
                    }
                    if elsewhere {
                        gateway.doubts.wake(node);
                    }
                }
                (Body::NodeDeleted(_), Stream::Node(_), _) => self.close_all(g, node, u64::MAX),
                _ => {}
            }
        }
        for node in cancelled {
            self.send_cancels(g, node);
        }
        true
    }

    /// Ends the node's sessions here that are older than `newest`.
    fn close_all(&mut self, g: usize, node: NodeId, newest: u64) {
        let older = self.gateways[g].sessions.iter();
        let older = older.filter(|held| {
            held.node == node && (newest == u64::MAX || (1..newest).contains(&held.epoch))
        });
        let older: Vec<_> = older.map(|held| held.connection).collect();
        for id in older {
            self.end_session(g, id, "superseded, or deleted");
        }
    }

    /// A look at every session, once a second.
    pub(crate) fn gateway_repair(&mut self, g: usize) -> bool {
        if self.now < self.gateways[g].repair_at {
            return false;
        }
        self.gateways[g].repair_at = self.now + MICROS_PER_SECOND;
        if self.bug == Some(Bug::WakesLost) {
            return false;
        }
        let nodes: BTreeSet<_> = self.gateways[g]
            .sessions
            .iter()
            .map(|held| held.node)
            .collect();
        for node in &nodes {
            self.gateways[g].wakes.wake(*node);
            self.send_cancels(g, *node);
        }
        !nodes.is_empty()
    }

    /// Looks at what is due on a node that was woken.
    pub(crate) fn gateway_look(&mut self, g: usize) -> bool {
        let gateway = &mut self.gateways[g];
        let Some(node) = gateway.wakes.take(1).pop() else {
            return false;
        };
        let Some(epoch) = gateway.open(node).map(|held| held.epoch) else {
            gateway.wakes.done(node);
            return true;
        };
        let mut due = self.ledger.due(node, Timestamp::from_micros(self.now));
        let gateway = &mut self.gateways[g];
        if self.bug == Some(Bug::CreditsCounted) {
            // Given back by what this gateway sees of a return alone.
            let commands = &self.ledger.commands;
            gateway.counted.retain(|(.., id)| {
                let state = commands.get(id).map(|known| &known.state);
                !matches!(state, Some(State::Pending { .. }))
            });
            due.retain(|command| {
                let lane = command.queued.lane;
                let own = gateway
                    .counted
                    .iter()
                    .filter(|(n, l, _)| (*n, *l) == (node, lane));
                let room = own.count() < lane_credits(lane) as usize;
                if room {
                    gateway.counted.push((node, lane, command.id));
                }
                room
            });
        }
        if due.is_empty() {
            gateway.wakes.done(node);
            return true;
        }
        if let Some(held) = gateway.open(node) {
            held.sent.extend(due.iter().map(|command| command.id));
        }
        gateway.rounds.push(Round {
            node,
            epoch,
            looked_at: self.now,
            due: due.into(),
        });
        true
    }

    /// Dispatches one more command of some round.
    pub(crate) fn gateway_dispatch(&mut self, g: usize) -> bool {
        let rounds = self.gateways[g].rounds.len();
        if rounds == 0 {
            return false;
        }
        let which = self.chance.below(rounds);
        let at = Timestamp::from_micros(self.now);
        let unavailable = self.faults_on && self.chance.one_in(self.rates.unavailable);
        let unknown = self.faults_on && self.chance.one_in(self.rates.unavailable);
        let actor = self.gateways[g].actor.clone();
        let round = &mut self.gateways[g].rounds[which];
        let (node, epoch) = (round.node, round.epoch);
        // An append that has waited for so long is given up.
        let stale = self.now - round.looked_at >= LOOK_MICROS;
        let command = round.due.pop_front();
        if unavailable && self.bug == Some(Bug::RoundGoesOn) {
            if let Some(command) = command {
                self.not_sent(g, node, epoch, command.id);
            }
            return true;
        }
        // What follows in the lane must not overtake a command that was not taken in.
        let command = command.filter(|_| !stale && !unavailable);
        let Some(command) = command else {
            self.end_round(g, which);
            return true;
        };
        let id = command.id;
        let dispatched = self.ledger.dispatch(&actor, &command, epoch, at);
        if self.tracing {
            let said = dispatched.as_ref().map(|command| command.version);
            self.trace.push(format!(
                "gateway {g} dispatches {id} under {epoch}: {said:?}"
            ));
        }
        match dispatched {
            // Committed, and nobody is told.
            Ok(_) if unknown => {
                self.gateways[g].doubts.wake(node);
                self.not_sent(g, node, epoch, id);
            }
            Ok(command) => {
                self.tally.dispatched += 1;
                self.send_to(g, node, epoch, command_frame(&command));
            }
            Err(Refusal::StaleEpoch { .. } | Refusal::NodeDeleted(_)) => {
                self.tally.fenced += 1;
                self.not_sent(g, node, epoch, id);
                let held = self.gateways[g]
                    .open(node)
                    .filter(|held| held.epoch == epoch);
                if let Some(connection) = held.map(|held| held.connection) {
                    self.end_session(g, connection, "superseded");
                }
            }
            Err(Refusal::NotPending {
                state: StateName::Dispatched,
            }) => {
                self.gateways[g].doubts.wake(node);
                self.not_sent(g, node, epoch, id);
            }
            Err(_) => self.not_sent(g, node, epoch, id),
        }
        if self.gateways[g]
            .rounds
            .get(which)
            .is_some_and(|round| round.due.is_empty())
        {
            self.end_round(g, which);
        }
        true
    }

    fn not_sent(&mut self, g: usize, node: NodeId, epoch: u64, id: CommandId) {
        if let Some(held) = self.gateways[g]
            .open(node)
            .filter(|held| held.epoch == epoch)
        {
            held.sent.remove(&id);
        }
    }

    fn end_round(&mut self, g: usize, which: usize) {
        let Round {
            node, epoch, due, ..
        } = self.gateways[g].rounds.swap_remove(which);
        for command in due {
            self.not_sent(g, node, epoch, command.id);
        }
        self.gateways[g].wakes.done(node);
        self.send_cancels(g, node);
    }

    /// Sends the cancels that are owed, unless commands are on their way.
    fn send_cancels(&mut self, g: usize, node: NodeId) {
        if self.gateways[g].wakes.is_in_progress(node) {
            return;
        }
        let now = self.now;
        let Some(held) = self.gateways[g].open(node) else {
            return;
        };
        let (epoch, elapsed) = (held.epoch, held.elapsed(now));
        let frames = held.cancels.take_due(elapsed);
        for frame in frames {
            self.send_to(g, node, epoch, frame);
        }
    }

    /// Reads what the notices left open.
    pub(crate) fn gateway_check(&mut self, g: usize) -> bool {
        let gateway = &mut self.gateways[g];
        if !gateway.read.is_empty() {
            return false;
        }
        let Some(id) = gateway.doubts.take(1).pop() else {
            return false;
        };
        for held in gateway.sessions.iter_mut().filter(|held| held.node == id) {
            held.left = (held.epoch > 0).then(BTreeSet::new);
        }
        let Ok(node) = self.ledger.node(id) else {
            return false;
        };
        let read = (
            id,
            node.epoch,
            node.deleted_at.is_some(),
            self.ledger.in_flight(id),
        );
        self.gateways[g].read.push(read);
        true
    }

    /// Makes up for what a check has found.
    pub(crate) fn gateway_learn(&mut self, g: usize) -> bool {
        let Some((node, newest, deleted, in_flight)) = self.gateways[g].read.pop() else {
            return false;
        };
        self.close_all(g, node, if deleted { u64::MAX } else { newest });
        let mut frames = Vec::new();
        let mut epoch = 0;
        if let Some(held) = self.gateways[g].open(node)
            && let Some(left) = held.left.take()
        {
            epoch = held.epoch;
            for command in in_flight
                .iter()
                .filter(|command| !left.contains(&command.id))
            {
                let is_ours = command.state == (State::Dispatched { epoch });
                if is_ours && held.sent.insert(command.id) {
                    frames.push(command_frame(command));
                }
                if command.cancel_requested_at.is_some() {
                    held.cancels.request(command.id);
                }
            }
        }
        for frame in frames {
            self.send_to(g, node, epoch, frame);
        }
        for held in self.gateways[g]
            .sessions
            .iter_mut()
            .filter(|held| held.node == node)
        {
            held.left = None;
        }
        self.gateways[g].doubts.done(node);
        self.send_cancels(g, node);
        true
    }
}

impl crate::gateway::Held {
    /// The command is in flight no more.
    fn left_flight(&mut self, id: CommandId) {
        self.cancels.ended(id);
        self.sent.remove(&id);
        if let Some(left) = &mut self.left {
            left.insert(id);
        }
    }
}
