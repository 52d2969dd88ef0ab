//! One look: what is due on some nodes, and the dispatch of one node's share of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use ledger::Ledger;
use ledger_projections::{batches, commands};
use ledger_protocol::command::{Command, StateName};
use ledger_protocol::event::Actor;
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::{Batches, Close};
use tracing::{debug, warn};

use crate::session::Handle;

/// What a look has found.
#[derive(Debug)]
pub(super) struct Looked {
    /// The nodes that were looked at.
    pub(super) nodes: Vec<NodeId>,
    /// What is due on them.
    pub(super) due: Vec<Command>,
    /// The batches that it names.
    pub(super) batches: Arc<Batches>,
}

/// Asks once what is due on these nodes.
pub(super) async fn look(ledger: Ledger, nodes: Vec<NodeId>) -> Looked {
    let read = async {
        let mut conn = ledger.pool().acquire().await?;
        let due = commands::due(&mut conn, &nodes, ledger.now()).await?;
        let batches = batches::get_many(&mut conn, Batches::named_by(&due)).await?;
        Ok((due, Arc::new(batches.into_iter().collect())))
    };
    let read: Result<_, ledger_projections::Error> = read.await;
    let (due, batches) = read.unwrap_or_else(|error| {
        // The repair looks again.
        let error = &error as &dyn std::error::Error;
        warn!(error, nodes = nodes.len(), "due commands could not be read");
        Default::default()
    });
    Looked {
        nodes,
        due,
        batches,
    }
}

/// The session to which commands go.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) epoch: u64,
    pub(super) handle: Handle,
    pub(super) node: NodeId,
    /// The batches that the commands name.
    pub(super) batches: Arc<Batches>,
}

/// One node's commands, dispatched or not.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) target: Target,
    /// In `seq` order.
    pub(super) dispatched: Vec<Dispatched>,
}

/// What became of one command.
#[derive(Debug)]
pub(super) enum Dispatched {
    /// It is the session's now.
    Sent(Box<Command>),
    /// It stays where it is.
    Not(CommandId),
    /// It may be the session's without anybody having been told: the ledger must be asked.
    Unknown(CommandId),
    /// The session cannot have it, nor any other.
    Over(CommandId, Close),
}

/// Dispatches the node's commands, all at once: each reaches the append's queue in the order
/// given, and they share a commit. The first that finds no room there ends the round: room may be
/// made while the next one asks for it, and that would overtake (SPEC D3).
pub(super) async fn dispatch(
    ledger: Ledger,
    actor: Actor,
    target: Target,
    due: Vec<Command>,
) -> Round {
    let no_room = AtomicBool::new(false);
    let one = |command: Command| dispatch_one(&ledger, &actor, &target, command.id, &no_room);
    let dispatched = join_all(due.into_iter().map(one)).await;
    Round { target, dispatched }
}

async fn dispatch_one(
    ledger: &Ledger,
    actor: &Actor,
    target: &Target,
    command: CommandId,
    no_room: &AtomicBool,
) -> Dispatched {
    if no_room.load(Ordering::Relaxed) {
        return Dispatched::Not(command);
    }
    let Target { node, epoch, .. } = target;
    let refusal = match ledger.dispatch(actor, *node, command, *epoch).await {
        Ok(command) => return Dispatched::Sent(Box::new(command)),
        Err(ledger::Error::Refused(refusal)) => refusal,
        Err(error @ (ledger::Error::Overloaded | ledger::Error::Closed)) => {
            no_room.store(true, Ordering::Relaxed);
            debug!(%node, %command, %error, "a command waits for the ledger");
            return Dispatched::Not(command);
        }
        // Whatever the error, the link to the database may have died behind the commit.
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            warn!(%node, %command, error, "the outcome of a dispatch is not known");
            return Dispatched::Unknown(command);
        }
    };
    match refusal {
        Refusal::StaleEpoch { current, given } => {
            Dispatched::Over(command, Close::stale_epoch(current, given))
        }
        Refusal::NodeDeleted(_) => Dispatched::Over(command, Close::node_deleted()),
        Refusal::CertificateRevoked(_) => Dispatched::Over(command, Close::certificate_revoked()),
        // By a dispatch of ours whose outcome was not known.
        Refusal::NotPending {
            state: StateName::Dispatched,
        } => Dispatched::Unknown(command),
        refusal => {
            debug!(%node, %command, %refusal, "a dispatch was refused");
            Dispatched::Not(command)
        }
    }
}
