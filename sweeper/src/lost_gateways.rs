//! The sessions of gateways whose process is gone (SPEC D2): their lease has lapsed, and nobody is
//! left to record that they ended.

use std::collections::HashSet;

use futures_util::{StreamExt as _, stream};
use ledger::{Fence, Ledger, lease};
use ledger_protocol::canonical;
use ledger_protocol::id::NodeId;
use ledger_protocol::node::Node;
use sqlx::PgPool;
use uuid::Uuid;

use crate::error::{Error, chain, database};
use crate::limits;

/// A sweeper's memory of gateways from one sweep to the next.
#[derive(Debug, Default)]
pub(crate) struct LostGateways {
    /// Leases that had lapsed at the last sweep. Only those that still have are acted upon: after
    /// an outage of the database every gateway's lease has lapsed, and they renew them at once.
    lapsed: HashSet<String>,
}

impl LostGateways {
    /// Closes the sessions of gateways that are gone, a bounded number in each sweep; how many.
    pub(crate) async fn sweep(&mut self, ledger: &Ledger, fence: &Fence) -> Result<u64, Error> {
        let pool = ledger.pool();
        let names = lease::lapsed_gateways(pool, limits::GATEWAYS_PER_SWEEP_MAX);
        let names = database(names).await?;
        let before = std::mem::replace(&mut self.lapsed, names.iter().cloned().collect());
        let mut closed = 0;
        for name in names.into_iter().filter(|name| before.contains(name)) {
            let held = page(pool, &name).await?;
            if held.is_empty() {
                database(lease::forget(pool, &name)).await?;
                continue;
            }
            tracing::warn!(
                lease = name,
                sessions = held.len(),
                "a gateway is gone; its sessions are closed"
            );
            let mut closing = stream::iter(held)
                .map(|(node, epoch)| async move {
                    let done = ledger.close_lost_session(fence, node, epoch).await;
                    (node, done)
                })
                .buffer_unordered(limits::APPENDS_AT_ONCE);
            while let Some((node, done)) = closing.next().await {
                match done {
                    Ok(()) => closed += 1,
                    Err(ledger::Error::Fenced) => return Err(Error::Fenced),
                    Err(ledger::Error::Closed) => return Err(ledger::Error::Closed.into()),
                    Err(error) => {
                        let error = chain(&error);
                        tracing::warn!(%node, error, "a lost gateway's session was not closed");
                    }
                }
            }
        }
        Ok(closed)
    }
}

/// Nodes whose session is held under this lease, with the session's epoch. One that cannot be read
/// is told of and hides no other.
async fn page(pool: &PgPool, lease: &str) -> Result<Vec<(NodeId, u64)>, Error> {
    let rows: Vec<(Uuid, Vec<u8>)> = database(
        sqlx::query_as(
            "SELECT id, snapshot FROM nodes WHERE gateway_lease = $1 ORDER BY id LIMIT $2",
        )
        .bind(lease)
        .bind(i64::from(limits::CLOSES_PER_SWEEP_MAX))
        .fetch_all(pool),
    )
    .await?;
    let held = rows.into_iter().filter_map(|(id, snapshot)| {
        let node = NodeId::from_uuid(id);
        match canonical::decode::<Node>(&snapshot) {
            Ok(known) => Some((node, known.epoch)),
            Err(error) => {
                let error = chain(&error);
                tracing::error!(%node, error, "nodes.snapshot cannot be read");
                None
            }
        }
    });
    Ok(held.collect())
}
