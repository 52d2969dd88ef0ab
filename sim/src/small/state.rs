//! One state of the small world, and how its parts act on each other.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use ledger_protocol::command::{Command, State as CommandState, expire};
use ledger_protocol::daemon::{Daemon, Effect as NodeEffect, End, Input, Record, Report};
use ledger_protocol::event::{Actor, Body};
use ledger_protocol::frame::{CommandUpdate, Frame};
use ledger_protocol::id::CommandId;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::{Answer, Effect, Session, acknowledge};

use super::{MONO, NOW, node_id};
use crate::disk::Disk;
use crate::ledger::Ledger;
use crate::truth::Truth;

/// One state of it.
#[derive(Debug, Clone)]
pub struct State {
    pub(super) ledger: Ledger,
    pub(super) truth: Truth,
    pub(super) daemon: Option<Daemon>,
    pub(super) disk: Disk,
    pub(super) boot: u8,
    /// What runs, and whether it took effect.
    pub(super) jobs: BTreeMap<CommandId, bool>,
    pub(super) ending: Option<CommandId>,
    pub(super) links: Vec<Link>,
    pub(super) crashes: u8,
    pub(super) losses: u8,
    pub(super) cancels: u8,
    pub(super) sweeps: u8,
    pub(super) stale: Vec<u64>,
    pub(super) wrong: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) session: Session,
    pub(super) epoch: u64,
    pub(super) up: VecDeque<Frame>,
    pub(super) down: VecDeque<Frame>,
    pub(super) node_end: bool,
    pub(super) gateway_end: bool,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Self {
            ledger,
            truth,
            daemon,
            disk,
            boot,
            jobs,
            ending,
            links,
            crashes,
            losses,
            cancels,
            sweeps,
            stale,
            wrong,
        } = self;
        (&ledger.nodes, &ledger.commands, &ledger.checker, truth).hash(to);
        (daemon, disk, boot, jobs, ending, links).hash(to);
        (crashes, losses, cancels, sweeps, stale, wrong).hash(to);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        (
            &self.ledger.nodes,
            &self.ledger.commands,
            &self.ledger.checker,
        ) == (
            &other.ledger.nodes,
            &other.ledger.commands,
            &other.ledger.checker,
        ) && (
            &self.truth,
            &self.daemon,
            &self.disk,
            &self.boot,
            &self.jobs,
            &self.ending,
        ) == (
            &other.truth,
            &other.daemon,
            &other.disk,
            &other.boot,
            &other.jobs,
            &other.ending,
        ) && (
            &self.links,
            &self.crashes,
            &self.losses,
            &self.cancels,
            &self.sweeps,
            &self.stale,
            &self.wrong,
        ) == (
            &other.links,
            &other.crashes,
            &other.losses,
            &other.cancels,
            &other.sweeps,
            &other.stale,
            &other.wrong,
        )
    }
}

impl State {
    /// What did not hold on the way to this state.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Whether the sweep at the end of time would end everything that has not ended (SPEC T2).
    pub fn time_ends_all(&self) -> bool {
        let live = self.ledger.commands.values();
        let mut live = live.filter(|command| !command.state_name().is_terminal());
        live.all(|command| {
            let timeout = command.queued.timeout_seconds;
            expire::decide(command, timeout, NOW.plus_seconds(1_000_000)).is_ok()
        })
    }

    /// How the commands stand, as text: `succeeded`, `failed/interrupted`, `running`, …
    pub fn ends(&self) -> Vec<String> {
        let commands = self.ledger.commands.values();
        let name = |command: &Command| match &command.state {
            CommandState::Settled(settled) => match &settled.end.reason {
                Some(reason) => format!("{}/{reason}", command.state_name()),
                None => command.state_name().to_string(),
            },
            _ => command.state_name().to_string(),
        };
        commands.map(name).collect()
    }

    /// Whether some command has a late result.
    pub fn has_late_result(&self) -> bool {
        let mut commands = self.ledger.commands.values();
        commands.any(|command| match &command.state {
            CommandState::Settled(settled) => settled.late.is_some(),
            _ => false,
        })
    }

    pub(super) fn crash(&mut self) {
        self.daemon = None;
        self.jobs.clear();
        self.hang_up();
    }

    pub(super) fn hang_up(&mut self) {
        if let Some(link) = self.links.iter_mut().find(|link| link.node_end) {
            link.node_end = false;
            link.down.clear();
        }
    }

    /// Performs what the daemon asks for; it dies after `budget` effects, if there is one.
    pub(super) fn perform(&mut self, effects: Vec<NodeEffect>, budget: Option<usize>) {
        for (done, effect) in effects.into_iter().enumerate() {
            if budget == Some(done) {
                self.crashes = self.crashes.saturating_sub(1);
                return self.crash();
            }
            match effect {
                NodeEffect::Journal(record) => self.disk.append(record, true),
                NodeEffect::Rewrite(records) => self.disk.rewrite(records),
                NodeEffect::Start(job) => {
                    let id = job.command_id;
                    if let Some(command) = self.ledger.commands.get(&id) {
                        self.truth.started(command, self.disk.life);
                    }
                    self.jobs.insert(id, false);
                }
                NodeEffect::Send(frame) => {
                    if let Frame::CommandUpdate(CommandUpdate { updates }) = &frame {
                        for update in updates {
                            if let Some(command) = self.ledger.commands.get(&update.command_id) {
                                self.truth.said(command, update, self.disk.life, NOW);
                            }
                        }
                    }
                    if let Some(link) = self.links.iter_mut().find(|link| link.node_end)
                        && link.gateway_end
                    {
                        link.up.push_back(frame);
                    }
                }
                NodeEffect::Stop(id) => {
                    // It can be stopped as long as nothing took effect.
                    if self.jobs.get(&id) == Some(&false) {
                        self.finish(id, End::Cancelled, None);
                    }
                }
                NodeEffect::Apply(_)
                | NodeEffect::Pin(_)
                | NodeEffect::Secret { .. }
                | NodeEffect::Doubt(_) => {}
                NodeEffect::Close(_) => self.hang_up(),
            }
        }
    }

    pub(super) fn give(&mut self, input: Input, budget: Option<usize>) {
        if let Some(daemon) = &mut self.daemon {
            let effects = daemon.handle(input, MONO);
            self.perform(effects, budget);
        }
    }

    pub(super) fn finish(&mut self, id: CommandId, end: End, budget: Option<usize>) {
        self.jobs.remove(&id);
        self.truth.ended(id, end);
        let report = Report {
            end,
            reason: None,
            details: None,
            result: None,
        };
        let input = Input::Finished {
            command_id: id,
            report,
        };
        self.give(input, budget);
    }

    /// Performs what a session asks for, the ledger's part at once.
    pub(super) fn serve(&mut self, place: usize, effects: Vec<Effect>) {
        let actor = Actor::gateway("gw");
        for effect in effects {
            match effect {
                Effect::Open { open, entries } => {
                    let opened = self
                        .ledger
                        .open_session(node_id(), &actor, open, &entries, NOW);
                    let Ok((node, replay)) = opened else {
                        return self.end_session(place);
                    };
                    if !self.links[place].node_end {
                        self.stale.push(node.epoch);
                    }
                    let link = &mut self.links[place];
                    link.epoch = node.epoch;
                    let effects = link.session.opened(&node, &replay, Duration::ZERO, NOW);
                    self.serve(place, effects);
                }
                Effect::Report(updates) => {
                    let epoch = self.links[place].epoch;
                    let mut answers = Vec::new();
                    for update in updates {
                        let answer =
                            match self
                                .ledger
                                .report(&actor, node_id(), epoch, &update, NOW, NOW)
                            {
                                Ok(()) => Answer::Recorded,
                                Err(Refusal::StaleEpoch { .. }) => return self.end_session(place),
                                Err(refusal) => {
                                    self.wrong = Some(format!("a report was refused: {refusal}"));
                                    return;
                                }
                            };
                        answers.push((update.command_id, update.state, answer));
                    }
                    let frame = acknowledge(answers);
                    self.send(place, frame);
                }
                Effect::Send(frame) => self.send(place, Some(frame)),
                Effect::ApplyGeneration(_)
                | Effect::SendSpec
                | Effect::SendTrust { .. }
                | Effect::Exchange(_)
                | Effect::RecordTrust(_) => {}
                Effect::Close(_) => return self.end_session(place),
            }
        }
    }

    pub(super) fn send(&mut self, place: usize, frame: Option<Frame>) {
        let link = &mut self.links[place];
        if link.node_end && link.gateway_end {
            link.down.extend(frame);
        }
    }

    pub(super) fn end_session(&mut self, place: usize) {
        self.links[place].gateway_end = false;
        self.links[place].up.clear();
    }

    /// Checks what was appended, and forgets the log.
    pub(super) fn check(&mut self) {
        for event in std::mem::take(&mut self.ledger.log) {
            if let (Body::CommandSettled(end), Some(id)) = (&event.body, event.command_id())
                && let Some(command) = self.ledger.commands.get(&id)
            {
                let is_known = self.disk.records().any(|record| match record {
                    Record::Accepted(command) => command.command_id == id,
                    Record::Ended(ended) => ended.update.command_id == id,
                    _ => false,
                });
                let stale = end.epoch.is_some_and(|epoch| self.stale.contains(&epoch));
                self.truth.settled(command, end, is_known && !stale);
            }
        }
        let wrong = self.ledger.wrong.pop().or_else(|| self.truth.wrong.pop());
        self.wrong = self.wrong.take().or(wrong);
    }
}
