//! A machine that is only played: for benchmarks and fleets of simulated nodes.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use ledger_protocol::daemon::Job;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::clock::random;
use crate::error::Error;
use crate::host::Reboot;
use crate::kinds::{Finished, Outcome};

/// What a simulated node notes of its effects, in its state directory: one JSON object in each
/// line, `{"commandId", "kind", "bootId", "phase"}`, `phase` being `started` or `finished`. It is
/// the truth that the ledger can be held against.
pub const EFFECTS_FILE: &str = "effects.jsonl";

/// Kinds whose effect is a new boot.
const REBOOTING: [&str; 2] = ["node.reboot", "boot.kexec"];

/// Runs every kind alike: it takes some time and ends as the script says; a cancel that comes
/// before the end stops it.
#[derive(Debug, Clone)]
pub struct ScriptedExecutor {
    /// The shortest time that a job takes.
    pub shortest: Duration,
    /// The longest; each job's time is drawn between the two.
    pub longest: Duration,
    /// How many of a hundred jobs fail, with the reason `scripted`.
    pub failing_percent: u8,
    /// How the others end.
    pub finished: Finished,
    pub(crate) stage: Option<Stage>,
}

/// What a script acts on where its node has a state directory and simulated boots.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) boot_id: String,
    pub(crate) effects: PathBuf,
    pub(crate) reboot: Reboot,
}

impl ScriptedExecutor {
    /// A script by which every job succeeds with this result after this time.
    pub fn succeeding(duration: Duration, result: Value) -> Self {
        Self {
            shortest: duration,
            longest: duration,
            failing_percent: 0,
            finished: Finished::succeeded(result),
            stage: None,
        }
    }

    pub(crate) async fn run(&self, job: &Job, cancel: CancellationToken) -> Finished {
        if cancel.is_cancelled() {
            return Finished::cancelled();
        }
        if let Err(error) = self.note(job, "started") {
            return Finished::failed("effect-not-noted", error.chain());
        }
        let time = self.draw_time();
        if !time.is_zero() {
            let slept = cancel.run_until_cancelled(tokio::time::sleep(time));
            if slept.await.is_none() {
                return Finished::cancelled();
            }
        }
        if u32::from(self.failing_percent) > random::<u32>() % 100 {
            return Finished::failed("scripted", "the script lets some commands fail");
        }
        if let Err(error) = self.note(job, "finished") {
            return Finished::failed("effect-not-noted", error.chain());
        }
        match &self.stage {
            Some(stage) if REBOOTING.contains(&job.kind.as_str()) => stage.reboot(job),
            Some(_) | None => self.finished.clone(),
        }
    }

    fn draw_time(&self) -> Duration {
        let span = self.longest.saturating_sub(self.shortest);
        self.shortest + span.mul_f64(f64::from(random::<u32>()) / f64::from(u32::MAX))
    }

    fn note(&self, job: &Job, phase: &str) -> Result<(), Error> {
        let Some(stage) = &self.stage else {
            return Ok(());
        };
        let line = json!({
            "bootId": stage.boot_id,
            "commandId": job.command_id,
            "kind": job.kind,
            "phase": phase,
        });
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&stage.effects)
            // One write, so that a crash leaves a whole line or none.
            .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
            .map_err(Error::file("write", &stage.effects))
    }
}

impl Stage {
    fn reboot(&self, job: &Job) -> Finished {
        let done = match &self.reboot {
            Reboot::Injected(effect) => effect(&job.command_id.to_string()),
            Reboot::Systemctl => Err("a script never reboots a machine".to_owned()),
        };
        match done {
            Ok(()) => Finished {
                outcome: Outcome::Underway,
                reason: None,
                details: None,
                result: None,
            },
            Err(why) => Finished::failed("reboot-refused", why),
        }
    }
}
