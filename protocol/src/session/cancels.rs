//! The cancels that a session still owes its node (SPEC D12): sent until the command has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::frame::{Cancel, Frame};
use crate::id::CommandId;

/// Time after which a cancel is sent again.
const REPEAT: Duration = Duration::from_secs(5);

/// The commands of one session that were asked to stop and have not ended. As many as the node
/// has in flight at most.
#[derive(Debug, Clone, Default)]
pub struct Cancels {
    due: BTreeMap<CommandId, Duration>,
}

impl Cancels {
    /// Somebody asked for this command to stop; the first `Cancel` is due at once.
    pub fn request(&mut self, command: CommandId) {
        self.due.entry(command).or_insert(Duration::ZERO);
    }

    /// The command was asked to stop in this session already, at `elapsed`.
    pub fn sent(&mut self, command: CommandId, elapsed: Duration) {
        self.due.insert(command, elapsed + REPEAT);
    }

    /// The command has ended.
    pub fn ended(&mut self, command: CommandId) {
        self.due.remove(&command);
    }

    /// The frames that are due by now; each is due again later.
    pub fn take_due(&mut self, elapsed: Duration) -> Vec<Frame> {
        let mut frames = Vec::new();
        for (&command_id, due) in &mut self.due {
            if *due <= elapsed {
                *due = elapsed + REPEAT;
                frames.push(Frame::Cancel(Cancel { command_id }));
            }
        }
        frames
    }

    /// Whether nothing is owed.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn d12_a_cancel_is_repeated_until_the_command_has_ended() {
        let id = CommandId::new(Timestamp::from_micros(1), [1; 10]);
        let cancel = vec![Frame::Cancel(Cancel { command_id: id })];
        let mut cancels = Cancels::default();
        let second = Duration::from_secs(1);
        cancels.request(id);
        assert_eq!(cancels.take_due(second), cancel);
        cancels.request(id);
        assert_eq!(cancels.take_due(2 * second), []);
        assert_eq!(cancels.take_due(second + REPEAT), cancel);
        cancels.ended(id);
        assert_eq!(cancels.take_due(100 * second), []);
        assert!(cancels.is_empty());
    }
}
