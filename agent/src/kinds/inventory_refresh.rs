//! `inventory.refresh`: what this machine is made of, true at this moment.
//!
//! Everything is collected anew each time. What `rescan` changes is the memory of GPUs: without it a GPU that the node
//! had and no longer sees stays in the inventory as missing, so that `diag.nvml` misses it too; with it the inventory
//! starts from the hardware alone. The PCI bus is never told to rescan: that would be an effect.

use serde::Deserialize;
use serde_json::{Map, json};
use tokio_util::sync::CancellationToken;

use super::{
    Finished, Job,
    inventory::{Collector, Section, fit},
    payload,
};
use crate::{host::Host, limits};

/// The kind's name.
pub const KIND: &str = "inventory.refresh";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {
    sections: Option<Vec<Section>>,
    rescan: Option<bool>,
}

pub(super) async fn run(
    host: &Host,
    collector: &Collector,
    job: &Job,
    cancel: &CancellationToken,
) -> Finished {
    let payload: Payload = match payload(job) {
        Ok(payload) => payload,
        Err(refused) => return refused,
    };
    let sections = payload.sections.unwrap_or_else(|| Section::ALL.to_vec());
    let distinct = sections
        .iter()
        .enumerate()
        .all(|(at, section)| !sections[..at].contains(section));
    if sections.is_empty() || !distinct {
        return Finished::failed(
            "invalid-payload",
            "sections: name 1 to 8 different ones, or leave it out for all",
        );
    }
    let rescan = payload.rescan.unwrap_or(false);

    let kept = &collector.kept;
    let turn = tokio::select! {
        turn = kept.turn() => turn,
        () = cancel.cancelled() => return Finished::cancelled(),
    };
    let known_gpus = if rescan {
        None
    } else {
        kept.section(Section::Gpus.name())
    };
    let collected_at = host.now_text();
    let mut collected = Map::new();
    for section in sections {
        let data = collector
            .collect(section, known_gpus.as_ref(), cancel)
            .await;
        if cancel.is_cancelled() {
            return Finished::cancelled();
        }
        collected.insert(section.name().to_owned(), data);
    }
    let stored = turn.replace(collected_at.clone(), collected.clone()).await;
    let mut result = json!({ "collectedAt": collected_at, "sections": collected });
    fit(&mut result, limits::RESULT_BYTES_MAX);
    let mut finished = Finished::succeeded(result);
    // The inventory is true all the same; only the memory of it is missing.
    if let Err(error) = stored {
        finished.details = Some(json!({ "notKept": error.chain() }));
    }
    finished
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc, thread};

    use serde_json::Value;

    use super::*;
    use crate::{
        fake_machine::FakeMachine,
        host::Reboot,
        kinds::{
            Executors, Outcome,
            tests::{job, no_secrets, run},
        },
        nvidia_smi::fake::{HEALTHY, on_the_bus, uuid, working},
    };

    #[tokio::test]
    async fn the_sections_asked_for_and_no_others_come_back() {
        let machine = FakeMachine::new();
        let finished = run(machine.host(), KIND, json!({ "sections": ["os", "bmc"] })).await;
        assert_eq!(finished.outcome, Outcome::Succeeded);
        let result = finished.result.unwrap();
        assert_eq!(result["collectedAt"], "2026-11-30T12:00:00Z");
        let names: Vec<&String> = result["sections"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["bmc", "os"]);
    }

    #[tokio::test]
    async fn k1_bad_sections_are_refused() {
        for sections in [
            json!([]),
            json!(["cpu", "cpu"]),
            json!(["cpu", "fans"]),
            json!("cpu"),
            json!([1]),
        ] {
            let finished = run(
                FakeMachine::new().host(),
                KIND,
                json!({ "sections": sections }),
            )
            .await;
            assert_eq!(
                finished.reason.as_deref(),
                Some("invalid-payload"),
                "{sections}"
            );
        }
        let finished = run(FakeMachine::new().host(), KIND, json!({ "rescan": "yes" })).await;
        assert_eq!(finished.reason.as_deref(), Some("invalid-payload"));
    }

    #[tokio::test]
    async fn a_machine_that_has_nothing_reports_every_section_as_absent_with_why() {
        let finished = run(FakeMachine::new().host(), KIND, json!({})).await;
        let sections = finished.result.unwrap()["sections"].take();
        for section in Section::ALL {
            let section = &sections[section.name()];
            assert_eq!(section["present"], false, "{sections}");
            assert!(!section["why"].as_str().unwrap().is_empty());
        }
        assert_eq!(
            sections["gpus"]["why"],
            "nvidia-smi not found and no NVIDIA device under /sys/bus/pci"
        );
    }

    #[tokio::test]
    async fn a_lost_gpu_stays_in_the_inventory_until_a_rescan() {
        let machine = FakeMachine::new();
        (0..8).for_each(|index| on_the_bus(&machine, index, "nvidia"));
        working(&machine, &vec![HEALTHY; 8]);
        let executors = Executors::new(machine.host());
        let gpus = async |payload: Value| {
            let finished = executors
                .run(
                    job(KIND, payload),
                    &no_secrets().secrets,
                    CancellationToken::new(),
                )
                .await;
            finished.result.unwrap()["sections"]["gpus"].take()
        };
        let before = gpus(json!({})).await;
        assert_eq!((&before["count"], before.get("missing")), (&json!(8), None));

        fs::remove_dir_all(machine.path("sys/bus/pci/devices/0000:17:00.0")).unwrap();
        working(&machine, &vec![HEALTHY; 7]);
        for _ in 0..2 {
            let lost = gpus(json!({ "sections": ["gpus"] })).await;
            assert_eq!(lost["count"], 7);
            assert_eq!(lost["missing"]["items"][0]["uuid"], uuid(7));
        }
        let rescanned = gpus(json!({ "rescan": true })).await;
        assert_eq!(
            (&rescanned["count"], rescanned.get("missing")),
            (&json!(7), None)
        );
    }

    #[tokio::test]
    async fn d12_a_cancel_between_sections_changes_nothing() {
        let machine = FakeMachine::new();
        machine.program(
            "nvidia-smi",
            &format!("touch {}; sleep 600", machine.path("asked").display()),
        );
        let executors = Executors::new(machine.host());
        let cancel = CancellationToken::new();
        let stop = async {
            crate::fake_machine::wait_until("nvidia-smi was asked", || {
                machine.path("asked").exists()
            })
            .await;
            cancel.cancel();
        };
        let keeper = no_secrets();
        let run = executors.run(job(KIND, json!({})), &keeper.secrets, cancel.clone());
        let (finished, ()) = tokio::join!(run, stop);
        assert_eq!(finished.outcome, Outcome::Cancelled);
        assert!(!machine.path("state/inventory.json").exists());
    }

    #[tokio::test]
    async fn an_inventory_that_cannot_be_kept_is_reported_all_the_same() {
        let machine = FakeMachine::new();
        let mut host = machine.host();
        machine.file("blocked", "");
        host.state_dir = machine.path("blocked/state");
        let finished = run(host, KIND, json!({ "sections": ["os"] })).await;
        assert_eq!(finished.outcome, Outcome::Succeeded);
        assert!(
            finished.details.unwrap()["notKept"]
                .as_str()
                .unwrap()
                .starts_with("cannot create ")
        );
    }

    #[tokio::test]
    async fn d13_hundreds_of_disks_and_interfaces_stay_below_the_result_limit() {
        let machine = FakeMachine::new();
        for number in 0..400 {
            let disk = machine.path(&format!("sys/devices/pci0000:00/ata1/sd{number}"));
            machine.link(&format!("sys/block/sd{number}"), &disk);
            machine.file(&format!("sys/block/sd{number}/size"), "1000");
            machine.file(
                &format!("sys/block/sd{number}/device/model"),
                &"m".repeat(500),
            );
            machine.file(&format!("sys/block/sd{number}/serial"), &"s".repeat(500));
            let nic = machine.path(&format!("sys/devices/virtual/net/veth{number}"));
            machine.link(&format!("sys/class/net/veth{number}"), &nic);
            machine.file(
                &format!("sys/class/net/veth{number}/address"),
                "02:00:00:00:00:01",
            );
        }
        let result = run(machine.host(), KIND, json!({})).await.result.unwrap();
        assert!(result.to_string().len() <= limits::RESULT_BYTES_MAX);
        for section in ["disks", "nics"] {
            let list = &result["sections"][section];
            let shown = list["items"].as_array().unwrap().len();
            assert_eq!(list["count"], 400);
            assert!(shown > 20);
            assert_eq!(list["omitted"], 400 - shown);
        }
    }

    /// This test looks at the machine it runs on.
    #[tokio::test]
    async fn this_machine_is_told_as_it_is() {
        let state_dir = tempfile::tempdir().unwrap();
        let host = Host::this_machine(
            state_dir.path().to_path_buf(),
            Reboot::Injected(Arc::new(|_| panic!("nothing here may reboot"))),
            Arc::new(|| time::macros::datetime!(2026-11-30 12:00 UTC)),
        );
        let finished = run(host, KIND, json!({})).await;
        assert_eq!(
            (finished.outcome, finished.details),
            (Outcome::Succeeded, None)
        );
        let result = finished.result.unwrap();
        let sections = &result["sections"];
        let told = |pointer: &str| {
            sections
                .pointer(pointer)
                .unwrap_or_else(|| panic!("no {pointer} in {sections:#}"))
        };

        let read = |path: &str| fs::read_to_string(path).unwrap().trim().to_owned();
        assert_eq!(
            told("/system/hostname"),
            &json!(read("/proc/sys/kernel/hostname"))
        );
        assert_eq!(
            told("/system/bootId"),
            &json!(read("/proc/sys/kernel/random/boot_id"))
        );
        assert!(
            told("/cpu/logicalCount").as_u64().unwrap()
                >= thread::available_parallelism().unwrap().get() as u64
        );
        assert_eq!(
            told("/cpu/availableCount"),
            &json!(thread::available_parallelism().unwrap().get())
        );
        let total_kib: u64 = crate::sysfs::field(&read("/proc/meminfo"), "MemTotal")
            .unwrap()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        assert_eq!(told("/memory/totalBytes"), &json!(total_kib * 1024));
        assert_eq!(
            told("/os/kernelRelease"),
            &json!(read("/proc/sys/kernel/osrelease"))
        );
        for disk in told("/disks/items").as_array().unwrap() {
            let sectors: u64 = read(&format!(
                "/sys/block/{}/size",
                disk["name"].as_str().unwrap()
            ))
            .parse()
            .unwrap();
            assert_eq!(disk["sizeBytes"], sectors * 512);
        }
        for nic in told("/nics/items").as_array().unwrap() {
            assert_eq!(
                nic["mac"],
                read(&format!(
                    "/sys/class/net/{}/address",
                    nic["name"].as_str().unwrap()
                ))
            );
        }
        for (section, device) in [("bmc", "/dev/ipmi0"), ("gpus", "/proc/driver/nvidia")] {
            if !std::path::Path::new(device).exists() {
                assert!(
                    sections[section]["why"].is_string(),
                    "{}",
                    sections[section]
                );
            }
        }
        assert!(result.to_string().len() < limits::RESULT_BYTES_MAX);
        assert!(state_dir.path().join("inventory.json").exists());
    }
}
