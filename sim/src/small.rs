//! The protocol made small enough to go through every state: one node, two commands, two
//! sessions, one crash, one lost journal, and time that stands still but for the sweep that could
//! come at any moment. The machines and the ledger are those of the simulation.
//!
//! Whoever explores it asks for [`Small::actions`] and takes each with [`Small::next`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ledger_protocol::command::State as CommandState;
use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::daemon::{Daemon, End, Identity, Input, Monotonic, SupportedKinds};
use ledger_protocol::event::{Actor, NodeRegistered};
use ledger_protocol::id::{CommandId, JournalId, NodeId, TenantId};
use ledger_protocol::kind::{Kind, Registry, Role};
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::{Message, Peer, Session, Terms, command_frame};
use ledger_protocol::time::Timestamp;

use crate::bug::Bug;
use crate::disk::Disk;
use crate::ledger::Ledger;
use crate::truth::Truth;

mod state;

use state::Link;

pub use state::State;

const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);
const MONO: Monotonic = Monotonic::from_micros(0);

fn node_id() -> NodeId {
    NodeId::new(NOW, [1; 10])
}

fn journal_id(number: u8) -> JournalId {
    JournalId::new(NOW, [number; 10])
}

fn command_id(number: usize) -> CommandId {
    CommandId::new(NOW, [u8::try_from(number).unwrap_or(u8::MAX); 10])
}

/// How large the small world is.
#[derive(Debug, Clone)]
pub struct Small {
    /// The kinds of its commands.
    pub kinds: Vec<&'static str>,
    /// Connections that the node opens at most.
    pub sessions: usize,
    /// Crashes of the daemon, between any two of its effects.
    pub crashes: u8,
    /// Lost journals.
    pub losses: u8,
    /// Cancels.
    pub cancels: u8,
    /// Sweeps that end a command, whenever they come.
    pub sweeps: u8,
    /// A planted bug.
    pub bug: Option<Bug>,
    /// What the daemon can run.
    pub supported: Arc<SupportedKinds>,
}

/// What can happen. Where a number of effects is named, the daemon dies after so many of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// The node connects.
    Connect,
    /// The next frame of a link reaches the gateway.
    Up(usize),
    /// The next frame of a link reaches the node.
    Down(usize, Option<usize>),
    /// The node hangs up; what it has sent may still arrive.
    HangUp,
    /// A link is cut: what is on its way is lost, and both sides know.
    Cut(usize),
    /// A command is dispatched by a session.
    Dispatch(usize, usize),
    /// An executor goes on to its end.
    Finish(usize, bool, Option<usize>),
    /// The machine boots, because a command asked for it.
    Boot,
    /// The daemon dies.
    Crash,
    /// The daemon starts again; it may find its journal lost.
    Start(bool),
    /// Somebody asks for a command to stop.
    Cancel(usize),
    /// A command's time is over.
    Sweep(usize),
}

impl Small {
    /// Two sessions, one crash and one lost journal, for commands of these kinds.
    pub fn new(kinds: &[&'static str]) -> Self {
        let has_executor = |name: &str| kinds.contains(&name);
        Self {
            kinds: kinds.to_vec(),
            sessions: 2,
            crashes: 1,
            losses: 1,
            cancels: 0,
            sweeps: 0,
            bug: None,
            supported: Arc::new(SupportedKinds::new(&Registry::builtin(), has_executor)),
        }
    }

    /// The state in which everything begins: two commands wait, and the daemon runs.
    pub fn begin(&self) -> State {
        let tenant = TenantId::new(NOW, [1; 10]);
        let mut ledger = Ledger::new(self.bug, tenant);
        let api = Actor::api("ada");
        let registered = NodeRegistered {
            labels: BTreeMap::new(),
            name: "node".to_owned(),
            role: Role::Ramdisk,
        };
        ledger.register(node_id(), &api, NOW, registered.into());
        let registry = Registry::builtin();
        for (number, name) in self.kinds.iter().enumerate() {
            let Some(kind) = registry.get(name) else {
                continue;
            };
            let enqueue = Enqueue {
                asked_at: NOW,
                id: command_id(number),
                tenant,
                node: node_id(),
                // A signature is looked at before anything else, and changes no state: it would
                // only cost time here.
                kind: Kind {
                    attested: false,
                    ..kind.clone()
                },
                payload: vec![0x80],
                idempotency_key: format!("key-{number}"),
                not_after: NOW.plus_seconds(600),
                not_before: None,
                min_generation: None,
                batch_id: None,
            };
            if let Err(refusal) = ledger.enqueue(&api, &enqueue, NOW) {
                ledger.wrong.push(refusal.to_string());
            }
        }
        let disk = Disk::new(journal_id(0));
        let mut state = State {
            ledger,
            truth: Truth::default(),
            daemon: Some(Daemon::new(self.identity(1), disk.journal_id)),
            disk,
            boot: 1,
            jobs: BTreeMap::new(),
            ending: None,
            links: Vec::new(),
            crashes: self.crashes,
            losses: self.losses,
            cancels: self.cancels,
            sweeps: self.sweeps,
            stale: Vec::new(),
            wrong: None,
        };
        state.check();
        state
    }

    fn identity(&self, boot: u8) -> Identity {
        Identity {
            agent_version: "1".to_owned(),
            boot_id: format!("boot-{boot}"),
            node_id: node_id(),
            role: Role::Ramdisk,
            kinds: self.supported.clone(),
            pins: None,
        }
    }

    /// What can happen next.
    pub fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return;
        }
        let connected = state.links.iter().any(|link| link.node_end);
        let with_crash = |actions: &mut Vec<Action>, make: &dyn Fn(Option<usize>) -> Action| {
            actions.push(make(None));
            if state.crashes > 0 {
                // No input asks for more than five effects here; what dies later dies idle.
                actions.extend((0..5).map(|budget| make(Some(budget))));
            }
        };
        if state.daemon.is_some() {
            if !connected && state.links.len() < self.sessions {
                actions.push(Action::Connect);
            }
            if connected && state.links.len() < self.sessions {
                actions.push(Action::HangUp);
            }
            if state.crashes > 0 {
                actions.push(Action::Crash);
            }
        } else {
            actions.push(Action::Start(false));
            if state.losses > 0 {
                actions.push(Action::Start(true));
            }
        }
        for (place, link) in state.links.iter().enumerate() {
            if link.gateway_end && !link.up.is_empty() {
                actions.push(Action::Up(place));
            }
            if link.node_end && !link.down.is_empty() {
                with_crash(actions, &|budget| Action::Down(place, budget));
            }
            if link.node_end && link.gateway_end && state.links.len() < self.sessions {
                actions.push(Action::Cut(place));
            }
            if link.gateway_end && link.epoch > 0 {
                for number in 0..self.kinds.len() {
                    let command = state.ledger.commands.get(&command_id(number));
                    let pending =
                        command.is_some_and(|c| matches!(c.state, CommandState::Pending { .. }));
                    if pending {
                        actions.push(Action::Dispatch(place, number));
                    }
                }
            }
        }
        for number in 0..self.kinds.len() {
            if state.jobs.contains_key(&command_id(number)) {
                with_crash(actions, &|budget| Action::Finish(number, true, budget));
                actions.push(Action::Finish(number, false, None));
            }
            if state.cancels > 0 {
                actions.push(Action::Cancel(number));
            }
            if state.sweeps > 0 {
                actions.push(Action::Sweep(number));
            }
        }
        if state.ending.is_some() {
            actions.push(Action::Boot);
        }
    }

    /// The state after an action; nothing when it changes nothing.
    pub fn next(&self, last: &State, action: &Action) -> Option<State> {
        let mut state = last.clone();
        match *action {
            Action::Connect => {
                let peer = Peer {
                    allowed_kinds: None,
                    certificate: None,
                    node_id: node_id(),
                };
                let terms = Terms {
                    gateway: "gw".to_owned(),
                    gateway_lease: None,
                    hello_within: Duration::from_secs(10),
                    ping_seconds: 20,
                };
                state.links.push(Link {
                    session: Session::new(peer, terms),
                    epoch: 0,
                    up: VecDeque::new(),
                    down: VecDeque::new(),
                    node_end: true,
                    gateway_end: true,
                });
                state.give(Input::Connected, None);
            }
            Action::Up(place) => {
                let frame = state.links[place].up.pop_front()?;
                let bytes = frame.encode().ok()?;
                let message = Message::Binary(&bytes);
                let session = &mut state.links[place].session;
                let effects = session.receive(message, Duration::ZERO, NOW);
                state.serve(place, effects);
            }
            Action::Down(place, budget) => {
                let frame = state.links[place].down.pop_front()?;
                state.give(Input::Frame(frame), budget);
            }
            Action::HangUp => {
                state.hang_up();
                state.give(Input::Disconnected, None);
            }
            Action::Cut(place) => {
                let link = &mut state.links[place];
                link.node_end = false;
                link.down.clear();
                state.end_session(place);
                state.give(Input::Disconnected, None);
            }
            Action::Dispatch(place, number) => {
                let seen = state.ledger.commands.get(&command_id(number))?.clone();
                let epoch = state.links[place].epoch;
                let actor = Actor::gateway("gw");
                match state.ledger.dispatch(&actor, &seen, epoch, NOW) {
                    Ok(command) => state.send(place, Some(command_frame(&command))),
                    Err(Refusal::StaleEpoch { .. }) => state.end_session(place),
                    Err(_) => return None,
                }
            }
            Action::Finish(number, well, budget) => {
                let id = command_id(number);
                let ends_daemon = state.ledger.commands.get(&id)?.queued.self_terminating;
                let end = match (well, ends_daemon) {
                    (false, _) => End::Failed,
                    (true, true) => End::Underway,
                    (true, false) => End::Succeeded,
                };
                if well {
                    state.truth.applied(id, state.disk.life);
                    state.ending = state.ending.or(ends_daemon.then_some(id));
                }
                state.finish(id, end, budget);
            }
            Action::Boot => {
                let id = state.ending.take()?;
                state.truth.booted(id);
                state.boot += 1;
                state.crash();
            }
            Action::Crash => {
                state.crashes -= 1;
                state.crash();
            }
            Action::Start(is_lost) => {
                if is_lost {
                    state.losses -= 1;
                    let keeps = self.bug == Some(Bug::LostJournalKeepsItsId);
                    state.disk.lose(journal_id(u8::from(!keeps)));
                }
                let own = (0..self.kinds.len()).map(command_id).collect();
                state
                    .truth
                    .restarted(state.disk.records(), state.disk.life, &own);
                let records: Vec<_> = state.disk.records().cloned().collect();
                let journal = state.disk.journal_id;
                let recovered = Daemon::recover(self.identity(state.boot), journal, records, MONO);
                let (daemon, effects) = match recovered {
                    Ok(recovered) => recovered,
                    Err(error) => {
                        state.wrong = Some(error.to_string());
                        return Some(state);
                    }
                };
                state.daemon = Some(daemon);
                state.perform(effects, None);
            }
            Action::Sweep(number) => {
                state.sweeps -= 1;
                let command = state.ledger.commands.get(&command_id(number))?.clone();
                let over = NOW.plus_seconds(1_000_000);
                state.ledger.expire(&command, over).ok()?;
            }
            Action::Cancel(number) => {
                state.cancels -= 1;
                let id = command_id(number);
                let api = Actor::api("ada");
                state.ledger.cancel(&api, id, NOW).ok()?;
                let command = state.ledger.commands.get(&id)?;
                if command.is_in_flight() {
                    let cancel = ledger_protocol::frame::Cancel { command_id: id };
                    let newest = state.links.iter().rposition(|link| link.epoch > 0);
                    if let Some(place) = newest {
                        state.send(place, Some(cancel.into()));
                    }
                }
            }
        }
        let dies = match action {
            Action::Down(_, budget) | Action::Finish(_, _, budget) => budget.is_some(),
            _ => false,
        };
        // With fewer effects than the budget it did not die, which is another action's state.
        if dies && state.daemon.is_some() {
            return None;
        }
        state.check();
        Some(state)
    }
}
