//! `commandBatches.scope`: what a batch allows, leaf by leaf in the order of its tree, so that an
//! approver can compute the root that is to be signed (SPEC P3).

use std::sync::Arc;

use ledger_projections::batches;
use ledger_protocol::batch::Leaf;
use ledger_protocol::id::BatchId;
use ledger_protocol::limits::SCOPE_LEAVES_MAX;
use serde::Serialize;

use crate::Api;
use crate::auth::Caller;
use crate::input::Input;
use crate::methods::{Answer, render};

#[derive(Serialize)]
struct Page {
    items: Vec<Leaf>,
    /// How many leaves came up to here; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<u64>,
}

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let batch: BatchId = input.id("batchId")?;
    let limit = input.page_limit()?;
    let from = input.optional_u32(
        "cursor",
        1..=u32::try_from(SCOPE_LEAVES_MAX).unwrap_or(u32::MAX),
    )?;
    input.finish()?;
    caller.check_tenant(tenant)?;
    super::check_reader(&caller)?;
    let batch = super::in_view(&api, &caller, batch).await?;
    let from = from.unwrap_or(0);
    let items = batches::leaves(&mut *api.connection().await?, batch.id, from, limit).await?;
    let next = u64::from(from) + items.len() as u64;
    render(&Page {
        items,
        cursor: (next < batch.created.leaf_count).then_some(next),
    })
}
