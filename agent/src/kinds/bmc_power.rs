//! `bmc.power`: a machine is turned on, off, or off and on again by its baseboard management controller, which speaks
//! Redfish (DMTF DSP0266).
//!
//! | action | the machine is | reset that is asked for |
//! |---|---|---|
//! | on | not on | `On`, else `ForceOn` |
//! | off | not off | `ForceOff`: the power is cut at once, as `ipmitool power off` does. This kind is for machines that no longer listen; those that do can be shut down from the inside |
//! | cycle | off | `On`, else `ForceOn` |
//! | cycle | anything else | `PowerCycle`, else `ForceRestart` |
//!
//! Of two, the first that the system lists as allowed; where it lists none, the first. Nothing is asked of a machine
//! that is as it should be. A reset is asked for once; after it the machine is watched until it is as it should be.
//!
//! `bmc` is the service's base URL, of a service with one system, or the URL of one ComputerSystem. The secret is the
//! value of the Authorization field; sessions of Redfish's own (`X-Auth-Token`) are not opened.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, header::HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Finished, Job, Outcome,
    http::{Answer, Client, Request, Target, Unanswered, authorization},
    payload,
};
use crate::{
    limits::{
        POWER_CYCLE_SECONDS, POWER_LOOK_MILLIS, POWER_SYSTEMS_NAMED_MAX, POWER_WAIT_SECONDS_MAX,
        VALUE_CHARS_MAX,
    },
    program::said,
    secrets::Secrets,
    sysfs::clean,
};

#[cfg(test)]
mod tests;

/// The kind's name.
pub const KIND: &str = "bmc.power";

/// The collection of a service's systems; every service has it here (DSP0266, 6.4).
const SYSTEMS: &str = "/redfish/v1/Systems";

const ON: &str = "On";
const OFF: &str = "Off";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Payload {
    bmc: String,
    action: Action,
    secret_ref: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Action {
    On,
    Off,
    Cycle,
}

impl Action {
    /// The power state that it leads to.
    fn state(self) -> &'static str {
        match self {
            Self::On | Self::Cycle => ON,
            Self::Off => OFF,
        }
    }

    /// The resets that do it to a machine in this power state, best first.
    fn resets(self, before: &str) -> &'static [&'static str] {
        match self {
            Self::Off => &["ForceOff"],
            Self::Cycle if before != OFF => &["PowerCycle", "ForceRestart"],
            Self::On | Self::Cycle => &["On", "ForceOn"],
        }
    }
}

/// One command at work on one service.
struct Work<'a> {
    client: &'a Client,
    secrets: &'a Secrets,
    authorization: HeaderValue,
    timeout: Duration,
    until: Instant,
}

/// A ComputerSystem as it was last seen.
struct System {
    power_state: String,
    /// Where a reset is asked for, and the resets that are allowed if that is said.
    reset: Option<(String, Option<Vec<String>>)>,
}

pub(super) async fn run(
    client: &Client,
    job: &Job,
    secrets: &Secrets,
    cancel: &CancellationToken,
) -> Finished {
    let until = Instant::now() + job.timeout;
    match attempt(client, job, secrets, cancel, until).await {
        Ok(finished) | Err(finished) => finished,
    }
}

async fn attempt(
    client: &Client,
    job: &Job,
    secrets: &Secrets,
    cancel: &CancellationToken,
    until: Instant,
) -> Result<Finished, Finished> {
    let payload: Payload = payload(job)?;
    let base = Target::parse("bmc", &payload.bmc)?;
    let named = named_system(&base)?;
    base.check_private("bmc")?;
    let secret = secrets.get(&payload.secret_ref, until, cancel).await;
    let secret = secret.map_err(|failure| failure.finished(&payload.secret_ref))?;
    let work = Work {
        client,
        secrets,
        authorization: authorization(&payload.secret_ref, &secret)?,
        timeout: job.timeout,
        until,
    };
    drop(secret);
    let url = match named {
        Some(url) => url,
        None => work.only_system(&base, cancel).await?,
    };
    let (action, system) = (payload.action, work.system(&url, cancel).await?);
    let before = system.power_state.clone();
    if action != Action::Cycle && before == action.state() {
        let result = json!({ "after": before, "before": before, "changed": false });
        return Ok(Finished::succeeded(result));
    }
    let (target, reset) = choose(&url, &system, action)?;
    work.reset(&target, &before, reset, cancel).await?;
    Ok(work.watch(&url, action, &before, reset).await)
}

/// The ComputerSystem that the payload names itself; `None` where it names the service.
fn named_system(base: &Target) -> Result<Option<Target>, Finished> {
    let path = base.url().path().trim_end_matches('/');
    let system = path
        .strip_prefix(SYSTEMS)
        .and_then(|rest| rest.strip_prefix('/'));
    let is_system = system.is_some_and(|id| !id.is_empty() && !id.contains('/'));
    let is_service = matches!(path, "" | "/redfish" | "/redfish/v1" | SYSTEMS);
    if base.url().query().is_some() || !(is_system || is_service) {
        return Err(Finished::failed(
            "invalid-payload",
            "bmc must be the base URL of a Redfish service, such as https://bmc.example, or the URL of one \
             ComputerSystem, such as https://bmc.example/redfish/v1/Systems/1",
        ));
    }
    Ok(is_system.then(|| base.clone()))
}

/// Where a reset is asked for, and which one.
fn choose(
    url: &Target,
    system: &System,
    action: Action,
) -> Result<(Target, &'static str), Finished> {
    let (target, allowed) = system
        .reset
        .as_ref()
        .ok_or_else(|| unreadable(url, "the system has no action #ComputerSystem.Reset"))?;
    let target = url
        .join(target)
        .ok_or_else(|| unreadable(url, "the system's reset leads to another service"))?;
    let resets = action.resets(&system.power_state);
    let reset = resets.iter().find(|reset| {
        allowed
            .as_ref()
            .is_none_or(|allowed| allowed.iter().any(|allowed| allowed == *reset))
    });
    let reset = reset.ok_or_else(|| Finished {
        details: Some(json!({
            "allowed": allowed,
            "needed": resets,
            "powerState": system.power_state,
            "url": url.shown(),
            "why": "the system does not allow the reset that this action needs; nothing was asked of it",
        })),
        ..Finished::failed("reset-not-allowed", "")
    })?;
    Ok((target, reset))
}

fn unreadable(url: &Target, why: &str) -> Finished {
    Finished {
        details: Some(json!({ "url": url.shown(), "why": why })),
        ..Finished::failed("redfish-unreadable", "")
    }
}

impl Work<'_> {
    /// The one system of a service.
    async fn only_system(
        &self,
        base: &Target,
        cancel: &CancellationToken,
    ) -> Result<Target, Finished> {
        let url = base
            .join(SYSTEMS)
            .ok_or_else(|| unreadable(base, "the URL cannot be completed"))?;
        let systems = self.get(&url, cancel).await?;
        let members = systems["Members"]
            .as_array()
            .ok_or_else(|| unreadable(&url, "the collection of systems has no Members"))?;
        let ids = members
            .iter()
            .filter_map(|member| member["@odata.id"].as_str());
        match ids.clone().collect::<Vec<_>>().as_slice() {
            [id] => url
                .join(id)
                .ok_or_else(|| unreadable(&url, "the system is of another service")),
            [] => Err(unreadable(&url, "the service has no system")),
            many => Err(Finished {
                details: Some(json!({
                    "systems": ids.take(POWER_SYSTEMS_NAMED_MAX).map(|id| self.shown(id)).collect::<Vec<_>>(),
                    "url": url.shown(),
                    "why": format!("the service has {} systems; give the URL of one as bmc", many.len()),
                })),
                ..Finished::failed("ambiguous-system", "")
            }),
        }
    }

    async fn system(&self, url: &Target, cancel: &CancellationToken) -> Result<System, Finished> {
        let system = self.get(url, cancel).await?;
        let power_state = system["PowerState"]
            .as_str()
            .ok_or_else(|| unreadable(url, "the system does not say its PowerState"))?;
        let action = &system["Actions"]["#ComputerSystem.Reset"];
        let allowed = action["ResetType@Redfish.AllowableValues"].as_array();
        let allowed = allowed.map(|allowed| {
            let values = allowed.iter().filter_map(Value::as_str);
            values.map(|value| self.shown(value)).collect()
        });
        let target = action["target"].as_str().map(str::to_owned);
        Ok(System {
            power_state: self.shown(power_state),
            reset: target.map(|target| (target, allowed)),
        })
    }

    /// Asks for a reset, once.
    async fn reset(
        &self,
        target: &Target,
        before: &str,
        reset: &str,
        cancel: &CancellationToken,
    ) -> Result<(), Finished> {
        let body = Bytes::from(json!({ "ResetType": reset }).to_string());
        let body = Some(("application/json", body));
        let answer = self.send(Method::POST, target, body, cancel).await;
        let answer = answer.map_err(|unanswered| Finished {
            result: matches!(unanswered, Unanswered::NoAnswer(_))
                .then(|| json!({ "before": before, "resetType": reset })),
            ..unanswered.finished(target, self.timeout)
        })?;
        if answer.status.is_success() {
            return Ok(());
        }
        Err(Finished {
            result: Some(json!({ "before": before, "changed": false, "resetType": reset })),
            ..self.bad_status(target, &answer)
        })
    }

    /// Looks until the machine is as it should be. From here on a cancel changes nothing: the reset was taken in, and
    /// what comes of it is what is told (D12).
    async fn watch(&self, url: &Target, action: Action, before: &str, reset: &str) -> Finished {
        let asked = Instant::now();
        let until = self
            .until
            .min(asked + Duration::from_secs(POWER_WAIT_SECONDS_MAX));
        let never = CancellationToken::new();
        // A machine that was off or is turned off shows that it obeyed by its state; one that was on and shall be on
        // again only if it is caught in between.
        let mut has_left = before != action.state();
        let mut seen = Err("the system was not looked at again".to_owned());
        loop {
            let look = Duration::from_millis(POWER_LOOK_MILLIS);
            if Instant::now() + look >= until {
                break;
            }
            sleep(look).await;
            // A controller may well be silent for a while now.
            match self.system(url, &never).await {
                Ok(system) => {
                    let is_there = system.power_state == action.state();
                    has_left |= !is_there;
                    let is_long = asked.elapsed() >= Duration::from_secs(POWER_CYCLE_SECONDS);
                    if is_there && (has_left || is_long) {
                        return Finished::succeeded(json!({
                            "after": system.power_state,
                            "before": before,
                            "changed": true,
                            "resetType": reset,
                        }));
                    }
                    seen = Ok(system.power_state);
                }
                Err(finished) => {
                    let why = finished
                        .details
                        .as_ref()
                        .and_then(|details| details["why"].as_str());
                    seen = Err(why.unwrap_or("no answer").to_owned());
                }
            }
        }
        let seconds = asked.elapsed().as_secs();
        let (after, last) = match seen {
            Ok(state) => (Some(state.clone()), format!("it is {state}")),
            Err(why) => (None, why),
        };
        Finished {
            outcome: Outcome::Failed,
            reason: Some("power-state".to_owned()),
            details: Some(json!({
                "url": url.shown(),
                "why": format!(
                    "the reset was accepted, and the system was not seen to be {} within {seconds} s: {last}",
                    action.state()
                ),
            })),
            result: Some(json!({ "after": after, "before": before, "resetType": reset })),
        }
    }

    async fn get(&self, url: &Target, cancel: &CancellationToken) -> Result<Value, Finished> {
        let answer = self.send(Method::GET, url, None, cancel).await;
        let answer = answer.map_err(|unanswered| match unanswered {
            // Reading takes no effect, so there is no doubt to tell of.
            Unanswered::NoAnswer(why) => Finished {
                details: Some(json!({
                    "url": url.shown(),
                    "why": format!("{why}; nothing but reading was asked for"),
                })),
                ..Finished::failed("no-answer", "")
            },
            unanswered => unanswered.finished(url, self.timeout),
        })?;
        if !answer.status.is_success() {
            return Err(self.bad_status(url, &answer));
        }
        serde_json::from_slice(&answer.body)
            .map_err(|error| unreadable(url, &format!("the answer is no JSON: {error}")))
    }

    async fn send(
        &self,
        method: Method,
        target: &Target,
        body: Option<(&'static str, Bytes)>,
        cancel: &CancellationToken,
    ) -> Result<Answer, Unanswered> {
        let request = Request {
            method,
            target,
            authorization: Some(&self.authorization),
            body,
        };
        self.client.send(request, self.until, cancel).await
    }

    fn bad_status(&self, url: &Target, answer: &Answer) -> Finished {
        let status = answer.status.as_u16();
        // DSP0266, 8.6: an error says what is wrong, in more or fewer words.
        let error: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let error = &error["error"];
        let text = error["@Message.ExtendedInfo"][0]["Message"]
            .as_str()
            .or_else(|| error["message"].as_str());
        let text = text.map(|text| said(&self.secrets.redact(text)));
        Finished {
            details: Some(json!({
                "status": status,
                "url": url.shown(),
                "why": text.unwrap_or_else(|| format!("the answer has status {status}")),
            })),
            ..Finished::failed("http-status", "")
        }
    }

    /// A word of the service, of bounded length; what is cut was clean before.
    fn shown(&self, word: &str) -> String {
        clean(&self.secrets.redact(word), VALUE_CHARS_MAX)
    }
}
