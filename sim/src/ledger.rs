//! The ledger in memory: what `ledger/src/append/decide.rs` does with rows, done with maps. The
//! rules are the protocol's own.

use std::collections::BTreeMap;

use ed25519_dalek::SigningKey;
use ledger_protocol::batch::create::{Create, Policy, Scope};
use ledger_protocol::batch::{Batch, Leaf, Place, approve};
use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::command::{
    Command, State, StateName, cancel, dispatch, expire, rejoin, release, report,
};
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::event::{Actor, Approver, Body, CommandLateResult, Event, Outcome, Stream};
use ledger_protocol::frame::{JournalEntry, Update};
use ledger_protocol::id::{BatchId, CommandId, EventId, NodeId, TenantId};
use ledger_protocol::invariants::Checker;
use ledger_protocol::kind::{Lane, Registry};
use ledger_protocol::limits::{PENDING_PER_LANE_MAX, lane_credits};
use ledger_protocol::node::{Node, OpenSession};
use ledger_protocol::refusal::Refusal;
use ledger_protocol::time::Timestamp;

use crate::bug::Bug;

/// Longest that a gateway of the simulation goes on with one look, in microseconds.
pub(crate) const LOOK_MICROS: i64 = 5_000_000;

/// The log, its folds, and the checker that reads along.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    /// The log, or its newest part where that is all that is asked for.
    pub(crate) log: Vec<Event>,
    position: u64,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) commands: BTreeMap<CommandId, Command>,
    pub(crate) keys: BTreeMap<(NodeId, String), CommandId>,
    batches: BTreeMap<BatchId, (Batch, Scope)>,
    pub(crate) checker: Checker,
    pub(crate) pending_max: u32,
    pub(crate) tenant: TenantId,
    /// What was found to be wrong.
    pub(crate) wrong: Vec<String>,
    bug: Option<Bug>,
}

type Decision = (Stream, Body);

impl Ledger {
    pub(crate) fn new(bug: Option<Bug>, tenant: TenantId) -> Self {
        Self {
            log: Vec::new(),
            position: 0,
            nodes: BTreeMap::new(),
            commands: BTreeMap::new(),
            keys: BTreeMap::new(),
            batches: BTreeMap::new(),
            checker: Checker::new(LOOK_MICROS),
            pending_max: PENDING_PER_LANE_MAX,
            tenant,
            wrong: Vec::new(),
            bug,
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> Result<&Node, Refusal> {
        self.nodes.get(&id).ok_or(Refusal::UnknownNode(id))
    }

    fn command(&self, id: CommandId) -> Result<&Command, Refusal> {
        self.commands.get(&id).ok_or(Refusal::UnknownCommand(id))
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Appends what was decided.
    fn append(&mut self, actor: &Actor, at: Timestamp, decisions: Vec<Decision>) {
        for (stream, body) in decisions {
            let event = self.next_event(actor, at, stream, body);
            self.fold(&event);
            self.log.push(event);
        }
    }

    /// The next event of the log, which the checker has seen.
    fn next_event(&mut self, actor: &Actor, at: Timestamp, stream: Stream, body: Body) -> Event {
        let version = match stream {
            Stream::Command(id) => self.commands.get(&id).map_or(0, |known| known.version),
            Stream::Node(id) => self.nodes.get(&id).map_or(0, |known| known.version),
            Stream::Batch(id) => self.batches.get(&id).map_or(0, |known| known.0.version),
        };
        self.position += 1;
        let position = self.position;
        let mut random = [0; 10];
        random[2..].copy_from_slice(&position.to_be_bytes());
        let event = Event {
            id: EventId::new(at, random),
            stream,
            version: version + 1,
            at,
            actor: actor.clone(),
            tenant: self.tenant,
            body,
        };
        let violations = self.checker.observe(position, &event);
        let violations = violations.iter().map(ToString::to_string);
        self.wrong.extend(violations);
        event
    }

    /// Folds the event by the protocol's rules, and compares with the checker's own fold.
    fn fold(&mut self, event: &Event) {
        let mut corrupt = None;
        if let Stream::Command(id) = event.stream {
            let before = self.commands.get(&id).cloned();
            match Command::evolve(before, event) {
                Ok(command) => {
                    let seen = self.checker.state(id);
                    let name = command.state_name().as_str();
                    if seen != Some(name) {
                        let wrong = format!("{id}: the checker has {seen:?}, the fold has {name}");
                        self.wrong.push(wrong);
                    }
                    self.commands.insert(id, command);
                }
                Err(error) => corrupt = Some(error),
            }
        }
        if let Stream::Batch(id) = event.stream
            && let Some((before, scope)) = self.batches.remove(&id)
        {
            match Batch::evolve(Some(before), event) {
                Ok(batch) => _ = self.batches.insert(id, (batch, scope)),
                Err(error) => corrupt = Some(error),
            }
        }
        let node = match (&event.body, event.stream) {
            (Body::CommandQueued(queued), _) => {
                let key = (queued.node_id, queued.idempotency_key.clone());
                if let Some(id) = event.command_id()
                    && let Some(first) = self.keys.insert(key, id)
                {
                    let wrong = format!("A2: {id} has the key of {first}");
                    self.wrong.push(wrong);
                }
                Some(queued.node_id)
            }
            (_, Stream::Node(node)) => Some(node),
            (_, Stream::Command(_) | Stream::Batch(_)) => None,
        };
        if let Some(id) = node {
            match Node::evolve(self.nodes.get(&id).cloned(), event) {
                Ok(node) => {
                    self.nodes.insert(id, node);
                }
                Err(error) => corrupt = Some(error),
            }
        }
        if let Some(error) = corrupt {
            self.wrong.push(format!("L7: {error}"));
        }
    }

    fn on_node(&mut self, id: NodeId, actor: &Actor, at: Timestamp, body: Option<Body>) {
        let decisions = body.map(|body| (Stream::Node(id), body));
        self.append(actor, at, decisions.into_iter().collect());
    }

    fn on_command(&mut self, id: CommandId, actor: &Actor, at: Timestamp, bodies: Vec<Body>) {
        let decisions = bodies.into_iter().map(|body| (Stream::Command(id), body));
        self.append(actor, at, decisions.collect());
    }

    pub(crate) fn register(&mut self, id: NodeId, actor: &Actor, at: Timestamp, body: Body) {
        self.on_node(id, actor, at, Some(body));
    }

    /// The command, and whether it is the answer to a retry.
    pub(crate) fn enqueue(
        &mut self,
        actor: &Actor,
        enqueue: &Enqueue,
        now: Timestamp,
    ) -> Result<(CommandId, bool), Refusal> {
        enqueue.node_in_view(self.nodes.get(&enqueue.node))?;
        let key = (enqueue.node, enqueue.idempotency_key.clone());
        if let Some(first) = self.keys.get(&key)
            && !self.has(Bug::KeyForgotten)
        {
            enqueue.is_retry_of(self.command(*first)?)?;
            return Ok((*first, true));
        }
        let lane = enqueue.kind.lane;
        let waits = |command: &&Command| {
            command.node_id() == enqueue.node
                && command.queued.lane == lane
                && matches!(command.state, State::Pending { .. })
        };
        let pending = self.commands.values().filter(waits).count();
        let pending = u32::try_from(pending).unwrap_or(u32::MAX);
        let node = self.node(enqueue.node)?;
        let place = self.place(enqueue, now)?;
        let body = enqueue.decide(node, place, pending, self.pending_max, now)?;
        self.on_command(enqueue.id, actor, now, vec![body]);
        Ok((enqueue.id, false))
    }

    pub(crate) fn cancel(
        &mut self,
        actor: &Actor,
        id: CommandId,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let mut command = self.command(id)?.clone();
        if self.has(Bug::CancelEndsInFlight) && command.is_in_flight() {
            command.state = State::Pending {
                held: false,
                not_before: None,
                retry_at: None,
            };
        }
        let bodies = cancel::decide(&command);
        self.on_command(id, actor, now, bodies);
        Ok(())
    }

    pub(crate) fn release(
        &mut self,
        actor: &Actor,
        id: CommandId,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let batch = self.command(id)?.queued.batch_id;
        let batch = batch.and_then(|id| self.batches.get(&id));
        let mut batch = batch.ok_or(Refusal::NotHeld)?.0.clone();
        if self.has(Bug::QuorumIgnored) {
            batch.approved_at = Some(now);
        }
        let body = release::decide(self.command(id)?, &batch, now)?;
        self.on_command(id, actor, now, vec![body]);
        Ok(())
    }

    /// A batch that allows one command and needs one approval.
    pub(crate) fn propose(
        &mut self,
        actor: &Actor,
        id: BatchId,
        leaf: Leaf,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let approver = Approver {
            key: PublicKey::of(&approver()),
            name: "grace".to_owned(),
        };
        let scope = Scope::new(vec![leaf], &Registry::builtin())?;
        let create = Create {
            id,
            tenant: self.tenant,
            reason: "because".to_owned(),
            scope: scope.clone(),
            idempotency_key: id.to_string(),
            expires_in_seconds: 600,
        };
        let body = create.decide(&Policy::new(vec![approver], 1)?, now)?;
        let event = self.next_event(actor, now, Stream::Batch(id), body);
        match Batch::evolve(None, &event) {
            Ok(batch) => _ = self.batches.insert(id, (batch, scope)),
            Err(error) => self.wrong.push(format!("L7: {error}")),
        }
        self.log.push(event);
        Ok(())
    }

    /// The approver's word on the batch that holds a command.
    pub(crate) fn approve(
        &mut self,
        actor: &Actor,
        command: CommandId,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let batch = self.command(command)?.queued.batch_id;
        let batch = batch.and_then(|id| self.batches.get(&id));
        let (batch, _) = batch.ok_or(Refusal::NotHeld)?;
        let payload = batch.statement().encode().unwrap_or_default();
        let signature = sign(&approver(), Purpose::BatchApproval, &payload);
        let key = PublicKey::of(&approver());
        let id = batch.id;
        if let Some(body) = approve::decide(batch, actor, &key, &signature, now)? {
            self.append(actor, now, vec![(Stream::Batch(id), body)]);
        }
        Ok(())
    }

    fn place(&self, enqueue: &Enqueue, now: Timestamp) -> Result<Option<Place>, Refusal> {
        let Some(id) = enqueue.batch_id else {
            return Ok(None);
        };
        let (batch, scope) = self.batches.get(&id).ok_or(Refusal::UnknownBatch(id))?;
        let leaf = Leaf::of(enqueue.node, &enqueue.kind.name, &enqueue.payload);
        let proved = scope.proved().next().map(|proved| proved.inclusion);
        batch.admit(&leaf, proved.as_ref(), now).map(Some)
    }

    /// `seen` is the command as the look had it.
    pub(crate) fn dispatch(
        &mut self,
        actor: &Actor,
        seen: &Command,
        epoch: u64,
        now: Timestamp,
    ) -> Result<Command, Refusal> {
        let stale = self.has(Bug::DispatchOnStaleSnapshot);
        let mut command = if stale { seen } else { self.command(seen.id)? }.clone();
        let mut node = self.node(seen.node_id())?.clone();
        self.deceive(&mut command, &mut node, epoch);
        let body = dispatch::decide(&command, &node, epoch, now)?;
        self.on_command(seen.id, actor, now, vec![body]);
        self.command(seen.id).cloned()
    }

    /// What the rules are shown when a bug is planted in them.
    fn deceive(&self, command: &mut Command, node: &mut Node, epoch: u64) {
        match (self.bug, &mut command.state) {
            (Some(Bug::NotBeforeIgnored), State::Pending { not_before, .. }) => *not_before = None,
            (Some(Bug::BackoffIgnored), State::Pending { retry_at, .. }) => *retry_at = None,
            (Some(Bug::HoldIgnored), State::Pending { held, .. }) => *held = false,
            (Some(Bug::NotAfterIgnored), _) => command.queued.not_after = Timestamp::MAX,
            (Some(Bug::GenerationIgnored), _) => command.queued.min_generation = None,
            (Some(Bug::EpochNotCompared), _) => show_epoch(node, epoch),
            (_, _) => {}
        }
    }

    pub(crate) fn report(
        &mut self,
        actor: &Actor,
        node: NodeId,
        epoch: u64,
        update: &Update,
        retry_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let id = update.command_id;
        let mut command = self.command(id)?.clone();
        if command.node_id() != node {
            return Err(Refusal::UnknownCommand(id));
        }
        let mut node = self.node(node)?.clone();
        if self.has(Bug::EpochNotCompared) {
            show_epoch(&mut node, epoch);
        }
        if self.has(Bug::FreshJournalBelieved) {
            node.journal_since = 0;
        }
        if self.has(Bug::SettledAgain) && command.state_name().is_terminal() {
            command.state = State::Running { epoch };
        }
        let body = if self.has(Bug::SignatureNotHeld) {
            unheld(&mut command, &node, epoch, update, retry_at)?
        } else {
            report::decide(&command, &node, epoch, update, retry_at)?
        };
        self.on_command(id, actor, now, body.into_iter().collect());
        Ok(())
    }

    /// `seen` is the command as the sweep had it.
    pub(crate) fn expire(&mut self, seen: &Command, now: Timestamp) -> Result<(), Refusal> {
        let stale = self.has(Bug::SweepOnStaleSnapshot);
        let mut command = if stale { seen } else { self.command(seen.id)? }.clone();
        let mut timeout = command.queued.timeout_seconds;
        if self.has(Bug::SweepsTooEarly) {
            timeout = 0;
            command.queued.timeout_seconds = 0;
        }
        let body = expire::decide(&command, timeout, now)?;
        self.on_command(seen.id, &Actor::sweeper(), now, vec![body]);
        Ok(())
    }

    pub(crate) fn set_spec(&mut self, id: NodeId, actor: &Actor, generation: u64, now: Timestamp) {
        let spec = ledger_protocol::event::NodeSpecSet {
            signed: None,
            generation,
            spec: vec![0x80],
        };
        if let Ok(body) = self.node(id).and_then(|node| node.decide_set_spec(spec)) {
            self.on_node(id, actor, now, Some(body));
        }
    }

    pub(crate) fn certify(
        &mut self,
        id: NodeId,
        actor: &Actor,
        certified: ledger_protocol::event::NodeCertified,
        now: Timestamp,
    ) {
        if let Ok(body) = self
            .node(id)
            .and_then(|node| node.decide_certify(certified))
        {
            self.on_node(id, actor, now, Some(body));
        }
    }

    pub(crate) fn delete(&mut self, id: NodeId, actor: &Actor, now: Timestamp) {
        let Ok(Ok(body)) = self.node(id).map(|node| node.decide_delete(node.tenant)) else {
            return;
        };
        let mut decisions = vec![(Stream::Node(id), body)];
        for command in self.commands_of(id) {
            let end = cancel::decide_node_deleted(command);
            decisions.extend(end.map(|end| (Stream::Command(command.id), end)));
        }
        self.append(actor, now, decisions);
    }

    pub(crate) fn apply_generation(
        &mut self,
        id: NodeId,
        actor: &Actor,
        epoch: u64,
        generation: u64,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let body = self.node(id)?.decide_apply_generation(epoch, generation)?;
        self.on_node(id, actor, now, body);
        Ok(())
    }

    /// The node, and what is to be replayed to it.
    pub(crate) fn open_session(
        &mut self,
        id: NodeId,
        actor: &Actor,
        open: OpenSession,
        entries: &[JournalEntry],
        now: Timestamp,
    ) -> Result<(Node, Vec<Command>), Refusal> {
        let known = self.node(id)?;
        let live = self.commands_of(id);
        let seen = known.journal_seen(live.iter().copied(), self.answered_seq(id));
        let opened = known.decide_open_session(open, seen)?;
        let epoch = opened.epoch;
        let mut ends = Vec::new();
        if !self.has(Bug::RejoinProvesNothing) {
            for command in live {
                let entry = entries.iter().find(|entry| entry.command_id == command.id);
                let proof = known.rejoin(&opened, entry.map(|entry| entry.state));
                let end = rejoin::decide(command, proof, epoch);
                ends.extend(end.map(|end| (Stream::Command(command.id), end)));
            }
        }
        let mut decisions = vec![(Stream::Node(id), Body::NodeSessionOpened(opened))];
        decisions.extend(ends);
        self.append(actor, now, decisions);
        Ok((self.node(id)?.clone(), self.in_flight(id)))
    }

    /// Highest `seq` that the node's word has ended; what `projections::nodes` asks the rows.
    fn answered_seq(&self, node: NodeId) -> u64 {
        let ended = |command: &&Command| {
            let by_node = [Outcome::Succeeded, Outcome::Rejected].map(StateName::Ended);
            command.node_id() == node && by_node.contains(&command.state_name())
        };
        let ended = self.commands.values().filter(ended);
        ended.map(|command| command.queued.seq).max().unwrap_or(0)
    }

    pub(crate) fn close_session(
        &mut self,
        id: NodeId,
        actor: &Actor,
        epoch: u64,
        reason: &str,
        now: Timestamp,
    ) {
        let body = self
            .node(id)
            .map(|node| node.decide_close_session(epoch, reason));
        if let Ok(body) = body {
            self.on_node(id, actor, now, body);
        }
    }

    /// The node's commands that have not ended, in `seq` order.
    fn commands_of(&self, node: NodeId) -> Vec<&Command> {
        let live =
            |command: &&Command| command.node_id() == node && !command.state_name().is_terminal();
        let mut commands: Vec<_> = self.commands.values().filter(live).collect();
        commands.sort_unstable_by_key(|command| command.queued.seq);
        commands
    }

    /// What is in flight to a node, in `seq` order.
    pub(crate) fn in_flight(&self, node: NodeId) -> Vec<Command> {
        let commands = self.commands_of(node).into_iter();
        commands
            .filter(|command| command.is_in_flight())
            .cloned()
            .collect()
    }

    /// How many commands of one lane are in flight to a node.
    pub(crate) fn count_in_flight(&self, node: NodeId, lane: Lane) -> u32 {
        let in_lane = |command: &&Command| {
            command.is_in_flight() && command.node_id() == node && command.queued.lane == lane
        };
        u32::try_from(self.commands.values().filter(in_lane).count()).unwrap_or(u32::MAX)
    }

    /// What may go out to a node now: what `projections::commands::due` asks the rows.
    pub(crate) fn due(&self, id: NodeId, now: Timestamp) -> Vec<Command> {
        let Ok(node) = self.node(id) else {
            return Vec::new();
        };
        let mut due = Vec::new();
        if node.deleted_at.is_some() {
            return due;
        }
        for lane in Lane::ALL {
            let used = self.count_in_flight(id, lane);
            let mut room = lane_credits(lane).saturating_sub(used);
            if self.has(Bug::CreditsIgnored) || self.has(Bug::CreditsCounted) {
                room = u32::MAX;
            }
            let in_lane = self.commands_of(id).into_iter();
            let in_lane = in_lane.filter(|command| {
                let mut command = (*command).clone();
                let mut node = node.clone();
                self.deceive(&mut command, &mut node, 0);
                command.queued.lane == lane && dispatch::hindrance(&command, &node, now).is_none()
            });
            due.extend(in_lane.take(room as usize).cloned());
        }
        due.sort_by_key(|command| command.queued.seq);
        if self.has(Bug::OrderIgnored) {
            due.reverse();
        }
        due
    }
}

/// The key of the one approver.
fn approver() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

/// What a ledger decides that stores signatures and does not look at them.
fn unheld(
    command: &mut Command,
    node: &Node,
    epoch: u64,
    update: &Update,
    retry_at: Timestamp,
) -> Result<Option<Body>, Refusal> {
    command.queued.attested = false;
    let unsigned = Update {
        node_sig: None,
        ..update.clone()
    };
    let mut body = report::decide(command, node, epoch, &unsigned, retry_at)?;
    if let Some(Body::CommandSettled(end) | Body::CommandLateResult(CommandLateResult(end))) =
        &mut body
        && end.reason == update.reason
    {
        end.node_sig.clone_from(&update.node_sig);
    }
    Ok(body)
}

/// Makes any epoch look like the newest.
fn show_epoch(node: &mut Node, epoch: u64) {
    node.epoch = epoch;
    node.session = ledger_protocol::node::Session::Open {
        gateway: "any".to_owned(),
        lease: None,
        since: Timestamp::from_micros(0),
    };
}
