//! `node.reboot` (K7): `systemctl reboot`, or whatever effect was injected.
//!
//! The driver has journaled the start before this runs. After the effect there is nothing to report: the next boot
//! completes the command (D9), and without one it stays open until its timeout.

use std::time::Duration;

use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{Finished, Job, Outcome, payload};
use crate::{
    error::Error,
    host::{Host, Reboot},
    program::{self, End},
};

/// The kind's name.
pub const KIND: &str = "node.reboot";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {}

pub(super) async fn run(host: &Host, job: &Job, cancel: &CancellationToken) -> Finished {
    if let Err(refused) = payload::<Payload>(job) {
        return refused;
    }
    if cancel.is_cancelled() {
        return Finished::cancelled();
    }
    match &host.reboot {
        Reboot::Injected(effect) => match effect(&job.command_id) {
            Ok(()) => underway(),
            Err(why) => Finished::failed("reboot-refused", why),
        },
        Reboot::Systemctl => match systemctl_reboot(host).await {
            Ok(()) => underway(),
            Err(error) => Finished::failed("reboot-refused", error.chain()),
        },
    }
}

fn underway() -> Finished {
    Finished {
        outcome: Outcome::Underway,
        reason: None,
        details: None,
        result: None,
    }
}

/// An `Err` means that the machine certainly keeps running. A `systemctl` that hangs or is killed may have handed its
/// request over before: in a shutdown it is one of the processes that are ended.
async fn systemctl_reboot(host: &Host) -> Result<(), Error> {
    let path = host.program("systemctl")?;
    // Not the command's own cancellation: once asked for, a reboot is not taken back, and killing `systemctl` would
    // leave open whether it was asked for.
    let never = CancellationToken::new();
    let timeout: Duration = host.program_timeout;
    let mut stdout = Vec::new();
    let ended = program::watch(&path, &["reboot"], timeout, &never, &mut |chunk| {
        let room = crate::limits::PROGRAM_STDERR_BYTES_MAX.saturating_sub(stdout.len());
        stdout.extend_from_slice(&chunk[..chunk.len().min(room)]);
        std::ops::ControlFlow::Continue(())
    })
    .await?;
    match ended.end {
        End::Exited(status) if status.code().is_some_and(|code| code != 0) => {
            let text = if ended.stderr.is_empty() {
                &stdout
            } else {
                &ended.stderr
            };
            Err(Error::ProgramFailed {
                program: "systemctl".to_owned(),
                status: program::status_text(status),
                said: program::said(&String::from_utf8_lossy(text)),
            })
        }
        End::Exited(_) | End::TimedOut | End::Cancelled | End::Stopped => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::{fake_machine::FakeMachine, kinds::tests::run};

    #[tokio::test]
    async fn k7_an_injected_reboot_is_called_once_with_the_command() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let mut host = FakeMachine::new().host();
        host.reboot = Reboot::Injected(Arc::new(move |command_id| {
            seen.lock().unwrap().push(command_id.to_owned());
            Ok(())
        }));
        let finished = run(host, KIND, json!({})).await;
        assert_eq!(finished.outcome, Outcome::Underway);
        assert_eq!(*calls.lock().unwrap(), ["cmd_01jdx8z3f5e8jbm2k3q4r5s6t7"]);
    }

    #[tokio::test]
    async fn k7_a_refused_reboot_fails_and_says_why() {
        let mut host = FakeMachine::new().host();
        host.reboot = Reboot::Injected(Arc::new(|_| Err("not today".to_owned())));
        let finished = run(host, KIND, json!({})).await;
        assert_eq!(
            (finished.outcome, finished.reason.as_deref()),
            (Outcome::Failed, Some("reboot-refused"))
        );
        assert_eq!(finished.details, Some(json!({ "why": "not today" })));
    }

    /// The folder of programs holds nothing but the script, so that the real `systemctl` is out of reach.
    fn with_systemctl(machine: &FakeMachine, script: &str) -> Host {
        machine.program("systemctl", script);
        let mut host = machine.host();
        host.reboot = Reboot::Systemctl;
        host
    }

    #[tokio::test]
    async fn k7_systemctl_is_asked_to_reboot() {
        let machine = FakeMachine::new();
        let host = with_systemctl(
            &machine,
            &format!("echo \"$*\" >>{}", machine.path("asked").display()),
        );
        assert_eq!(run(host, KIND, json!({})).await.outcome, Outcome::Underway);
        assert_eq!(
            std::fs::read_to_string(machine.path("asked")).unwrap(),
            "reboot\n"
        );
    }

    #[tokio::test]
    async fn k7_systemctl_that_refuses_fails_the_command() {
        let machine = FakeMachine::new();
        let host = with_systemctl(
            &machine,
            "echo 'Failed to set wall message: denied' >&2; exit 1",
        );
        let finished = run(host, KIND, json!({})).await;
        assert_eq!(finished.reason.as_deref(), Some("reboot-refused"));
        assert_eq!(
            finished.details,
            Some(
                json!({ "why": "systemctl ended with exit status 1: Failed to set wall message: denied" })
            )
        );
        let mut host = FakeMachine::new().host();
        host.reboot = Reboot::Systemctl;
        assert_eq!(
            run(host, KIND, json!({})).await.details,
            Some(json!({ "why": "systemctl not found" }))
        );
    }

    #[tokio::test]
    async fn d9_a_systemctl_that_hangs_or_is_killed_may_have_rebooted() {
        let machine = FakeMachine::new();
        let mut host = with_systemctl(&machine, "exec sleep 600");
        host.program_timeout = Duration::from_millis(200);
        assert_eq!(run(host, KIND, json!({})).await.outcome, Outcome::Underway);
        let host = with_systemctl(&machine, "kill -TERM $$");
        assert_eq!(run(host, KIND, json!({})).await.outcome, Outcome::Underway);
    }
}
