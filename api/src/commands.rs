//! `commands.*`: queue, see and cancel commands (SPEC A1-A7).

use ledger_projections::commands;
use ledger_protocol::command::Command;
use ledger_protocol::id::{CommandId, NodeId};

use crate::Api;
use crate::auth::Caller;
use crate::error::Error;

pub(crate) mod cancel;
pub(crate) mod get;
pub mod idempotency;
pub(crate) mod list;
pub(crate) mod run;
pub(crate) mod timeline;
pub(crate) mod view;

/// The command, when it is one of this node and in the caller's view (SPEC A6).
async fn in_view(
    api: &Api,
    caller: &Caller,
    node: NodeId,
    command: CommandId,
) -> Result<Command, Error> {
    let found = commands::get(&mut *api.connection().await?, command).await?;
    found
        .filter(|found| found.tenant == caller.tenant && found.node_id() == node)
        .ok_or_else(|| Error::not_found(format!("command {command}")))
}
