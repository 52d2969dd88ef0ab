//! A gateway's sessions: what `gateway/src/session.rs` does with sockets and futures.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use ledger_protocol::command::{Command, State};
use ledger_protocol::event::Actor;
use ledger_protocol::frame::Frame;
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::session::{
    Answer, Cancels, Effect, Message, Peer, Session, Terms, Wakes, acknowledge,
};
use ledger_protocol::time::Timestamp;

use crate::bug::Bug;
use crate::dispatch::Round;
use crate::works::Work;
use crate::world::World;

pub(crate) struct Gateway {
    pub(crate) name: String,
    pub(crate) actor: Actor,
    pub(crate) alive: bool,
    pub(crate) frozen_until: i64,
    pub(crate) sessions: Vec<Held>,
    pub(crate) wakes: Wakes,
    pub(crate) rounds: Vec<Round>,
    pub(crate) doubts: Wakes,
    /// Nodes that were read, with what was in flight to them.
    pub(crate) read: Vec<(NodeId, u64, bool, Vec<Command>)>,
    /// How much of the log it has been told of.
    pub(crate) told: usize,
    pub(crate) repair_at: i64,
    /// Ends of sessions that are to be recorded.
    closes: Vec<(NodeId, u64, String)>,
    /// For [`Bug::CreditsCounted`]: what its own counter says of each lane.
    pub(crate) counted: Vec<(NodeId, ledger_protocol::kind::Lane, CommandId)>,
}

/// A session that is here.
pub(crate) struct Held {
    pub(crate) connection: u64,
    pub(crate) node: NodeId,
    pub(crate) machine: Session,
    started: i64,
    /// 0 until it is open.
    pub(crate) epoch: u64,
    pub(crate) cancels: Cancels,
    pub(crate) sent: BTreeSet<CommandId>,
    pub(crate) left: Option<BTreeSet<CommandId>>,
    pub(crate) openings: u32,
    pub(crate) works: Vec<Work>,
}

impl Gateway {
    pub(crate) fn new(number: usize) -> Self {
        let name = format!("gw-{number}");
        Self {
            actor: Actor::gateway(&name),
            name,
            alive: true,
            frozen_until: 0,
            sessions: Vec::new(),
            wakes: Wakes::default(),
            rounds: Vec::new(),
            doubts: Wakes::default(),
            read: Vec::new(),
            told: 0,
            repair_at: 0,
            closes: Vec::new(),
            counted: Vec::new(),
        }
    }

    /// The node's open session.
    pub(crate) fn open(&mut self, node: NodeId) -> Option<&mut Held> {
        self.sessions
            .iter_mut()
            .find(|held| held.node == node && held.epoch > 0)
    }
}

fn elapsed(since: i64, now: i64) -> Duration {
    Duration::from_micros(u64::try_from(now - since).unwrap_or(0))
}

impl Held {
    pub(crate) fn elapsed(&self, now: i64) -> Duration {
        elapsed(self.started, now)
    }
}

impl World {
    pub(crate) fn gateway_is_able(&self, g: usize) -> bool {
        let gateway = &self.gateways[g];
        gateway.alive && gateway.frozen_until <= self.now
    }

    /// A connection has come.
    pub(crate) fn gateway_accepts(&mut self, g: usize, connection: u64, n: usize) {
        let node = self.machines[n].id;
        let gateway = &mut self.gateways[g];
        let peer = Peer {
            allowed_kinds: None,
            certificate: None,
            node_id: node,
        };
        let terms = Terms {
            gateway: gateway.name.clone(),
            gateway_lease: None,
            hello_within: Duration::from_secs(10),
            ping_seconds: 10,
        };
        gateway.sessions.push(Held {
            connection,
            node,
            machine: Session::new(peer, terms),
            started: self.now,
            epoch: 0,
            cancels: Cancels::default(),
            sent: BTreeSet::new(),
            left: None,
            openings: 0,
            works: Vec::new(),
        });
    }

    pub(crate) fn held(&mut self, g: usize, connection: u64) -> Option<&mut Held> {
        let sessions = &mut self.gateways[g].sessions;
        sessions
            .iter_mut()
            .find(|held| held.connection == connection)
    }

    /// One message, or the end, of a connection reaches its gateway.
    pub(crate) fn deliver_up(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let g = connection.gateway;
        if !connection.gateway_end
            || !self.gateways[g].alive
            || self.gateways[g].frozen_until > self.now
        {
            return false;
        }
        let Some(bytes) = connection.up.pop_front() else {
            if !connection.node_end && !connection.broken {
                self.end_session(g, id, "the connection ended");
                return true;
            }
            return false;
        };
        let at = Timestamp::from_micros(self.now);
        let now = self.now;
        let Some(held) = self.held(g, id) else {
            return true;
        };
        let elapsed = held.elapsed(now);
        let effects = held.machine.receive(Message::Binary(&bytes), elapsed, at);
        self.perform(g, id, effects);
        true
    }

    /// One frame, or the end, of a connection reaches its node.
    pub(crate) fn deliver_down(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        if !connection.node_end {
            return false;
        }
        let n = connection.node;
        let Some(process) = &mut self.machines[n].process else {
            return false;
        };
        if let Some(frame) = connection.down.pop_front() {
            process
                .inbox
                .push_back(ledger_protocol::daemon::Input::Frame(frame));
            return true;
        }
        if !connection.gateway_end && !connection.broken {
            connection.node_end = false;
            process.connection = None;
            process.connect_at = self.now + self.chance.between(0, 500_000);
            process
                .inbox
                .push_back(ledger_protocol::daemon::Input::Disconnected);
            return true;
        }
        false
    }

    pub(crate) fn send(&mut self, id: u64, frame: Frame) {
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.gateway_end
            && !connection.broken
        {
            if let Frame::Command(command) = &frame
                && command.self_terminating
                && let Some(known) = self.ledger.commands.get(&command.command_id)
                && matches!(known.state, State::Acked { .. } | State::Running { .. })
            {
                let id = command.command_id;
                self.wrong
                    .push(format!("D9: {id} was accepted, and is sent again"));
            }
            connection.down.push_back(frame);
        }
    }

    pub(crate) fn send_to(&mut self, g: usize, node: NodeId, epoch: u64, frame: Frame) {
        let held = self.gateways[g]
            .open(node)
            .filter(|held| held.epoch == epoch);
        if let Some(connection) = held.map(|held| held.connection) {
            self.send(connection, frame);
        }
    }

    pub(crate) fn perform(&mut self, g: usize, id: u64, effects: Vec<Effect>) {
        for effect in effects {
            if self.tracing {
                self.trace.push(format!("gateway {g} does {effect:?}"));
            }
            let work = match effect {
                Effect::Open { open, entries } => Work::Open(open, entries),
                Effect::Report(updates) => {
                    if self.bug == Some(Bug::AnswerBeforeCommit) {
                        let answers = updates
                            .iter()
                            .map(|update| (update.command_id, update.state, Answer::Recorded));
                        if let Some(frame) = acknowledge(answers) {
                            self.send(id, frame);
                        }
                    }
                    Work::Report(updates)
                }
                Effect::ApplyGeneration(generation) => Work::ApplyGeneration(generation),
                Effect::SendSpec => Work::SendSpec,
                // Nothing is signed here yet, no node believes a bundle, and no command names a secret.
                Effect::SendTrust { .. } | Effect::RecordTrust(_) | Effect::Exchange(_) => continue,
                Effect::Send(frame) => {
                    self.send(id, frame);
                    continue;
                }
                Effect::Close(close) => {
                    self.end_session(g, id, &close.reason);
                    return;
                }
            };
            if let Some(held) = self.held(g, id) {
                held.works.push(work);
            }
        }
    }

    /// The session is over; the record of its end comes later, or never.
    pub(crate) fn end_session(&mut self, g: usize, id: u64, reason: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.gateway_end = false;
        }
        let sessions = &mut self.gateways[g].sessions;
        let Some(place) = sessions.iter().position(|held| held.connection == id) else {
            return;
        };
        let held = sessions.swap_remove(place);
        self.say(|| {
            format!(
                "gateway {g} ends session {} of {}: {reason}",
                held.epoch, held.node
            )
        });
        let recorded = !self.faults_on || !self.chance.one_in(6);
        if held.epoch > 0 && recorded {
            let close = (held.node, held.epoch, reason.to_owned());
            self.gateways[g].closes.push(close);
        }
    }

    /// The record of a session's end is made.
    pub(crate) fn gateway_record(&mut self, g: usize) -> bool {
        let Some((node, epoch, reason)) = self.gateways[g].closes.pop() else {
            return false;
        };
        let at = Timestamp::from_micros(self.now);
        let actor = self.gateways[g].actor.clone();
        self.ledger.close_session(node, &actor, epoch, &reason, at);
        true
    }

    /// The ticks of the sessions that are due.
    pub(crate) fn gateway_tick(&mut self, g: usize) -> bool {
        let now = self.now;
        let due = self.gateways[g]
            .sessions
            .iter()
            .find(|held| held.elapsed(now) >= held.machine.next_tick())
            .map(|held| held.connection);
        let Some(id) = due else { return false };
        let Some(held) = self.held(g, id) else {
            return false;
        };
        let opening = held.epoch == 0 && !held.works.is_empty();
        let elapsed = held.elapsed(now);
        if opening {
            // While the ledger opens it, a session does not tick.
            return false;
        }
        let effects = held.machine.tick(elapsed, Timestamp::from_micros(now));
        let did = !effects.is_empty();
        self.perform(g, id, effects);
        did
    }

    /// The next moment at which a gateway has something to do by itself.
    pub(crate) fn gateway_next(&self, g: usize) -> Option<i64> {
        let gateway = &self.gateways[g];
        let ticks = gateway.sessions.iter().map(|held| {
            let tick = i64::try_from(held.machine.next_tick().as_micros()).unwrap_or(i64::MAX);
            held.started.saturating_add(tick)
        });
        let repair = [gateway.repair_at]
            .into_iter()
            .filter(|_| !gateway.sessions.is_empty());
        ticks.chain(repair).filter(|at| *at > self.now).min()
    }

    /// The process is gone, with its sessions; nothing is recorded of their ends.
    pub(crate) fn gateway_dies(&mut self, g: usize) {
        self.say(|| format!("gateway {g} dies"));
        let fresh = Gateway {
            alive: false,
            told: self.ledger.log.len(),
            ..Gateway::new(g)
        };
        let old = std::mem::replace(&mut self.gateways[g], fresh);
        for held in old.sessions {
            if let Some(connection) = self.connections.get_mut(&held.connection) {
                connection.gateway_end = false;
                connection.up = VecDeque::new();
            }
        }
    }
}
