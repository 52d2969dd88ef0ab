//! The queue in front of the append, and the task that turns what waits into groups.

use std::sync::Arc;

use ledger_protocol::batch::create::Policy;
use ledger_protocol::command::Command;
use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::event::{Actor, NodeCertified, NodeRegistered, NodeSpecSet};
use ledger_protocol::frame::{JournalEntry, Update};
use ledger_protocol::id::{CommandId, NodeId, TenantId};
use ledger_protocol::kind::Registry;
use ledger_protocol::limits::{PENDING_PER_LANE_MAX, UNREGISTERED_TIMEOUT_SECONDS};
use ledger_protocol::node::{Node, OpenSession, Presented};
use ledger_protocol::refusal::Refusal;
use ledger_protocol::time::Timestamp;
use sqlx::PgPool;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::limits::{GROUP_BYTES_MAX, GROUP_REQUESTS_MAX, QUEUE_REQUESTS_MAX};
use crate::payload::Schemas;
use crate::request::{Item, NodeItem, Request};
use crate::secrets::{MasterKeys, Wakes};
use crate::wake::Tail;
use crate::{
    Clock, Committed, Error, Fence, LedgerTx, Opened, Outcome, Queued, Run, Signer, clock,
};

mod batch;
mod decide;
pub(crate) mod group;
mod world;

/// How the ledger is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// The kinds that it knows.
    pub registry: Registry,
    /// Where the time comes from.
    pub clock: Clock,
    /// Most pending commands of one node and lane (SPEC K4).
    pub pending_per_lane_max: u32,
    /// Who may approve batches, and how many must (SPEC P3).
    pub approval: Policy,
    /// What signs commands and desired states; nothing is signed without (SPEC P1).
    pub signer: Option<Arc<Signer>>,
    /// What encrypts secrets that are put; none are taken in without (SPEC P6).
    pub master_keys: Option<Arc<MasterKeys>>,
}

impl Options {
    /// The usual setting.
    pub fn new(registry: Registry, clock: Clock) -> Self {
        Self {
            registry,
            clock,
            pending_per_lane_max: PENDING_PER_LANE_MAX,
            approval: Policy::default(),
            signer: None,
            master_keys: None,
        }
    }
}

/// The ledger, as everybody who changes state holds it. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Ledger {
    pub(crate) inner: Arc<Inner>,
    queue: mpsc::Sender<Waiting>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) pool: PgPool,
    pub(crate) options: Options,
    pub(crate) schemas: Schemas,
    pub(crate) tail: Tail,
    pub(crate) tasks: TaskTracker,
    pub(crate) wakes: Wakes,
}

/// An item with the place to which its answer goes.
struct Waiting {
    item: Item,
    reply: oneshot::Sender<Result<Outcome, Error>>,
}

impl Ledger {
    /// Starts the append's task, which ends when `shutdown` is called and its queue is empty.
    pub fn start(
        pool: PgPool,
        options: Options,
        tasks: &TaskTracker,
        shutdown: CancellationToken,
    ) -> Result<Self, Error> {
        let schemas = Schemas::compile(&options.registry)?;
        let tail = Tail::start(pool.clone(), tasks, shutdown.clone());
        let inner = Inner {
            pool,
            options,
            schemas,
            tail,
            tasks: tasks.clone(),
            wakes: Wakes::default(),
        };
        let inner = Arc::new(inner);
        let (queue, waiting) = mpsc::channel(QUEUE_REQUESTS_MAX);
        tasks.spawn(run(inner.clone(), waiting, shutdown));
        Ok(Self { inner, queue })
    }

    /// The database.
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// The kinds that are known.
    pub fn registry(&self) -> &Registry {
        &self.inner.options.registry
    }

    /// The ledger's clock.
    pub fn clock(&self) -> &Clock {
        &self.inner.options.clock
    }

    /// The time, by the ledger's clock.
    pub fn now(&self) -> Timestamp {
        self.inner.options.clock.now()
    }

    /// Ten random bytes, as a new id takes them.
    pub fn new_id_random(&self) -> [u8; 10] {
        clock::random()
    }

    /// What is committed from now on, in order, by whatever process. After
    /// [`broadcast::error::RecvError::Lagged`] everything may have changed.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Committed>> {
        self.inner.tail.subscribe()
    }

    /// Looks at the log at once, because somebody outside says that it has grown.
    pub fn look(&self) {
        self.inner.tail.look();
    }

    /// A transaction of the caller's in which commands can be queued and cancelled (SPEC L4).
    pub fn within(&self, transaction: sqlx::Transaction<'static, sqlx::Postgres>) -> LedgerTx {
        LedgerTx::new(self.clone(), transaction)
    }

    /// Queues a command, or finds the one that its key has (SPEC A1, A2).
    pub async fn enqueue(&self, actor: &Actor, run: Run) -> Result<Queued, Error> {
        let item = self.enqueue_item(actor, run)?;
        match self.submit_on_node(item).await? {
            Outcome::Queued(queued) => Ok(*queued),
            _ => Err(Error::Shape),
        }
    }

    pub(crate) fn enqueue_item(&self, actor: &Actor, run: Run) -> Result<NodeItem, Error> {
        let kind = self
            .registry()
            .get(&run.kind)
            .ok_or_else(|| Refusal::Invalid {
                field: "kind",
                problem: "is not registered".to_owned(),
            })?;
        let now = self.now();
        let enqueue = Enqueue {
            asked_at: now,
            id: CommandId::new(now, clock::random()),
            tenant: run.tenant,
            node: run.node,
            kind: kind.clone(),
            payload: self.inner.schemas.encode(&run.kind, &run.payload)?,
            idempotency_key: run.idempotency_key,
            not_after: run.not_after,
            not_before: run.not_before,
            min_generation: run.min_generation,
            batch_id: run.batch_id,
        };
        let request = Request::Enqueue(Box::new(enqueue));
        Ok(NodeItem {
            actor: actor.clone(),
            node: run.node,
            fence: None,
            request,
        })
    }

    /// Asks for a command to stop (SPEC A5); answers with the command as it then stands.
    pub async fn cancel(
        &self,
        actor: &Actor,
        tenant: TenantId,
        node: NodeId,
        command: CommandId,
    ) -> Result<Command, Error> {
        self.command(actor, node, None, Request::Cancel { tenant, command })
            .await
    }

    /// Lets a held command go.
    pub async fn release(
        &self,
        actor: &Actor,
        tenant: TenantId,
        node: NodeId,
        command: CommandId,
    ) -> Result<Command, Error> {
        self.command(actor, node, None, Request::Release { tenant, command })
            .await
    }

    /// Records that a command goes out under a session's epoch (SPEC D2, D3).
    pub async fn dispatch(
        &self,
        actor: &Actor,
        node: NodeId,
        command: CommandId,
        epoch: u64,
    ) -> Result<Command, Error> {
        self.command(actor, node, None, Request::Dispatch { command, epoch })
            .await
    }

    /// Records the node's word on a command; also when it says nothing new (SPEC S1).
    pub async fn report(
        &self,
        actor: &Actor,
        node: NodeId,
        epoch: u64,
        update: Update,
        retry_at: Timestamp,
    ) -> Result<Command, Error> {
        let request = Request::Report {
            epoch,
            update: Box::new(update),
            retry_at,
        };
        self.command(actor, node, None, request).await
    }

    /// Records that a command's time has passed (SPEC T2), if the fence stands.
    pub async fn expire(&self, fence: &Fence, command: &Command) -> Result<Command, Error> {
        let registered = self.registry().get(&command.queued.kind).is_some();
        let request = Request::Expire {
            command: command.id,
            timeout_seconds: (!registered).then_some(UNREGISTERED_TIMEOUT_SECONDS),
        };
        self.command(
            &Actor::sweeper(),
            command.node_id(),
            Some(fence.clone()),
            request,
        )
        .await
    }

    /// Registers a node.
    pub async fn register_node(
        &self,
        actor: &Actor,
        tenant: TenantId,
        registered: NodeRegistered,
    ) -> Result<Node, Error> {
        let node = NodeId::new(self.now(), clock::random());
        self.node(actor, node, Request::RegisterNode { tenant, registered })
            .await
    }

    /// Takes a node out of the fleet; its pending commands end with it (SPEC A11).
    pub async fn delete_node(
        &self,
        actor: &Actor,
        tenant: TenantId,
        node: NodeId,
    ) -> Result<Node, Error> {
        self.node(actor, node, Request::DeleteNode { tenant }).await
    }

    /// Records the certificate of a node that has joined. Where a daemon had joined before, the
    /// destructive commands that waited for it end as `cancelled`, `node-reenrolled`, and those in
    /// flight that are not safe to run again as `failed`, `journal-lost`.
    pub async fn certify(
        &self,
        actor: &Actor,
        node: NodeId,
        certified: NodeCertified,
    ) -> Result<Node, Error> {
        self.node(actor, node, Request::Certify(certified)).await
    }

    /// Records the certificate with which a node renews the one that it shows (SPEC P7). Nothing
    /// else of the node changes.
    pub async fn renew(
        &self,
        actor: &Actor,
        node: NodeId,
        shown: Presented,
        certified: NodeCertified,
    ) -> Result<Node, Error> {
        self.node(actor, node, Request::Renew { shown, certified })
            .await
    }

    /// Revokes a node's certificates, for a reason of 1 to
    /// [`REASON_BYTES_MAX`](ledger_protocol::limits::REASON_BYTES_MAX) bytes, and ends its session. The
    /// destructive commands that waited for it end as `cancelled`, those in flight that are not safe
    /// to run again as `failed`, both with `certificate-revoked`. Revoking twice changes nothing.
    pub async fn revoke_certificate(
        &self,
        actor: &Actor,
        tenant: TenantId,
        node: NodeId,
        reason: String,
    ) -> Result<Node, Error> {
        let request = Request::RevokeCertificate { tenant, reason };
        self.node(actor, node, request).await
    }

    /// Sets a node's desired state.
    pub async fn set_spec(
        &self,
        actor: &Actor,
        tenant: TenantId,
        node: NodeId,
        spec: NodeSpecSet,
    ) -> Result<Node, Error> {
        self.node(actor, node, Request::SetSpec { tenant, spec })
            .await
    }

    /// Records that a node has applied a generation of its desired state.
    pub async fn apply_generation(
        &self,
        actor: &Actor,
        node: NodeId,
        epoch: u64,
        generation: u64,
    ) -> Result<Node, Error> {
        self.node(actor, node, Request::ApplyGeneration { epoch, generation })
            .await
    }

    /// Opens a session under the next epoch and settles what the reconnect proves (SPEC D2, D6).
    pub async fn open_session(
        &self,
        actor: &Actor,
        node: NodeId,
        open: OpenSession,
        entries: Vec<JournalEntry>,
    ) -> Result<Opened, Error> {
        let request = Request::OpenSession { open, entries };
        match self
            .submit_on_node(NodeItem {
                actor: actor.clone(),
                node,
                fence: None,
                request,
            })
            .await?
        {
            Outcome::Opened(opened) => Ok(*opened),
            _ => Err(Error::Shape),
        }
    }

    /// Closes a session; nothing happens when a newer one has taken over (SPEC D2).
    pub async fn close_session(
        &self,
        actor: &Actor,
        node: NodeId,
        epoch: u64,
        reason: &str,
    ) -> Result<(), Error> {
        let request = Request::CloseSession {
            epoch,
            reason: reason.to_owned(),
        };
        self.node(actor, node, request).await.map(|_| ())
    }

    /// Closes the session of a gateway that is gone, as the sweeper (SPEC D2); nothing happens when
    /// a newer one has taken over.
    pub async fn close_lost_session(
        &self,
        fence: &Fence,
        node: NodeId,
        epoch: u64,
    ) -> Result<(), Error> {
        let request = Request::CloseSession {
            epoch,
            reason: "gateway-lost".to_owned(),
        };
        let item = NodeItem {
            actor: Actor::sweeper(),
            node,
            fence: Some(fence.clone()),
            request,
        };
        self.submit_on_node(item).await.map(|_| ())
    }

    async fn command(
        &self,
        actor: &Actor,
        node: NodeId,
        fence: Option<Fence>,
        request: Request,
    ) -> Result<Command, Error> {
        match self
            .submit_on_node(NodeItem {
                actor: actor.clone(),
                node,
                fence,
                request,
            })
            .await?
        {
            Outcome::Command(command) => Ok(*command),
            _ => Err(Error::Shape),
        }
    }

    async fn node(&self, actor: &Actor, node: NodeId, request: Request) -> Result<Node, Error> {
        match self
            .submit_on_node(NodeItem {
                actor: actor.clone(),
                node,
                fence: None,
                request,
            })
            .await?
        {
            Outcome::Node(node) => Ok(*node),
            _ => Err(Error::Shape),
        }
    }

    async fn submit_on_node(&self, item: NodeItem) -> Result<Outcome, Error> {
        self.submit(Item::Node(item)).await
    }

    pub(crate) async fn submit(&self, item: Item) -> Result<Outcome, Error> {
        let (reply, answer) = oneshot::channel();
        self.queue
            .try_send(Waiting { item, reply })
            .map_err(|refused| match refused {
                mpsc::error::TrySendError::Full(_) => Error::Overloaded,
                mpsc::error::TrySendError::Closed(_) => Error::Closed,
            })?;
        // The task answers everything that it has taken; only its end can drop an answer.
        answer.await.unwrap_or(Err(Error::OutcomeUnknown))
    }
}

/// Takes what waits, group by group. A caller who went away changes nothing: the transaction
/// lives here and not in the caller's future.
async fn run(inner: Arc<Inner>, mut waiting: mpsc::Receiver<Waiting>, shutdown: CancellationToken) {
    let mut held: Option<Waiting> = None;
    loop {
        let first = if let Some(first) = held.take() {
            Some(first)
        } else {
            tokio::select! {
                first = waiting.recv() => first,
                () = shutdown.cancelled(), if !waiting.is_closed() => {
                    waiting.close();
                    continue;
                }
            }
        };
        let Some(first) = first else { return };
        let mut bytes = first.item.bytes();
        let (mut items, mut replies) = (vec![first.item], vec![first.reply]);
        while items.len() < GROUP_REQUESTS_MAX {
            let Ok(next) = waiting.try_recv() else { break };
            bytes += next.item.bytes();
            if bytes > GROUP_BYTES_MAX {
                held = Some(next);
                break;
            }
            items.push(next.item);
            replies.push(next.reply);
        }
        for (answer, reply) in group::append(&inner, items).await.into_iter().zip(replies) {
            // A caller who went away does not read the answer.
            let _ = reply.send(answer);
        }
    }
}
