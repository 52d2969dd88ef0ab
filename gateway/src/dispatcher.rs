//! Sends due commands to the nodes whose sessions are here (SPEC D3). One task, for all of them.
//!
//! What wakes a node: something committed that may make a command due or give a credit back, and a
//! session that opens. Beside that there is a look at every session once a second, which serves
//! backoffs and `notBefore` and repairs whatever was missed; however many sessions there are, no
//! woken node waits for it. The nodes wait in `Wakes`; a look takes as many
//! as there are, asks one question for all of them, and each node's commands are then dispatched
//! at once, so that the ledger commits them in groups.
//!
//! To react to another event: an arm in [`Dispatcher::notice`].

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ledger::{Committed, Ledger, Notice};
use ledger_protocol::command::Command;
use ledger_protocol::event::Actor;
use ledger_protocol::id::{CommandId, JournalId, NodeId};
use ledger_protocol::session::{Close, Peer, Wakes};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::warn;

use crate::limits;
use crate::session::Handle;

mod check;
mod look;
mod roster;

use check::Checked;
use look::{Dispatched, Looked, Round, Target};
use roster::{Entry, Roster};

/// What a session tells the dispatcher.
#[derive(Debug)]
pub(crate) enum Message {
    /// It is about to open in the ledger.
    Opening {
        handle: Handle,
        journal: JournalId,
        peer: Peer,
        session: u64,
    },
    /// It is open, and its node was sent again what is in flight.
    Opened {
        epoch: u64,
        node: NodeId,
        replay: Vec<Replayed>,
        session: u64,
    },
    /// It has ended.
    Closed { node: NodeId, session: u64 },
}

/// A command that an opening session has sent again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replayed {
    pub(crate) command: CommandId,
    /// The node was asked to stop it.
    pub(crate) is_cancelled: bool,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type InProgress<T> = FuturesUnordered<Boxed<T>>;

pub(crate) struct Dispatcher {
    ledger: Ledger,
    actor: Actor,
    inbox: mpsc::Receiver<Message>,
    started: Instant,
    roster: Roster,
    /// Nodes to be looked at for due commands.
    wakes: Wakes,
    looks: InProgress<Looked>,
    /// Looks at nodes that nothing woke.
    repairs: InProgress<Looked>,
    rounds: InProgress<Round>,
    /// Commands that are being dispatched.
    dispatching: usize,
    /// What waits until fewer are, in the order of the looks.
    ready: VecDeque<(Target, Vec<Command>)>,
    /// Nodes of which more must be read than the notices say.
    doubts: Wakes,
    checks: InProgress<Checked>,
    /// Those that could not be read; the repair tries again.
    unread: Vec<NodeId>,
}

impl Dispatcher {
    pub(crate) fn new(ledger: Ledger, actor: Actor, inbox: mpsc::Receiver<Message>) -> Self {
        Self {
            ledger,
            actor,
            inbox,
            started: Instant::now(),
            roster: Roster::default(),
            wakes: Wakes::default(),
            looks: FuturesUnordered::new(),
            repairs: FuturesUnordered::new(),
            rounds: FuturesUnordered::new(),
            dispatching: 0,
            ready: VecDeque::new(),
            doubts: Wakes::default(),
            checks: FuturesUnordered::new(),
            unread: Vec::new(),
        }
    }

    /// Runs until it is dropped, or the ledger has ended.
    pub(crate) async fn run(mut self) {
        let mut committed = self.ledger.subscribe();
        let mut repair = interval(limits::REPAIR_EVERY);
        repair.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Sessions come first: one says that it opens before the ledger can say so.
            tokio::select! {
                biased;
                message = self.inbox.recv() => match message {
                    Some(message) => self.message(message),
                    None => return,
                },
                committed = committed.recv() => match committed {
                    Ok(committed) => self.committed(&committed),
                    Err(RecvError::Lagged(missed)) => self.missed(missed),
                    Err(RecvError::Closed) => return,
                },
                Some(round) = self.rounds.next() => self.finish(round),
                Some(looked) = self.looks.next() => self.sort(looked),
                Some(looked) = self.repairs.next() => self.sort(looked),
                Some(checked) = self.checks.next() => self.learn(checked),
                _ = repair.tick() => self.repair(),
            }
            self.dispatch();
            self.look();
            self.check();
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Opening {
                handle,
                journal,
                peer,
                session,
            } => {
                self.roster.opening(handle, journal, peer, session);
            }
            Message::Opened {
                epoch,
                node,
                replay,
                session,
            } => {
                let elapsed = self.started.elapsed();
                self.roster.opened(node, session, epoch, replay, elapsed);
                self.wakes.wake(node);
            }
            Message::Closed { node, session } => self.roster.closed(node, session),
        }
    }

    fn committed(&mut self, committed: &Arc<Committed>) {
        let mut cancelled = Vec::new();
        for notice in &committed.events {
            if let Some(node) = notice.node.filter(|node| self.roster.has(*node)) {
                self.notice(node, notice, &mut cancelled);
            }
        }
        // Sent only now, because a pending command ends in the commit that cancels it.
        for node in cancelled {
            self.send_cancels(node);
        }
    }

    fn notice(&mut self, node: NodeId, notice: &Notice, cancelled: &mut Vec<NodeId>) {
        match notice.event_type {
            "command.queued" | "command.released" | "node.generation-applied" => {
                self.wakes.wake(node);
            }
            "command.returned" | "command.settled" => {
                if let Some(command) = notice.command {
                    self.roster.each(node, |entry| entry.left(command));
                }
                self.wakes.wake(node);
            }
            "command.dispatched" => {
                // By a commit that outlived its link, of which this gateway was never told.
                if let Some(command) = notice.command
                    && self
                        .roster
                        .open(node)
                        .is_some_and(|entry| !entry.sent.contains(&command))
                {
                    self.doubts.wake(node);
                }
            }
            "command.cancel-requested" => {
                if let Some(command) = notice.command {
                    self.roster
                        .each(node, |entry| entry.cancels.request(command));
                    cancelled.push(node);
                }
            }
            "node.spec-set" => self.roster.each(node, |entry| entry.handle.spec_changed()),
            // The session's own certificate may let nobody in any more, or the session was closed for
            // a gateway that was taken for lost.
            "node.certified" | "node.certificate-revoked" | "node.session-closed" => {
                self.doubts.wake(node);
            }
            "node.session-opened" => {
                let is_elsewhere = self.roster.is_opened_elsewhere(node);
                if is_elsewhere {
                    self.doubts.wake(node);
                }
            }
            "node.deleted" => {
                self.roster
                    .each(node, |entry| entry.handle.close(Close::node_deleted()));
            }
            // What else there is makes nothing due.
            _ => {}
        }
    }

    /// Notices were missed: anything may have happened.
    fn missed(&mut self, missed: u64) {
        warn!(
            missed,
            "the dispatcher fell behind the log and looks at everything"
        );
        for node in self.roster.nodes() {
            self.wakes.remind(node);
            self.doubts.wake(node);
            self.roster.each(node, Entry::doubt_openings);
        }
    }

    fn repair(&mut self) {
        for node in std::mem::take(&mut self.unread) {
            self.doubts.wake(node);
        }
        for node in self.roster.nodes() {
            self.wakes.remind(node);
            self.send_cancels(node);
        }
    }

    /// Starts looks at the woken nodes, and at the others.
    fn look(&mut self) {
        while self.ready.is_empty()
            && self.looks.len() < limits::LOOKS_MAX
            && self.wakes.is_waiting()
        {
            let taken = self.wakes.take(limits::NODES_PER_LOOK_MAX);
            if let Some(look) = self.begin_look(taken) {
                self.looks.push(look);
            }
        }
        while self.ready.is_empty()
            && self.repairs.len() < limits::REPAIR_LOOKS_MAX
            && self.wakes.is_reminded()
        {
            let taken = self.wakes.take_reminded(limits::NODES_PER_LOOK_MAX);
            if let Some(look) = self.begin_look(taken) {
                self.repairs.push(look);
            }
        }
    }

    /// A look at those of the nodes that have a session; nothing when none has.
    fn begin_look(&mut self, taken: Vec<NodeId>) -> Option<Boxed<Looked>> {
        let (open, gone): (Vec<_>, Vec<_>) = taken
            .into_iter()
            .partition(|node| self.roster.open(*node).is_some());
        for node in gone {
            self.wakes.done(node);
        }
        let look = (!open.is_empty()).then(|| look::look(self.ledger.clone(), open));
        look.map(|look| Box::pin(look) as Boxed<Looked>)
    }

    /// Sorts by node what a look has found.
    fn sort(&mut self, looked: Looked) {
        let Looked {
            nodes,
            due,
            batches,
        } = looked;
        let mut due_by_node: HashMap<NodeId, Vec<_>> = HashMap::new();
        for command in due {
            due_by_node
                .entry(command.node_id())
                .or_default()
                .push(command);
        }
        for node in nodes {
            let due = due_by_node.remove(&node).unwrap_or_default();
            let Some(entry) = self.roster.open_mut(node) else {
                self.wakes.done(node);
                continue;
            };
            let accepted = |command: &Command| entry.peer.accepts(&command.queued.kind);
            let mut due: Vec<_> = due.into_iter().filter(accepted).collect();
            if due.is_empty() {
                self.wakes.done(node);
                continue;
            }
            due.sort_by_key(|command| command.queued.seq);
            entry.sent.extend(due.iter().map(|command| command.id));
            let target = Target {
                epoch: entry.epoch,
                handle: entry.handle.clone(),
                node,
                batches: batches.clone(),
            };
            self.ready.push_back((target, due));
        }
    }

    /// Dispatches what is ready, node by node, as long as the ledger's queue is left to others too.
    fn dispatch(&mut self) {
        while self.dispatching < limits::DISPATCHES_MAX {
            let Some((target, due)) = self.ready.pop_front() else {
                return;
            };
            self.dispatching += due.len();
            let (ledger, actor) = (self.ledger.clone(), self.actor.clone());
            self.rounds
                .push(Box::pin(look::dispatch(ledger, actor, target, due)));
        }
    }

    /// Sends what was dispatched, to the session under whose epoch it was.
    fn finish(&mut self, round: Round) {
        let Round { target, dispatched } = round;
        self.dispatching = self.dispatching.saturating_sub(dispatched.len());
        for dispatched in dispatched {
            let not_sent = match dispatched {
                Dispatched::Sent(command) => {
                    target.handle.send(&target.batches.command_frame(&command));
                    continue;
                }
                Dispatched::Not(command) => command,
                Dispatched::Unknown(command) => {
                    self.doubts.wake(target.node);
                    command
                }
                Dispatched::Over(command, close) => {
                    target.handle.close(close);
                    command
                }
            };
            if let Some(entry) = self.roster.open_mut(target.node)
                && entry.epoch == target.epoch
            {
                entry.sent.remove(&not_sent);
            }
        }
        self.wakes.done(target.node);
        self.send_cancels(target.node);
    }

    /// Sends the cancels that are owed. Not while commands are on their way into the queue, lest
    /// a cancel overtake its command.
    fn send_cancels(&mut self, node: NodeId) {
        if self.wakes.is_in_progress(node) {
            return;
        }
        let elapsed = self.started.elapsed();
        if let Some(entry) = self.roster.open_mut(node) {
            for frame in entry.cancels.take_due(elapsed) {
                entry.handle.send(&frame);
            }
        }
    }

    /// Starts a check of the nodes in doubt.
    fn check(&mut self) {
        if self.checks.is_empty() && self.doubts.is_waiting() {
            let nodes = self.doubts.take(limits::NODES_PER_CHECK_MAX);
            for node in &nodes {
                self.roster.each(*node, Entry::begin_check);
            }
            self.checks
                .push(Box::pin(check::check(self.ledger.clone(), nodes)));
        }
    }

    /// Makes up for what a check has found.
    fn learn(&mut self, checked: Checked) {
        let Checked {
            read,
            nodes,
            unread,
        } = checked;
        for (node, in_flight, batches) in read {
            self.roster.compare(&node);
            if let Some(entry) = self.roster.open_mut(node.id) {
                entry.make_up(&in_flight, &batches);
            }
            self.send_cancels(node.id);
        }
        for node in nodes {
            self.roster.each(node, Entry::end_check);
            self.doubts.done(node);
        }
        self.unread.extend(unread);
    }
}
