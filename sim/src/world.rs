//! One schedule: the parts of the system, and in which order they go on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::daemon::{Record, SupportedKinds};
use ledger_protocol::event::{Actor, Body, NodeRegistered, Outcome};
use ledger_protocol::frame::Frame;
use ledger_protocol::id::{CommandId, JournalId, NodeId, TenantId};
use ledger_protocol::kind::{Lane, Registry, Role};
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};

use crate::attest::certificate;
use crate::bug::Bug;
use crate::chance::Chance;
use crate::disk::Disk;
use crate::faults::Rates;
use crate::gateway::Gateway;
use crate::ledger::Ledger;
use crate::machine::Machine;
use crate::sweeper::Sweeper;
use crate::tally::Tally;
use crate::truth::Truth;

/// The server's time when a schedule begins.
const START: i64 = 1_764_490_000 * MICROS_PER_SECOND;

/// What all schedules share.
pub(crate) struct Shared {
    registry: Registry,
    supported: Arc<SupportedKinds>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        let registry = Registry::builtin();
        let supported = SupportedKinds::new(&registry, |_| true);
        Self {
            registry,
            supported: Arc::new(supported),
        }
    }
}

/// Something that a part can do; whether it could.
pub(crate) type Step = fn(&mut World, usize) -> bool;

pub(crate) const NODE_STEPS: &[Step] = &[
    World::node_inputs,
    World::node_effect,
    World::node_timer,
    World::node_effect,
    World::node_job,
    World::node_connect,
    World::node_start,
    World::node_ending,
];

pub(crate) const GATEWAY_STEPS: &[Step] = &[
    World::gateway_notices,
    World::gateway_work,
    World::gateway_look,
    World::gateway_dispatch,
    World::gateway_work,
    World::gateway_tick,
    World::gateway_repair,
    World::gateway_check,
    World::gateway_learn,
    World::gateway_record,
];

pub(crate) const SWEEPER_STEPS: &[Step] = &[World::sweeper_end, World::sweeper_look];

/// The life of the journal of a second machine with the same identity: never that of the first.
const COPY_LIFE: u32 = 1_000;

/// A connection, with what is under way on it.
pub(crate) struct Connection {
    pub(crate) node: usize,
    pub(crate) gateway: usize,
    pub(crate) up: VecDeque<Vec<u8>>,
    pub(crate) down: VecDeque<Frame>,
    /// Whether the node holds its end.
    pub(crate) node_end: bool,
    pub(crate) gateway_end: bool,
    /// Nothing gets through any more, and nobody is told.
    pub(crate) broken: bool,
}

pub(crate) struct World {
    pub(crate) now: i64,
    pub(crate) chance: Chance,
    pub(crate) rates: Rates,
    pub(crate) faults_on: bool,
    pub(crate) records_first: bool,
    pub(crate) bug: Option<Bug>,
    pub(crate) ids: u64,
    pub(crate) ledger: Ledger,
    pub(crate) truth: Truth,
    pub(crate) machines: Vec<Machine>,
    pub(crate) gateways: Vec<Gateway>,
    /// The gateway that lies about how commands ended.
    pub(crate) liar: Option<usize>,
    /// Commands of whose end it lied. The node has its answer, a refusal, and names them no more.
    pub(crate) lied_of: BTreeSet<CommandId>,
    pub(crate) sweepers: Vec<Sweeper>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) kinds: Registry,
    pub(crate) asked: Vec<Enqueue>,
    pub(crate) tally: Tally,
    pub(crate) tracing: bool,
    pub(crate) trace: Vec<String>,
    pub(crate) wrong: Vec<String>,
    /// Sessions that were opened by a `Hello` whose daemon had gone elsewhere by then.
    pub(crate) stale_hellos: Vec<(NodeId, u64)>,
    checked: usize,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, tracing: bool, shared: &Shared) -> Self {
        let mut chance = Chance::new(seed);
        let rates = Rates::new(&mut chance);
        let at = Timestamp::from_micros(START);
        let tenant = TenantId::new(at, [1; 10]);
        let mut ledger = Ledger::new(bug, tenant);
        if chance.one_in(4) {
            ledger.pending_max = 3;
        }
        let mut machines = Vec::new();
        for n in 0..=u8::from(chance.one_in(4)) {
            let id = NodeId::new(at, [n; 10]);
            let role = chance
                .pick(&[Role::Node, Role::Ramdisk])
                .unwrap_or(Role::Node);
            let registered = NodeRegistered {
                labels: BTreeMap::new(),
                name: format!("node-{n}"),
                role,
            };
            let ada = Actor::api("ada");
            ledger.register(id, &ada, at, registered.into());
            ledger.certify(id, &ada, certificate(id, None, at), at);
            machines.push(Machine {
                id,
                role,
                version: "1.0.0".to_owned(),
                boot: 1,
                disk: Disk::new(JournalId::new(at, [n; 10])),
                process: None,
                start_at: START,
                ending: None,
                clock_off: 0,
                kinds: shared.supported.clone(),
                is_copy: false,
            });
        }
        if chance.one_in(20) {
            let mut disk = Disk::new(JournalId::new(at, [99; 10]));
            disk.life = COPY_LIFE;
            machines.push(Machine {
                id: machines[0].id,
                role: machines[0].role,
                version: "1.0.0".to_owned(),
                boot: 99,
                disk,
                process: None,
                start_at: START + chance.between(0, 10 * MICROS_PER_SECOND),
                ending: None,
                clock_off: 0,
                kinds: shared.supported.clone(),
                is_copy: true,
            });
        }
        Self {
            now: START,
            records_first: chance.one_in(2),
            lied_of: BTreeSet::new(),
            liar: chance.one_in(8).then(|| chance.below(2)),
            chance,
            rates,
            faults_on: true,
            bug,
            ids: 0,
            ledger,
            truth: Truth::default(),
            machines,
            gateways: (0..2).map(Gateway::new).collect(),
            sweepers: vec![Sweeper::default(), Sweeper::default()],
            connections: BTreeMap::new(),
            kinds: shared.registry.clone(),
            asked: Vec::new(),
            tally: Tally::default(),
            tracing,
            trace: Vec::new(),
            wrong: Vec::new(),
            stale_hellos: Vec::new(),
            checked: 0,
        }
    }

    pub(crate) fn say(&mut self, what: impl FnOnce() -> String) {
        if self.tracing {
            self.trace.push(what());
        }
    }

    pub(crate) fn wrong(&mut self, what: String) {
        self.wrong.push(what);
    }

    /// One random step.
    pub(crate) fn step(&mut self) {
        self.now += self.chance.between(0, 20_000);
        if self.chance.one_in(self.rates.leap) {
            self.now += self.chance.between(0, 8 * MICROS_PER_SECOND);
        }
        match self.chance.below(100) {
            0..=7 => self.client(),
            8..=39 => {
                let n = self.chance.below(self.machines.len());
                let first = self.chance.below(NODE_STEPS.len());
                self.first_that_can(NODE_STEPS, first, n)
            }
            40..=59 => {
                let id = self.chance.below(self.connections.len());
                let id = self.connections.keys().nth(id).copied().unwrap_or(0);
                let steps = [World::deliver_up, World::deliver_down];
                let first = self.chance.below(steps.len());
                steps[first](self, id) || steps[1 - first](self, id)
            }
            60..=89 => {
                let g = self.chance.below(self.gateways.len());
                let first = self.chance.below(GATEWAY_STEPS.len());
                self.gateway_is_able(g) && self.first_that_can(GATEWAY_STEPS, first, g)
            }
            90..=93 => {
                let s = self.chance.below(self.sweepers.len());
                self.sweeper_end(s) || self.sweeper_look(s)
            }
            _ => self.fault(),
        };
        self.tally.steps += 1;
        self.forget_closed();
    }

    fn first_that_can(&mut self, steps: &[Step], first: usize, which: usize) -> bool {
        let order = steps.iter().cycle().skip(first).take(steps.len());
        for step in order {
            if step(self, which) {
                return true;
            }
        }
        false
    }

    pub(crate) fn forget_closed(&mut self) {
        self.connections
            .retain(|_, connection| connection.node_end || connection.gateway_end);
    }

    /// What must hold now. Says what does not.
    pub(crate) fn check(&mut self) -> Option<String> {
        let end = self.ledger.log.len();
        for position in self.checked..end {
            self.count(position);
        }
        if end > self.checked {
            for machine in &self.machines {
                for lane in Lane::ALL {
                    let counted = self.ledger.checker.in_flight(machine.id, lane);
                    let there = self.ledger.count_in_flight(machine.id, lane);
                    if counted != there {
                        let wrong = format!("D3: {lane}: {counted} credits for {there} in flight");
                        self.wrong.push(wrong);
                    }
                }
            }
        }
        self.checked = end;
        let wrong = [
            &mut self.ledger.wrong,
            &mut self.truth.wrong,
            &mut self.wrong,
        ];
        wrong
            .into_iter()
            .find_map(|wrong| (!wrong.is_empty()).then(|| wrong.remove(0)))
    }

    /// Counts an event, and compares an end with the node's truth.
    fn count(&mut self, position: usize) {
        let event = &self.ledger.log[position];
        if self.tracing {
            let (stream, at) = (event.stream, event.at.as_micros() - START);
            let body = event.body.to_json();
            let line = format!(
                "@{} +{at} {stream} {} {body}",
                position + 1,
                event.body.type_name()
            );
            self.trace.push(line);
        }
        let tally = &mut self.tally;
        tally.events += 1;
        match &event.body {
            Body::CommandReturned(_) => tally.returned += 1,
            Body::CommandLateResult(_) => tally.late_results += 1,
            Body::NodeGenerationApplied(_) => tally.generations_applied += 1,
            Body::CommandSettled(end) => {
                let Some(id) = event.command_id() else { return };
                let Some(command) = self.ledger.commands.get(&id) else {
                    return;
                };
                let node = self
                    .machines
                    .iter()
                    .find(|machine| machine.id == end.node_id);
                let is_known = node.is_some_and(|machine| {
                    machine.disk.records().any(|record| match record {
                        Record::Accepted(command) => command.command_id == id,
                        Record::Ended(ended) => ended.update.command_id == id,
                        _ => false,
                    })
                });
                // Nothing tells the ledger that a `Hello` is old. What it proves errs on the safe
                // side: nothing starts twice, and the node's word is kept as a late result.
                let stale = end.epoch.map(|epoch| (end.node_id, epoch));
                let is_stale = stale.is_some_and(|stale| self.stale_hellos.contains(&stale));
                let is_false =
                    is_stale && is_known && end.reason.as_deref() == Some("journal-lost");
                tally.falsely_lost += u64::from(is_false);
                let has_copy = self.machines.iter().any(|machine| machine.is_copy);
                let was_refused = self.lied_of.contains(&id);
                let is_known = is_known && !is_stale && !has_copy && !was_refused;
                let said = self.truth.settled(command, end, is_known);
                let reason = end.reason.as_deref();
                let ends_daemon = command.queued.self_terminating;
                let count = match (end.state, reason) {
                    (Outcome::Succeeded, _) if ends_daemon && !said => {
                        &mut tally.rebooted_by_rejoin
                    }
                    (Outcome::Succeeded, _) if ends_daemon => &mut tally.rebooted,
                    (Outcome::Succeeded, _) => &mut tally.succeeded,
                    (Outcome::Failed, Some("interrupted")) => &mut tally.interrupted,
                    (Outcome::Failed, Some("journal-lost")) => &mut tally.journal_lost,
                    (Outcome::Failed, Some("timeout")) => &mut tally.timed_out,
                    (_, Some("node-deleted")) => &mut tally.node_deleted,
                    (Outcome::Failed, _) => &mut tally.failed,
                    (Outcome::Rejected, _) => &mut tally.rejected,
                    (Outcome::Expired, _) => &mut tally.expired,
                    (Outcome::Cancelled, _) if end.epoch.is_some() => &mut tally.cancelled_by_node,
                    (Outcome::Cancelled, _) => &mut tally.cancelled_pending,
                };
                *count += 1;
            }
            _ => {}
        }
    }
}
