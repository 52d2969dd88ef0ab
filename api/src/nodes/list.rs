//! `nodes.list`: a tenant's nodes, by id (SPEC A11).

use std::sync::Arc;

use ledger_projections::nodes;
use ledger_protocol::id::NodeId;
use serde::Serialize;

use super::view::NodeView;
use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::error::Error;
use crate::input::Input;
use crate::methods::{Answer, render};

#[derive(Serialize)]
struct Page<'a> {
    items: Vec<NodeView<'a>>,
    /// Id of the last item; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<NodeId>,
}

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let limit = input.page_limit()?;
    let after: Option<NodeId> = input.optional_id("cursor")?;
    let include_deleted = input.flag("includeDeleted")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller.require(Permission::NodesRead, Resource::EveryNode)?;
    if let Some(cursor) = after {
        let in_view = super::in_view(&api, &caller, cursor).await;
        in_view.map_err(|error| match error {
            Error::NotFound { .. } => Error::not_found(format!("cursor {cursor}")),
            other => other,
        })?;
    }
    let mut connection = api.connection().await?;
    // One more than is shown tells whether there is another page.
    let found = nodes::list(&mut connection, tenant, after, limit + 1, include_deleted);
    let mut found = found.await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let cursor = found.last().filter(|_| more).map(|last| last.id);
    render(&Page {
        items: found.iter().map(NodeView::of).collect(),
        cursor,
    })
}
