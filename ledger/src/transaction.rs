//! Commands inside a caller's own transaction (SPEC L4).
//!
//! The caller's requests are kept until `commit`, which decides and writes them as the last
//! thing in the transaction. So nothing of the ledger, not even the node's row, is locked while
//! the caller thinks, and a slow caller stalls nobody.

use ledger_protocol::event::Actor;
use ledger_protocol::id::{CommandId, NodeId, TenantId};
use sqlx::{PgConnection, Postgres, Transaction};

use crate::append::group;
use crate::request::{Item, NodeItem, Request};
use crate::{Error, Ledger, Outcome, Run};

/// A caller's transaction in which commands are queued and cancelled. Dropped without a commit,
/// it leaves nothing: neither the caller's rows nor a command nor an event. It must be one of READ
/// COMMITTED, Postgres's default: what it decides on is what others have committed by its end.
#[derive(Debug)]
pub struct LedgerTx {
    ledger: Ledger,
    transaction: Transaction<'static, Postgres>,
    items: Vec<Item>,
}

impl LedgerTx {
    pub(crate) fn new(ledger: Ledger, transaction: Transaction<'static, Postgres>) -> Self {
        Self {
            ledger,
            transaction,
            items: Vec::new(),
        }
    }

    /// The caller's connection, for the caller's own statements.
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    /// Queues a command with this transaction; its payload is checked now, all else at commit.
    /// Answers with the id that the command will have unless its key is taken already.
    pub fn enqueue(&mut self, actor: &Actor, run: Run) -> Result<CommandId, Error> {
        let item = self.ledger.enqueue_item(actor, run)?;
        let Request::Enqueue(enqueue) = &item.request else {
            return Err(Error::Shape);
        };
        let id = enqueue.id;
        self.push(Item::Node(item))?;
        Ok(id)
    }

    /// Cancels a command with this transaction.
    pub fn cancel(
        &mut self,
        actor: &Actor,
        tenant: TenantId,
        node: NodeId,
        command: CommandId,
    ) -> Result<(), Error> {
        let request = Request::Cancel { tenant, command };
        self.push(Item::Node(NodeItem {
            actor: actor.clone(),
            node,
            fence: None,
            request,
        }))
    }

    fn push(&mut self, item: Item) -> Result<(), Error> {
        if self.items.len() >= crate::limits::GROUP_REQUESTS_MAX {
            return Err(Error::Overloaded);
        }
        self.items.push(item);
        Ok(())
    }

    /// Decides, writes and commits, everything or nothing: one refused request rolls the whole
    /// transaction back. Runs on a task of its own, so that a caller who goes away cannot leave
    /// the transaction half done.
    pub async fn commit(self) -> Result<Vec<Outcome>, Error> {
        let tasks = self.ledger.inner.tasks.clone();
        tasks
            .spawn(self.commit_here())
            .await
            .unwrap_or(Err(Error::OutcomeUnknown))
    }

    async fn commit_here(mut self) -> Result<Vec<Outcome>, Error> {
        let inner = &self.ledger.inner;
        if self.items.is_empty() {
            group::commit(self.transaction).await?;
            return Ok(Vec::new());
        }
        let given: String = sqlx::query_scalar("SHOW transaction_isolation")
            .fetch_one(&mut *self.transaction)
            .await?;
        if given != "read committed" {
            return Err(Error::Isolation { given });
        }
        let appended = group::append_within(inner, &mut self.transaction, &self.items).await?;
        let outcomes = appended
            .answers
            .into_iter()
            .collect::<Result<Vec<_>, Error>>()?;
        group::commit(self.transaction).await?;
        inner.tail.committed(appended.first, &appended.events);
        Ok(outcomes)
    }
}
