//! `commandBatches.*`: destructive commands that need the approval of others (SPEC A10, P3).

use ledger_projections::batches;
use ledger_protocol::batch::Batch;
use ledger_protocol::id::BatchId;

use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::error::Error;

pub(crate) mod approve;
pub(crate) mod create;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod scope;
mod view;

pub(crate) use view::BatchView;

/// Who proposes, approves, or sees every node may see batches.
fn check_reader(caller: &Caller) -> Result<(), Error> {
    let (create, approve) = (Permission::BatchesCreate, Permission::BatchesApprove);
    caller
        .require(approve, Resource::Everything)
        .or_else(|_| caller.require(create, Resource::Everything))
        .or_else(|_| caller.require(Permission::NodesRead, Resource::EveryNode))
}

/// The batch, when it is in the caller's view (SPEC A6).
async fn in_view(api: &Api, caller: &Caller, batch: BatchId) -> Result<Batch, Error> {
    let found = batches::get(&mut *api.connection().await?, batch).await?;
    found
        .filter(|found| found.tenant == caller.tenant)
        .ok_or_else(|| Error::not_found(format!("batch {batch}")))
}
