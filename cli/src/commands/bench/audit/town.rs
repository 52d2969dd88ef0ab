//! A log as a town of nodes would have made it: every event decided and folded by the protocol's own
//! rules, signed by keys of this run, in the order in which a busy ledger would have written it.
//! Nothing but the clock is played.

use anyhow::Context as _;
use ed25519_dalek::SigningKey;
use ledger_protocol::attestation;
use ledger_protocol::batch::create::{Create, Policy, Scope};
use ledger_protocol::batch::{Batch, Inclusion, Leaf, approve};
use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::command::{Command, dispatch, release, report};
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::event::{Actor, Approver, Body, Event, NodeCertified, NodeRegistered, Stream};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::{BatchId, CommandId, EventId, JournalId, NodeId, TenantId};
use ledger_protocol::kind::{Kind, Registry, Role};
use ledger_protocol::node::{Node, OpenSession};
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use ledger_protocol::trust::{Signed, WorkerCertificate, intent};
use ledger_protocol::{canonical, session};
use serde_json::{Value, json};

/// Between two events.
pub(super) const EVENT_MICROS: i64 = 2_000;
/// Life of a worker key, and when another takes its place.
const WORKER_SECONDS: u32 = 24 * 3_600;
const WORKER_USED_MICROS: i64 = 12 * 3_600 * MICROS_PER_SECOND;
const CERTIFICATE_SECONDS: u32 = 365 * 24 * 3_600;
/// Every so many rounds, one node opens another session.
const RECONNECTS_EVERY: u64 = 8;
const GATEWAY: &str = "gateway:bench";
const APPROVER: &str = "grace";

/// An event as its row has it.
pub(super) struct Row {
    pub(super) stream: [u8; 16],
    pub(super) bytes: Vec<u8>,
}

/// Keys of one run.
pub(super) struct Keys {
    /// Certifies worker keys.
    pub(super) root: SigningKey,
    /// Signs commands; the worker's certificate is new now and then, the key stays.
    pub(super) worker: SigningKey,
    /// Approves batches.
    pub(super) approver: SigningKey,
}

struct Member {
    key: SigningKey,
    node: Node,
    journal: JournalId,
}

/// One node's command of a round.
struct Job {
    member: usize,
    command: Command,
}

/// The batch of a round, with each leaf's proof.
struct Proposed {
    batch: Batch,
    proofs: Vec<(Leaf, Inclusion)>,
}

pub(super) struct Town {
    keys: Keys,
    worker: WorkerCertificate,
    policy: Policy,
    kinds: Registry,
    tenant: TenantId,
    members: Vec<Member>,
    at: Timestamp,
    position: u64,
    rounds: u64,
    commands: u64,
    batches: u64,
    rows: Vec<Row>,
}

impl Town {
    /// A town whose first event is at `at`, with so many nodes, each connected.
    pub(super) fn new(keys: Keys, nodes: u16, at: Timestamp) -> anyhow::Result<Self> {
        let approver = Approver {
            key: PublicKey::of(&keys.approver),
            name: APPROVER.to_owned(),
        };
        let mut town = Self {
            worker: certify(&keys, at)?,
            policy: Policy::new(vec![approver], 1)?,
            kinds: Registry::builtin(),
            tenant: TenantId::new(at, [7; 10]),
            members: Vec::with_capacity(nodes.into()),
            keys,
            at,
            position: 0,
            rounds: 0,
            commands: 0,
            batches: 0,
            rows: Vec::new(),
        };
        for number in 0..nodes {
            town.join(number)?;
        }
        Ok(town)
    }

    /// Who may approve, which a trust bundle says.
    pub(super) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Events so far.
    pub(super) const fn events(&self) -> u64 {
        self.position
    }

    /// Commands so far, each of which has ended.
    pub(super) const fn commands(&self) -> u64 {
        self.commands
    }

    /// Batches so far.
    pub(super) const fn batches(&self) -> u64 {
        self.batches
    }

    /// What was made since this was last asked.
    pub(super) fn take(&mut self) -> Vec<Row> {
        std::mem::take(&mut self.rows)
    }

    fn chance(&self) -> [u8; 10] {
        let mut chance = [0; 10];
        chance[2..].copy_from_slice(&self.position.to_be_bytes());
        chance
    }

    /// Appends an event.
    fn append(
        &mut self,
        stream: Stream,
        version: u64,
        by: &Actor,
        body: Body,
    ) -> anyhow::Result<Event> {
        self.position += 1;
        self.at = self.at.plus_micros(EVENT_MICROS);
        let event = Event {
            id: EventId::new(self.at, self.chance()),
            stream,
            version: version + 1,
            at: self.at,
            actor: by.clone(),
            tenant: self.tenant,
            body,
        };
        self.rows.push(Row {
            stream: stream.uuid().into_bytes(),
            bytes: event.encode()?,
        });
        Ok(event)
    }

    fn join(&mut self, number: u16) -> anyhow::Result<()> {
        let id = NodeId::new(self.at, self.chance());
        let registered = NodeRegistered {
            labels: [("rack".to_owned(), (number / 16).to_string())].into(),
            name: format!("bench-{number}"),
            role: Role::Node,
        };
        let body = Node::decide_register(registered)?;
        let event = self.append(Stream::Node(id), 0, &Actor::api("ada"), body)?;
        let mut seed = [0; 32];
        seed[..2].copy_from_slice(&number.to_be_bytes());
        seed[2..].copy_from_slice(&self.keys.root.to_bytes()[2..]);
        self.members.push(Member {
            key: SigningKey::from_bytes(&seed),
            node: Node::evolve(None, &event)?,
            journal: JournalId::new(self.at, self.chance()),
        });
        let member = usize::from(number);
        let certified = NodeCertified {
            allowed_kinds: None,
            fingerprint: hex::encode(seed),
            not_after: self.at.plus_seconds(CERTIFICATE_SECONDS),
            not_before: self.at,
            public_key: PublicKey::of(&self.members[member].key).as_bytes().to_vec(),
            renews: None,
        };
        let body = self.members[member].node.decide_certify(certified)?;
        self.on_node(member, body)?;
        self.connect(member)
    }

    fn connect(&mut self, member: usize) -> anyhow::Result<()> {
        let Member { node, journal, .. } = &self.members[member];
        let open = OpenSession {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            applied_generation: 0,
            boot_id: "bench".to_owned(),
            certificate: None,
            gateway: GATEWAY.to_owned(),
            gateway_lease: None,
            journal_id: *journal,
            highest_seq: node.seq,
            role: Role::Node,
        };
        let opened = node.decide_open_session(open, node.seq)?;
        self.on_node(member, Body::NodeSessionOpened(opened))
    }

    fn on_node(&mut self, member: usize, body: Body) -> anyhow::Result<()> {
        let (id, version) = (
            self.members[member].node.id,
            self.members[member].node.version,
        );
        let by = Actor::module(GATEWAY);
        let event = self.append(Stream::Node(id), version, &by, body)?;
        self.fold_node(member, &event)
    }

    fn fold_node(&mut self, member: usize, event: &Event) -> anyhow::Result<()> {
        let node = &mut self.members[member].node;
        *node = Node::evolve(Some(node.clone()), event)?;
        Ok(())
    }

    fn on_command(&mut self, job: &mut Job, by: &Actor, body: Body) -> anyhow::Result<()> {
        let stream = Stream::Command(job.command.id);
        let event = self.append(stream, job.command.version, by, body)?;
        job.command = Command::evolve(Some(job.command.clone()), &event)?;
        Ok(())
    }

    /// A command for each node, from queued to its end; most wait while others are under way.
    pub(super) fn round(&mut self) -> anyhow::Result<()> {
        self.rounds += 1;
        if self.at.micros_since(self.worker.not_before) > WORKER_USED_MICROS {
            self.worker = certify(&self.keys, self.at)?;
        }
        if self.rounds.is_multiple_of(RECONNECTS_EVERY) {
            let member = usize::try_from(self.rounds / RECONNECTS_EVERY)? % self.members.len();
            let node = &self.members[member].node;
            if let Some(closed) = node.decide_close_session(node.epoch, "connection lost") {
                self.on_node(member, closed)?;
                self.connect(member)?;
            }
        }
        let late = self.rounds.is_multiple_of(2);
        let mut proposed = self.propose(late)?;
        let mut jobs = Vec::with_capacity(self.members.len());
        for member in 0..self.members.len() {
            jobs.push(self.queue(member, proposed.as_ref())?);
        }
        if let Some(Proposed { batch, .. }) = proposed.as_mut().filter(|_| late) {
            self.approve(batch)?;
            for job in jobs.iter_mut().filter(|job| job.command.queued.held) {
                let body = release::decide(&job.command, batch, self.at)?;
                self.on_command(job, &Actor::module("batches"), body)?;
            }
        }
        let by = Actor::module(GATEWAY);
        for job in &mut jobs {
            let node = &self.members[job.member].node;
            let body = dispatch::decide(&job.command, node, node.epoch, self.at)?;
            self.on_command(job, &by, body)?;
        }
        for state in [
            UpdateState::Acked,
            UpdateState::Running,
            UpdateState::Succeeded,
        ] {
            for job in &mut jobs {
                self.report(job, &by, state)?;
            }
        }
        Ok(())
    }

    /// What the node at this place is asked to do in this round.
    fn kind_of(&self, member: usize) -> anyhow::Result<(Kind, Value)> {
        let rounds = usize::try_from(self.rounds)?;
        let (kind, payload) = match (member + rounds) % 8 {
            0..=2 => ("inventory.refresh", json!({ "sections": ["cpu", "gpus"] })),
            3..=6 => ("diag.nvml", json!({})),
            _ => ("gpu.reset", json!({})),
        };
        let kind = self.kinds.get(kind).context("a kind is not registered")?;
        Ok((kind.clone(), payload))
    }

    /// A batch of what is destructive in this round. Some are approved once their commands wait.
    fn propose(&mut self, late: bool) -> anyhow::Result<Option<Proposed>> {
        let mut leaves = Vec::new();
        for member in 0..self.members.len() {
            let (kind, payload) = self.kind_of(member)?;
            if kind.destructive {
                let payload = canonical::from_json(&payload)?;
                leaves.push(Leaf::of(self.members[member].node.id, &kind.name, &payload));
            }
        }
        if leaves.is_empty() {
            return Ok(None);
        }
        let scope = Scope::new(leaves.clone(), &self.kinds)?;
        let proofs: Vec<Inclusion> = scope.proved().map(|one| one.inclusion).collect();
        let id = BatchId::new(self.at, self.chance());
        let create = Create {
            id,
            tenant: self.tenant,
            reason: "GPUs that report uncorrectable errors".to_owned(),
            scope,
            idempotency_key: format!("wf:bench:{}", self.rounds),
            expires_in_seconds: 3_600,
        };
        let body = create.decide(&self.policy, self.at)?;
        let event = self.append(Stream::Batch(id), 0, &Actor::api("ada"), body)?;
        self.batches += 1;
        let mut batch = Batch::evolve(None, &event)?;
        if !late {
            self.approve(&mut batch)?;
        }
        let proofs = leaves.into_iter().zip(proofs).collect();
        Ok(Some(Proposed { batch, proofs }))
    }

    fn approve(&mut self, batch: &mut Batch) -> anyhow::Result<()> {
        let statement = batch.statement().encode()?;
        let key = &self.keys.approver;
        let signature = sign(key, Purpose::BatchApproval, &statement);
        let by = Actor::api(APPROVER);
        let body = approve::decide(batch, &by, &PublicKey::of(key), &signature, self.at)?;
        let body = body.context("an approval that says nothing new")?;
        let event = self.append(Stream::Batch(batch.id), batch.version, &by, body)?;
        *batch = Batch::evolve(Some(batch.clone()), &event)?;
        Ok(())
    }

    fn queue(&mut self, member: usize, proposed: Option<&Proposed>) -> anyhow::Result<Job> {
        let (kind, payload) = self.kind_of(member)?;
        let payload = canonical::from_json(&payload)?;
        let node = self.members[member].node.clone();
        let proposed = proposed.filter(|_| kind.destructive);
        let place = proposed.map(|Proposed { batch, proofs }| {
            let leaf = Leaf::of(node.id, &kind.name, &payload);
            let proof = proofs.iter().find(|(known, _)| *known == leaf);
            batch.admit(&leaf, proof.map(|(_, proof)| proof), self.at)
        });
        let id = CommandId::new(self.at, self.chance());
        let enqueue = Enqueue {
            asked_at: self.at,
            id,
            tenant: self.tenant,
            node: node.id,
            kind,
            payload,
            idempotency_key: format!("wf:bench:{}", self.position),
            not_after: self.at.plus_seconds(600),
            not_before: None,
            min_generation: None,
            batch_id: proposed.map(|proposed| proposed.batch.id),
        };
        let mut body = enqueue.decide(&node, place.transpose()?, 0, 1, self.at)?;
        if let Body::CommandQueued(queued) = &mut body {
            let intent = intent::of_command(&session::command(id, queued))?;
            let signed = Signed::new(&self.keys.worker, &self.worker, Purpose::Command, &intent);
            queued.signed = Some(Box::new(signed));
        }
        let event = self.append(Stream::Command(id), 0, &Actor::module("bench"), body)?;
        self.fold_node(member, &event)?;
        self.commands += 1;
        let command = Command::evolve(None, &event)?;
        Ok(Job { member, command })
    }

    /// The node's word, signed as a daemon signs every end.
    fn report(&mut self, job: &mut Job, by: &Actor, state: UpdateState) -> anyhow::Result<()> {
        let Member { key, node, .. } = &self.members[job.member];
        let ended = state == UpdateState::Succeeded;
        let result = ended.then(|| result(&job.command.queued.kind, job.member));
        let result = result.as_ref().map(canonical::from_json).transpose()?;
        let mut update = Update {
            command_id: job.command.id,
            details: None,
            node_sig: None,
            reason: None,
            result,
            result_truncated: None,
            state,
        };
        let signature = attestation::sign(key, node.id, &update)?;
        update.node_sig = signature.map(|bytes| bytes.to_vec());
        let body = report::decide(&job.command, node, node.epoch, &update, self.at)?;
        let body = body.context("a report that says nothing new")?;
        self.on_command(job, by, body)
    }
}

fn certify(keys: &Keys, at: Timestamp) -> anyhow::Result<WorkerCertificate> {
    let (key, root) = (PublicKey::of(&keys.worker), PublicKey::of(&keys.root));
    let lives = (at, at.plus_seconds(WORKER_SECONDS));
    let statement = WorkerCertificate::statement(key, lives, root)?;
    Ok(WorkerCertificate {
        key,
        not_after: lives.1,
        not_before: lives.0,
        root,
        signature: sign(&keys.root, Purpose::WorkerKey, &statement).to_vec(),
    })
}

/// What such a command answers, as long as real ones are.
fn result(kind: &str, number: usize) -> Value {
    match kind {
        "diag.nvml" => {
            let gpus = (0..8).map(|gpu| {
                json!({ "gpu": gpu, "ecc.uncorrectable": "pass", "row-remap.pending": "pass",
                        "pcie.link": "pass", "xid.recent": "pass" })
            });
            let gpus: Vec<_> = gpus.collect();
            json!({ "nvml.init": "pass", "gpus.visible": "pass", "expected": 8, "gpus": gpus })
        }
        "gpu.reset" => json!({ "gpus": [{ "uuid": format!("GPU-{number:032x}"),
            "reset": true, "healthy": true }], "cleared": ["xid"] }),
        _ => json!({ "cpu": { "model": "EPYC 9654", "sockets": 2, "cores": 192 },
            "gpus": (0..8).map(|gpu| json!({ "index": gpu, "name": "H100 SXM5 80GB" }))
                .collect::<Vec<_>>() }),
    }
}
