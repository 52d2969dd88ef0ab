//! End a command whose time has passed (SPEC T2, K2, S3).

use serde_json::json;

use crate::canonical;
use crate::event::{Body, Ending, Outcome};
use crate::refusal::Refusal;
use crate::time::Timestamp;

use super::{Command, State};

/// The end that time has decided, or why it has not. `timeout_seconds` is the command's own, or
/// that of an unregistered kind.
pub fn decide(command: &Command, timeout_seconds: u32, now: Timestamp) -> Result<Body, Refusal> {
    let not_after = command.queued.not_after;
    let timeout_at = not_after.plus_seconds(timeout_seconds);
    let (until, phase) = match command.state {
        State::Pending { .. } => (not_after, None),
        State::Dispatched { .. } => (timeout_at, Some("delivered")),
        State::Acked { .. } => (timeout_at, Some("accepted")),
        State::Running { .. } => (timeout_at, Some("started")),
        State::Settled(_) => {
            return Err(Refusal::NotPending {
                state: command.state_name(),
            });
        }
    };
    if now <= until {
        return Err(Refusal::NotOverdue { until });
    }
    let ending = match phase {
        None => Ending::because(Outcome::Expired, "not_after"),
        Some(phase) => Ending {
            details: canonical::from_json(&json!({ "phase": phase })).ok(),
            ..Ending::because(Outcome::Failed, "timeout")
        },
    };
    Ok(command.settled(ending, None))
}
