//! Which workflow a command belongs to, remembered between its transitions.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ledger_projections::commands;
use ledger_protocol::event::{Body, Event};
use ledger_protocol::id::CommandId;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;
use crate::limits::WORKFLOWS_MAX;
use crate::subject::workflow_of;

/// A bounded memory of commands' workflows; what it forgot is asked of the read tables again.
#[derive(Debug, Default)]
pub(crate) struct Workflows {
    known: HashMap<CommandId, Option<Arc<str>>>,
    /// The commands in the order in which they came; the oldest is forgotten first.
    order: VecDeque<CommandId>,
}

impl Workflows {
    /// Makes sure that the workflows of these events' commands are known.
    pub(crate) async fn learn<'a>(
        &mut self,
        conn: &mut PgConnection,
        events: impl Iterator<Item = &'a Event>,
    ) -> Result<(), Error> {
        let mut unknown: Vec<Uuid> = Vec::new();
        for event in events {
            let Some(command) = event.command_id() else {
                continue;
            };
            if let Body::CommandQueued(queued) = &event.body {
                self.remember(command, &queued.idempotency_key);
            } else if !self.known.contains_key(&command) {
                unknown.push(command.uuid());
            }
        }
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return Ok(());
        }
        for command in commands::get_many(conn, &unknown).await? {
            self.remember(command.id, &command.queued.idempotency_key);
        }
        Ok(())
    }

    /// The workflow of a command.
    pub(crate) fn of(&self, command: CommandId) -> Option<&str> {
        self.known.get(&command)?.as_deref()
    }

    fn remember(&mut self, command: CommandId, key: &str) {
        let workflow = workflow_of(key).map(Arc::from);
        if self.known.insert(command, workflow).is_some() {
            return;
        }
        self.order.push_back(command);
        if self.order.len() > WORKFLOWS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn t4_the_memory_of_workflows_is_bounded() {
        let mut workflows = Workflows::default();
        for number in 0..=WORKFLOWS_MAX {
            workflows.remember(testing::command(number as u128), &format!("wf:w{number}:s"));
        }
        workflows.remember(testing::command(5), "wf:w5:s");
        assert_eq!(workflows.known.len(), WORKFLOWS_MAX);
        assert_eq!(workflows.order.len(), WORKFLOWS_MAX);
        assert_eq!(workflows.of(testing::command(0)), None);
        assert_eq!(workflows.of(testing::command(5)), Some("w5"));
    }
}
