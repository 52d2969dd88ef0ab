//! The state that a cancel request left its command in.
//!
//! The event does not say it, and the read tables may have moved on, so it is folded from the
//! command's own events up to the request: the same answer whenever it is published.

use ledger_projections::log;
use ledger_protocol::command::{Command, StateName};
use ledger_protocol::event::{Event, Outcome};
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
    fold(&before, position)
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
