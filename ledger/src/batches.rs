//! Batches, as callers ask for them (SPEC P3).

use futures_util::{StreamExt as _, stream};
use ledger_projections::batches::{self, Held};
use ledger_protocol::batch::Batch;
use ledger_protocol::batch::create::{Create, Scope};
use ledger_protocol::dsse::PublicKey;
use ledger_protocol::event::Actor;
use ledger_protocol::id::{BatchId, TenantId};

use crate::append::Ledger;
use crate::limits::{RELEASES_AT_ONCE, RELEASES_PAGE_ROWS};
use crate::request::{BatchItem, BatchRequest, Item};
use crate::{Error, Outcome, Propose, Proposed};

/// What [`Ledger::release_approved`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Commands that were let go.
    pub released: u64,
    /// Commands that could not be.
    pub failed: u64,
}

impl Ledger {
    /// Proposes a batch to those who may approve it now, or finds the one that its key has.
    pub async fn propose_batch(&self, actor: &Actor, propose: Propose) -> Result<Proposed, Error> {
        let create = Create {
            id: BatchId::new(self.now(), self.new_id_random()),
            tenant: propose.tenant,
            reason: propose.reason,
            scope: Scope::new(propose.scope, self.registry())?,
            idempotency_key: propose.idempotency_key,
            expires_in_seconds: propose.expires_in_seconds,
        };
        let request = BatchRequest::Create(Box::new(create));
        match self.submit_on_batch(actor, request).await? {
            Outcome::Proposed(proposed) => Ok(*proposed),
            _ => Err(Error::Shape),
        }
    }

    /// Records an approver's signature. The commands that the batch held are let go by
    /// [`Self::release_approved`].
    pub async fn approve_batch(
        &self,
        actor: &Actor,
        tenant: TenantId,
        batch: BatchId,
        key: PublicKey,
        signature: Vec<u8>,
    ) -> Result<Batch, Error> {
        let request = BatchRequest::Approve {
            tenant,
            batch,
            key,
            signature,
        };
        match self.submit_on_batch(actor, request).await? {
            Outcome::Batch(batch) => Ok(*batch),
            _ => Err(Error::Shape),
        }
    }

    async fn submit_on_batch(
        &self,
        actor: &Actor,
        request: BatchRequest,
    ) -> Result<Outcome, Error> {
        let actor = actor.clone();
        self.submit(Item::Batch(BatchItem { actor, request })).await
    }

    /// Lets go what approved batches still hold: the commands of one batch, or of all. Answers with
    /// how many; one that cannot be released is passed over; what was cancelled or has expired meanwhile is passed over. Whoever reaches the
    /// quorum calls it, and every sweep, should that one have died.
    pub async fn release_approved(
        &self,
        actor: &Actor,
        batch: Option<BatchId>,
    ) -> Result<Released, Error> {
        let (mut released, mut failed) = (0, 0);
        let mut after = None::<Held>;
        loop {
            let mut connection = self.pool().acquire().await?;
            let page = batches::releasable(&mut connection, batch, after, RELEASES_PAGE_ROWS);
            let page = page.await?;
            drop(connection);
            after = page.last().copied();
            let full = page.len() >= RELEASES_PAGE_ROWS as usize;
            let mut answers = stream::iter(page)
                .map(|held| self.release(actor, held.tenant, held.node, held.command))
                .buffer_unordered(RELEASES_AT_ONCE);
            while let Some(answer) = answers.next().await {
                match answer {
                    Ok(_) => released += 1,
                    Err(Error::Refused(_)) => {}
                    Err(Error::Closed) => return Err(Error::Closed),
                    // One that cannot be released does not hold up the others.
                    Err(error) => {
                        failed += 1;
                        let error = &error as &dyn std::error::Error;
                        tracing::debug!(error, "an approved command is still held");
                    }
                }
            }
            drop(answers);
            if !full {
                return Ok(Released { released, failed });
            }
        }
    }
}
