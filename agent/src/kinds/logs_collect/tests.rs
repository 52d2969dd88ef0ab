use std::{collections::BTreeMap, io::Read, path::Path};

use sha2::Digest;

use super::*;
use crate::{
    fake_machine::{FakeMachine, wait_until},
    kinds::{
        Executors, Outcome,
        tests::{job, no_secrets, run},
    },
};

fn contents(path: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(path).unwrap()));
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
              "why": "systemd knows no such unit, no journal entry in the last 600 s" },
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
    assert!(is_unit_name("getty@tty1.service") && is_unit_name("dev-disk-by\\x2dlabel-x.device"));
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
    let keeper = no_secrets();
    let run = executors.run(job(KIND, json!({})), &keeper.secrets, cancel.clone());
    let (finished, ()) = tokio::join!(run, stop);
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
        .run(job, &no_secrets().secrets, CancellationToken::new())
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

#[tokio::test]
async fn b_a_chatty_unit_loses_its_oldest_entries_and_drives_no_other_out() {
    let machine = FakeMachine::new();
    machine.program(
        "journalctl",
        "case \"$*\" in *chatty*) yes '{\"MESSAGE\":\"again\"}' | head -n 200000 | sed '1s/again/newest/';; *) \
         echo '{\"MESSAGE\":\"quiet\"}';; esac",
    );
    let mut executors = Executors::new(machine.host());
    let bundles = std::sync::Arc::get_mut(&mut executors.bundles).unwrap();
    bundles.content_bytes_max = 2 * limits::PROGRAM_LINE_BYTES_MAX as u64;
    let payload = json!({ "units": ["chatty", "quiet"], "sinceSeconds": 60.0 });
    let finished = executors
        .run(
            job(KIND, payload),
            &no_secrets().secrets,
            CancellationToken::new(),
        )
        .await;
    let result = finished.result.unwrap();
    let entries = limits::PROGRAM_LINE_BYTES_MAX / "{'MESSAGE':'again'}\n".len();
    assert_eq!(result["units"][0]["truncatedBy"], "bytes");
    assert_eq!(
        result["units"][1],
        json!({ "unit": "quiet", "present": true, "entries": 1 })
    );
    assert_eq!(result["truncated"]["units"], json!(["chatty"]));
    let contents = contents(&machine.path(BUNDLE));
    let chatty = &contents["units/00-chatty.ndjson"];
    assert!(
        chatty.lines().count().abs_diff(entries) < 3,
        "{} lines",
        chatty.lines().count()
    );
    assert_eq!(chatty.lines().last(), Some("{\"MESSAGE\":\"newest\"}"));
    assert_eq!(
        contents["units/01-quiet.ndjson"],
        "{\"MESSAGE\":\"quiet\"}\n"
    );
}

#[tokio::test]
async fn a_disk_without_room_fails_the_command_and_says_so() {
    let machine = FakeMachine::new();
    let mut executors = Executors::new(machine.host());
    std::sync::Arc::get_mut(&mut executors.bundles)
        .unwrap()
        .content_bytes_max = 1000;
    let finished = executors
        .run(
            job(KIND, json!({})),
            &no_secrets().secrets,
            CancellationToken::new(),
        )
        .await;
    assert_eq!(finished.reason.as_deref(), Some("disk-full"));
    assert!(crate::sysfs::names(&machine.path("state/bundles")).is_empty());
}
