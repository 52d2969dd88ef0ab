//! One sweep over everything that is overdue (SPEC T2).

use std::collections::HashSet;

use futures_util::{StreamExt as _, stream};
use ledger::{Fence, Ledger};
use ledger_protocol::event::Actor;
use ledger_protocol::id::CommandId;

use crate::error::{Error, chain};
use crate::limits;
use crate::overdue::{self, Candidate, Cursor};

/// What a sweep did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Commands that it ended.
    pub(crate) ended: u64,
    /// Commands of approved batches that it let go, because nobody else had.
    pub(crate) released: u64,
    /// Commands that changed before it could: somebody else's word was first.
    pub(crate) overtaken: u64,
    /// Commands that could not be ended.
    pub(crate) failed: u64,
    /// Of these, the ones that were not told of before.
    pub(crate) told: u64,
}

/// A sweeper's memory from one sweep to the next.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    /// Commands that the last sweep could not end, which it has told of.
    poisoned: HashSet<CommandId>,
    /// How many approved commands the last sweep could not release, which it has told of.
    unreleased: u64,
}

enum End {
    Ended,
    Overtaken,
    Failed(CommandId, String),
}

impl Sweeper {
    /// Lets go what approved batches still hold, and ends every command whose time has passed. A command that cannot be ended, for whatever
    /// reason, is told of once and passed over; only the loss of the lease ends a sweep early, or a
    /// database that cannot even be asked.
    pub(crate) async fn sweep(&mut self, ledger: &Ledger, fence: &Fence) -> Result<Swept, Error> {
        let now = ledger.now();
        let mut swept = Swept::default();
        self.release(ledger, &mut swept).await?;
        let mut poisoned = HashSet::new();
        let mut cursor = Some(Cursor::START);
        while let Some(after) = cursor {
            let (candidates, next) = overdue::page(ledger.pool(), now, after).await?;
            cursor = next;
            let mut ends = stream::iter(candidates)
                .filter_map(|candidate| async move {
                    let decided = match &candidate.command {
                        Ok(command) => overdue::is_decided(command, ledger.registry(), now),
                        Err(_) => true,
                    };
                    decided.then(|| end(ledger, fence, candidate))
                })
                .buffer_unordered(limits::APPENDS_AT_ONCE)
                .boxed();
            while let Some(end) = ends.next().await {
                match end? {
                    End::Ended => swept.ended += 1,
                    End::Overtaken => swept.overtaken += 1,
                    End::Failed(command, problem) => {
                        swept.failed += 1;
                        let room = poisoned.len() < limits::POISONED_MAX;
                        if room && poisoned.insert(command) && !self.poisoned.contains(&command) {
                            swept.told += 1;
                            tracing::error!(%command, problem, "an overdue command cannot be ended");
                        }
                    }
                }
            }
        }
        self.poisoned = poisoned;
        Ok(swept)
    }
}

impl Sweeper {
    async fn release(&mut self, ledger: &Ledger, swept: &mut Swept) -> Result<(), Error> {
        let (released, failed) = match ledger.release_approved(&Actor::sweeper(), None).await {
            Ok(done) => (done.released, done.failed),
            Err(ledger::Error::Closed) => return Err(ledger::Error::Closed.into()),
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "what was approved cannot be looked for"
                );
                return Ok(());
            }
        };
        swept.released = released;
        if failed > self.unreleased {
            tracing::error!(commands = failed, "approved commands cannot be released");
        }
        self.unreleased = failed;
        Ok(())
    }
}

async fn end(ledger: &Ledger, fence: &Fence, candidate: Candidate) -> Result<End, Error> {
    let id = candidate.id;
    let command = match candidate.command {
        Ok(command) => command,
        Err(error) => {
            return Ok(End::Failed(
                id,
                format!("commands_live.snapshot: {}", chain(&error)),
            ));
        }
    };
    match ledger.expire(fence, &command).await {
        Ok(_) => Ok(End::Ended),
        // The row was read without a lock; the append decided on what is true now (SPEC L3).
        Err(ledger::Error::Refused(_)) => Ok(End::Overtaken),
        Err(ledger::Error::Fenced) => Err(Error::Fenced),
        Err(ledger::Error::Closed) => Err(ledger::Error::Closed.into()),
        Err(error) => Ok(End::Failed(id, chain(&error))),
    }
}
