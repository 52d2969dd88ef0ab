//! A command as callers see it (SPEC A7).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ledger_protocol::canonical;
use ledger_protocol::command::{Command, LateResult, State};
use ledger_protocol::event::{CommandSettled, Truncated};
use ledger_protocol::id::{BatchId, CommandId, NodeId, TenantId};
use ledger_protocol::time::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::error::Error;

/// A time as RFC 3339 text.
pub(crate) struct Time(pub(crate) Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Canonical bytes that the ledger holds, as JSON.
fn decoded(bytes: &[u8]) -> Result<Value, Error> {
    canonical::to_json(bytes).map_err(Error::internal)
}

fn decoded_if_any(bytes: Option<&Vec<u8>>) -> Result<Option<Value>, Error> {
    bytes.map(|bytes| decoded(bytes)).transpose()
}

/// A signature as base64.
pub(crate) fn signature(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A command; a field that has nothing to say is absent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandView<'a> {
    id: CommandId,
    tenant_id: TenantId,
    node_id: NodeId,
    seq: u64,
    kind: &'a str,
    lane: &'static str,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
    payload: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_truncated: Option<&'a Truncated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_sig: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late_result: Option<LateView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<Time>,
    not_after: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_generation: Option<u64>,
    timeout_seconds: u32,
    retry_safe: bool,
    self_terminating: bool,
    attested: bool,
    destructive: bool,
    idempotency_key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_id: Option<BatchId>,
    #[serde(skip_serializing_if = "is_false")]
    awaiting_approval: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bundle_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_requested_at: Option<Time>,
    queued_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    dispatched_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    acked_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_at: Option<Time>,
    attempts: u32,
    issued_by: &'a str,
    /// The answer to a retry of `commands.run` (SPEC A2).
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) replayed: bool,
}

/// The node's word that came after the end.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LateView<'a> {
    at: Time,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_truncated: Option<&'a Truncated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_sig: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl<'a> LateView<'a> {
    fn of(late: &'a LateResult) -> Result<Self, Error> {
        let word = &late.word;
        Ok(Self {
            at: Time(late.at),
            state: word.state.as_str(),
            reason: word.reason.as_deref(),
            details: decoded_if_any(word.details.as_ref())?,
            result: decoded_if_any(word.result.as_ref())?,
            result_truncated: word.result_truncated.as_ref(),
            node_sig: word.node_sig.as_deref().map(signature),
        })
    }
}

impl<'a> CommandView<'a> {
    /// The command as it stands.
    pub(crate) fn of(command: &'a Command) -> Result<Self, Error> {
        let queued = &command.queued;
        let settled = match &command.state {
            State::Settled(settled) => Some(settled),
            State::Pending { .. }
            | State::Dispatched { .. }
            | State::Acked { .. }
            | State::Running { .. } => None,
        };
        let (held, not_before) = match command.state {
            State::Pending {
                held, not_before, ..
            } => (held, not_before),
            State::Dispatched { .. }
            | State::Acked { .. }
            | State::Running { .. }
            | State::Settled(_) => (false, queued.not_before),
        };
        let end: Option<&CommandSettled> = settled.map(|settled| &settled.end);
        let late = settled.and_then(|settled| settled.late.as_ref());
        Ok(Self {
            id: command.id,
            tenant_id: command.tenant,
            node_id: queued.node_id,
            seq: queued.seq,
            kind: &queued.kind,
            lane: queued.lane.as_str(),
            state: command.state_name().as_str(),
            reason: end.and_then(|end| end.reason.as_deref()),
            details: decoded_if_any(end.and_then(|end| end.details.as_ref()))?,
            payload: decoded(&queued.payload)?,
            result: decoded_if_any(end.and_then(|end| end.result.as_ref()))?,
            result_truncated: end.and_then(|end| end.result_truncated.as_ref()),
            node_sig: end.and_then(|end| end.node_sig.as_deref()).map(signature),
            late_result: late.map(LateView::of).transpose()?,
            not_before: not_before.map(Time),
            not_after: Time(queued.not_after),
            min_generation: queued.min_generation,
            timeout_seconds: queued.timeout_seconds,
            retry_safe: queued.retry_safe,
            self_terminating: queued.self_terminating,
            attested: queued.attested,
            destructive: queued.destructive,
            idempotency_key: &queued.idempotency_key,
            batch_id: queued.batch_id,
            awaiting_approval: held,
            bundle_key: queued.bundle_key.as_deref(),
            cancel_requested_at: command.cancel_requested_at.map(Time),
            queued_at: Time(command.queued_at),
            dispatched_at: command.dispatched_at.map(Time),
            acked_at: command.acked_at.map(Time),
            running_at: command.running_at.map(Time),
            settled_at: settled.map(|settled| Time(settled.at)),
            attempts: command.attempts,
            issued_by: command.issued_by.as_str(),
            replayed: false,
        })
    }
}
