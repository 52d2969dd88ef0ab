//! `logs.collect`: the journal of some units, the kernel's log and the last inventory, packed into one file that stays
//! on the node under `bundles/` in the state directory. Nothing is uploaded here.
//!
//! A unit without entries is told as absent, with why; so is every unit on a machine without journald. Without `units`
//! the whole journal is taken and reported as the unit `*`.

use std::{
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Number, Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Finished, Job,
    inventory::without_nulls,
    logs::{
        Bundles,
        bundle::{self, Member},
        journal::{self, Cut, Spool},
    },
    payload,
};
use crate::{
    error::Error,
    host::Host,
    limits,
    program::{self, End},
};

/// The kind's name.
pub const KIND: &str = "logs.collect";

/// What stands for the whole journal where a unit's name stands otherwise.
const EVERYTHING: &str = "*";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Payload {
    since_seconds: Option<Number>,
    units: Option<Vec<String>>,
}

impl Payload {
    /// To JSON Schema, which the payload has passed, `60.0` is an integer too.
    fn since_seconds(&self) -> Result<u64, String> {
        let Some(given) = &self.since_seconds else {
            return Ok(limits::LOGS_SINCE_SECONDS_DEFAULT);
        };
        let whole = || given.as_f64().filter(|seconds| seconds.fract() == 0.0);
        given
            .as_u64()
            .or_else(|| whole()?.to_string().parse().ok())
            .filter(|seconds| (60..=604_800).contains(seconds))
            .ok_or_else(|| "sinceSeconds: give 60 to 604800".to_owned())
    }

    fn check_units(&self) -> Result<(), String> {
        let units = self.units.as_deref().unwrap_or_default();
        if units.len() > limits::LOGS_UNITS_MAX {
            return Err(format!(
                "units: {} given, at most {} taken",
                units.len(),
                limits::LOGS_UNITS_MAX
            ));
        }
        match units.iter().find(|unit| !is_unit_name(unit)) {
            Some(unit) => Err(format!("units: {unit:?} is not the name of a systemd unit")),
            None => Ok(()),
        }
    }
}

/// systemd's own letters; no patterns, nothing that could be read as an option.
fn is_unit_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= limits::UNIT_NAME_BYTES_MAX
        && !name.starts_with('-')
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || ":-_.\\@".contains(letter))
}

pub(super) async fn run(
    host: &Arc<Host>,
    bundles: &Arc<Bundles>,
    job: &Job,
    cancel: &CancellationToken,
) -> Finished {
    let payload: Payload = match payload(job) {
        Ok(payload) => payload,
        Err(refused) => return refused,
    };
    let since_seconds = match payload.check_units().and_then(|()| payload.since_seconds()) {
        Ok(seconds) => seconds,
        Err(why) => return Finished::failed("invalid-payload", why),
    };
    let is_file_name = |id: &str| {
        !id.is_empty()
            && id.len() <= limits::COMMAND_ID_BYTES_MAX
            && id
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-')
    };
    if !is_file_name(&job.command_id) {
        return Finished::failed("invalid-payload", "the command's id cannot name a file");
    }
    let collection = Collection {
        host: Arc::clone(host),
        bundles: Arc::clone(bundles),
        command_id: job.command_id.clone(),
        since_seconds,
        units: payload
            .units
            .filter(|units| !units.is_empty())
            .unwrap_or_else(|| vec![EVERYTHING.to_owned()]),
        // Half of the time is for reading; packing what was read needs its own.
        read_until: Instant::now()
            + (job.timeout / 2).min(Duration::from_secs(limits::LOGS_READ_SECONDS_MAX)),
        cancel: cancel.clone(),
    };
    // Writing hundreds of megabytes belongs on a thread that may block. It ends with the token, which also goes off
    // when this future is dropped.
    let runtime = tokio::runtime::Handle::current();
    match tokio::task::spawn_blocking(move || runtime.block_on(collection.run())).await {
        Ok(Ok(finished)) => finished,
        Ok(Err(Error::Cancelled)) => Finished::cancelled(),
        Ok(Err(error)) => Finished::failed("bundle-failed", error.chain()),
        Err(_) => Finished::failed(
            "bundle-failed",
            Error::BrokeOff {
                work: "the collection",
            }
            .to_string(),
        ),
    }
}

struct Collection {
    host: Arc<Host>,
    bundles: Arc<Bundles>,
    command_id: String,
    since_seconds: u64,
    units: Vec<String>,
    read_until: Instant,
    cancel: CancellationToken,
}

/// What one unit may use of what is left.
struct Share {
    bytes: u64,
    time: Duration,
}

/// What became of one unit.
struct Unit {
    name: String,
    spool: Option<Spool>,
    present: bool,
    why: Option<String>,
}

impl Unit {
    fn report(&self) -> Value {
        let cut = self.spool.as_ref().and_then(|spool| spool.cut);
        let overlong = self.spool.as_ref().map_or(0, |spool| spool.overlong);
        without_nulls(json!({
            "unit": self.name,
            "present": self.present,
            "entries": self.spool.as_ref().map_or(0, Spool::entries),
            "truncatedBy": cut.map(Cut::name),
            "overlongEntriesOmitted": (overlong > 0).then_some(overlong),
            "why": self.why,
        }))
    }
}

impl Collection {
    async fn run(self) -> Result<Finished, Error> {
        let Some(work) = self.bundles.begin(&self.command_id)? else {
            return Ok(Finished::failed(
                "already-running",
                "this command is collecting already",
            ));
        };
        let budget = self.bundles.budget_bytes();
        if budget < limits::PROGRAM_LINE_BYTES_MAX as u64 {
            return Ok(Finished::failed(
                "disk-full",
                "the state directory's disk has no room for a bundle",
            ));
        }
        let collected_at = self.host.now();
        let since = collected_at
            .unix_timestamp()
            .saturating_sub_unsigned(self.since_seconds)
            // A node whose clock stands near 1970 has no time before it.
            .max(0);

        let kernel = self.kernel_log().await?;
        let inventory = self.inventory(budget);
        let mut members = Vec::new();
        let mut left = budget;
        for member in [
            kernel
                .as_ref()
                .ok()
                .map(|log| Member::text("kernel.log", log.clone())),
            inventory,
        ]
        .into_iter()
        .flatten()
        .filter(|member| member.bytes <= budget / 4)
        {
            left = left.saturating_sub(member.bytes);
            members.push(member);
        }

        let mut reports = Vec::new();
        let mut truncated = Vec::new();
        for (number, name) in self.units.iter().enumerate() {
            // Each unit has its share of room and time, and what it leaves goes to the next: a chatty unit drives
            // nobody else out.
            let waiting = u32::try_from(self.units.len() - number).unwrap_or(u32::MAX);
            let share = Share {
                bytes: left / u64::from(waiting),
                time: self.read_until.saturating_duration_since(Instant::now()) / waiting,
            };
            let spool = work.folder.join(format!("spool-{number}"));
            let unit = self.unit(name, since, &spool, &share).await?;
            reports.push(unit.report());
            if let Some(spool) = unit.spool {
                left = left.saturating_sub(spool.bytes());
                if spool.cut.is_some() {
                    truncated.push(name.clone());
                }
                if spool.entries() > 0 {
                    members.push(Member {
                        name: member_name(number, name),
                        bytes: spool.bytes(),
                        content: Box::new(spool.oldest_first()),
                    });
                }
            }
        }

        let kernel = match kernel {
            Ok(log) => json!({ "present": true, "bytes": log.len() }),
            Err(why) => json!({ "present": false, "why": why }),
        };
        let mut result = json!({ "units": reports, "kernelLog": kernel });
        if !truncated.is_empty() {
            result["truncated"] =
                json!({ "oldestFirst": true, "units": truncated, "contentBytesMax": budget });
        }
        let mut manifest = result.clone();
        manifest["commandId"] = json!(self.command_id);
        manifest["collectedAt"] = json!(self.host.now_text());
        manifest["sinceSeconds"] = json!(self.since_seconds);
        members.insert(0, Member::text("manifest.json", manifest.to_string()));

        let path = work.folder.join("bundle");
        let modified_seconds = u64::try_from(collected_at.unix_timestamp()).unwrap_or(0);
        let written = bundle::write(&path, modified_seconds, members, &self.cancel)?;
        // The last moment at which nothing has happened yet (D12).
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        work.publish(&path, written.bytes)?;
        result["bundle"] = json!({
            "name": format!("bundles/{}", Bundles::file_name(&self.command_id)),
            "bytes": written.bytes,
            "sha256": written.sha256,
            "uploaded": false,
        });
        Ok(Finished::succeeded(result))
    }

    async fn unit(
        &self,
        name: &str,
        since: i64,
        spool: &std::path::Path,
        share: &Share,
    ) -> Result<Unit, Error> {
        let absent = |why: String| Unit {
            name: name.to_owned(),
            spool: None,
            present: false,
            why: Some(why),
        };
        let journalctl = match self.host.program("journalctl") {
            Ok(path) => path,
            Err(error) => return Ok(absent(error.chain())),
        };
        // One word each, so that no name can be taken for an option.
        let (since_argument, unit_argument) =
            (format!("--since=@{since}"), format!("--unit={name}"));
        let mut arguments = vec![since_argument.as_str()];
        if name != EVERYTHING {
            arguments.push(&unit_argument);
        }
        let spool = match journal::read(
            &journalctl,
            &arguments,
            spool,
            share.bytes,
            share.time,
            &self.cancel,
        )
        .await
        {
            Ok(spool) => spool,
            Err(error @ (Error::ProgramFailed { .. } | Error::ProgramNotStarted { .. })) => {
                return Ok(absent(error.chain()));
            }
            Err(error) => return Err(error),
        };
        if spool.entries() > 0 {
            return Ok(Unit {
                name: name.to_owned(),
                spool: Some(spool),
                present: true,
                why: None,
            });
        }
        let complaint = match spool.complaint.trim() {
            "" => String::new(),
            complaint => format!(" ({})", program::said(complaint)),
        };
        let silent = match spool.cut {
            None => format!(
                "no journal entry in the last {} s{complaint}",
                self.since_seconds
            ),
            Some(Cut::Time) => format!(
                "no journal entry came within {} s",
                share.time.as_secs_f64()
            ),
            Some(Cut::Bytes) => "no room was left for an entry".to_owned(),
        };
        let (present, why) = match self.is_known_to_systemd(name).await? {
            Ok(true) => (true, silent),
            Ok(false) => (false, format!("systemd knows no such unit, {silent}")),
            Err(why) => (false, format!("{silent}; {why}")),
        };
        Ok(Unit {
            name: name.to_owned(),
            spool: Some(spool),
            present,
            why: Some(why),
        })
    }

    /// `Ok(Err(why))` where systemd cannot be asked.
    async fn is_known_to_systemd(&self, name: &str) -> Result<Result<bool, String>, Error> {
        if name == EVERYTHING {
            return Ok(Err("the journal is empty".to_owned()));
        }
        let systemctl = match self.host.program("systemctl") {
            Ok(path) => path,
            Err(error) => return Ok(Err(error.chain())),
        };
        // Without a suffix the journal takes a name for a service's; systemd does the same.
        let arguments = ["show", "--property=LoadState", "--", name];
        let answer = program::ask(
            &systemctl,
            &arguments,
            self.host.program_timeout,
            &self.cancel,
        )
        .await;
        match answer.and_then(program::Answer::success) {
            Ok(said) => Ok(match said.trim().strip_prefix("LoadState=") {
                Some("not-found") => Ok(false),
                Some(_) => Ok(true),
                None => Err(format!("systemctl answered {:?}", program::said(&said))),
            }),
            Err(Error::Cancelled) => Err(Error::Cancelled),
            Err(error) => Ok(Err(error.chain())),
        }
    }

    /// The kernel's buffer, its newest part if it is very long. `Ok(Err(why))` where it cannot be read.
    async fn kernel_log(&self) -> Result<Result<Vec<u8>, String>, Error> {
        let dmesg = match self.host.program("dmesg") {
            Ok(path) => path,
            Err(error) => return Ok(Err(error.chain())),
        };
        let mut log: Vec<u8> = Vec::new();
        let timeout = self.host.program_timeout;
        let watched = program::watch(&dmesg, &[], timeout, &self.cancel, &mut |chunk| {
            log.extend_from_slice(chunk);
            if log.len() > 2 * limits::BUNDLE_KERNEL_LOG_BYTES_MAX {
                log.drain(..log.len() - limits::BUNDLE_KERNEL_LOG_BYTES_MAX);
            }
            std::ops::ControlFlow::Continue(())
        })
        .await;
        let ended = match watched {
            Ok(ended) => ended,
            Err(error) => return Ok(Err(error.chain())),
        };
        log.drain(
            ..log
                .len()
                .saturating_sub(limits::BUNDLE_KERNEL_LOG_BYTES_MAX),
        );
        match ended.end {
            End::Exited(status) if status.success() => Ok(Ok(log)),
            End::Exited(status) => Ok(Err(format!(
                "dmesg ended with {}: {}",
                program::status_text(status),
                program::said(&String::from_utf8_lossy(&ended.stderr))
            ))),
            End::TimedOut | End::Stopped => Ok(Err(format!(
                "dmesg did not answer within {} s",
                timeout.as_secs_f64()
            ))),
            End::Cancelled => Err(Error::Cancelled),
        }
    }

    fn inventory(&self, budget: u64) -> Option<Member> {
        let file = File::open(self.host.state_dir.join("inventory.json")).ok()?;
        let bytes = file.metadata().ok()?.len();
        (bytes <= budget.min(limits::INVENTORY_FILE_BYTES_MAX)).then(|| Member {
            name: "inventory.json".to_owned(),
            bytes,
            content: Box::new(file),
        })
    }
}

/// The unit's name as a file's name; the number keeps two units apart whose names become one.
fn member_name(number: usize, unit: &str) -> String {
    if unit == EVERYTHING {
        return "journal.ndjson".to_owned();
    }
    let unit: String = unit
        .chars()
        .map(|letter| {
            if letter == '\\' || letter == ':' {
                '_'
            } else {
                letter
            }
        })
        .take(64)
        .collect();
    format!("units/{number:02}-{unit}.ndjson")
}

#[cfg(test)]
mod tests;
