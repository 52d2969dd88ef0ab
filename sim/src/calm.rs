//! The end of a schedule: the faults stop, time runs on, and everything must end.

use ledger_protocol::command::State;
use ledger_protocol::daemon::Record;
use ledger_protocol::limits::SWEEP_SECONDS;
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};

use crate::world::{GATEWAY_STEPS, NODE_STEPS, SWEEPER_STEPS, Step, World};

/// How long after the last fault everything must flow again, in microseconds.
const CALM_MICROS: i64 = 5 * MICROS_PER_SECOND;
/// How long something may wait that could go on, in microseconds: two looks, and a little.
const WAIT_MICROS: i64 = 2_500_000;
/// Steps without an end, after which a schedule counts as running in circles.
const STEPS_MAX: usize = 20_000;
/// Longest calm that any schedule needs, in microseconds: the latest `notAfter`, its timeout, two
/// sweeps, a reconnect.
const LONGEST_MICROS: i64 = 180 * MICROS_PER_SECOND;

impl World {
    /// Lets everything come to its end. Says what does not.
    pub(crate) fn calm(&mut self) -> Option<String> {
        self.faults_on = false;
        for machine in &mut self.machines {
            machine.disk.broken = false;
        }
        for gateway in &mut self.gateways {
            gateway.alive = true;
            gateway.frozen_until = 0;
        }
        let broken = self.connections.iter().filter(|(_, c)| c.broken);
        let broken: Vec<_> = broken.map(|(id, _)| *id).collect();
        for id in broken {
            self.node_notices(id);
            self.gateway_notices_cut(id);
        }
        for n in 0..self.machines.len() {
            // As long as both live, the two supersede each other.
            if self.machines[n].is_copy {
                self.kill(n);
                self.machines[n].start_at = i64::MAX;
            }
        }
        self.say(|| "the faults stop".to_owned());
        let stopped = self.now;
        let sweeps = 2 * i64::from(SWEEP_SECONDS) * MICROS_PER_SECOND;
        while self.now < stopped + LONGEST_MICROS {
            if let Some(wrong) = self.come_to_rest() {
                return Some(wrong);
            }
            if self.is_over() {
                return self.check_confirmed();
            }
            let at = Timestamp::from_micros(self.now);
            if self.now > stopped + CALM_MICROS
                && let Some(left) = self.ledger.checker.left_waiting(at, WAIT_MICROS).pop()
            {
                return Some(left.to_string());
            }
            if self.now > stopped + sweeps
                && let Some(overdue) = self.ledger.checker.overdue(at, 0, &self.kinds).pop()
            {
                return Some(overdue.to_string());
            }
            self.now = self.next_moment().max(self.now + 1_000);
        }
        let live = self.ledger.checker.live();
        Some(format!(
            "T2: not all is over: {live} commands, {:?}",
            self.unconfirmed()
        ))
    }

    /// Every part does what it can, until none can do anything at this moment.
    fn come_to_rest(&mut self) -> Option<String> {
        for _ in 0..STEPS_MAX {
            let mut did = false;
            for n in 0..self.machines.len() {
                did |= self.each(NODE_STEPS, n);
            }
            let ids: Vec<_> = self.connections.keys().copied().collect();
            for id in ids {
                did |= self.deliver_up(id);
                did |= self.deliver_down(id);
            }
            self.forget_closed();
            for g in 0..self.gateways.len() {
                did |= self.each(GATEWAY_STEPS, g);
            }
            for s in 0..self.sweepers.len() {
                did |= self.each(SWEEPER_STEPS, s);
            }
            if let Some(wrong) = self.check() {
                return Some(wrong);
            }
            if !did {
                return None;
            }
            self.now += 100;
        }
        Some("the parts run in circles".to_owned())
    }

    fn each(&mut self, steps: &[Step], which: usize) -> bool {
        let mut did = false;
        for step in steps {
            did |= step(self, which);
        }
        did
    }

    fn next_moment(&self) -> i64 {
        let nodes = (0..self.machines.len()).filter_map(|n| self.node_next(n));
        let gateways = (0..self.gateways.len()).filter_map(|g| self.gateway_next(g));
        let sweepers = self.sweepers.iter().map(|sweeper| sweeper.sweep_at);
        let moments = nodes.chain(gateways).chain(sweepers);
        moments
            .filter(|at| *at > self.now)
            .min()
            .unwrap_or(self.now + MICROS_PER_SECOND)
    }

    fn is_over(&self) -> bool {
        self.ledger.checker.is_over() && self.unconfirmed().is_empty()
    }

    /// What nodes still have to say, by the number of the node.
    fn unconfirmed(&self) -> Vec<(usize, usize)> {
        let mut unconfirmed = Vec::new();
        for (n, machine) in self.machines.iter().enumerate() {
            let node = self.ledger.nodes.get(&machine.id);
            if machine.is_copy || node.is_none_or(|node| node.deleted_at.is_some()) {
                continue;
            }
            let entries = match &machine.process {
                Some(process) if process.daemon.is_welcome() => {
                    process.daemon.hello().entries.len()
                }
                Some(_) | None => usize::MAX,
            };
            if entries > 0 {
                unconfirmed.push((n, entries));
            }
        }
        unconfirmed
    }

    /// What a journal holds as confirmed must be in the ledger (SPEC D5).
    fn check_confirmed(&self) -> Option<String> {
        for machine in &self.machines {
            for record in machine.disk.records() {
                let Record::Confirmed(confirmed) = record else {
                    continue;
                };
                let id = confirmed.command_id;
                let command = self.ledger.commands.get(&id);
                let has = command.is_some_and(|command| match &command.state {
                    State::Settled(end) => end.end.epoch.is_some() || end.late.is_some(),
                    _ => false,
                });
                if !has && confirmed.refused.is_none() {
                    return Some(format!(
                        "D5: {id} is confirmed, and the ledger has no word of it"
                    ));
                }
            }
        }
        None
    }
}
