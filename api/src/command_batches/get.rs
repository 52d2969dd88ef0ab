//! `commandBatches.get`: one batch, as it stands (SPEC A10).

use std::sync::Arc;

use ledger_protocol::id::BatchId;

use super::view::BatchView;
use crate::Api;
use crate::auth::Caller;
use crate::input::Input;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let batch: BatchId = input.id("batchId")?;
    input.finish()?;
    caller.check_tenant(tenant)?;
    super::check_reader(&caller)?;
    let batch = super::in_view(&api, &caller, batch).await?;
    render(&BatchView::of(&batch, api.ledger().now()))
}
