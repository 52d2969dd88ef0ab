//! `commands.run`: queue a command (SPEC A1, A2, K1).

use std::sync::Arc;

use ledger::Run;
use ledger_protocol::id::{BatchId, NodeId};
use ledger_protocol::limits::{
    IDEMPOTENCY_KEY_CHARS_MAX, NOT_AFTER_SECONDS_DEFAULT, NOT_AFTER_SECONDS_MAX,
    NOT_AFTER_SECONDS_MIN,
};
use serde_json::{Map, Value, json};

use super::idempotency::derived_key;
use super::view::CommandView;
use crate::Api;
use crate::auth::{Caller, Permission};
use crate::error::{Error, quoted};
use crate::input::Input;
use crate::limits::KIND_BYTES_MAX;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    let kind = input.name("kind", KIND_BYTES_MAX)?;
    let payload = input.optional_object("payload")?.unwrap_or_default();
    let key = input.printable("idempotencyKey", 1..=IDEMPOTENCY_KEY_CHARS_MAX)?;
    let wait = NOT_AFTER_SECONDS_MIN..=NOT_AFTER_SECONDS_MAX;
    let wait = input.optional_u32("notAfterSeconds", wait)?;
    let wait = wait.unwrap_or(NOT_AFTER_SECONDS_DEFAULT);
    let batch: Option<BatchId> = input.optional_id("batchId")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesExec, node, Some(&kind))
        .await?;
    check_kind(&api, &kind)?;
    let run = Run {
        tenant,
        node,
        idempotency_key: derived_key(tenant, &caller.identity, &key),
        kind,
        payload: Value::Object(payload),
        not_after: api.ledger().now().plus_seconds(wait),
        not_before: None,
        min_generation: None,
        batch_id: batch,
    };
    let queued = api.ledger().enqueue(&caller.actor, run).await?;
    let mut view = CommandView::of(&queued.command)?;
    view.replayed = queued.replayed;
    render(&view)
}

fn check_kind(api: &Api, kind: &str) -> Result<(), Error> {
    let registry = api.ledger().registry();
    if registry.get(kind).is_some_and(|kind| kind.api) {
        return Ok(());
    }
    let accepted = registry.iter().filter(|kind| kind.api);
    let accepted: Vec<&str> = accepted.map(|kind| kind.name.as_ref()).collect();
    let mut details = Map::new();
    details.insert("field".to_owned(), json!("kind"));
    details.insert("accepted".to_owned(), json!(accepted));
    Err(Error::Unsupported {
        message: format!(
            "kind {} is not one that commands.run accepts: {}",
            quoted(kind),
            accepted.join(", ")
        ),
        details,
    })
}
