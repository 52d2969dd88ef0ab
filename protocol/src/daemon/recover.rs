//! What a new process makes of the journal (SPEC D7, D9).

use serde_json::{Value, json};

use super::book::{Book, Inconsistent, Open};
use super::clock::ServerClock;
use super::launch::interrupted;
use super::record::{Record, Started};
use super::trust::Wanted;
use super::{Daemon, Effect, End, Identity, Link, Monotonic, Report, Run};
use crate::canonical;
use crate::frame::UpdateState;
use crate::id::JournalId;

/// What becomes of a command that an earlier process accepted and did not end.
enum Fate {
    /// It never started and may run: once a gateway has told the time.
    RunAgain,
    /// Its effect is under way still.
    StaysOpen,
    Ends(UpdateState, Report),
}

impl Daemon {
    /// A daemon whose journal holds nothing.
    pub fn new(identity: Identity, journal_id: JournalId) -> Self {
        Self {
            identity,
            journal_id,
            book: Book::default(),
            clock: ServerClock::default(),
            link: Link::Down,
            nonce: 0,
            waiting: std::collections::BTreeMap::new(),
            wanted: Wanted::default(),
            secrets: std::collections::BTreeMap::new(),
            resend_at: None,
            broken_until: None,
            stopping: false,
        }
    }

    /// A daemon with the journal of an earlier process, and what is to be done before anything
    /// else. The records must be durable: what a dead process only wrote is synced first, because
    /// it is said and acted upon from here on.
    pub fn recover(
        identity: Identity,
        journal_id: JournalId,
        records: impl IntoIterator<Item = Record>,
        now: Monotonic,
    ) -> Result<(Self, Vec<Effect>), Inconsistent> {
        let mut daemon = Self::new(identity, journal_id);
        for record in records {
            daemon.book.apply(&record)?;
        }
        let mut effects = Vec::new();
        // The process may have died between the journal and the pins.
        daemon.pin(&mut effects);
        let fates: Vec<_> = daemon
            .book
            .open()
            .map(|open| (open.command.command_id, daemon.fate(open)))
            .collect();
        for (id, fate) in fates {
            match fate {
                Fate::RunAgain => {}
                Fate::StaysOpen => {
                    if let Some(open) = daemon.book.find_open_mut(id) {
                        open.run = Run::Underway;
                    }
                }
                Fate::Ends(state, report) => daemon.end(id, state, &report, now, &mut effects),
            }
        }
        Ok((daemon, effects))
    }

    fn fate(&self, open: &Open) -> Fate {
        let command = &open.command;
        let interrupted = |why| Fate::Ends(UpdateState::Failed, interrupted(why));
        match &open.started {
            None if command.retry_safe && !command.self_terminating => Fate::RunAgain,
            None => interrupted("the daemon ended before the command was started"),
            Some(_) if !command.self_terminating => {
                interrupted("the daemon ended while the command ran")
            }
            Some(started) => self.fate_of_self_terminating(open, started),
        }
    }

    /// Completes what was to end the daemon, by what the daemon finds itself to be now.
    fn fate_of_self_terminating(&self, open: &Open, started: &Started) -> Fate {
        let own = &self.identity;
        let new_boot = own.boot_id != started.boot_id;
        let new_role = own.role != started.role;
        let new_version = own.agent_version != started.agent_version;
        let fits = match open.command.kind.as_str() {
            "node.reboot" => new_boot,
            "daemon.upgrade" => {
                let payload = canonical::to_json(&open.command.payload).unwrap_or_default();
                payload.get("version") == Some(&Value::from(own.agent_version.as_str()))
            }
            // boot.kexec, and whatever else a module brings that ends the daemon.
            _ => new_boot || new_role,
        };
        if fits {
            let report = Report {
                end: End::Succeeded,
                reason: None,
                details: None,
                result: Some(json!({ "rebooted": true })),
            };
            return Fate::Ends(UpdateState::Succeeded, report);
        }
        if !new_boot && !new_role {
            return Fate::StaysOpen;
        }
        let report = Report {
            details: Some(json!({
                "why": "what the daemon came back as does not prove the effect",
                "agentVersion": own.agent_version,
                "newBoot": new_boot,
                "newVersion": new_version,
                "role": own.role.as_str(),
            })),
            ..interrupted("")
        };
        Fate::Ends(UpdateState::Failed, report)
    }
}
