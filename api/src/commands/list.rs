//! `commands.list`: a node's commands, newest first (SPEC A4).

use std::sync::Arc;

use ledger_projections::commands::{self, List};
use ledger_protocol::command::StateName;
use ledger_protocol::id::NodeId;
use serde::Serialize;

use super::view::CommandView;
use crate::Api;
use crate::auth::{Caller, Permission};
use crate::error::Error;
use crate::input::Input;
use crate::methods::{Answer, render};

#[derive(Serialize)]
struct Page<'a> {
    items: Vec<CommandView<'a>>,
    /// `seq` of the last item; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<u64>,
}

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    let names = StateName::ALL.map(StateName::as_str);
    let state = input.optional_word("state", &names, StateName::parse)?;
    let limit = input.page_limit()?;
    let before_seq = input.seq_cursor()?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesRead, node, None)
        .await?;
    let known = crate::nodes::in_view(&api, &caller, node).await?;
    if let Some(cursor) = before_seq.filter(|cursor| *cursor > known.seq) {
        return Err(Error::not_found(format!("cursor {cursor}")));
    }
    // One more than is shown tells whether there is another page.
    let list = List {
        node,
        state,
        limit: limit + 1,
        before_seq,
    };
    let mut found = commands::list(&mut *api.connection().await?, &list).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let cursor = found.last().filter(|_| more).map(|last| last.queued.seq);
    let items = found
        .iter()
        .map(CommandView::of)
        .collect::<Result<_, _>>()?;
    render(&Page { items, cursor })
}
