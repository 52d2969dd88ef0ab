//! `commandBatches.list`: a tenant's batches, newest first (SPEC A10).

use std::sync::Arc;

use ledger_projections::batches;
use ledger_protocol::id::BatchId;
use serde::Serialize;

use super::view::BatchView;
use crate::Api;
use crate::auth::Caller;
use crate::input::Input;
use crate::methods::{Answer, render};

#[derive(Serialize)]
struct Page<'a> {
    items: Vec<BatchView<'a>>,
    /// Id of the last item; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<BatchId>,
}

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let limit = input.page_limit()?;
    let before: Option<BatchId> = input.optional_id("cursor")?;
    input.finish()?;
    caller.check_tenant(tenant)?;
    super::check_reader(&caller)?;
    if let Some(cursor) = before {
        super::in_view(&api, &caller, cursor).await?;
    }
    let page = batches::list(&mut *api.connection().await?, tenant, before, limit + 1).await?;
    let now = api.ledger().now();
    let shown = page.len().min(limit as usize);
    let cursor = page[..shown].last().filter(|_| page.len() > shown);
    let items = page[..shown].iter().map(|batch| BatchView::of(batch, now));
    render(&Page {
        items: items.collect(),
        cursor: cursor.map(|batch| batch.id),
    })
}
