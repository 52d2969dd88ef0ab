//! What a node can be told to do.
//!
//! To add a kind: write `kinds/<kind>.rs` with a `run` that takes the host, the payload and the cancellation, name its
//! module here, add its name to [`KINDS`] and its arm to [`Executors::run`]. One that needs a secret takes [`Secrets`] as
//! well; what it returns is cleaned of them for it.
//!
//! An executor is cancelled between its actions and reports what really happened: [`Outcome::Cancelled`] only where
//! nothing took effect (D12).

pub mod bmc_power;
pub mod diag_nvml;
mod http;
pub mod inventory;
pub mod inventory_refresh;
pub mod logs;
pub mod logs_collect;
pub mod node_reboot;
pub mod site_http_proxy;

use std::{future::Future, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{host::Host, secrets::Secrets};

/// The kinds that have an executor.
pub const KINDS: [&str; 6] = [
    bmc_power::KIND,
    diag_nvml::KIND,
    inventory_refresh::KIND,
    logs_collect::KIND,
    node_reboot::KIND,
    site_http_proxy::KIND,
];

/// One accepted and journaled command.
#[derive(Debug, Clone)]
pub struct Job {
    /// `cmd_…`; names the files that belong to the command.
    pub command_id: String,
    /// One of [`KINDS`].
    pub kind: String,
    /// The payload, checked against the kind's schema before; checked again here.
    pub payload: Value,
    /// How long the kind may run.
    pub timeout: Duration,
}

/// How a command ended on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it was asked to.
    Succeeded,
    /// It did not, or what it found is bad; the reason says which.
    Failed,
    /// It was cancelled before anything took effect.
    Cancelled,
    /// The effect is under way and ends this process or this machine; there is nothing to report now. The driver leaves
    /// the command open in its journal, as started, and the next boot proves the end (D9).
    Underway,
}

/// What an executor hands back.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// How it ended.
    pub outcome: Outcome,
    /// A short word for machines, where the outcome alone does not say enough.
    pub reason: Option<String>,
    /// What is known about the reason.
    pub details: Option<Value>,
    /// The kind's result, at most [`crate::limits::RESULT_BYTES_MAX`] as JSON.
    pub result: Option<Value>,
}

impl Finished {
    pub(crate) fn succeeded(result: Value) -> Self {
        Self {
            outcome: Outcome::Succeeded,
            reason: None,
            details: None,
            result: Some(result),
        }
    }

    pub(crate) fn failed(reason: &str, why: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Failed,
            reason: Some(reason.to_owned()),
            details: Some(json!({ "why": why.into() })),
            result: None,
        }
    }

    pub(crate) fn cancelled() -> Self {
        Self {
            outcome: Outcome::Cancelled,
            reason: None,
            details: None,
            result: None,
        }
    }

    fn timed_out(timeout: Duration) -> Self {
        Self {
            outcome: Outcome::Failed,
            reason: Some("timeout".to_owned()),
            details: Some(json!({ "phase": "started", "timeoutSeconds": timeout.as_secs() })),
            result: None,
        }
    }
}

/// Runs jobs on one host. One of it serves all lanes at once.
#[derive(Debug)]
pub struct Executors {
    host: Arc<Host>,
    collector: inventory::Collector,
    bundles: Arc<logs::Bundles>,
    site: http::Client,
}

impl Executors {
    /// Executors that touch nothing but this host.
    pub fn new(host: Host) -> Self {
        let host = Arc::new(host);
        Self {
            collector: inventory::Collector::new(Arc::clone(&host)),
            bundles: Arc::new(logs::Bundles::new(&host.state_dir)),
            site: http::Client::new(&host),
            host,
        }
    }

    /// The host that the executors touch.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Runs one job to its end, its timeout or its cancellation. Dropping the future stops what it started as well,
    /// except for a reboot that was already asked for.
    pub async fn run(&self, job: Job, secrets: &Secrets, cancel: CancellationToken) -> Finished {
        if cancel.is_cancelled() {
            return Finished::cancelled();
        }
        // Work on threads of its own outlives a dropped future unless it is told.
        let cancel = cancel.child_token();
        let _stop = cancel.clone().drop_guard();
        match job.kind.as_str() {
            diag_nvml::KIND => {
                within(
                    job.timeout,
                    diag_nvml::run(&self.host, &self.collector, &job, &cancel),
                )
                .await
            }
            inventory_refresh::KIND => {
                within(
                    job.timeout,
                    inventory_refresh::run(&self.host, &self.collector, &job, &cancel),
                )
                .await
            }
            logs_collect::KIND => {
                within(
                    job.timeout,
                    logs_collect::run(&self.host, &self.bundles, &job, &cancel),
                )
                .await
            }
            // These keep to the timeout themselves: what was sent before it has an outcome of its own.
            bmc_power::KIND => bmc_power::run(&self.site, &job, secrets, &cancel).await,
            site_http_proxy::KIND => site_http_proxy::run(&self.site, &job, secrets, &cancel).await,
            // A timeout around an effect that cannot be taken back would only hide what happened.
            node_reboot::KIND => node_reboot::run(&self.host, &job, &cancel).await,
            kind => Finished::failed(
                "unsupported-kind",
                format!("this daemon has no executor for {kind:?}"),
            ),
        }
    }
}

async fn within(timeout: Duration, work: impl Future<Output = Finished>) -> Finished {
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(|_| Finished::timed_out(timeout))
}

/// Reads a payload into its type. Absence counts as the empty payload.
fn payload<T: serde::de::DeserializeOwned>(job: &Job) -> Result<T, Finished> {
    let payload = if job.payload.is_null() {
        json!({})
    } else {
        job.payload.clone()
    };
    serde_json::from_value(payload)
        .map_err(|error| Finished::failed("invalid-payload", error.to_string()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{fake_machine::FakeMachine, secrets::tests::FakeKeeper};

    pub(crate) fn job(kind: &str, payload: Value) -> Job {
        Job {
            command_id: "cmd_01jdx8z3f5e8jbm2k3q4r5s6t7".to_owned(),
            kind: kind.to_owned(),
            payload,
            timeout: Duration::from_mins(1),
        }
    }

    pub(crate) fn no_secrets() -> FakeKeeper {
        FakeKeeper::refusing("UNKNOWN_SECRET")
    }

    pub(crate) async fn run(host: Host, kind: &str, payload: Value) -> Finished {
        Executors::new(host)
            .run(
                job(kind, payload),
                &no_secrets().secrets,
                CancellationToken::new(),
            )
            .await
    }

    #[tokio::test]
    async fn a_kind_without_an_executor_is_refused() {
        let finished = run(FakeMachine::new().host(), "disk.wipe", json!({})).await;
        assert_eq!(
            (finished.outcome, finished.reason.as_deref()),
            (Outcome::Failed, Some("unsupported-kind"))
        );
    }

    #[tokio::test]
    async fn k1_unknown_properties_are_refused_by_every_executor() {
        for kind in KINDS {
            let finished = run(FakeMachine::new().host(), kind, json!({ "surprise": 1 })).await;
            assert_eq!(
                (finished.outcome, finished.reason.as_deref()),
                (Outcome::Failed, Some("invalid-payload")),
                "{kind}"
            );
        }
    }

    #[tokio::test]
    async fn d12_what_is_cancelled_before_it_starts_is_cancelled() {
        let cancel = CancellationToken::new();
        cancel.cancel();
        for kind in KINDS {
            let executors = Executors::new(FakeMachine::new().host());
            assert_eq!(
                executors
                    .run(job(kind, json!({})), &no_secrets().secrets, cancel.clone())
                    .await
                    .outcome,
                Outcome::Cancelled,
                "{kind}"
            );
        }
    }

    #[tokio::test]
    async fn a_job_that_takes_too_long_fails_with_its_timeout() {
        let machine = FakeMachine::new();
        machine.program("nvidia-smi", "sleep 600");
        let mut job = job("diag.nvml", json!({}));
        job.timeout = Duration::from_millis(300);
        let finished = Executors::new(machine.host())
            .run(job, &no_secrets().secrets, CancellationToken::new())
            .await;
        assert_eq!(
            (finished.outcome, finished.reason.as_deref()),
            (Outcome::Failed, Some("timeout"))
        );
    }
}
