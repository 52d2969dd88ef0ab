//! Who is told that the log has grown (SPEC D3, L5).
//!
//! One task follows the log in order. Commits of this process are handed to it and passed on as
//! they are while they follow each other; whatever else appeared in between, by other processes
//! or because a hand-over was lost, it reads from the log itself.

use std::sync::Arc;

use ledger_projections::log;
use ledger_protocol::event::Event;
use ledger_protocol::id::{CommandId, NodeId, TenantId};
use sqlx::PgPool;
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::limits::{
    HEAD_LOOK_INTERVAL, READ_EVENTS_MAX, SUBSCRIBER_COMMITS_MAX, TAIL_COMMITS_MAX,
};

/// What a commit has brought, in order and without gaps from one to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Position of the first event.
    pub first: u64,
    /// Position of the last event.
    pub last: u64,
    /// The events, in short.
    pub events: Vec<Notice>,
}

/// An event, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its position.
    pub position: u64,
    /// Its type.
    pub event_type: &'static str,
    /// Whose it is.
    pub tenant: TenantId,
    /// The node that it concerns.
    pub node: Option<NodeId>,
    /// The command that it is about.
    pub command: Option<CommandId>,
}

impl Notice {
    fn of(position: u64, event: &Event) -> Self {
        Self {
            position,
            event_type: event.body.type_name(),
            tenant: event.tenant,
            node: event.node_id(),
            command: event.command_id(),
        }
    }
}

enum Told {
    Committed(Committed),
    Look,
}

/// The ledger's hold on the tail's task.
#[derive(Debug)]
pub(crate) struct Tail {
    told: mpsc::Sender<Told>,
    subscribers: broadcast::Sender<Arc<Committed>>,
}

impl Tail {
    pub(crate) fn start(pool: PgPool, tasks: &TaskTracker, shutdown: CancellationToken) -> Self {
        let (told, inbox) = mpsc::channel(TAIL_COMMITS_MAX);
        let (subscribers, _) = broadcast::channel(SUBSCRIBER_COMMITS_MAX);
        let follower = Follower {
            pool,
            began: None,
            seen: 0,
            subscribers: subscribers.clone(),
        };
        tasks.spawn(follower.run(inbox, shutdown));
        Self { told, subscribers }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<Committed>> {
        self.subscribers.subscribe()
    }

    pub(crate) fn look(&self) {
        // A full inbox will be worked off anyway, and what it lacks is read from the log.
        let _ = self.told.try_send(Told::Look);
    }

    pub(crate) fn committed(&self, first: u64, events: &[Event]) {
        let Some(more) = (events.len() as u64).checked_sub(1) else {
            return;
        };
        let events = (first..)
            .zip(events)
            .map(|(at, event)| Notice::of(at, event))
            .collect();
        let committed = Committed {
            first,
            last: first + more,
            events,
        };
        let _ = self.told.try_send(Told::Committed(committed));
    }
}

struct Follower {
    pool: PgPool,
    /// The head when it was first read; the log is followed from there.
    began: Option<u64>,
    /// Last position that was passed on, or where it began.
    seen: u64,
    subscribers: broadcast::Sender<Arc<Committed>>,
}

impl Follower {
    async fn run(mut self, mut inbox: mpsc::Receiver<Told>, shutdown: CancellationToken) {
        let mut look = tokio::time::interval(HEAD_LOOK_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let told = tokio::select! {
                told = inbox.recv() => told,
                _ = look.tick() => Some(Told::Look),
                () = shutdown.cancelled() => None,
            };
            let done = match told {
                Some(Told::Committed(committed)) => self.told(committed).await,
                Some(Told::Look) => self.catch_up().await,
                None => return,
            };
            if let Err(error) = done {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the log could not be followed; it is tried again"
                );
            }
        }
    }

    async fn told(&mut self, committed: Committed) -> Result<(), Error> {
        if self.began.is_none() {
            self.catch_up().await?;
        }
        if committed.first == self.seen + 1 {
            self.seen = committed.last;
            self.pass_on(committed);
        } else if self.began.is_some_and(|began| committed.last <= began) {
            // A commit of this process while the head was first read. Who has subscribed by then
            // waits for it, and reading on from the head will not bring it.
            self.pass_on(committed);
        } else {
            self.catch_up().await?;
        }
        Ok(())
    }

    fn pass_on(&self, committed: Committed) {
        // Nobody may be listening, which is fine.
        let _ = self.subscribers.send(Arc::new(committed));
    }

    async fn catch_up(&mut self) -> Result<(), Error> {
        let mut conn = self.pool.acquire().await?;
        if self.began.is_none() {
            self.seen = log::head(&mut conn).await?;
            self.began = Some(self.seen);
            return Ok(());
        }
        loop {
            let recorded = log::read(&mut conn, self.seen, READ_EVENTS_MAX).await?;
            let (Some(first), Some(last)) = (recorded.first(), recorded.last()) else {
                return Ok(());
            };
            let (first, last) = (first.position, last.position);
            let events = recorded
                .iter()
                .map(|event| Ok(Notice::of(event.position, &Event::decode(&event.bytes)?)))
                .collect::<Result<_, Error>>()?;
            self.pass_on(Committed {
                first,
                last,
                events,
            });
            self.seen = last;
        }
    }
}
