use super::*;
use crate::frame::EntryState;

/// Accepts a command, and lets the process die before the effect at `cut`.
fn crash_while_accepting(command: frame::Command, cut: usize) -> Driver {
    let mut driver = Driver::welcomed();
    let effects = driver
        .daemon
        .handle(Input::Frame(command.into()), driver.now);
    driver.perform(&effects[..cut]);
    driver
}

fn reboot(version: &str, role: Role) -> Identity {
    Identity {
        agent_version: version.to_owned(),
        boot_id: "boot-2".to_owned(),
        role,
        ..identity()
    }
}

#[test]
fn d7_accepted_and_never_started_runs_again_if_retry_safe() {
    let mut driver = crash_while_accepting(command(1, "diag.nvml"), 1);
    assert_eq!(driver.restart(), Vec::<String>::new());
    assert_eq!(driver.daemon.hello().entries[0].state, EntryState::Accepted);
    assert_eq!(
        driver.connect(),
        [
            "say acked 1",
            "journal started 1",
            "start 1",
            "say acked 1, running 1"
        ]
    );
    assert_eq!(driver.starts[&command_id(1)], 1);
}

#[test]
fn d7_accepted_and_never_started_is_interrupted_if_not_retry_safe() {
    for kind in ["gpu.reset", "node.reboot"] {
        let mut driver = crash_while_accepting(command(1, kind), 1);
        assert_eq!(driver.restart(), ["journal ended 1"]);
        assert_eq!(driver.connect(), ["say acked 1, failed 1 interrupted"]);
        assert!(driver.starts.is_empty());
    }
}

#[test]
fn d7_what_runs_again_still_has_its_timeout() {
    let mut driver = crash_while_accepting(command(1, "diag.nvml"), 1);
    driver.now = Monotonic::from_micros((600 + 299) * SECOND);
    driver.restart();
    driver.connect();
    let start = driver.performed.iter().find_map(|effect| match effect {
        Effect::Start(job) => Some(job.timeout_micros),
        _ => None,
    });
    assert_eq!(start, Some(1_000_000));

    let mut driver = crash_while_accepting(command(1, "diag.nvml"), 1);
    driver.now = Monotonic::from_micros((600 + 300) * SECOND);
    driver.restart();
    driver.connect();
    assert!(driver.starts.is_empty());
    assert_eq!(driver.last_update(1).reason.as_deref(), Some("timeout"));
    assert_eq!(driver.details(1), json!({ "phase": "accepted" }));
}

#[test]
fn d7_started_and_died_is_interrupted_whatever_the_flag() {
    for kind in ["diag.nvml", "gpu.reset"] {
        for cut in [2, 3, 4] {
            let mut driver = crash_while_accepting(command(1, kind), cut);
            assert_eq!(driver.restart(), ["journal ended 1"]);
            driver.connect();
            let update = driver.last_update(1);
            assert_eq!(update.reason.as_deref(), Some("interrupted"));
            assert_eq!(
                driver.receive(command(1, kind)),
                ["say failed 1 interrupted"]
            );
            assert_eq!(driver.starts.get(&command_id(1)), (cut > 2).then_some(&1));
        }
    }
}

#[test]
fn d9_a_new_boot_completes_a_started_reboot() {
    // The process may die anywhere after the start was journaled, also before the effect.
    for cut in [2, 3, 4] {
        let mut driver = crash_while_accepting(command(1, "node.reboot"), cut);
        assert_eq!(
            driver.restart_as(reboot("1.0.0", Role::Node)),
            ["journal ended 1"]
        );
        driver.connect();
        let update = driver.last_update(1);
        assert_eq!(update.state, UpdateState::Succeeded);
        let result = canonical::to_json(&update.result.unwrap()).unwrap();
        assert_eq!(result, json!({ "rebooted": true }));
        assert_eq!(
            driver.receive(command(1, "node.reboot")),
            ["say succeeded 1"]
        );
    }
}

#[test]
fn d9_the_same_boot_leaves_a_started_reboot_open_until_its_timeout() {
    let mut driver = crash_while_accepting(command(1, "node.reboot"), 4);
    for _ in 0..3 {
        assert_eq!(driver.restart(), Vec::<String>::new());
        assert_eq!(driver.daemon.hello().entries[0].state, EntryState::Started);
        driver.connect();
        assert_eq!(
            driver.receive(command(1, "node.reboot")),
            ["say acked 1, running 1"],
            "it is not run again"
        );
    }
    driver.give(Input::Disconnected);
    driver.now = Monotonic::from_micros((600 + 900) * SECOND);
    driver.connect();
    assert_eq!(driver.pass(1), ["journal ended 1", "say failed 1 timeout"]);
    assert_eq!(driver.starts[&command_id(1)], 1);
}

#[test]
fn d9_the_evidence_must_fit_the_kind() {
    let upgrade = frame::Command {
        payload: canonical::from_json(&json!({ "version": "2.0.0" })).unwrap(),
        ..command(1, "daemon.upgrade")
    };
    let ramdisk = || {
        let mut driver = Driver::welcomed();
        driver.daemon.identity.role = Role::Ramdisk;
        driver
    };
    let same_boot = |version: &str, role| Identity {
        boot_id: "boot-1".to_owned(),
        ..reboot(version, role)
    };
    let kexec = || command(1, "boot.kexec");
    let restart = || command(1, "node.reboot");
    for (command, back_as, state) in [
        (
            upgrade.clone(),
            same_boot("2.0.0", Role::Ramdisk),
            Some(UpdateState::Succeeded),
        ),
        (
            upgrade.clone(),
            reboot("2.0.0", Role::Ramdisk),
            Some(UpdateState::Succeeded),
        ),
        (
            upgrade.clone(),
            reboot("1.0.0", Role::Ramdisk),
            Some(UpdateState::Failed),
        ),
        (upgrade, same_boot("1.0.0", Role::Ramdisk), None),
        (
            kexec(),
            reboot("1.0.0", Role::Ramdisk),
            Some(UpdateState::Succeeded),
        ),
        (
            kexec(),
            same_boot("1.0.0", Role::Node),
            Some(UpdateState::Succeeded),
        ),
        (kexec(), same_boot("1.0.0", Role::Ramdisk), None),
        (
            restart(),
            same_boot("1.0.0", Role::Node),
            Some(UpdateState::Failed),
        ),
        (restart(), same_boot("2.0.0", Role::Ramdisk), None),
    ] {
        let what = format!("{} as {back_as:?}", command.kind);
        let mut driver = ramdisk();
        driver.receive(command);
        driver.restart_as(back_as);
        driver.connect();
        match state {
            None => assert_eq!(driver.last_update(1).state, UpdateState::Running, "{what}"),
            Some(state) => assert_eq!(driver.last_update(1).state, state, "{what}"),
        }
        if state == Some(UpdateState::Failed) {
            assert_eq!(driver.last_update(1).reason.as_deref(), Some("interrupted"));
            assert!(driver.details(1)["why"].is_string());
        }
    }
}

#[test]
fn d7_the_end_that_a_restart_proves_is_the_end_for_ever() {
    let mut driver = crash_while_accepting(command(1, "node.reboot"), 4);
    // The process dies before it can journal what it found, then comes back once more.
    let records = driver.durable.clone();
    let found = Daemon::recover(
        reboot("1.0.0", Role::Node),
        journal_id(1),
        records,
        driver.now,
    );
    assert_eq!(words(&found.unwrap().1), ["journal ended 1"]);
    driver.restart_as(reboot("1.0.0", Role::Node));
    driver.connect();
    let first = driver.last_update(1);
    driver.restart();
    driver.connect();
    assert_eq!(driver.last_update(1), first);
}

#[test]
fn d8_an_empty_journal_comes_back_under_a_new_id() {
    let daemon = Daemon::new(identity(), journal_id(2));
    let hello = daemon.hello();
    assert_eq!((hello.journal_id, hello.highest_seq), (journal_id(2), 0));
    assert!(hello.entries.is_empty());
}

#[test]
fn d8_records_that_cannot_follow_each_other_are_no_journal() {
    let accepted = Record::Accepted(Box::new(command(1, "diag.nvml")));
    let confirmed = Record::Confirmed(Confirmed {
        command_id: command_id(1),
        refused: None,
    });
    for records in [
        vec![accepted.clone(), accepted.clone()],
        vec![confirmed.clone()],
        vec![accepted, confirmed],
    ] {
        let now = Monotonic::from_micros(0);
        assert!(Daemon::recover(identity(), journal_id(1), records, now).is_err());
    }
}
