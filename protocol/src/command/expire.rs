//! End a command whose time has passed (SPEC T2, K2, S3).

use crate::event::{Body, Ending, Outcome};
use crate::refusal::Refusal;
use crate::time::Timestamp;

use super::{Command, State};

/// The end that time has decided, or why it has not. `timeout_seconds` is the command's own, or
/// that of an unregistered kind.
pub fn decide(command: &Command, timeout_seconds: u32, now: Timestamp) -> Result<Body, Refusal> {
    let not_after = command.queued.not_after;
    let timeout_at = not_after.plus_seconds(timeout_seconds);
    let phase = command.phase();
    let until = match (&command.state, phase) {
        (State::Settled(_), _) => {
            return Err(Refusal::NotPending {
                state: command.state_name(),
            });
        }
        (_, None) => not_after,
        (_, Some(_)) => timeout_at,
    };
    if now <= until {
        return Err(Refusal::NotOverdue { until });
    }
    Ok(match phase {
        None => command.settled(Ending::because(Outcome::Expired, "not_after"), None),
        Some(phase) => command.unheard(phase, "timeout"),
    })
}
