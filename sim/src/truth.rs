//! What really happened on the nodes, and what must hold of it (SPEC D5–D10, D12, S1). The
//! ledger never sees this; that is why what it says can be checked against it.

use std::collections::{BTreeMap, BTreeSet};

use ledger_protocol::command::Command;
use ledger_protocol::daemon::{End, Record};
use ledger_protocol::event::{CommandSettled, Outcome};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::CommandId;
use ledger_protocol::time::Timestamp;

/// How far the daemon's notion of the server's time may be off, in microseconds: half of the
/// longest round trip that it accepts as an answer, and what passes while an input waits.
pub const CLOCK_MICROS_MAX: i64 = 20_000_000;

/// The facts about all commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Truth {
    facts: BTreeMap<CommandId, Facts>,
    /// What was found to be wrong.
    pub wrong: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Facts {
    starts: u32,
    /// By the life of the journal.
    starts_in_life: BTreeMap<u32, u32>,
    /// By the life of the journal: it took effect.
    applied: BTreeSet<u32>,
    boots: u32,
    ends: Vec<End>,
    /// By the life of the journal: what the node said, the end apart.
    said: BTreeSet<u32>,
    said_end: BTreeMap<u32, UpdateState>,
}

impl Truth {
    fn facts(&mut self, id: CommandId) -> &mut Facts {
        self.facts.entry(id).or_default()
    }

    fn is_wrong(&mut self, wrong: String) {
        self.wrong.push(wrong);
    }

    /// An executor starts.
    pub fn started(&mut self, command: &Command, life: u32) {
        let id = command.id;
        let facts = self.facts(id);
        facts.starts += 1;
        let in_life = facts.starts_in_life.entry(life).or_default();
        *in_life += 1;
        let (starts, in_life) = (facts.starts, *in_life);
        let queued = &command.queued;
        if starts > 1 && !queued.retry_safe {
            self.is_wrong(format!(
                "D8: {id} is not retry-safe and started {starts} times"
            ));
        }
        if in_life > 1 {
            self.is_wrong(format!("D7: {id} started {in_life} times by one journal"));
        }
    }

    /// The node decides to take a command on, or to start it.
    pub fn decided(&mut self, command: &Command, starts: bool, now: Timestamp) {
        let queued = &command.queued;
        let timeout = if starts { queued.timeout_seconds } else { 0 };
        let over = queued
            .not_after
            .plus_seconds(timeout)
            .plus_micros(CLOCK_MICROS_MAX);
        if now > over {
            let (id, what) = (command.id, if starts { "started" } else { "accepted" });
            self.is_wrong(format!("D10: {id} was {what} at {now}, after {over}"));
        }
    }

    /// The effect takes place.
    pub fn applied(&mut self, id: CommandId, life: u32) {
        self.facts(id).applied.insert(life);
    }

    /// The machine boots because of the command.
    pub fn booted(&mut self, id: CommandId) {
        let facts = self.facts(id);
        facts.boots += 1;
        let boots = facts.boots;
        if boots > 1 {
            self.is_wrong(format!("D9: {id} booted the machine {boots} times"));
        }
    }

    /// An executor is done.
    pub fn ended(&mut self, id: CommandId, end: End) {
        self.facts(id).ends.push(end);
    }

    /// The node says something of a command; `command` is what the ledger has of it.
    pub fn said(&mut self, command: &Command, update: &Update, life: u32, now: Timestamp) {
        let id = update.command_id;
        let facts = self.facts(id);
        let early = match update.state {
            UpdateState::Busy => return,
            UpdateState::Acked | UpdateState::Running => {
                facts.said.insert(life);
                return;
            }
            UpdateState::Rejected => {
                let earliest = command.queued.not_after.plus_micros(-CLOCK_MICROS_MAX);
                update.reason.as_deref() == Some("EXPIRED") && now < earliest
            }
            UpdateState::Succeeded | UpdateState::Failed | UpdateState::Cancelled => false,
        };
        let before = facts.said_end.insert(life, update.state);
        // A journal that was lost takes with it what a retry-safe command did before.
        let took_effect = facts.applied.contains(&life)
            || (!command.queued.retry_safe && !facts.applied.is_empty());
        if update.state == UpdateState::Cancelled && took_effect {
            self.is_wrong(format!("D12: {id} is cancelled and took effect"));
        }
        if early {
            self.is_wrong(format!(
                "D10: {id} was refused as EXPIRED at {now}, too early"
            ));
        }
        if let Some(before) = before.filter(|before| *before != update.state) {
            let end = update.state;
            self.is_wrong(format!("D5: {id} ended as {before:?}, and then as {end:?}"));
        }
    }

    /// A process reads the journal: what was said of this life must stand there (SPEC D5).
    pub fn restarted<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Record>,
        life: u32,
        own: &BTreeSet<CommandId>,
    ) {
        let mut known = BTreeMap::new();
        for record in records {
            match record {
                Record::Accepted(command) => {
                    known.entry(command.command_id).or_insert(None);
                }
                Record::Ended(ended) => {
                    known.insert(ended.update.command_id, Some(ended.update.state));
                }
                Record::Forgotten(kept) => {
                    known.insert(kept.command_id, Some(kept.state));
                }
                Record::Started(_)
                | Record::Confirmed(_)
                | Record::Seen(_)
                | Record::Applied(_)
                | Record::Trusted(_)
                | Record::Unbatched(_) => {}
            }
        }
        let mut wrong = Vec::new();
        for (id, facts) in self.facts.iter().filter(|(id, _)| own.contains(id)) {
            let stands = known.get(id);
            if facts.said.contains(&life) && stands.is_none() {
                wrong.push(format!(
                    "D5: {id} was acknowledged and is not in the journal"
                ));
            }
            if let Some(end) = facts.said_end.get(&life)
                && stands != Some(&Some(*end))
            {
                wrong.push(format!(
                    "D5: {id} was said to be {end:?}; the journal has {stands:?}"
                ));
            }
        }
        self.wrong.extend(wrong);
    }

    /// The ledger settles a command. `is_known` tells whether the node's journal knows it now.
    /// Answers whether the node itself has said it.
    pub fn settled(&mut self, command: &Command, end: &CommandSettled, is_known: bool) -> bool {
        let id = command.id;
        let facts = self.facts.entry(id).or_default();
        let reason = end.reason.as_deref();
        let said = |state| facts.said_end.values().any(|said| *said == state);
        let succeeded = said(UpdateState::Succeeded);
        let mut wrong = Vec::new();
        if end.epoch.is_none() {
            // Cancelled or expired before it was in flight, or given up.
            let never = matches!(end.state, Outcome::Cancelled | Outcome::Expired);
            if never && facts.starts > 0 {
                wrong.push(format!("S1: {id} is {:?} and was started", end.state));
            }
        } else if reason == Some("journal-lost") {
            // What a fresh journal says of a command that the one before was sent stands there, and
            // in the details.
            if is_known && end.details.is_none() {
                wrong.push(format!(
                    "D8: {id} is journal-lost and stands in the journal"
                ));
            }
        } else {
            let word = match end.state {
                Outcome::Succeeded => UpdateState::Succeeded,
                Outcome::Failed => UpdateState::Failed,
                Outcome::Cancelled => UpdateState::Cancelled,
                Outcome::Rejected | Outcome::Expired => UpdateState::Rejected,
            };
            let proved = end.state == Outcome::Succeeded && command.queued.self_terminating;
            if !proved && !said(word) {
                wrong.push(format!(
                    "S1: {id} is {:?}, which the node never said",
                    end.state
                ));
            }
            if end.state == Outcome::Succeeded && !proved && !facts.ends.contains(&End::Succeeded) {
                wrong.push(format!("S1: {id} is succeeded, which no executor said"));
            }
            // Whatever journal knew of it: the effect is what counts.
            if end.state == Outcome::Rejected && facts.starts > 0 {
                wrong.push(format!("D8: {id} is rejected and was started"));
            }
            if end.state == Outcome::Cancelled && !facts.applied.is_empty() {
                wrong.push(format!("D8: {id} is cancelled and took effect"));
            }
        }
        self.wrong.extend(wrong);
        succeeded
    }
}
