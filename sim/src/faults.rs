//! What goes wrong. Each schedule has rates of its own, some of them zero, so that each kind of
//! fault is also seen alone (swarm testing, Groce et al. 2012).

use ledger_protocol::frame::Frame;
use ledger_protocol::time::MICROS_PER_SECOND;

use crate::chance::Chance;
use crate::world::World;

/// How often each fault happens: one in so many chances, never for 0.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    cut: usize,
    pub(crate) crash: usize,
    power: usize,
    lose_journal: usize,
    disk: usize,
    gateway_death: usize,
    freeze: usize,
    clock: usize,
    pub(crate) unavailable: usize,
    pub(crate) leap: usize,
    pub(crate) delete: usize,
}

impl Rates {
    pub(crate) fn new(chance: &mut Chance) -> Self {
        let mut rate = |often: &[usize]| {
            if chance.one_in(3) {
                0
            } else {
                chance.pick(often).unwrap_or(0)
            }
        };
        Self {
            cut: rate(&[1, 3, 10]),
            crash: rate(&[1, 3, 10]),
            power: rate(&[2, 6, 20]),
            lose_journal: rate(&[2, 6, 20]),
            disk: rate(&[2, 6, 20]),
            gateway_death: rate(&[3, 10, 30]),
            freeze: rate(&[2, 6, 20]),
            clock: rate(&[1, 3]),
            unavailable: rate(&[5, 20, 60]),
            leap: rate(&[10, 30, 100]),
            delete: rate(&[2, 8]),
        }
    }
}

impl World {
    /// Perhaps something breaks.
    pub(crate) fn fault(&mut self) -> bool {
        let n = self.chance.below(self.machines.len());
        let g = self.chance.below(self.gateways.len());
        match self.chance.below(10) {
            0 if self.chance.one_in(self.rates.cut) => self.cut(),
            1 if self.chance.one_in(self.rates.crash) => {
                self.say(|| format!("node {n}: the process is killed"));
                self.kill(n);
            }
            2 if self.chance.one_in(self.rates.power) => self.lose_power(n),
            3 if self.chance.one_in(self.rates.lose_journal) => self.lose_journal(n),
            4 => {
                let disk = &mut self.machines[n].disk;
                disk.broken = !disk.broken && self.chance.one_in(self.rates.disk);
            }
            5 => {
                if !self.gateways[g].alive {
                    self.gateways[g].alive = true;
                } else if self.chance.one_in(self.rates.gateway_death) {
                    self.tally.gateway_deaths += 1;
                    self.gateway_dies(g);
                }
            }
            6 if self.chance.one_in(self.rates.freeze) => {
                let long = self.chance.between(0, 40 * MICROS_PER_SECOND);
                self.say(|| format!("gateway {g} freezes for {long} us"));
                self.gateways[g].frozen_until = self.now + long;
            }
            7 if self.chance.one_in(self.rates.clock) => {
                let since_1970 = -self.now;
                let hours = self.chance.between(-40, 40) * 3_600 * MICROS_PER_SECOND;
                let jump = self.chance.pick(&[since_1970, hours, 0]).unwrap_or(0);
                self.machines[n].clock_off = jump;
            }
            8 if self.chance.one_in(self.rates.cut) => self.duplicate(),
            _ => return self.notice_cut(),
        }
        true
    }

    /// A report, an answer or a cancel arrives twice. A command does not: it is sent once in each
    /// session, or it could be taken on after it was given back.
    fn duplicate(&mut self) {
        let ids: Vec<_> = self.connections.keys().copied().collect();
        let Some(id) = self.chance.pick(&ids) else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            if let Some(bytes) = connection.up.back().cloned() {
                connection.up.push_back(bytes);
            }
            if let Some(frame @ (Frame::Cancel(_) | Frame::UpdateAck(_))) = connection.down.back() {
                let again = frame.clone();
                connection.down.push_back(again);
            }
            self.tally.duplicates += 1;
        }
    }

    /// A connection breaks: what was under way on it is lost, and neither side is told.
    fn cut(&mut self) {
        let ids: Vec<_> = self.connections.keys().copied().collect();
        let Some(id) = self.chance.pick(&ids) else {
            return;
        };
        let chance = &mut self.chance;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.broken = true;
            let (up, down) = (connection.up.len(), connection.down.len());
            connection.up.truncate(chance.below(up + 1));
            connection.down.truncate(chance.below(down + 1));
            self.tally.cuts += 1;
        }
        self.say(|| format!("connection {id} breaks"));
    }

    /// One side finds out that its connection is broken.
    fn notice_cut(&mut self) -> bool {
        let broken = self.connections.iter();
        let broken: Vec<_> = broken
            .filter(|(_, c)| c.broken)
            .map(|(id, _)| *id)
            .collect();
        let Some(id) = self.chance.pick(&broken) else {
            return false;
        };
        if self.chance.one_in(2) {
            self.node_notices(id);
        } else {
            self.gateway_notices_cut(id);
        }
        true
    }

    pub(crate) fn node_notices(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id)
            && std::mem::replace(&mut connection.node_end, false)
            && let Some(process) = &mut self.machines[connection.node].process
        {
            process.connection = None;
            process.connect_at = self.now;
            process
                .inbox
                .push_back(ledger_protocol::daemon::Input::Disconnected);
        }
    }

    pub(crate) fn gateway_notices_cut(&mut self, id: u64) {
        let connection = self.connections.get(&id);
        if let Some(g) = connection.filter(|c| c.gateway_end).map(|c| c.gateway) {
            self.end_session(g, id, "the connection broke");
        }
    }

    fn lose_power(&mut self, n: usize) {
        self.say(|| format!("node {n} loses its power"));
        self.tally.power_losses += 1;
        let connection = self.machines[n].process.as_ref().and_then(|p| p.connection);
        self.kill(n);
        if let Some(connection) = connection.and_then(|id| self.connections.get_mut(&id)) {
            connection.broken = true;
        }
        let machine = &mut self.machines[n];
        machine.boot += 1;
        machine.ending = None;
        machine.disk.lose_power(&mut self.chance);
    }
}
