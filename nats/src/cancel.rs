//! The state that a cancel request left its command in.
//!
//! The event does not say it, and the read tables may have moved on, so it is folded from the
//! command's own events up to the request: the same answer whenever it is published.

use ledger_projections::{commands, log};
use ledger_protocol::command::{Command, StateName};
use ledger_protocol::event::{Event, Outcome};
use ledger_protocol::time::Timestamp;
use sqlx::PgConnection;

use crate::Error;

/// The state after the cancel request `event`, which stands at `position`: `cancelled` when it
/// waited, else where it was in flight.
pub(crate) async fn state_after(
    conn: &mut PgConnection,
    event: &Event,
    position: u64,
) -> Result<StateName, Error> {
    let mut before = Vec::new();
    for recorded in log::stream(conn, event.stream).await? {
        if recorded.position >= position {
            break;
        }
        let position = recorded.position;
        let earlier = Event::decode(&recorded.bytes)
            .map_err(|source| Error::Unreadable { position, source })?;
        before.push(earlier);
    }
    let first = before.first().unwrap_or(event);
    if first.version == 1 {
        return fold(&before, position);
    }
    // Its first events have left the database.
    let command = match event.command_id() {
        Some(command) => commands::get(conn, command).await?,
        None => None,
    };
    Ok(from_row(command.as_ref(), event))
}

/// What the command's row says of the time of the request. Of a command that has left the tables, too,
/// only that its end is long past: then the least that can have been.
fn from_row(command: Option<&Command>, request: &Event) -> StateName {
    let by_then = |at: Option<Timestamp>| at.is_some_and(|at| at <= request.at);
    match command {
        Some(command) if by_then(command.running_at) => StateName::Running,
        Some(command) if by_then(command.acked_at) => StateName::Acked,
        Some(command) if !by_then(command.dispatched_at) => StateName::Ended(Outcome::Cancelled),
        Some(_) | None => StateName::Dispatched,
    }
}

fn fold(before: &[Event], position: u64) -> Result<StateName, Error> {
    let mut command = None;
    for event in before {
        let next = Command::evolve(command, event)
            .map_err(|source| Error::Corrupt { position, source })?;
        command = Some(next);
    }
    match command.as_ref().map(Command::state_name) {
        // Its end is in the same append.
        Some(StateName::Pending) => Ok(StateName::Ended(Outcome::Cancelled)),
        Some(state) => Ok(state),
        None => Err(Error::Gap { position }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn n_a_pending_command_is_cancelled_and_one_in_flight_stays_so() {
        let queued = testing::queued("api:1");
        assert_eq!(
            fold(std::slice::from_ref(&queued), 2).unwrap(),
            StateName::Ended(Outcome::Cancelled)
        );
        let dispatched = testing::dispatched(&queued, 2);
        assert_eq!(
            fold(&[queued, dispatched], 3).unwrap(),
            StateName::Dispatched
        );
        assert!(fold(&[], 1).is_err());
    }
}
