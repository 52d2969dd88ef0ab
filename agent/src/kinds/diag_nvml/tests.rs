use std::{fs, time::Duration};

use super::*;
use crate::{
    fake_machine::FakeMachine,
    kinds::{
        Executors,
        tests::{job, no_secrets, run},
    },
    nvidia_smi::fake::{FakeGpu, HEALTHY, on_the_bus, uuid, working},
};

fn check<'a>(finished: &'a Finished, name: &str, gpu: Option<&str>) -> &'a Value {
    let checks = finished.result.as_ref().unwrap()["checks"]
        .as_array()
        .unwrap();
    checks
        .iter()
        .find(|check| check["name"] == name && check.get("gpu").and_then(Value::as_str) == gpu)
        .unwrap_or_else(|| panic!("no {name} of {gpu:?} in {checks:#?}"))
}

async fn diag(machine: &FakeMachine) -> Finished {
    run(machine.host(), KIND, json!({})).await
}

fn failing(finished: &Finished) -> Vec<&str> {
    let checks = finished.result.as_ref().unwrap()["checks"]
        .as_array()
        .unwrap();
    checks
        .iter()
        .filter(|check| check["status"] == "fail")
        .map(|check| check["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn k5_eight_healthy_gpus_pass_every_check() {
    let machine = FakeMachine::new();
    working(&machine, &vec![HEALTHY; 8]);
    (0..8).for_each(|index| on_the_bus(&machine, index, "nvidia"));
    machine.program("dmesg", "echo '[ 1.0] Linux version 6.1'");
    let finished = diag(&machine).await;
    assert_eq!(
        (finished.outcome, &finished.reason),
        (Outcome::Succeeded, &None)
    );
    let result = finished.result.as_ref().unwrap();
    assert_eq!(result["ok"], true);
    assert_eq!(
        result["checks"].as_array().unwrap().len(),
        2 + 8 * GPU_CHECKS.len()
    );
    assert!(
        result["checks"]
            .as_array()
            .unwrap()
            .iter()
            .all(|check| check["status"] == "pass"),
        "{result:#}"
    );
}

#[tokio::test]
async fn k5_without_nvidia_smi_the_checks_say_why_they_fail() {
    let finished = diag(&FakeMachine::new()).await;
    assert_eq!(
        (finished.outcome, finished.reason.as_deref()),
        (Outcome::Failed, Some("unhealthy"))
    );
    assert_eq!(failing(&finished), ["nvml.init", "gpus.visible"]);
    let why = &check(&finished, "nvml.init", None)["why"];
    assert_eq!(
        why,
        "nvidia-smi not found (and no NVIDIA device is on the PCI bus)"
    );
    for name in GPU_CHECKS {
        assert_eq!(check(&finished, name, None)["status"], "skipped");
    }
    let checks = finished.result.as_ref().unwrap()["checks"]
        .as_array()
        .unwrap();
    assert!(checks.iter().all(|check| check["why"].is_string()));
}

#[tokio::test]
async fn k5_a_kernel_driver_that_names_the_gpus_is_not_enough() {
    let machine = FakeMachine::new();
    on_the_bus(&machine, 0, "nvidia");
    machine.file(
        "proc/driver/nvidia/gpus/0000:10:00.0/information",
        "Model: NVIDIA L4\nGPU UUID: GPU-1\n",
    );
    for script in [
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
        "kill -SEGV $$",
        "echo hello",
    ] {
        machine.program("nvidia-smi", script);
        let finished = diag(&machine).await;
        assert_eq!(
            failing(&finished),
            ["nvml.init", "gpus.visible"],
            "{script}"
        );
        assert!(
            check(&finished, "nvml.init", None)["why"]
                .as_str()
                .unwrap()
                .starts_with("nvidia-smi ")
        );
    }
    let mismatch = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18";
    machine.program("nvidia-smi", mismatch);
    let why = check(&diag(&machine).await, "nvml.init", None)["why"].clone();
    assert!(
        why.as_str()
            .unwrap()
            .contains("Driver/library version mismatch"),
        "{why}"
    );
}

#[tokio::test]
async fn k5_an_nvidia_smi_that_hangs_fails_nvml_init_in_time() {
    let machine = FakeMachine::new();
    machine.program("nvidia-smi", "sleep 600");
    let mut host = machine.host();
    host.program_timeout = Duration::from_millis(300);
    let finished = run(host, KIND, json!({})).await;
    let why = &check(&finished, "nvml.init", None)["why"];
    assert!(
        why.as_str()
            .unwrap()
            .starts_with("nvidia-smi did not answer within 0.3 s"),
        "{why}"
    );
}

#[tokio::test]
async fn k5_an_interface_that_answers_with_no_gpu_initialises_and_shows_none() {
    let machine = FakeMachine::new();
    machine.program("nvidia-smi", "echo 'No devices were found'; exit 6");
    let finished = diag(&machine).await;
    assert_eq!(check(&finished, "nvml.init", None)["status"], "pass");
    assert_eq!(failing(&finished), ["gpus.visible"]);
}

#[tokio::test]
async fn k5_each_bad_gpu_fails_its_own_check() {
    let machine = FakeMachine::new();
    working(
        &machine,
        &[
            HEALTHY,
            FakeGpu {
                ecc: "3",
                ..HEALTHY
            },
            FakeGpu {
                pending: "Yes",
                ..HEALTHY
            },
            FakeGpu {
                failure: "1",
                ..HEALTHY
            },
            FakeGpu {
                width: "8",
                ..HEALTHY
            },
            FakeGpu {
                ecc: "[GPU requires reset]",
                ..HEALTHY
            },
            FakeGpu {
                ecc: "[N/A]",
                width: "[N/A]",
                pending: "[N/A]",
                failure: "[N/A]",
            },
        ],
    );
    let finished = diag(&machine).await;
    assert_eq!(finished.reason.as_deref(), Some("unhealthy"));
    assert_eq!(
        failing(&finished),
        [
            "ecc.uncorrectable",
            "row-remap.pending",
            "row-remap.failure",
            "pcie.link",
            "ecc.uncorrectable"
        ]
    );
    let link = check(&finished, "pcie.link", Some(&uuid(4)));
    assert_eq!(link["why"], "the link is x8 and could be x16");
    for name in [
        "ecc.uncorrectable",
        "row-remap.pending",
        "row-remap.failure",
        "pcie.link",
    ] {
        let skipped = check(&finished, name, Some(&uuid(6)));
        assert_eq!(skipped["status"], "skipped", "{skipped}");
        assert!(skipped["why"].is_string());
    }
}

#[tokio::test]
async fn k5_a_gpu_that_the_inventory_had_is_missed() {
    let machine = FakeMachine::new();
    let executors = Executors::new(machine.host());
    working(&machine, &vec![HEALTHY; 8]);
    executors
        .run(
            job("inventory.refresh", json!({ "sections": ["gpus"] })),
            &no_secrets().secrets,
            CancellationToken::new(),
        )
        .await;
    working(&machine, &vec![HEALTHY; 7]);
    let finished = executors
        .run(
            job(KIND, json!({})),
            &no_secrets().secrets,
            CancellationToken::new(),
        )
        .await;
    assert_eq!(failing(&finished), ["gpus.visible"]);
    let why = check(&finished, "gpus.visible", None)["why"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        why,
        format!(
            "nvidia-smi names 7 of 8 GPUs: {} was in the last inventory",
            uuid(7)
        )
    );
}

#[tokio::test]
async fn k5_a_gpu_that_a_virtual_machine_has_is_not_missed() {
    let machine = FakeMachine::new();
    working(&machine, &[HEALTHY]);
    on_the_bus(&machine, 0, "nvidia");
    on_the_bus(&machine, 1, "vfio-pci");
    assert_eq!(diag(&machine).await.outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn k5_xids_of_this_boot_fail_the_gpu_they_name_unless_a_program_caused_them() {
    let machine = FakeMachine::new();
    working(&machine, &[HEALTHY, HEALTHY, HEALTHY]);
    machine.program(
        "journalctl",
        "case \"$*\" in *--boot*) ;; *) exit 1;; esac\ncat <<'END'\n\
         2026-11-30T08:00:00 n kernel: NVRM: Xid (PCI:0000:10:00): 31, pid=7, name=python, Ch 00000008\n\
         2026-11-30T08:00:01 n kernel: NVRM: Xid (PCI:0000:11:00): 79, GPU has fallen off the bus.\n\
         2026-11-30T08:00:02 n kernel: NVRM: Xid (PCI:0000:11:00): 79, GPU has fallen off the bus.\n\
         2026-11-30T08:00:03 n kernel: NVRM: Xid (PCI:0000:55:00): 48, pid='<unknown>', DBE\n\
         2026-11-30T08:00:04 n kernel: NVRM: Xid nonsense\nEND",
    );
    let finished = diag(&machine).await;
    assert_eq!(failing(&finished), ["xid.recent", "xid.recent"]);
    let why = |gpu: &str| check(&finished, "xid.recent", Some(gpu))["why"].clone();
    assert_eq!(why(&uuid(0)), "only errors that programs cause: Xid 31");
    assert_eq!(why(&uuid(1)), "this boot: Xid 79 (2 times)");
    assert_eq!(why(&uuid(2)), Value::Null);
    assert_eq!(why("0000:55:00.0"), "this boot: Xid 48");
}

#[tokio::test]
async fn k5_an_unreadable_kernel_log_skips_the_check_and_says_so() {
    let machine = FakeMachine::new();
    working(&machine, &[HEALTHY]);
    machine.program(
        "dmesg",
        "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1",
    );
    let finished = diag(&machine).await;
    assert_eq!(finished.outcome, Outcome::Succeeded);
    let xid = check(&finished, "xid.recent", Some(&uuid(0)));
    assert_eq!(xid["status"], "skipped");
    assert!(
        xid["why"]
            .as_str()
            .unwrap()
            .contains("Operation not permitted"),
        "{xid}"
    );
}

#[tokio::test]
async fn d12_a_cancelled_diagnosis_is_cancelled() {
    let machine = FakeMachine::new();
    let asked = machine.path("asked");
    machine.program(
        "nvidia-smi",
        &format!("touch {}; sleep 600", asked.display()),
    );
    let executors = Executors::new(machine.host());
    let cancel = CancellationToken::new();
    let stop = async {
        crate::fake_machine::wait_until("nvidia-smi was asked", || fs::exists(&asked).unwrap())
            .await;
        cancel.cancel();
    };
    let keeper = no_secrets();
    let run = executors.run(job(KIND, json!({})), &keeper.secrets, cancel.clone());
    let (finished, ()) = tokio::join!(run, stop);
    assert_eq!(finished.outcome, Outcome::Cancelled);
}

#[test]
fn every_gpu_check_has_its_arm_and_a_long_result_keeps_the_failures() {
    let gpu = |number: usize| Check {
        name: "pcie.link",
        gpu: Some(format!("GPU-{number}")),
        status: if number.is_multiple_of(100) {
            Status::Fail
        } else {
            Status::Pass
        },
        why: Some("w".repeat(100)),
    };
    let checks: Vec<Check> = (0..1000).map(gpu).collect();
    let result = result(false, &checks);
    assert!(result.to_string().len() <= limits::RESULT_BYTES_MAX);
    assert_eq!(result["checks"].as_array().unwrap().len(), 10);
    assert_eq!(result["checksOmitted"], 990);
}
