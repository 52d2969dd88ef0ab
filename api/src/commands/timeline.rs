//! `commands.timeline`: every event of one command, as the ledger holds it.

use std::sync::Arc;

use ledger_projections::log;
use ledger_protocol::event::{Body, Event, Stream};
use ledger_protocol::id::{CommandId, EventId, NodeId};
use ledger_protocol::time::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::view::{Time, signature};
use crate::Api;
use crate::auth::{Caller, Permission};
use crate::error::Error;
use crate::input::Input;
use crate::methods::{Answer, render};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Timeline {
    /// How many events have left the database for the archive: the first ones.
    #[serde(skip_serializing_if = "is_none")]
    archived_events: u64,
    events: Vec<EventView>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_none(number: &u64) -> bool {
    *number == 0
}

#[derive(Serialize)]
struct EventView {
    position: u64,
    id: EventId,
    #[serde(rename = "type")]
    event_type: &'static str,
    version: u64,
    at: Time,
    actor: String,
    body: Value,
}

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let node: NodeId = input.id("nodeId")?;
    let command: CommandId = input.id("commandId")?;
    input.finish()?;

    caller.check_tenant(tenant)?;
    caller
        .require_node(&api, Permission::NodesRead, node, None)
        .await?;
    let found = super::in_view(&api, &caller, node, command).await?;
    let recorded = log::stream(&mut *api.connection().await?, Stream::Command(command)).await?;
    let event = |recorded: &log::Recorded| {
        let event = Event::decode(&recorded.bytes).map_err(Error::internal)?;
        Ok::<_, Error>(EventView {
            position: recorded.position,
            id: event.id,
            event_type: event.body.type_name(),
            version: event.version,
            at: Time(event.at),
            actor: event.actor.to_string(),
            body: body(&event.body),
        })
    };
    let events: Vec<_> = recorded.iter().map(event).collect::<Result<_, _>>()?;
    // Versions are gapless, and what leaves is what is oldest.
    let first = events
        .first()
        .map_or(found.version + 1, |first| first.version);
    render(&Timeline {
        archived_events: first.saturating_sub(1),
        events,
    })
}

/// The body with its times and signature as everywhere else in the API.
fn body(body: &Body) -> Value {
    let mut json = body.to_json();
    let mut time = |field: &str, at: Option<Timestamp>| {
        if let Some(at) = at {
            json[field] = json!(at.to_string());
        }
    };
    match body {
        Body::CommandQueued(queued) => {
            time("notAfter", Some(queued.not_after));
            time("notBefore", queued.not_before);
        }
        Body::CommandReleased(released) => time("notBefore", Some(released.not_before)),
        Body::CommandReturned(returned) => time("retryAt", Some(returned.retry_at)),
        Body::CommandSettled(end) => {
            if let Some(bytes) = &end.node_sig {
                json["nodeSig"] = json!(signature(bytes));
            }
        }
        Body::CommandLateResult(word) => {
            if let Some(bytes) = &word.node_sig {
                json["nodeSig"] = json!(signature(bytes));
            }
        }
        Body::CommandDispatched(_)
        | Body::CommandAcked(_)
        | Body::CommandRunning(_)
        | Body::CommandCancelRequested(_)
        | Body::NodeRegistered(_)
        | Body::NodeSessionOpened(_)
        | Body::NodeSessionClosed(_)
        | Body::NodeCertified(_)
        | Body::NodeCertificateRevoked(_)
        | Body::NodeSpecSet(_)
        | Body::NodeGenerationApplied(_)
        | Body::NodeDeleted(_)
        | Body::BatchCreated(_)
        | Body::BatchApproved(_) => {}
    }
    json
}
