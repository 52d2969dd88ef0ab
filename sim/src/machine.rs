//! A node: its machine, its disk, its daemon's process and the executors in it. What
//! `agent/src/session.rs` does with sockets and files.

use std::collections::VecDeque;
use std::sync::Arc;

use ledger_protocol::daemon::{Daemon, Effect, Identity, Input, Monotonic, Record, SupportedKinds};
use ledger_protocol::frame::{CommandUpdate, Frame};
use ledger_protocol::id::{CommandId, JournalId, NodeId};
use ledger_protocol::kind::Role;
use ledger_protocol::time::Timestamp;

use crate::bug::Bug;
use crate::disk::Disk;
use crate::executor::Running;
use crate::world::{Connection, World};

pub(crate) struct Machine {
    pub(crate) id: NodeId,
    pub(crate) role: Role,
    pub(crate) version: String,
    pub(crate) boot: u32,
    pub(crate) disk: Disk,
    pub(crate) process: Option<Process>,
    /// When a process is started again.
    pub(crate) start_at: i64,
    /// The command that is about to end the daemon, with its kind.
    pub(crate) ending: Option<(CommandId, String)>,
    /// How far the node's own clock is off, in microseconds.
    pub(crate) clock_off: i64,
    pub(crate) kinds: Arc<SupportedKinds>,
    /// It has the identity of another machine (SPEC D2).
    pub(crate) is_copy: bool,
}

pub(crate) struct Process {
    pub(crate) daemon: Daemon,
    /// Where its clock that never jumps began.
    origin: i64,
    pub(crate) inbox: VecDeque<Input>,
    /// What is to be performed, in this order.
    pub(crate) todo: VecDeque<Effect>,
    pub(crate) jobs: Vec<Running>,
    pub(crate) connection: Option<u64>,
    pub(crate) connect_at: i64,
}

impl Process {
    pub(crate) fn mono(&self, now: i64) -> Monotonic {
        Monotonic::from_micros(now - self.origin)
    }

    /// When its daemon wants to be woken, in simulated time.
    pub(crate) fn next_deadline(&self) -> Option<i64> {
        let deadline = self.daemon.next_deadline()?;
        Some(deadline.as_micros().saturating_add(self.origin))
    }
}

impl World {
    /// Takes in what has come, once what came before is worked off.
    pub(crate) fn node_inputs(&mut self, n: usize) -> bool {
        let now = self.now;
        let machine = &mut self.machines[n];
        let Some(process) = &mut machine.process else {
            return false;
        };
        if !process.todo.is_empty() || process.inbox.is_empty() {
            return false;
        }
        let mono = process.mono(now);
        let count = 1 + self.chance.below(process.inbox.len());
        let mut effects = Vec::new();
        for mut input in process.inbox.drain(..count) {
            if self.bug == Some(Bug::NodeClockTrusted) {
                let own = Timestamp::from_micros(now + machine.clock_off);
                match &mut input {
                    Input::Frame(Frame::Welcome(welcome)) => welcome.server_time = own,
                    Input::Frame(Frame::Ping(ping)) if ping.server_time.is_some() => {
                        ping.server_time = Some(own);
                    }
                    _ => {}
                }
            }
            if self.tracing {
                self.trace.push(format!("node {n} takes {input:?}"));
            }
            effects.extend(process.daemon.handle(input, mono));
        }
        self.plan(n, effects);
        true
    }

    /// Puts effects into the order in which they will be performed.
    fn plan(&mut self, n: usize, mut effects: Vec<Effect>) {
        let at = Timestamp::from_micros(self.now);
        for effect in &effects {
            // Time is judged when it is decided; the disk may take long.
            let decided = match effect {
                Effect::Journal(Record::Accepted(command)) => (command.command_id, false),
                Effect::Start(job) => (job.command_id, true),
                _ => continue,
            };
            if let Some(command) = self.ledger.commands.get(&decided.0) {
                self.truth.decided(command, decided.1, at);
            }
        }
        let is_record = |effect: &Effect| matches!(effect, Effect::Journal(_) | Effect::Rewrite(_));
        match self.bug {
            Some(Bug::EffectBeforeJournal) => effects.sort_by_key(|effect| match effect {
                Effect::Start(_) => 0,
                effect if is_record(effect) => 1,
                _ => 2,
            }),
            Some(Bug::SaysBeforeJournal) => {
                effects.sort_by_key(|effect| matches!(effect, Effect::Journal(Record::Ended(_))));
            }
            // Records may be written earlier than their place: the agent writes them first.
            _ if self.records_first => effects.sort_by_key(|effect| !is_record(effect)),
            _ => {}
        }
        if let Some(process) = &mut self.machines[n].process {
            process.todo.extend(effects);
        }
    }

    /// Performs the next effect. The process may die between any two.
    pub(crate) fn node_effect(&mut self, n: usize) -> bool {
        let now = self.now;
        let at = Timestamp::from_micros(now);
        let machine = &mut self.machines[n];
        let (id, life) = (machine.id, machine.disk.life);
        let Some(process) = &mut machine.process else {
            return false;
        };
        let Some(effect) = process.todo.pop_front() else {
            return false;
        };
        if self.tracing {
            self.trace.push(format!("node {n} does {effect:?}"));
        }
        let writes = matches!(effect, Effect::Journal(_) | Effect::Rewrite(_));
        if writes && machine.disk.broken {
            // What failed may still be there, and may outlive a crash.
            if let Effect::Journal(record) = &effect
                && self.chance.one_in(2)
            {
                machine.disk.append(record.clone(), false);
            }
            process.todo.push_front(effect);
            let unperformed = process.todo.drain(..).collect();
            let mono = process.mono(now);
            let effects = process
                .daemon
                .handle(Input::JournalFailed { unperformed }, mono);
            self.tally.journal_failed += 1;
            self.plan(n, effects);
            return true;
        }
        match effect {
            Effect::Journal(record) => {
                if let Record::Accepted(_) = &record {
                    self.tally.accepted += 1;
                }
                let sync = record.is_urgent() && self.bug != Some(Bug::JournalNotSynced);
                if self.faults_on && self.chance.one_in(8 * self.rates.crash) {
                    // Written, and dead before it was synced.
                    machine.disk.append(record, false);
                    self.kill(n);
                    return true;
                }
                machine.disk.append(record, sync);
            }
            Effect::Rewrite(records) => machine.disk.rewrite(records),
            Effect::Start(job) => self.start(n, job),
            Effect::Stop(id) => {
                let jobs = process.jobs.iter_mut().filter(|job| job.id == id);
                jobs.for_each(|job| job.stop = true);
            }
            Effect::Send(mut frame) => {
                if let Frame::CommandUpdate(CommandUpdate { updates }) = &frame {
                    for update in updates {
                        if let Some(command) = self.ledger.commands.get(&update.command_id) {
                            self.truth.said(command, update, life, at);
                        }
                    }
                }
                let connection = process.connection;
                self.sign(id, &mut frame);
                let connection = connection.and_then(|id| self.connections.get_mut(&id));
                if let (Some(connection), Ok(bytes)) = (connection, frame.encode())
                    && !connection.broken
                {
                    connection.up.push_back(bytes);
                }
            }
            Effect::Apply(spec) => {
                let generation = spec.generation;
                process.inbox.push_back(Input::Applied { generation });
            }
            // Nothing here signs, so nothing is pinned or doubted; and no command names a secret.
            Effect::Pin(_) | Effect::Doubt(_) | Effect::Secret { .. } => {}
            Effect::Close(_) => self.node_hangs_up(n),
        }
        true
    }

    /// The effect that ends the daemon comes about.
    pub(crate) fn node_ending(&mut self, n: usize) -> bool {
        let Some((id, kind)) = self.machines[n].ending.take() else {
            return false;
        };
        self.say(|| format!("node {n} is ended by {id} ({kind})"));
        let synced = self.chance.one_in(2);
        self.kill(n);
        let machine = &mut self.machines[n];
        if kind == "daemon.upgrade" {
            if let Some(command) = self.ledger.commands.get(&id)
                && let Ok(payload) = ledger_protocol::canonical::to_json(&command.queued.payload)
                && let Some(version) = payload["version"].as_str()
            {
                version.clone_into(&mut machine.version);
            }
            return true;
        }
        self.truth.booted(id);
        machine.boot += 1;
        if synced {
            machine.disk.sync();
        } else {
            machine.disk.lose_power(&mut self.chance);
        }
        true
    }

    /// The process is gone, and what ran in it.
    pub(crate) fn kill(&mut self, n: usize) {
        self.node_hangs_up(n);
        let delay = self.chance.between(1_000, 2_000_000);
        let machine = &mut self.machines[n];
        machine.process = None;
        machine.start_at = self.now + delay;
    }

    fn node_hangs_up(&mut self, n: usize) {
        let delay = self.chance.between(0, 500_000);
        let now = self.now;
        if let Some(process) = &mut self.machines[n].process {
            process.connect_at = now + delay;
            if let Some(id) = process.connection.take()
                && let Some(connection) = self.connections.get_mut(&id)
            {
                connection.node_end = false;
            }
        }
    }

    /// A new process reads the journal.
    pub(crate) fn node_start(&mut self, n: usize) -> bool {
        let machine = &mut self.machines[n];
        if machine.process.is_some() || self.now < machine.start_at {
            return false;
        }
        let own = self.ledger.commands.values();
        let own = own
            .filter(|command| command.node_id() == machine.id)
            .map(|command| command.id);
        let own = own.collect();
        let life = machine.disk.life;
        // What a dead process wrote may not be durable yet; it is, before it is acted upon.
        if self.bug != Some(Bug::JournalNotSynced) {
            machine.disk.sync();
        }
        let mut records: Vec<_> = machine.disk.records().cloned().collect();
        match self.bug {
            Some(Bug::EndsForgotten) => forget_ends(&mut records),
            Some(Bug::RunsAgainAfterCrash) => forget_starts(&mut records),
            _ => self.truth.restarted(records.iter(), life, &own),
        }
        let identity = Identity {
            agent_version: machine.version.clone(),
            boot_id: format!("boot-{}", machine.boot),
            node_id: machine.id,
            role: machine.role,
            kinds: machine.kinds.clone(),
            pins: None,
        };
        // The clock that never jumps begins anywhere.
        let origin = self
            .chance
            .between(-1_000_000_000_000, 2_000_000_000_000_000);
        let mono = Monotonic::from_micros(self.now - origin);
        let journal_id = machine.disk.journal_id;
        let recovered = Daemon::recover(identity.clone(), journal_id, records, mono);
        let (daemon, effects) = match recovered {
            Ok(recovered) => recovered,
            Err(error) => {
                self.wrong.push(format!("D5: node {n}: {error}"));
                (Daemon::new(identity, journal_id), Vec::new())
            }
        };
        self.tally.process_starts += 1;
        machine.process = Some(Process {
            daemon,
            origin,
            inbox: VecDeque::new(),
            todo: VecDeque::new(),
            jobs: Vec::new(),
            connection: None,
            connect_at: self.now,
        });
        self.say(|| format!("node {n} starts a process, life {life}"));
        self.plan(n, effects);
        true
    }

    /// The journal is lost; a process that runs would not notice.
    pub(crate) fn lose_journal(&mut self, n: usize) {
        self.kill(n);
        self.ids += 1;
        let [.., a, b] = self.ids.to_be_bytes();
        let new_id = JournalId::new(
            Timestamp::from_micros(self.now),
            [7, 0, 0, 0, 0, 0, 0, 0, a, b],
        );
        let keeps = self.bug == Some(Bug::LostJournalKeepsItsId);
        let disk = &mut self.machines[n].disk;
        let id = if keeps { disk.journal_id } else { new_id };
        disk.lose(id);
        self.tally.journals_lost += 1;
        self.say(|| format!("node {n} loses its journal"));
    }

    /// A connection to some gateway.
    pub(crate) fn node_connect(&mut self, n: usize) -> bool {
        let now = self.now;
        let Some(process) = &self.machines[n].process else {
            return false;
        };
        if process.connection.is_some() || now < process.connect_at {
            return false;
        }
        let able: Vec<_> = (0..self.gateways.len())
            .filter(|g| self.gateways[*g].alive)
            .collect();
        let Some(gateway) = self.chance.pick(&able) else {
            return false;
        };
        self.ids += 1;
        let id = self.ids;
        self.connections.insert(
            id,
            Connection {
                node: n,
                gateway,
                up: VecDeque::new(),
                down: VecDeque::new(),
                node_end: true,
                gateway_end: true,
                broken: false,
            },
        );
        self.gateway_accepts(gateway, id, n);
        if let Some(process) = &mut self.machines[n].process {
            process.connection = Some(id);
            process.inbox.push_back(Input::Connected);
        }
        self.say(|| format!("node {n} connects to gateway {gateway}, connection {id}"));
        true
    }

    /// The daemon's timer.
    pub(crate) fn node_timer(&mut self, n: usize) -> bool {
        let now = self.now;
        let Some(process) = &mut self.machines[n].process else {
            return false;
        };
        let due = process.next_deadline().is_some_and(|at| at <= now);
        if due && process.inbox.is_empty() && process.todo.is_empty() {
            process.inbox.push_back(Input::Timer);
            return true;
        }
        false
    }

    /// The next moment at which a node has something to do by itself.
    pub(crate) fn node_next(&self, n: usize) -> Option<i64> {
        let machine = &self.machines[n];
        let Some(process) = &machine.process else {
            return Some(machine.start_at);
        };
        let connect = process.connection.is_none().then_some(process.connect_at);
        let jobs = process
            .jobs
            .iter()
            .map(|job| job.until)
            .filter(|at| *at > self.now);
        process
            .next_deadline()
            .into_iter()
            .chain(connect)
            .chain(jobs)
            .min()
    }
}

fn forget_ends(records: &mut Vec<Record>) {
    let ended = records.iter().filter_map(|record| match record {
        Record::Ended(ended) => Some(ended.update.command_id),
        _ => None,
    });
    let ended: Vec<_> = ended.collect();
    records.retain(|record| match record {
        Record::Accepted(command) => !ended.contains(&command.command_id),
        Record::Started(started) => !ended.contains(&started.command_id),
        Record::Confirmed(confirmed) => !ended.contains(&confirmed.command_id),
        Record::Ended(_) => false,
        Record::Forgotten(_)
        | Record::Seen(_)
        | Record::Applied(_)
        | Record::Trusted(_)
        | Record::Unbatched(_) => true,
    });
}

fn forget_starts(records: &mut Vec<Record>) {
    records.retain(|record| !matches!(record, Record::Started(_)));
    for record in records {
        if let Record::Accepted(command) = record {
            command.retry_safe = true;
        }
    }
}
