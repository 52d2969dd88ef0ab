//! What runs the commands of an agent: the machine's executors, or a script.

use std::time::Duration;

use ledger_protocol::daemon::{End, Job, Report};
use tokio_util::sync::CancellationToken;

use crate::kinds::{self, Executors, Outcome};
use crate::script::ScriptedExecutor;
use crate::secrets::Secrets;

/// Runs jobs.
#[derive(Debug)]
pub enum Executor {
    /// For real, on this machine.
    Host(Box<Executors>),
    /// By a script: for benchmarks and fleets of simulated nodes.
    Scripted(ScriptedExecutor),
}

impl Executor {
    /// Whether there is an executor of this kind.
    pub fn runs(&self, kind: &str) -> bool {
        match self {
            Self::Host(_) => kinds::KINDS.contains(&kind),
            Self::Scripted(_) => true,
        }
    }

    /// Runs a job. What it is given of secrets is in nothing that comes out of here, whatever its kind
    /// does with them (SPEC P6): what is journaled, logged and sent comes from here.
    pub(crate) async fn run(
        &self,
        job: Job,
        secrets: Secrets,
        cancel: CancellationToken,
    ) -> Report {
        let finished = match self {
            Self::Host(executors) => {
                let job = kinds::Job {
                    command_id: job.command_id.to_string(),
                    kind: job.kind,
                    payload: job.payload,
                    timeout: Duration::from_micros(job.timeout_micros),
                };
                executors.run(job, &secrets, cancel).await
            }
            Self::Scripted(script) => script.run(&job, cancel).await,
        };
        let finished = secrets.redact_finished(finished);
        Report {
            end: match finished.outcome {
                Outcome::Succeeded => End::Succeeded,
                Outcome::Failed => End::Failed,
                Outcome::Cancelled => End::Cancelled,
                Outcome::Underway => End::Underway,
            },
            reason: finished.reason,
            details: finished.details,
            result: finished.result,
        }
    }
}
