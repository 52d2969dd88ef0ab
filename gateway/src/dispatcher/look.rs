//! One look: what is due on some nodes, and the dispatch of one node's share of it.

use futures_util::future::join_all;
use ledger::Ledger;
use ledger_projections::{Error, commands};
use ledger_protocol::command::{Command, State, StateName};
use ledger_protocol::event::Actor;
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::Close;
use tracing::{debug, warn};

use crate::limits;
use crate::session::Handle;

/// What a look has found.
#[derive(Debug)]
pub(super) struct Looked {
    /// The nodes that were looked at.
    pub(super) nodes: Vec<NodeId>,
    /// What is due on them.
    pub(super) due: Vec<Command>,
}

/// Asks once what is due on these nodes.
pub(super) async fn look(ledger: Ledger, nodes: Vec<NodeId>) -> Looked {
    let read = async {
        let mut conn = ledger.pool().acquire().await?;
        commands::due(&mut conn, &nodes, ledger.now()).await
    };
    let due = read.await.unwrap_or_else(|error| {
        // The repair looks again.
        let error = &error as &dyn std::error::Error;
        warn!(error, nodes = nodes.len(), "due commands could not be read");
        Vec::new()
    });
    Looked { nodes, due }
}

/// The session to which commands go.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) epoch: u64,
    pub(super) handle: Handle,
    pub(super) node: NodeId,
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
    Not,
    /// The session cannot have it, nor any other.
    Over(Close),
}

/// Dispatches the node's commands, all at once: each reaches the append's queue in the order
/// given, and they share a commit.
pub(super) async fn dispatch(
    ledger: Ledger,
    actor: Actor,
    target: Target,
    due: Vec<Command>,
) -> Round {
    let one = |command: Command| dispatch_one(&ledger, &actor, &target, command.id);
    let dispatched = join_all(due.into_iter().map(one)).await;
    Round { target, dispatched }
}

async fn dispatch_one(
    ledger: &Ledger,
    actor: &Actor,
    target: &Target,
    command: CommandId,
) -> Dispatched {
    let Target { node, epoch, .. } = target;
    match ledger.dispatch(actor, *node, command, *epoch).await {
        Ok(command) => Dispatched::Sent(Box::new(command)),
        Err(ledger::Error::Refused(Refusal::StaleEpoch { .. })) => {
            Dispatched::Over(Close::superseded())
        }
        Err(ledger::Error::Refused(Refusal::NodeDeleted(_))) => {
            Dispatched::Over(Close::node_deleted())
        }
        // Either the link to the database died before the answer, this time or the last: then the
        // command may be ours without ever having been sent.
        Err(
            ledger::Error::OutcomeUnknown
            | ledger::Error::Refused(Refusal::NotPending {
                state: StateName::Dispatched,
            }),
        ) => resolve(ledger, target, command).await,
        Err(ledger::Error::Refused(refusal)) => {
            debug!(%node, %command, %refusal, "a dispatch was refused");
            Dispatched::Not
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            warn!(%node, %command, error, "a command could not be dispatched; it is tried again");
            Dispatched::Not
        }
    }
}

/// Reads what became of a dispatch whose outcome is unknown, for as long as the session lasts.
/// Meanwhile nothing else is dispatched to the node.
async fn resolve(ledger: &Ledger, target: &Target, id: CommandId) -> Dispatched {
    while !target.handle.is_over() {
        let read: Result<_, Error> = async {
            let mut conn = ledger.pool().acquire().await?;
            commands::get(&mut conn, id).await
        }
        .await;
        match read {
            Ok(Some(command))
                if command.state
                    == (State::Dispatched {
                        epoch: target.epoch,
                    }) =>
            {
                return Dispatched::Sent(Box::new(command));
            }
            Ok(_) => return Dispatched::Not,
            Err(error) => {
                warn!(command = %id, error = &error as &dyn std::error::Error,
                    "the outcome of a dispatch could not be read");
                tokio::time::sleep(limits::DOUBT_EVERY).await;
            }
        }
    }
    Dispatched::Not
}
