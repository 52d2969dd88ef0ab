//! The driver around `ledger_protocol::daemon`: it gives the machine what happens, and performs
//! what the machine asks for. One task for one agent; a process may run thousands.

mod link;
mod questions;
mod write;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ledger_protocol::daemon::{
    Daemon, Doubt, Effect, End, Identity, Input, Job, Monotonic, Report,
};
use ledger_protocol::frame::{Frame, Spec};
use ledger_protocol::id::{CommandId, JournalId, NodeId};
use ledger_protocol::trust::Unbelievable;
use serde_json::json;
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::clock::{Clock, random};
use crate::connect::Connector;
use crate::error::Error;
use crate::executor::Executor;
use crate::journal::{JournalStore, Opened};
use crate::limits::{INPUTS_MAX, SLEEP_SECONDS_MAX, STOP_SECONDS_MAX};
use crate::secrets::Wanted;
use crate::simulate::Cuts;
use crate::state_dir::StateDir;

use link::{Link, LinkEvent};
use questions::Questions;

/// Where the desired state is kept, in the state directory.
const SPEC_FILE: &str = "spec";

/// What an agent is made of.
#[derive(Debug)]
pub struct Setup {
    /// Who it is.
    pub identity: Identity,
    /// What it remembers.
    pub journal: Opened,
    /// What it runs commands with.
    pub executor: Arc<Executor>,
    /// Where it goes.
    pub connector: Connector,
    /// Its clock.
    pub clock: Clock,
    /// Where it keeps its desired state and its pins; nowhere when `None`.
    pub state_dir: Option<Arc<StateDir>>,
    /// Cancelled by the effect of `node.reboot` where that is not a real one.
    pub rebooted: CancellationToken,
    /// Mean time between two moments at which the connection breaks off by design; never when
    /// `None`.
    pub cut_every: Option<Duration>,
}

/// Why an agent's life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop.
    Stopped,
    /// It was rebooted, and is to be started again under a new boot id.
    Rebooted,
}

/// One life of an agent.
#[derive(Debug)]
pub struct Agent {
    node: NodeId,
    daemon: Daemon,
    /// What recovery asked for; performed first.
    recovered: Vec<Effect>,
    /// Absent only while it is being written.
    journal: Option<JournalStore>,
    executor: Arc<Executor>,
    clock: Clock,
    state_dir: Option<Arc<StateDir>>,
    rebooted: CancellationToken,
    cuts: Cuts,
    link: Link,
    /// Taken in next, in this order.
    inbox: VecDeque<Input>,
    jobs: JoinSet<Report>,
    /// The commands of the jobs, so that one that panics can be named.
    commands: HashMap<task::Id, CommandId>,
    cancels: HashMap<CommandId, CancellationToken>,
    questions: Questions,
}

enum Event {
    Stop,
    Timer,
    Job(Result<(task::Id, Report), task::JoinError>),
    Cut,
    Secret(Wanted),
    Link(LinkEvent),
}

impl Agent {
    /// An agent that has read its journal. A journal whose records make no sense is lost
    /// (SPEC D8).
    pub fn new(setup: Setup) -> Result<Self, Error> {
        let Setup {
            identity,
            journal,
            executor,
            connector,
            clock,
            state_dir,
            rebooted,
            cut_every,
        } = setup;
        let now = clock.monotonic();
        let node = identity.node_id;
        let held = journal.records.len();
        let recovered = Daemon::recover(identity.clone(), journal.journal_id, journal.records, now);
        let (store, (daemon, recovered)) = match recovered {
            Ok(recovered) => (journal.store, recovered),
            Err(inconsistent) => {
                error!(%node, %inconsistent, "the journal makes no sense");
                let new_id = JournalId::new(clock.wall(), random());
                let opened = match journal.store {
                    JournalStore::File(file) => file.lose(new_id)?,
                    JournalStore::Memory => Opened::memory(new_id),
                };
                let daemon = Daemon::new(identity, opened.journal_id);
                (opened.store, (daemon, Vec::new()))
            }
        };
        info!(%node, records = held, settled = recovered.len(), "the journal was read");
        Ok(Self {
            node,
            daemon,
            recovered,
            journal: Some(store),
            executor,
            clock,
            state_dir,
            rebooted,
            cuts: Cuts::new(cut_every),
            link: Link::new(connector, node),
            inbox: VecDeque::new(),
            jobs: JoinSet::new(),
            commands: HashMap::new(),
            cancels: HashMap::new(),
            questions: Questions::new(),
        })
    }

    /// Lives until it is stopped or rebooted. A reboot ends it like one: nothing more is written
    /// or said. A stop lets what runs come to an end, for a bounded time.
    pub async fn run(mut self, shutdown: &CancellationToken) -> Ended {
        let recovered = std::mem::take(&mut self.recovered);
        self.perform(recovered).await;
        let mut stop_at: Option<Instant> = None;
        while stop_at.is_none() || self.daemon.is_running() {
            let timer = self.timer();
            let stopped_by = stop_at.unwrap_or(timer);
            let event = tokio::select! {
                biased;
                () = self.rebooted.cancelled() => return Ended::Rebooted,
                () = shutdown.cancelled(), if stop_at.is_none() => Event::Stop,
                () = sleep_until(stopped_by), if stop_at.is_some() => {
                    warn!("commands that still run are left to the next start");
                    break;
                }
                () = sleep_until(timer) => Event::Timer,
                Some(done) = self.jobs.join_next_with_id() => Event::Job(done),
                wanted = self.questions.next() => Event::Secret(wanted),
                () = self.cuts.next() => Event::Cut,
                event = self.link.next() => Event::Link(event),
            };
            match event {
                Event::Stop => {
                    stop_at = Some(Instant::now() + Duration::from_secs(STOP_SECONDS_MAX));
                    self.inbox.push_back(Input::Stopping);
                }
                Event::Timer => self.inbox.push_back(Input::Timer),
                Event::Job(done) => self.job_done(done),
                Event::Cut => self.link.cut(&mut self.inbox),
                Event::Secret(wanted) => self.questions.take_in(wanted, &mut self.inbox),
                Event::Link(event) => self.link.take_in(event, &mut self.inbox),
            }
            self.take_what_is_there();
            self.work_off().await;
        }
        self.link.say_goodbye("the agent stops").await;
        Ended::Stopped
    }

    /// When the machine, or the driver itself, wants to be woken.
    fn timer(&self) -> Instant {
        let longest = Duration::from_secs(SLEEP_SECONDS_MAX);
        let now = self.clock.monotonic();
        let wait = self.daemon.next_deadline().map_or(longest, |deadline| {
            Duration::from_micros(now.micros_until(deadline)).min(longest)
        });
        Instant::now() + wait
    }

    /// Adds what can be had without waiting, so that it shares the next write and the next frame.
    fn take_what_is_there(&mut self) {
        while self.inbox.len() < INPUTS_MAX {
            if let Some(done) = self.jobs.try_join_next_with_id() {
                self.job_done(done);
            } else if let Some(event) = self.link.message_at_hand() {
                self.link.take_in(event, &mut self.inbox);
            } else {
                break;
            }
        }
    }

    /// Gives the machine all inputs, and performs what it answers, until nothing is left.
    async fn work_off(&mut self) {
        while !self.inbox.is_empty() {
            let was_welcome = self.daemon.is_welcome();
            let now = self.clock.monotonic();
            let mut effects = Vec::new();
            for input in self.inbox.drain(..) {
                effects.extend(self.daemon.handle(input, now));
            }
            self.keep_time(now);
            if self.daemon.is_welcome() && !was_welcome {
                self.link.welcomed();
            }
            self.perform(effects).await;
        }
    }

    fn keep_time(&self, now: Monotonic) {
        if let Some(server_now) = self.daemon.server_time(now) {
            self.clock.learn(server_now);
        }
    }

    /// Performs effects in their order. Records are written first of all, which their order
    /// allows: a record may be durable early, never late.
    async fn perform(&mut self, mut effects: Vec<Effect>) {
        loop {
            let written = self.make_durable(&effects).await;
            let unperformed = match &written {
                Ok(()) => Vec::new(),
                Err(failed) => effects.split_off(failed.first),
            };
            self.act(effects).await;
            let Err(failed) = written else { return };
            error!(
                error = &failed.error as &dyn std::error::Error,
                "what must outlive this process cannot be written; nothing is accepted until it can"
            );
            let input = Input::JournalFailed { unperformed };
            effects = self.daemon.handle(input, self.clock.monotonic());
        }
    }

    /// Performs everything but the writing.
    async fn act(&mut self, effects: Vec<Effect>) {
        let mut frames = Vec::new();
        for effect in effects {
            match effect {
                Effect::Journal(_) | Effect::Rewrite(_) | Effect::Pin(_) => {}
                Effect::Start(job) => self.start(job),
                Effect::Stop(id) => {
                    if let Some(cancel) = self.cancels.get(&id) {
                        cancel.cancel();
                    }
                }
                Effect::Send(frame) => frames.push(frame),
                Effect::Apply(spec) => self.apply(spec).await,
                Effect::Secret {
                    command_id,
                    key,
                    answer,
                } => self.questions.answer(command_id, key, answer),
                Effect::Doubt(doubt) => self.tell(&doubt),
                Effect::Close(reason) => {
                    self.send(std::mem::take(&mut frames)).await;
                    self.link.close(&reason, &mut self.inbox).await;
                }
            }
        }
        self.send(frames).await;
    }

    /// A bundle that the node has already is common; anything else is a defect, or somebody lies.
    fn tell(&self, doubt: &Doubt) {
        let node = self.node;
        if let Doubt::Bundle(Unbelievable::Older { .. }) = doubt {
            debug!(%node, %doubt, "not believed");
        } else {
            error!(%node, %doubt, "not believed");
        }
    }

    async fn send(&mut self, frames: Vec<Frame>) {
        self.link.send(frames, &mut self.inbox).await;
    }

    /// Starts a job on a task of its own. The machine's lane credits bound how many there are.
    fn start(&mut self, job: Job) {
        let id = job.command_id;
        debug!(command = %id, kind = job.kind, lane = %job.lane, "command started");
        let cancel = CancellationToken::new();
        self.cancels.insert(id, cancel.clone());
        let executor = self.executor.clone();
        let secrets = self.questions.of(self.node, id);
        let task = self
            .jobs
            .spawn(async move { executor.run(job, secrets, cancel).await });
        self.commands.insert(task.id(), id);
    }

    fn job_done(&mut self, done: Result<(task::Id, Report), task::JoinError>) {
        let (task, report) = match done {
            Ok((task, report)) => (task, report),
            Err(broken) => {
                let report = Report {
                    end: End::Failed,
                    reason: Some("interrupted".to_owned()),
                    details: Some(
                        json!({ "why": "the executor broke off; the agent's log tells more" }),
                    ),
                    result: None,
                };
                error!(error = %broken, "an executor broke off");
                (broken.id(), report)
            }
        };
        let Some(command_id) = self.commands.remove(&task) else {
            return;
        };
        self.cancels.remove(&command_id);
        self.questions.forget(command_id);
        debug!(command = %command_id, end = ?report.end, reason = report.reason, "command ended");
        self.inbox.push_back(Input::Finished { command_id, report });
    }

    /// Keeps a desired state. Nothing on the node acts on one yet, so keeping it is applying it.
    async fn apply(&mut self, spec: Spec) {
        let generation = spec.generation;
        if let Some(dir) = self.state_dir.clone() {
            let write = task::spawn_blocking(move || dir.write(SPEC_FILE, &spec.spec));
            let written = write.await.unwrap_or(Err(Error::BrokeOff {
                work: "keeping the desired state",
            }));
            if let Err(error) = written {
                let error = &error as &dyn std::error::Error;
                return warn!(error, generation, "the desired state could not be kept");
            }
        }
        self.inbox.push_back(Input::Applied { generation });
    }
}
