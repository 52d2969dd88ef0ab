//! Questions for secrets, from the executors to the machine, and their answers (SPEC P6).

use std::collections::{HashMap, VecDeque};

use ledger_protocol::daemon::Input;
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::secret::OneTimeKey;
use tokio::sync::{mpsc, oneshot};

use crate::limits::SECRETS_WANTED_MAX;
use crate::secrets::{Answer, Secrets, Wanted};

#[derive(Debug)]
pub(super) struct Questions {
    asking: mpsc::Sender<Wanted>,
    asked: mpsc::Receiver<Wanted>,
    /// Not answered yet. An executor asks for one secret at a time, so there are no more of them than
    /// commands that run.
    open: HashMap<OneTimeKey, (CommandId, oneshot::Sender<Answer>)>,
}

impl Questions {
    pub(super) fn new() -> Self {
        let (asking, asked) = mpsc::channel(SECRETS_WANTED_MAX);
        Self {
            asking,
            asked,
            open: HashMap::new(),
        }
    }

    /// What the executor of this command asks with.
    pub(super) fn of(&self, node: NodeId, command: CommandId) -> Secrets {
        Secrets::new(node, command, self.asking.clone())
    }

    /// The next question. May be dropped at any time without losing anything.
    pub(super) async fn next(&mut self) -> Wanted {
        match self.asked.recv().await {
            Some(wanted) => wanted,
            // Cannot be: this holds a sender itself.
            None => std::future::pending().await,
        }
    }

    pub(super) fn take_in(&mut self, wanted: Wanted, inbox: &mut VecDeque<Input>) {
        let (command_id, key) = (wanted.command_id, wanted.key);
        let (input, answer) = wanted.split();
        self.open.insert(key, (command_id, answer));
        inbox.push_back(input);
    }

    /// Gives an answer to who asked, unless that waits no longer.
    pub(super) fn answer(&mut self, command: CommandId, key: OneTimeKey, answer: Answer) {
        if self.open.get(&key).is_some_and(|(of, _)| *of == command)
            && let Some((_, to)) = self.open.remove(&key)
        {
            // An executor that has given up has nothing to do with it.
            drop(to.send(answer));
        }
    }

    /// Forgets what a command asked that has ended.
    pub(super) fn forget(&mut self, command: CommandId) {
        self.open.retain(|_, (of, _)| *of != command);
    }
}
