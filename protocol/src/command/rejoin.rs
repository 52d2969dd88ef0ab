//! What a node's reconnect proves about a command in flight (SPEC D6–D9). What the journal still
//! holds, the daemon itself reports; this is about what the journal no longer holds.

use serde_json::json;

use crate::canonical;
use crate::event::{Body, Ending, Outcome};
use crate::frame::EntryState;

use super::{Command, State};

/// What `Hello` says, next to what the ledger knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejoin {
    /// The journal is not the one the command was sent to.
    pub journal_lost: bool,
    /// The machine has booted since the last session.
    pub new_boot: bool,
    /// What the journal holds of this command.
    pub entry: Option<EntryState>,
}

/// The end that the reconnect proves; nothing when the command is to be replayed or the journal
/// will answer for it.
pub fn decide(command: &Command, rejoin: Rejoin, epoch: u64) -> Option<Body> {
    let accepted = match command.state {
        State::Acked { .. } | State::Running { .. } => true,
        State::Dispatched { .. } => false,
        State::Pending { .. } | State::Settled(_) => return None,
    };
    if rejoin.entry.is_some() {
        return None;
    }
    // A journal never forgets what the ledger may replay, so an accepted command that it does
    // not hold is as lost as the whole journal would be.
    if !rejoin.journal_lost && !accepted {
        return None;
    }
    if accepted && rejoin.new_boot && command.queued.kind == "node.reboot" {
        let result = canonical::from_json(&json!({ "rebooted": true })).ok();
        let ending = Ending {
            reason: None,
            result,
            ..Ending::because(Outcome::Succeeded, "")
        };
        return Some(command.settled(ending, Some(epoch)));
    }
    let replayable = command.queued.retry_safe && !command.queued.self_terminating;
    (!replayable).then(|| {
        command.settled(
            Ending::because(Outcome::Failed, "journal-lost"),
            Some(epoch),
        )
    })
}
