//! Against a service that answers in the shapes of DMTF's published mockups (DSP2043, `public-rackmount1`), on a real
//! socket.

use std::sync::{Arc, Mutex};

use super::*;
use crate::{
    fake_machine::{FakeMachine, wait_until},
    fake_site::{FakeSite, Reply, Seen},
    kinds::{Executors, tests::job},
    secrets::tests::FakeKeeper,
};

const AUTHORIZATION: &str = "Basic cm9vdDpjNG40cnkh";
const SYSTEM: &str = "/redfish/v1/Systems/437XR1138R2";

/// A machine and its controller.
struct Bmc {
    state: Mutex<Played>,
}

struct Played {
    power_state: &'static str,
    /// The power states of the next looks after a reset; the last one stays.
    after_reset: Vec<&'static str>,
    allowed: Option<Vec<&'static str>>,
    members: Vec<&'static str>,
    reset: fn() -> Reply,
    target: &'static str,
    was_reset: bool,
}

impl Bmc {
    fn new(power_state: &'static str, after_reset: &[&'static str]) -> Arc<Self> {
        let allowed = vec![
            "On",
            "ForceOff",
            "GracefulShutdown",
            "GracefulRestart",
            "ForceRestart",
            "Nmi",
            "ForceOn",
            "PushPowerButton",
        ];
        let state = Mutex::new(Played {
            power_state,
            after_reset: after_reset.to_vec(),
            allowed: Some(allowed),
            members: vec![SYSTEM],
            reset: || Reply::with(204, "", ""),
            target: "/redfish/v1/Systems/437XR1138R2/Actions/ComputerSystem.Reset",
            was_reset: false,
        });
        Arc::new(Self { state })
    }

    fn but(self: Arc<Self>, change: impl FnOnce(&mut Played)) -> Arc<Self> {
        change(&mut self.state.lock().unwrap());
        self
    }

    async fn start(self: Arc<Self>) -> FakeSite {
        FakeSite::start(move |seen| self.answer(seen)).await
    }

    fn answer(&self, seen: &Seen) -> Reply {
        let mut state = self.state.lock().unwrap();
        if seen.header("authorization") != Some(AUTHORIZATION) {
            return Reply::json(401, &error("no session for you"));
        }
        match (seen.method.as_str(), seen.path.as_str()) {
            ("GET", "/redfish/v1/Systems") => {
                let members: Vec<_> = state
                    .members
                    .iter()
                    .map(|id| json!({ "@odata.id": id }))
                    .collect();
                Reply::json(
                    200,
                    &json!({
                        "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
                        "Name": "Computer System Collection",
                        "Members@odata.count": members.len(),
                        "Members": members,
                        "@odata.id": "/redfish/v1/Systems",
                    }),
                )
            }
            ("GET", SYSTEM) => {
                if state.was_reset && !state.after_reset.is_empty() {
                    state.power_state = state.after_reset.remove(0);
                }
                let mut reset = json!({ "target": state.target });
                if let Some(allowed) = &state.allowed {
                    reset["ResetType@Redfish.AllowableValues"] = json!(allowed);
                }
                Reply::json(
                    200,
                    &json!({
                        "@odata.type": "#ComputerSystem.v1_22_0.ComputerSystem",
                        "Id": "437XR1138R2",
                        "Name": "WebFrontEnd483",
                        "SystemType": "Physical",
                        "PowerState": state.power_state,
                        "Actions": { "#ComputerSystem.Reset": reset },
                        "@odata.id": SYSTEM,
                    }),
                )
            }
            ("POST", path) if path == state.target => {
                state.was_reset = true;
                (state.reset)()
            }
            _ => Reply::json(404, &error("there is no such resource")),
        }
    }
}

fn error(message: &str) -> Value {
    json!({ "error": {
        "code": "Base.1.18.GeneralError",
        "message": "A general error has occurred. See ExtendedInfo for more information.",
        "@Message.ExtendedInfo": [
            { "@odata.type": "#Message.v1_2_1.Message", "MessageId": "Base.1.18.GeneralError", "Message": message },
        ],
    }})
}

async fn run_within(payload: Value, timeout: Duration, cancel: CancellationToken) -> Finished {
    let keeper = FakeKeeper::giving(AUTHORIZATION);
    let mut job = job(KIND, payload);
    job.timeout = timeout;
    let executors = Executors::new(FakeMachine::new().host());
    let finished = executors.run(job, &keeper.secrets, cancel).await;
    keeper.secrets.redact_finished(finished)
}

async fn run(site: &FakeSite, action: &str) -> Finished {
    let payload = json!({ "bmc": site.url(""), "action": action, "secretRef": "bmc/rack-7" });
    run_within(payload, Duration::from_mins(1), CancellationToken::new()).await
}

/// The bodies of the resets that were asked for.
fn resets(site: &FakeSite) -> Vec<String> {
    let posts = site.seen().into_iter().filter(|seen| seen.method == "POST");
    posts.map(|seen| seen.body).collect()
}

#[tokio::test]
async fn k_a_machine_is_turned_on_off_and_off_and_on() {
    let cases = [
        ("on", "Off", "On", "On", vec!["Off", "PoweringOn", "On"]),
        ("off", "On", "ForceOff", "Off", vec!["On", "Off"]),
        ("cycle", "On", "ForceRestart", "On", vec!["On", "Off", "On"]),
        ("cycle", "Off", "On", "On", vec!["On"]),
    ];
    for (action, before, reset, after, seen) in cases {
        let site = Bmc::new(before, &seen).start().await;
        let finished = run(&site, action).await;
        assert_eq!(finished.outcome, Outcome::Succeeded, "{finished:?}");
        assert_eq!(
            finished.result,
            Some(json!({ "after": after, "before": before, "changed": true, "resetType": reset }))
        );
        assert_eq!(resets(&site), [json!({ "ResetType": reset }).to_string()]);
    }
}

#[tokio::test]
async fn k_a_machine_that_is_as_it_should_be_is_left_alone() {
    for (action, state) in [("on", "On"), ("off", "Off")] {
        let site = Bmc::new(state, &[]).start().await;
        let finished = run(&site, action).await;
        assert_eq!(
            finished.result,
            Some(json!({ "after": state, "before": state, "changed": false }))
        );
        assert_eq!(finished.outcome, Outcome::Succeeded);
        assert!(resets(&site).is_empty());
    }
}

#[tokio::test]
async fn k_the_reset_is_one_that_the_system_allows() {
    let power_cycle = Some(vec!["ForceRestart", "PowerCycle"]);
    for (allowed, reset) in [(power_cycle, "PowerCycle"), (None, "PowerCycle")] {
        let bmc = Bmc::new("On", &["Off", "On"]).but(|state| state.allowed = allowed);
        let site = bmc.start().await;
        let finished = run(&site, "cycle").await;
        assert_eq!(finished.result.unwrap()["resetType"], reset);
    }
    let bmc = Bmc::new("On", &[]).but(|state| state.allowed = Some(vec!["On", "GracefulShutdown"]));
    let site = bmc.start().await;
    let finished = run(&site, "off").await;
    assert_eq!(finished.reason.as_deref(), Some("reset-not-allowed"));
    let details = finished.details.unwrap();
    assert_eq!(details["allowed"], json!(["On", "GracefulShutdown"]));
    assert_eq!(details["needed"], json!(["ForceOff"]));
    assert!(resets(&site).is_empty());
}

#[tokio::test]
async fn k_one_system_is_meant_and_no_other_service() {
    // Of two, one must be named.
    let two = vec![SYSTEM, "/redfish/v1/Systems/other"];
    let site = Bmc::new("Off", &["On"])
        .but(|state| state.members = two)
        .start()
        .await;
    let finished = run(&site, "on").await;
    assert_eq!(finished.reason.as_deref(), Some("ambiguous-system"));
    assert_eq!(finished.details.unwrap()["systems"][0], SYSTEM);
    for path in [SYSTEM, "/redfish/v1/Systems/437XR1138R2/"] {
        let payload = json!({ "bmc": site.url(path), "action": "off", "secretRef": "a" });
        let finished = run_within(payload, Duration::from_mins(1), CancellationToken::new()).await;
        // With the slash it is another resource to this service.
        let found = finished.reason.as_deref() != Some("http-status");
        assert_eq!(found, path == SYSTEM, "{finished:?}");
    }

    let elsewhere = Bmc::new("Off", &[]).start().await;
    let away: &'static str = Box::leak(elsewhere.url(SYSTEM).into_boxed_str());
    let members = Bmc::new("Off", &[]).but(|state| state.members = vec![away]);
    let target = Bmc::new("Off", &[]).but(|state| state.target = away);
    let none = Bmc::new("Off", &[]).but(|state| state.members.clear());
    for bmc in [members, target, none] {
        let finished = run(&bmc.start().await, "on").await;
        assert_eq!(
            finished.reason.as_deref(),
            Some("redfish-unreadable"),
            "{finished:?}"
        );
    }
    assert_eq!(elsewhere.connections(), 0);

    for path in [
        "/dcim",
        "/redfish/v1/Chassis/1",
        "/redfish/v1/Systems/1/Bios",
        "/?a=b",
    ] {
        let payload = json!({ "bmc": site.url(path), "action": "on", "secretRef": "a" });
        let finished = run_within(payload, Duration::from_mins(1), CancellationToken::new()).await;
        assert_eq!(
            finished.reason.as_deref(),
            Some("invalid-payload"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn k_a_refused_reset_says_what_the_service_said() {
    let refusal = || Reply::json(400, &error("root:c4n4ry! may not do\nthis"));
    let site = Bmc::new("Off", &[])
        .but(|state| state.reset = refusal)
        .start()
        .await;
    let finished = run(&site, "on").await;
    assert_eq!(finished.outcome, Outcome::Failed);
    assert_eq!(finished.reason.as_deref(), Some("http-status"));
    let details = finished.details.unwrap();
    assert_eq!(details["status"], 400);
    assert_eq!(details["why"], "[secret bmc/rack-7] may not do this");
    let result = json!({ "before": "Off", "changed": false, "resetType": "On" });
    assert_eq!(finished.result, Some(result));
    assert_eq!(resets(&site).len(), 1);
}

#[tokio::test]
async fn k_a_reset_without_an_answer_is_asked_for_once() {
    let site = Bmc::new("Off", &["On"])
        .but(|state| state.reset = || Reply::HangUp)
        .start()
        .await;
    let finished = run(&site, "on").await;
    assert_eq!(finished.reason.as_deref(), Some("no-answer"));
    assert_eq!(finished.details.unwrap()["tookEffect"], "unknown");
    assert_eq!(
        finished.result,
        Some(json!({ "before": "Off", "resetType": "On" }))
    );
    assert_eq!(resets(&site).len(), 1);
}

#[tokio::test]
async fn k_a_machine_that_does_not_obey_fails_the_command() {
    let site = Bmc::new("Off", &["Off"]).start().await;
    let payload = json!({ "bmc": site.url("/"), "action": "on", "secretRef": "a" });
    let finished = run_within(payload, Duration::from_secs(4), CancellationToken::new()).await;
    assert_eq!(finished.reason.as_deref(), Some("power-state"));
    let result = json!({ "after": "Off", "before": "Off", "resetType": "On" });
    assert_eq!(finished.result, Some(result));
    let why = finished.details.unwrap()["why"].to_string();
    assert!(
        why.contains("not seen to be On") && why.contains("it is Off"),
        "{why}"
    );
}

#[tokio::test]
async fn p6_a_controller_that_does_not_know_the_secret_is_told_nothing_more() {
    let site = FakeSite::start(|seen| {
        let shown = seen.header("authorization").unwrap_or_default();
        Reply::json(401, &error(&format!("{shown}: wrong")))
    })
    .await;
    let finished = run(&site, "off").await;
    assert_eq!(finished.reason.as_deref(), Some("http-status"));
    assert_eq!(
        finished.details.unwrap()["why"],
        "[secret bmc/rack-7]: wrong"
    );
    assert_eq!(site.seen().len(), 1);
}

#[tokio::test]
async fn d12_a_cancel_counts_until_the_reset_is_asked_for() {
    let cancel = CancellationToken::new();
    let cancelling = cancel.clone();
    let bmc = Bmc::new("Off", &["On"]);
    let answering = bmc.clone();
    let site = FakeSite::start(move |seen| {
        if seen.path == SYSTEM {
            cancelling.cancel();
        }
        answering.answer(seen)
    })
    .await;
    let payload = json!({ "bmc": site.url(""), "action": "on", "secretRef": "a" });
    let finished = run_within(payload.clone(), Duration::from_mins(1), cancel).await;
    assert_eq!(finished.outcome, Outcome::Cancelled);
    assert!(resets(&site).is_empty());

    let cancel = CancellationToken::new();
    let cancelling = cancel.clone();
    let site = FakeSite::start(move |seen| {
        if seen.method == "POST" {
            cancelling.cancel();
        }
        bmc.answer(seen)
    })
    .await;
    let payload = json!({ "bmc": site.url(""), "action": "on", "secretRef": "a" });
    let finished = run_within(payload, Duration::from_mins(1), cancel).await;
    assert_eq!(finished.outcome, Outcome::Succeeded, "{finished:?}");
}

/// `sushy-emulator` of OpenStack, which its own people test their bare-metal services with.
#[tokio::test]
#[ignore = "needs sushy-emulator on the PATH: pip install sushy-tools"]
async fn k_a_redfish_service_that_others_wrote_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    // The password is `password`, by bcrypt.
    let users = "root:$2b$04$GgHPrJ99AFN4cwsnuT2sJebWApQJnr0hXzfKzb9AefNWkgc7Ks0ea\n";
    let (config, users_file) = (folder.path().join("conf"), folder.path().join("users"));
    std::fs::write(&users_file, users).unwrap();
    let system = "da69abcc-dae0-4913-9a7b-d344043097c0";
    let systems = format!(
        "[{{'uuid': '{system}', 'name': 'one', 'power_state': 'Off', 'external_notifier': False, 'nics': []}}]"
    );
    let options = format!(
        "SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_FAKE_SYSTEMS = {systems}\n\
         SUSHY_EMULATOR_STATE_DIR = {:?}\nSUSHY_EMULATOR_AUTH_FILE = {users_file:?}\n",
        folder.path()
    );
    std::fs::write(&config, options).unwrap();
    let _emulator = tokio::process::Command::new("sushy-emulator")
        .args([
            "--fake",
            "--interface",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--config",
        ])
        .arg(&config)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    wait_until("the emulator listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    })
    .await;

    let run = |value: &'static str, path: String, action: &'static str| async move {
        let keeper = FakeKeeper::giving(value);
        let bmc = format!("http://127.0.0.1:{port}{path}");
        let payload = json!({ "bmc": bmc, "action": action, "secretRef": "bmc/rack-7" });
        let executors = Executors::new(FakeMachine::new().host());
        let job = job(KIND, payload);
        executors
            .run(job, &keeper.secrets, CancellationToken::new())
            .await
    };
    let refused = run("Basic cm9vdDp3cm9uZw==", String::new(), "on").await;
    assert_eq!(refused.reason.as_deref(), Some("http-status"));
    assert_eq!(refused.details.unwrap()["status"], 401);
    let url = format!("/redfish/v1/Systems/{system}");
    for (path, action, before, after, reset) in [
        ("", "on", "Off", "On", Some("On")),
        ("", "on", "On", "On", None),
        (url.as_str(), "cycle", "On", "On", Some("ForceRestart")),
        (url.as_str(), "off", "On", "Off", Some("ForceOff")),
        ("/redfish/v1/", "off", "Off", "Off", None),
        ("/redfish/v1/", "cycle", "Off", "On", Some("On")),
    ] {
        let finished = run("Basic cm9vdDpwYXNzd29yZA==", path.to_owned(), action).await;
        assert_eq!(
            finished.outcome,
            Outcome::Succeeded,
            "{action}: {finished:?}"
        );
        let result = finished.result.unwrap();
        assert_eq!(
            [&result["before"], &result["after"]],
            [before, after],
            "{action}"
        );
        assert_eq!(result["changed"], reset.is_some(), "{action}");
        assert_eq!(result["resetType"].as_str(), reset, "{action}");
    }
}
