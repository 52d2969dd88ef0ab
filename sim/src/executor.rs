//! What a node's executors do.

use ledger_protocol::daemon::{End, Input, Job, Report};
use ledger_protocol::id::CommandId;
use serde_json::json;

use crate::world::World;

/// What an executor runs.
pub(crate) struct Running {
    pub(crate) id: CommandId,
    kind: String,
    self_terminating: bool,
    applied: bool,
    reported: bool,
    pub(crate) stop: bool,
    /// It comes to no end by itself.
    stuck: bool,
    pub(crate) until: i64,
}

impl World {
    pub(crate) fn start(&mut self, n: usize, job: Job) {
        let machine = &mut self.machines[n];
        let (life, now) = (machine.disk.life, self.now);
        let id = job.command_id;
        let Some(command) = self.ledger.commands.get(&id) else {
            return self.wrong(format!("{id} was started and is not in the ledger"));
        };
        self.truth.started(command, life);
        self.tally.started += 1;
        let stuck = self.faults_on && self.chance.one_in(5);
        if let Some(process) = &mut machine.process {
            process.jobs.push(Running {
                id,
                kind: job.kind,
                self_terminating: command.queued.self_terminating,
                applied: false,
                reported: false,
                stop: false,
                stuck,
                until: now.saturating_add(i64::try_from(job.timeout_micros).unwrap_or(i64::MAX)),
            });
        }
    }

    /// An executor goes on.
    pub(crate) fn node_job(&mut self, n: usize) -> bool {
        let now = self.now;
        let machine = &mut self.machines[n];
        let Some(process) = &mut machine.process else {
            return false;
        };
        let able = |job: &Running| {
            !job.reported
                && (!job.applied || !job.self_terminating || now >= job.until)
                && (!job.stuck || job.stop || now >= job.until)
        };
        let able: Vec<_> = (0..process.jobs.len())
            .filter(|j| able(&process.jobs[*j]))
            .collect();
        let Some(j) = self.chance.pick(&able) else {
            return false;
        };
        let job = &mut process.jobs[j];
        let id = job.id;
        let (end, reason) = if now >= job.until {
            (End::Failed, Some("timeout"))
        } else if job.stop && !job.applied {
            (End::Cancelled, None)
        } else if !job.applied {
            if self.chance.one_in(8) {
                (End::Failed, Some("gpu-busy"))
            } else {
                job.applied = true;
                self.truth.applied(id, machine.disk.life);
                if !job.self_terminating {
                    return true;
                }
                machine.ending = Some((id, job.kind.clone()));
                if self.chance.one_in(4) {
                    return true;
                }
                (End::Underway, None)
            }
        } else if self.chance.one_in(6) {
            (End::Failed, Some("broke"))
        } else {
            (End::Succeeded, None)
        };
        job.reported = true;
        self.truth.ended(id, end);
        let report = Report {
            end,
            reason: reason.map(str::to_owned),
            details: None,
            result: (end == End::Succeeded).then(|| json!({ "ok": true })),
        };
        process.jobs.swap_remove(j);
        let input = Input::Finished {
            command_id: id,
            report,
        };
        process.inbox.push_back(input);
        true
    }
}
