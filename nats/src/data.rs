//! The data of an event, as JSON for subscribers (SPEC section 9).
//!
//! What a subscriber needs to know which command or node did what; payloads, results and desired
//! states stay in the ledger, where reading them asks for a permission.

use ledger_protocol::command::StateName;
use ledger_protocol::event::{Body, Event, Outcome};
use ledger_protocol::id::{CommandId, NodeId};
use serde_json::{Map, Value, json};

/// The data of the event at `position`. `cancelled_in` is the state that a cancel request left its
/// command in, and is of no use to any other event.
pub(crate) fn data(event: &Event, position: u64, cancelled_in: Option<StateName>) -> Value {
    let command = |node: NodeId, kind: &str, seq: u64, state: StateName| {
        let id = event.command_id().map(|id: CommandId| id.to_string());
        json!({
            "commandId": id, "nodeId": node, "kind": kind, "seq": seq, "state": state.as_str(),
        })
    };
    let pending = StateName::Pending;
    let (about, more) = match &event.body {
        Body::CommandQueued(b) => (
            command(b.node_id, &b.kind, b.seq, pending),
            json!({
                "lane": b.lane.as_str(),
                "notAfter": b.not_after.to_string(),
                "notBefore": b.not_before.map(|at| at.to_string()),
                "minGeneration": b.min_generation,
                "batchId": b.batch_id,
                "awaitingApproval": b.held.then_some(true),
                "timeoutSeconds": b.timeout_seconds,
            }),
        ),
        Body::CommandReleased(b) => (
            command(b.node_id, &b.kind, b.seq, pending),
            json!({ "notBefore": b.not_before.to_string() }),
        ),
        Body::CommandDispatched(b) => (
            command(b.node_id, &b.kind, b.seq, StateName::Dispatched),
            json!({ "attempt": b.attempt, "epoch": b.epoch }),
        ),
        Body::CommandReturned(b) => (
            command(b.node_id, &b.kind, b.seq, pending),
            json!({ "epoch": b.epoch, "reason": b.reason, "retryAt": b.retry_at.to_string() }),
        ),
        Body::CommandAcked(b) => (
            command(b.node_id, &b.kind, b.seq, StateName::Acked),
            json!({ "epoch": b.epoch, "sentEpoch": b.sent_epoch }),
        ),
        Body::CommandRunning(b) => (
            command(b.node_id, &b.kind, b.seq, StateName::Running),
            json!({ "epoch": b.epoch, "sentEpoch": b.sent_epoch }),
        ),
        Body::CommandCancelRequested(b) => (
            command(b.node_id, &b.kind, b.seq, cancelled_in.unwrap_or(pending)),
            json!({}),
        ),
        Body::CommandSettled(b) => {
            let mut about = command(b.node_id, &b.kind, b.seq, StateName::Ended(b.state));
            // Always there, so that a subscriber finds the same fields in every one.
            about["reason"] = json!(b.reason);
            (about, json!({}))
        }
        Body::CommandLateResult(b) => {
            let said: Outcome = b.state;
            let about = command(b.node_id, &b.kind, b.seq, StateName::Ended(said));
            (about, json!({ "epoch": b.epoch, "reason": b.reason }))
        }
        Body::NodeRegistered(b) => (
            node(event),
            json!({ "name": b.name, "role": b.role.as_str(), "labels": b.labels }),
        ),
        Body::NodeSessionOpened(b) => (
            node(event),
            json!({
                "epoch": b.epoch,
                "gateway": b.gateway,
                "gatewayLease": b.gateway_lease,
                "agentVersion": b.agent_version,
                "appliedGeneration": b.applied_generation,
                "bootId": b.boot_id,
                "journalId": b.journal_id,
                "journalLost": b.journal_lost,
                "role": b.role.as_str(),
                "seqLifted": b.seq_lifted,
            }),
        ),
        Body::NodeSessionClosed(b) => {
            (node(event), json!({ "epoch": b.epoch, "reason": b.reason }))
        }
        Body::NodeCertified(b) => (
            node(event),
            json!({
                "fingerprint": b.fingerprint,
                "notBefore": b.not_before.to_string(),
                "notAfter": b.not_after.to_string(),
                "allowedKinds": b.allowed_kinds,
                "renews": b.renews,
            }),
        ),
        Body::NodeCertificateRevoked(b) => (
            node(event),
            json!({ "fingerprint": b.fingerprint, "reason": b.reason }),
        ),
        Body::NodeSpecSet(b) => (node(event), json!({ "generation": b.generation })),
        Body::NodeGenerationApplied(b) => (
            node(event),
            json!({ "epoch": b.epoch, "generation": b.generation }),
        ),
        Body::NodeDeleted(_) => (node(event), json!({})),
        Body::BatchCreated(b) => (
            batch(event),
            json!({
                "reason": b.reason,
                "leafCount": b.leaf_count,
                "quorum": b.quorum,
                "root": event.body.to_json()["root"],
                "expiresAt": b.expires_at.to_string(),
            }),
        ),
        Body::BatchApproved(b) => (
            batch(event),
            json!({ "approver": b.approver, "key": b.key.to_string() }),
        ),
    };
    let mut data = fields(about);
    // A field that says nothing is left out, as everywhere in the API.
    data.extend(
        fields(more)
            .into_iter()
            .filter(|(_, value)| !value.is_null()),
    );
    data.insert("tenantId".to_owned(), json!(event.tenant));
    data.insert("position".to_owned(), json!(position));
    Value::Object(data)
}

fn node(event: &Event) -> Value {
    json!({ "nodeId": event.node_id() })
}

fn batch(event: &Event) -> Value {
    json!({ "batchId": event.stream })
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn keys(value: &Value) -> Vec<&str> {
        let mut keys: Vec<_> = value
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn n_a_settled_command_says_what_the_specification_lists() {
        let [queued, _, settled] = testing::cancelled_while_pending();
        let data = data(&settled, 9, None);
        assert_eq!(
            keys(&data),
            [
                "commandId",
                "kind",
                "nodeId",
                "position",
                "reason",
                "seq",
                "state",
                "tenantId"
            ]
        );
        assert_eq!(data["state"], "cancelled");
        assert_eq!(data["reason"], Value::Null);
        assert_eq!(data["position"], 9);
        assert_eq!(data["seq"], 1);
        assert_eq!(data["commandId"], queued.stream.to_string());
        assert_eq!(data["nodeId"], queued.node_id().unwrap().to_string());
        assert_eq!(data["tenantId"], queued.tenant.to_string());
    }

    #[test]
    fn n_a_cancel_request_says_where_the_command_stands() {
        let [_, requested, _] = testing::cancelled_while_pending();
        let data = data(&requested, 2, Some(StateName::Running));
        assert_eq!(
            keys(&data),
            [
                "commandId",
                "kind",
                "nodeId",
                "position",
                "seq",
                "state",
                "tenantId"
            ]
        );
        assert_eq!(data["state"], "running");
    }

    #[test]
    fn n_a_queued_command_has_times_as_text_and_no_payload() {
        let data = data(&testing::queued("wf:7:a"), 1, None);
        assert_eq!(
            keys(&data),
            [
                "commandId",
                "kind",
                "lane",
                "nodeId",
                "notAfter",
                "position",
                "seq",
                "state",
                "tenantId",
                "timeoutSeconds"
            ]
        );
        assert_eq!(data["notAfter"], "2025-11-30T08:16:40.123456Z");
        assert_eq!(data["lane"], "control");
    }
}
