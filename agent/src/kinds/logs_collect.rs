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
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Finished, Job,
    inventory::without_nulls,
    logs::{
        Bundles,
        bundle::{self, Member},
        journal::{self, Spool},
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
    since_seconds: Option<u64>,
    units: Option<Vec<String>>,
}

impl Payload {
    fn check(&self) -> Result<(), String> {
        if self
            .since_seconds
            .is_some_and(|seconds| !(60..=604_800).contains(&seconds))
        {
            return Err("sinceSeconds: give 60 to 604800".to_owned());
        }
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
        && !name.starts_with(['-', '.'])
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
    if let Err(why) = payload.check() {
        return Finished::failed("invalid-payload", why);
    }
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
        since_seconds: payload
            .since_seconds
            .unwrap_or(limits::LOGS_SINCE_SECONDS_DEFAULT),
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
            "truncatedBy": cut.map(journal::Cut::name),
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
            .saturating_sub_unsigned(self.since_seconds);

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
            // Each unit has its share, and what it leaves goes to the next: a chatty unit drives nobody else out.
            let share = left / (self.units.len() - number) as u64;
            let spool = work.folder.join(format!("spool-{number}"));
            let unit = self.unit(name, since, &spool, share).await?;
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
        share: u64,
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
        let time = self.read_until.saturating_duration_since(Instant::now());
        let spool =
            match journal::read(&journalctl, &arguments, spool, share, time, &self.cancel).await {
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
        let silent = format!(
            "no journal entry in the last {} s{complaint}",
            self.since_seconds
        );
        let (present, why) = match self.is_known_to_systemd(name).await? {
            Ok(true) => (true, silent),
            Ok(false) => (
                false,
                "systemd knows no such unit, and the journal has no entry of it".to_owned(),
            ),
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
mod tests {
    use std::{collections::BTreeMap, io::Read, path::Path};

    use sha2::Digest;

    use super::*;
    use crate::{
        fake_machine::{FakeMachine, wait_until},
        kinds::{
            Executors, Outcome,
            tests::{job, run},
        },
    };

    fn contents(path: &Path) -> BTreeMap<String, String> {
        let mut archive =
            tar::Archive::new(flate2::read::GzDecoder::new(File::open(path).unwrap()));
        archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text)
            })
            .collect()
    }

    const BUNDLE: &str = "state/bundles/cmd_01jdx8z3f5e8jbm2k3q4r5s6t7.bundle";

    #[tokio::test]
    async fn k_the_units_asked_for_are_bundled_and_the_absent_ones_told() {
        let machine = FakeMachine::new();
        machine.program(
            "journalctl",
            "case \"$*\" in *--unit=ssh.service*) printf '{\"MESSAGE\":\"2\"}\\n{\"MESSAGE\":\"1\"}\\n';; esac\necho \
             \"$1 $2\" >>\"$(dirname \"$0\")/../asked\"",
        );
        machine.program(
            "systemctl",
            "case \"$4\" in idle.service) echo LoadState=loaded;; *) echo LoadState=not-found;; esac",
        );
        machine.program("dmesg", "echo '[0.0] Linux'");
        let units = json!(["ssh.service", "idle.service", "none.service"]);
        let finished = run(
            machine.host(),
            KIND,
            json!({ "sinceSeconds": 600, "units": units }),
        )
        .await;
        assert_eq!(finished.outcome, Outcome::Succeeded, "{finished:?}");
        let result = finished.result.unwrap();
        assert_eq!(
            result["units"],
            json!([
                { "unit": "ssh.service", "present": true, "entries": 2 },
                { "unit": "idle.service", "present": true, "entries": 0, "why": "no journal entry in the last 600 s" },
                { "unit": "none.service", "present": false, "entries": 0,
                  "why": "systemd knows no such unit, and the journal has no entry of it" },
            ])
        );
        assert_eq!(result.get("truncated"), None);
        let asked = std::fs::read_to_string(machine.path("asked")).unwrap();
        // 12:00 on 2026-11-30, less ten minutes.
        assert_eq!(
            asked.lines().next(),
            Some("--since=@1796039400 --unit=ssh.service")
        );

        let bundle = std::fs::read(machine.path(BUNDLE)).unwrap();
        assert_eq!(
            result["bundle"],
            json!({
                "name": "bundles/cmd_01jdx8z3f5e8jbm2k3q4r5s6t7.bundle", "bytes": bundle.len(), "uploaded": false,
                "sha256": hex::encode(sha2::Sha256::digest(&bundle)),
            })
        );
        let contents = contents(&machine.path(BUNDLE));
        assert_eq!(
            contents.keys().collect::<Vec<_>>(),
            ["kernel.log", "manifest.json", "units/00-ssh.service.ndjson"]
        );
        assert_eq!(
            contents["units/00-ssh.service.ndjson"],
            "{\"MESSAGE\":\"1\"}\n{\"MESSAGE\":\"2\"}\n"
        );
        assert_eq!(crate::sysfs::names(&machine.path("state/bundles")).len(), 1);
    }

    #[tokio::test]
    async fn without_journald_the_units_absence_is_told() {
        let machine = FakeMachine::new();
        let finished = run(machine.host(), KIND, json!({ "units": ["ssh.service"] })).await;
        assert_eq!(finished.outcome, Outcome::Succeeded);
        let result = finished.result.unwrap();
        assert_eq!(
            result["units"],
            json!([{ "unit": "ssh.service", "present": false, "entries": 0, "why": "journalctl not found" }])
        );
        assert_eq!(
            result["kernelLog"],
            json!({ "present": false, "why": "dmesg not found" })
        );
        assert!(machine.path(BUNDLE).exists());
    }

    #[tokio::test]
    async fn a_machine_whose_journal_is_empty_says_so() {
        let machine = FakeMachine::new();
        machine.program(
            "journalctl",
            "echo 'No journal files were found.' >&2; echo '-- No entries --'",
        );
        machine.program(
            "systemctl",
            "echo 'System has not been booted with systemd' >&2; exit 1",
        );
        let result = run(machine.host(), KIND, json!({ "units": ["a"] }))
            .await
            .result
            .unwrap();
        let why = "no journal entry in the last 3600 s (No journal files were found.); systemctl ended with exit \
                   status 1: System has not been booted with systemd";
        assert_eq!(
            result["units"],
            json!([{ "unit": "a", "present": false, "entries": 0, "why": why }])
        );
        let result = run(machine.host(), KIND, json!({})).await.result.unwrap();
        assert_eq!(result["units"][0]["unit"], "*");
    }

    #[tokio::test]
    async fn k1_names_that_are_no_units_are_refused_before_anything_runs() {
        let machine = FakeMachine::new();
        machine.program("journalctl", "touch \"$(dirname \"$0\")/../ran\"");
        let long = "x".repeat(256);
        for unit in [
            "--file=/etc/shadow",
            "-f",
            "",
            "a b",
            "a*",
            "a/b",
            "../a",
            "ü",
            "a\n",
            "a\0b",
            &long,
        ] {
            let finished = run(machine.host(), KIND, json!({ "units": [unit] })).await;
            assert_eq!(
                finished.reason.as_deref(),
                Some("invalid-payload"),
                "{unit:?}"
            );
        }
        for payload in [
            json!({ "units": vec!["a"; 17] }),
            json!({ "sinceSeconds": 59 }),
            json!({ "sinceSeconds": 604_801 }),
            json!({ "sinceSeconds": -1 }),
            json!({ "sinceSeconds": 1e300 }),
        ] {
            let finished = run(machine.host(), KIND, payload.clone()).await;
            assert_eq!(
                finished.reason.as_deref(),
                Some("invalid-payload"),
                "{payload}"
            );
        }
        assert!(!machine.path("ran").exists());
        assert!(
            is_unit_name("getty@tty1.service") && is_unit_name("dev-disk-by\\x2dlabel-x.device")
        );
    }

    #[tokio::test]
    async fn d12_a_cancelled_collection_leaves_nothing_behind() {
        let machine = FakeMachine::new();
        machine.program(
            "journalctl",
            "touch \"$(dirname \"$0\")/../ran\"; while :; do echo '{}'; sleep 1; done",
        );
        let executors = Executors::new(machine.host());
        let cancel = CancellationToken::new();
        let stop = async {
            wait_until("the journal is read", || machine.path("ran").exists()).await;
            cancel.cancel();
        };
        let (finished, ()) =
            tokio::join!(executors.run(job(KIND, json!({})), cancel.clone()), stop);
        assert_eq!(finished.outcome, Outcome::Cancelled);
        assert!(crate::sysfs::names(&machine.path("state/bundles")).is_empty());
    }

    #[tokio::test]
    async fn a_job_that_runs_out_of_time_bundles_what_it_read() {
        let machine = FakeMachine::new();
        machine.program("journalctl", "echo '{\"n\":1}'; exec sleep 600");
        let mut job = job(KIND, json!({}));
        job.timeout = Duration::from_secs(4);
        let result = Executors::new(machine.host())
            .run(job, CancellationToken::new())
            .await
            .result
            .unwrap();
        assert_eq!(
            result["units"],
            json!([{ "unit": "*", "present": true, "entries": 1, "truncatedBy": "time" }])
        );
        assert_eq!(result["truncated"]["units"], json!(["*"]));
        assert_eq!(
            contents(&machine.path(BUNDLE))["journal.ndjson"],
            "{\"n\":1}\n"
        );
    }

    #[tokio::test]
    async fn a_state_directory_that_refuses_fails_the_command() {
        let machine = FakeMachine::new();
        machine.file("blocked", "");
        let mut host = machine.host();
        host.state_dir = machine.path("blocked");
        let finished = run(host, KIND, json!({})).await;
        assert_eq!(
            (finished.outcome, finished.reason.as_deref()),
            (Outcome::Failed, Some("bundle-failed"))
        );
        assert!(
            finished.details.unwrap()["why"]
                .as_str()
                .unwrap()
                .starts_with("cannot create ")
        );
    }
}
