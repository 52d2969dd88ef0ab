//! From accepted to started to ended (SPEC D5, D7, D9).

use serde_json::json;

use super::outcome::{self, End, Report};
use super::record::{Ended, Record, Started};
use super::{Daemon, Effect, Job, Monotonic, Run};
use crate::canonical;
use crate::frame::{Update, UpdateState};
use crate::id::CommandId;

impl Daemon {
    /// Starts an accepted command: the start is written before the effect.
    pub(super) fn launch(&mut self, id: CommandId, now: Monotonic, out: &mut Vec<Effect>) {
        let Some(open) = self.book.find_open(id) else {
            return;
        };
        let Some(job) = self.job(id, now) else {
            let phase = outcome_of_timeout("accepted");
            return self.end(id, UpdateState::Failed, &phase, now, out);
        };
        if open.started.is_none() {
            let started = Started {
                agent_version: self.identity.agent_version.clone(),
                boot_id: self.identity.boot_id.clone(),
                command_id: id,
                role: self.identity.role,
            };
            self.write(Record::Started(started), out);
        }
        if self.broken_until.is_some() {
            return;
        }
        if let Some(open) = self.book.find_open_mut(id) {
            open.run = Run::Launched;
        }
        out.push(Effect::Start(job));
        let updates = [UpdateState::Acked, UpdateState::Running];
        let updates = updates.map(|state| Update::bare(id, state)).to_vec();
        self.say(updates, now, out);
    }

    /// Starts what an earlier process, or a broken journal, left to be started. The deadline
    /// needs the server's time, so nothing starts before a gateway has told it.
    pub(super) fn launch_due(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        if self.clock.now(now).is_none() || self.broken_until.is_some() || self.stopping {
            return;
        }
        let due = self.book.open().filter(|open| open.run == Run::Due);
        let mut due: Vec<_> = due
            .map(|open| (open.command.seq, open.command.command_id))
            .collect();
        due.sort_unstable();
        for (_, id) in due {
            self.launch(id, now, out);
        }
    }

    /// The job of an open command; `None` when the ledger has given it up by now.
    fn job(&self, id: CommandId, now: Monotonic) -> Option<Job> {
        let open = self.book.find_open(id)?;
        let server_now = self.clock.now(now)?;
        let left = open.timeout_at()?.micros_since(server_now);
        let own = i64::from(open.command.timeout_seconds) * crate::time::MICROS_PER_SECOND;
        let timeout_micros = u64::try_from(left.min(own)).ok().filter(|left| *left > 0)?;
        Some(Job {
            command_id: id,
            kind: open.command.kind.clone(),
            lane: open.command.lane,
            // The checks have read it before.
            payload: canonical::to_json(&open.command.payload).unwrap_or_default(),
            timeout_micros,
        })
    }

    /// An executor is done.
    pub(super) fn finished(
        &mut self,
        id: CommandId,
        mut report: Report,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        let Some(open) = self.book.find_open_mut(id) else {
            return;
        };
        if open.run != Run::Launched {
            return;
        }
        let state = match report.end {
            End::Succeeded => UpdateState::Succeeded,
            End::Failed => UpdateState::Failed,
            // Nobody asked for it: the process stops, and takes the command with it.
            End::Cancelled if self.stopping && !open.cancel_requested => {
                report = interrupted("the daemon was stopped");
                UpdateState::Failed
            }
            End::Cancelled => UpdateState::Cancelled,
            End::Underway if open.command.self_terminating => {
                open.run = Run::Underway;
                return;
            }
            End::Underway => {
                report = interrupted("the executor ended without an outcome");
                UpdateState::Failed
            }
        };
        self.end(id, state, &report, now, out);
    }

    /// Ends an open command: the end is written before it is said.
    pub(super) fn end(
        &mut self,
        id: CommandId,
        state: UpdateState,
        report: &Report,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        let Some(open) = self.book.find_open(id) else {
            return;
        };
        self.secrets.retain(|_, asked| asked.command_id != id);
        let update = outcome::update(id, state, report);
        let ended = Ended {
            accepted: true,
            not_after: open.command.not_after,
            seq: open.command.seq,
            started: open.started.is_some(),
            update: update.clone(),
        };
        self.write(Record::Ended(Box::new(ended)), out);
        self.say(vec![update], now, out);
    }

    /// Ends what was to end the daemon and did not within its time.
    pub(super) fn time_out_underway(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        let Some(server_now) = self.clock.now(now) else {
            return;
        };
        let underway = self.book.open().filter(|open| open.run == Run::Underway);
        let over: Vec<_> = underway
            .filter(|open| open.timeout_at().is_none_or(|at| at < server_now))
            .map(|open| open.command.command_id)
            .collect();
        for id in over {
            let phase = outcome_of_timeout("started");
            self.end(id, UpdateState::Failed, &phase, now, out);
        }
    }

    /// The process is about to end.
    pub(super) fn stop_all(&mut self, out: &mut Vec<Effect>) {
        self.stopping = true;
        let launched = self.book.open().filter(|open| open.run == Run::Launched);
        out.extend(launched.map(|open| Effect::Stop(open.command.command_id)));
    }
}

/// The end of a command whose effect is not known to have been completed.
pub(super) fn interrupted(why: &str) -> Report {
    Report {
        end: End::Failed,
        reason: Some("interrupted".to_owned()),
        details: Some(json!({ "why": why })),
        result: None,
    }
}

/// The end of a command that time has overtaken; `phase` is how far it had come (SPEC S3).
fn outcome_of_timeout(phase: &str) -> Report {
    Report {
        end: End::Failed,
        reason: Some("timeout".to_owned()),
        details: Some(json!({ "phase": phase })),
        result: None,
    }
}
