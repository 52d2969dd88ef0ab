//! A ledger in this process, with nodes whose sessions are made up.

use std::collections::BTreeMap;

use ledger::{Clock, Ledger, Options, Run};
use ledger_projections::log;
use ledger_protocol::command::Command;
use ledger_protocol::event::{Actor, Body, Event, NodeRegistered, Stream};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::{CommandId, JournalId, NodeId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::node::OpenSession;
use serde_json::json;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Most events that a test reads at once.
const EVENTS_MAX: u32 = 1_000_000;

/// A ledger, a tenant, and whoever acts.
#[derive(Debug, Clone)]
pub struct Ground {
    /// The ledger.
    pub ledger: Ledger,
    /// Its tasks.
    pub tasks: TaskTracker,
    /// The tenant.
    pub tenant: TenantId,
    /// Who queues commands.
    pub actor: Actor,
    /// Who holds the made-up sessions.
    pub gateway: Actor,
}

/// A node with a session.
#[derive(Debug, Clone, Copy)]
pub struct Connected {
    /// The node.
    pub id: NodeId,
    /// Its session's epoch.
    pub epoch: u64,
}

impl Ground {
    /// A ledger over this pool, as a process of its own would have it.
    pub fn new(pool: PgPool) -> Self {
        Self::with_clock(pool, Clock::system())
    }

    /// The same, with another clock.
    pub fn with_clock(pool: PgPool, clock: Clock) -> Self {
        let tasks = TaskTracker::new();
        let options = Options::new(Registry::builtin(), clock);
        let ledger = Ledger::start(pool, options, &tasks, CancellationToken::new()).unwrap();
        let tenant = TenantId::new(ledger.now(), ledger.new_id_random());
        Self {
            ledger,
            tasks,
            tenant,
            actor: Actor::api("ada"),
            gateway: Actor::gateway("made-up"),
        }
    }

    /// Another ledger over this pool, for the same tenant.
    #[must_use]
    pub fn beside(&self, pool: PgPool) -> Self {
        Self {
            tenant: self.tenant,
            ..Self::with_clock(pool, self.ledger.clock().clone())
        }
    }

    /// A new node without a session.
    pub async fn node(&self, name: &str) -> NodeId {
        let registered = NodeRegistered {
            labels: BTreeMap::new(),
            name: name.to_owned(),
            role: Role::Node,
        };
        let node = self
            .ledger
            .register_node(&self.actor, self.tenant, registered)
            .await;
        node.unwrap().id
    }

    /// A new node with a session.
    pub async fn connected(&self, name: &str) -> Connected {
        let id = self.node(name).await;
        let open = OpenSession {
            agent_version: "1".to_owned(),
            applied_generation: 0,
            boot_id: "boot".to_owned(),
            certificate: None,
            gateway: "made-up".to_owned(),
            gateway_lease: None,
            journal_id: JournalId::new(self.ledger.now(), self.ledger.new_id_random()),
            highest_seq: 0,
            role: Role::Node,
        };
        let opened = self
            .ledger
            .open_session(&self.gateway, id, open, Vec::new())
            .await;
        let epoch = opened.unwrap().node.epoch;
        Connected { id, epoch }
    }

    /// An `inventory.refresh` for a node.
    pub fn order(&self, node: NodeId, key: &str) -> Run {
        Run {
            tenant: self.tenant,
            node,
            kind: "inventory.refresh".to_owned(),
            payload: json!({}),
            idempotency_key: key.to_owned(),
            not_after: self.ledger.now().plus_seconds(3_600),
            not_before: None,
            min_generation: None,
            batch_id: None,
        }
    }

    /// Queues an `inventory.refresh`.
    pub async fn queue(&self, node: NodeId, key: &str) -> Command {
        let queued = self
            .ledger
            .enqueue(&self.actor, self.order(node, key))
            .await;
        queued.unwrap().command
    }

    /// Queues a command and takes it to its end: queued, dispatched, acked, running, settled.
    pub async fn settle(&self, node: Connected, key: &str) -> CommandId {
        let id = self.queue(node.id, key).await.id;
        let sent = self
            .ledger
            .dispatch(&self.gateway, node.id, id, node.epoch)
            .await;
        sent.unwrap();
        for state in [
            UpdateState::Acked,
            UpdateState::Running,
            UpdateState::Succeeded,
        ] {
            let (update, now) = (Update::bare(id, state), self.ledger.now());
            let told = self
                .ledger
                .report(&self.gateway, node.id, node.epoch, update, now)
                .await;
            told.unwrap();
        }
        id
    }
}

/// The last position of the log.
pub async fn head(pool: &PgPool) -> u64 {
    log::head(&mut pool.acquire().await.unwrap()).await.unwrap()
}

/// Every event of the log; its position is its place, from 1.
pub async fn events(pool: &PgPool) -> Vec<Event> {
    let mut conn = pool.acquire().await.unwrap();
    let recorded = log::read(&mut conn, 0, EVENTS_MAX).await.unwrap();
    for (position, event) in (1..).zip(&recorded) {
        assert_eq!(event.position, position, "the log has a gap");
    }
    recorded
        .iter()
        .map(|event| Event::decode(&event.bytes).unwrap())
        .collect()
}

/// How often each command was queued, began to run, and settled.
pub fn steps(events: &[Event]) -> BTreeMap<CommandId, [usize; 3]> {
    let mut steps: BTreeMap<CommandId, [usize; 3]> = BTreeMap::new();
    for event in events {
        let Stream::Command(id) = event.stream else {
            continue;
        };
        let [queued, running, settled] = steps.entry(id).or_default();
        match event.body {
            Body::CommandQueued(_) => *queued += 1,
            Body::CommandRunning(_) => *running += 1,
            Body::CommandSettled(_) => *settled += 1,
            _ => {}
        }
    }
    steps
}

/// How many events of the log are about this command.
pub async fn events_of(pool: &PgPool, command: CommandId) -> usize {
    let mut conn = pool.acquire().await.unwrap();
    let events = log::stream(&mut conn, Stream::Command(command)).await;
    events.unwrap().len()
}
