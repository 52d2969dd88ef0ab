use super::*;
use crate::frame::Spec;
use crate::limits::lane_credits;

const ACCEPTED: [&str; 4] = [
    "journal accepted 1",
    "journal started 1",
    "start 1",
    "say acked 1, running 1",
];

#[test]
fn d5_accept_and_start_are_journaled_before_the_effect_and_the_report() {
    let mut driver = Driver::welcomed();
    assert_eq!(driver.receive(command(1, "diag.nvml")), ACCEPTED);
    assert_eq!(
        driver.finish(1, End::Succeeded),
        ["journal ended 1", "say succeeded 1"]
    );
    assert_eq!(
        driver.acknowledge(1, UpdateState::Succeeded, None),
        ["journal confirmed 1"]
    );
}

#[test]
fn d4_what_the_daemon_cannot_run_is_unsupported() {
    let other_node = frame::Command {
        node_id: NodeId::from_uuid(Uuid::from_u128(8)),
        ..command(1, "diag.nvml")
    };
    let unknown_kind = frame::Command {
        kind: "disk.polish".to_owned(),
        ..command(1, "diag.nvml")
    };
    let newer_kind = frame::Command {
        kind_version: 2,
        ..command(1, "diag.nvml")
    };
    let unreadable = frame::Command {
        payload: vec![0xc1],
        ..command(1, "diag.nvml")
    };
    let too_large = frame::Command {
        payload: canonical::from_json(&json!("x".repeat(48 * 1024))).unwrap(),
        ..command(1, "diag.nvml")
    };
    for (command, why) in [
        (other_node, "this is node_"),
        (unknown_kind, "cannot run kind `disk.polish`"),
        (newer_kind, "the command has version 2"),
        (command(1, "disk.wipe"), "does not run in role node"),
        (unreadable, "payload is not readable"),
        (too_large, "the limit is 49152"),
    ] {
        let mut driver = Driver::welcomed();
        let done = driver.receive(command);
        assert_eq!(
            done,
            ["journal ended 1", "say rejected 1 UNSUPPORTED"],
            "{why}"
        );
        let details = driver.details(1);
        assert!(details["why"].as_str().unwrap().contains(why), "{details}");
    }
}

#[test]
fn d4_the_checks_come_in_their_order() {
    let mut driver = Driver::welcomed();
    // Everything is wrong with it at once; each repair uncovers the next check.
    let mut all = frame::Command {
        node_id: NodeId::from_uuid(Uuid::from_u128(8)),
        min_generation: Some(5),
        not_after: Some(server_at(-1)),
        ..command(1, "logs.collect")
    };
    for number in [101, 102] {
        driver.receive(command(number, "logs.collect"));
    }
    assert_eq!(driver.receive(all.clone())[1], "say rejected 1 UNSUPPORTED");
    all.node_id = node_id();
    all.command_id = command_id(2);
    assert_eq!(
        driver.receive(all.clone())[1],
        "say rejected 2 STALE_GENERATION"
    );
    all.min_generation = None;
    all.command_id = command_id(3);
    assert_eq!(driver.receive(all.clone())[1], "say rejected 3 EXPIRED");
    all.not_after = Some(server_at(1));
    all.command_id = command_id(4);
    assert_eq!(driver.receive(all.clone()), ["say busy 4"]);
}

#[test]
fn d4_a_full_lane_is_busy_and_delays_no_other_lane() {
    for (lane, kind) in [
        (Lane::Control, "diag.nvml"),
        (Lane::Provision, "gpu.reset"),
        (Lane::Bulk, "logs.collect"),
    ] {
        let mut driver = Driver::welcomed();
        let credits = u64::from(lane_credits(lane));
        for number in 1..=credits {
            assert_eq!(driver.receive(command(number, kind)).len(), 4);
        }
        let next = credits + 1;
        let before = driver.durable.len();
        assert_eq!(
            driver.receive(command(next, kind)),
            [format!("say busy {next}")]
        );
        assert_eq!(driver.durable.len(), before, "BUSY was journaled");
        for (number, kind) in [(90, "diag.nvml"), (91, "gpu.reset"), (92, "logs.collect")] {
            let other = command(number, kind);
            let room = other.lane != lane;
            assert_eq!(
                driver.receive(other).len() == 4,
                room,
                "{kind} beside {lane}"
            );
        }
        driver.finish(1, End::Succeeded);
        assert_eq!(driver.receive(command(next, kind)).len(), 4);
    }
}

#[test]
fn d4_no_not_after_is_expired() {
    let mut driver = Driver::welcomed();
    let command = frame::Command {
        not_after: None,
        ..command(1, "diag.nvml")
    };
    assert_eq!(driver.receive(command)[1], "say rejected 1 EXPIRED");
}

#[test]
fn d10_expiry_is_decided_in_server_time() {
    let mut driver = Driver::welcomed();
    driver.now = Monotonic::from_micros(600 * SECOND);
    assert_eq!(driver.receive(command(1, "diag.nvml")), ACCEPTED);
    driver.now = Monotonic::from_micros(600 * SECOND + 1);
    assert_eq!(
        driver.receive(command(2, "diag.nvml")),
        ["journal ended 2", "say rejected 2 EXPIRED"]
    );
    assert_eq!(driver.details(2)["notAfter"], "2025-11-30T08:16:40.000000Z");
}

#[test]
fn d4_a_newer_generation_is_asked_for_and_waited_for() {
    let mut driver = Driver::welcomed();
    let waits = frame::Command {
        min_generation: Some(9),
        ..command(1, "diag.nvml")
    };
    assert_eq!(driver.receive(waits.clone()), ["send Status"]);
    let Some(Effect::Send(Frame::Status(status))) = driver.performed.last() else {
        panic!("no status")
    };
    assert!(status.wants_spec);
    assert_eq!(
        driver.receive(waits),
        Vec::<String>::new(),
        "a second copy waits as well"
    );
    let spec = |generation| Spec {
        signed: None,
        generation,
        spec: vec![0x80],
    };
    assert_eq!(driver.receive(spec(8)), ["apply 8"]);
    assert_eq!(
        driver.give(Input::Applied { generation: 8 }),
        ["journal applied 8", "send Status", "send Status"]
    );
    assert_eq!(driver.receive(spec(9)), ["apply 9"]);
    assert_eq!(
        driver.give(Input::Applied { generation: 9 }),
        [&["journal applied 9", "send Status"], &ACCEPTED[..]].concat()
    );
    assert_eq!(driver.receive(spec(9)), Vec::<String>::new());
    driver.restart();
    assert_eq!(driver.daemon.hello().applied_generation, 9);
}

#[test]
fn d4_a_generation_is_not_waited_for_without_a_deadline() {
    let mut driver = Driver::welcomed();
    let asks = frame::Command {
        min_generation: Some(9),
        not_after: None,
        ..command(1, "diag.nvml")
    };
    assert_eq!(
        driver.receive(asks),
        ["journal ended 1", "say rejected 1 STALE_GENERATION"]
    );
    let details = json!({ "appliedGeneration": 0, "minGeneration": 9 });
    assert_eq!(driver.details(1), details);
}

#[test]
fn d4_what_waits_for_a_generation_is_refused_once_its_time_is_over() {
    let mut driver = Driver::welcomed();
    driver.receive(frame::Command {
        min_generation: Some(9),
        not_after: Some(server_at(5 * SECOND)),
        ..command(1, "diag.nvml")
    });
    assert_eq!(driver.pass(4), Vec::<String>::new());
    assert_eq!(
        driver.pass(2),
        ["journal ended 1", "say rejected 1 STALE_GENERATION"]
    );
    let details = json!({ "appliedGeneration": 0, "minGeneration": 9 });
    assert_eq!(driver.details(1), details);
}

#[test]
fn d4_what_waits_for_a_generation_is_dropped_with_the_session() {
    let mut driver = Driver::welcomed();
    let waits = frame::Command {
        min_generation: Some(9),
        ..command(1, "diag.nvml")
    };
    driver.receive(waits.clone());
    driver.give(Input::Disconnected);
    assert!(driver.daemon.hello().entries.is_empty());
    driver.connect();
    assert_eq!(driver.receive(waits), ["send Status"]);
}

#[test]
fn d5_a_duplicate_gets_the_stored_answer_whatever_came_between() {
    let mut driver = Driver::welcomed();
    let refused = frame::Command {
        not_after: Some(server_at(-1)),
        ..command(2, "diag.nvml")
    };
    driver.receive(command(1, "diag.nvml"));
    assert_eq!(
        driver.receive(command(1, "diag.nvml")),
        ["say acked 1, running 1"],
        "it re-attaches to the running one"
    );
    driver.give(Input::Finished {
        command_id: command_id(1),
        report: Report {
            result: Some(json!({ "passed": true })),
            ..report(End::Succeeded)
        },
    });
    let first = driver.last_update(1);
    driver.receive(refused.clone());
    for restarted in [false, true] {
        if restarted {
            driver.restart();
            driver.connect();
        }
        assert_eq!(driver.receive(command(1, "diag.nvml")), ["say succeeded 1"]);
        assert_eq!(driver.last_update(1), first);
        assert_eq!(driver.receive(refused.clone()), ["say rejected 2 EXPIRED"]);
    }
    assert_eq!(driver.starts[&command_id(1)], 1);
}

#[test]
fn d5_a_duplicate_is_known_after_thousands_of_other_commands_and_a_rewrite() {
    let mut driver = Driver::welcomed();
    let run = |driver: &mut Driver, number: u64| {
        driver.receive(command(number, "diag.nvml"));
        driver.give(Input::Finished {
            command_id: command_id(number.into()),
            report: Report {
                result: Some(json!({ "number": number })),
                ..report(End::Succeeded)
            },
        });
        driver.acknowledge(number, UpdateState::Succeeded, None)
    };
    let mut rewrites = 0;
    for number in 1..=5_000 {
        let done = run(&mut driver, number);
        rewrites += usize::from(done.contains(&"rewrite".to_owned()));
        assert!(
            driver.durable.len() < 10_000,
            "the journal grows without bound"
        );
    }
    assert!(rewrites >= 4);
    for restarted in [false, true] {
        if restarted {
            driver.restart();
            driver.connect();
        }
        assert_eq!(driver.receive(command(1, "diag.nvml")), ["say succeeded 1"]);
        let answer = driver.last_update(1);
        assert_eq!(answer.result, None);
        let result = canonical::from_json(&json!({ "number": 1 })).unwrap();
        assert_eq!(answer.result_truncated.unwrap().bytes, result.len() as u64);
        assert_eq!(
            driver.receive(command(5_000, "diag.nvml")),
            ["say succeeded 5000"]
        );
        assert!(driver.last_update(5_000).result.is_some());
        assert_eq!(driver.daemon.hello().highest_seq, 5_000);
    }
    assert!(driver.starts.values().all(|starts| *starts == 1));
}

#[test]
fn d6_another_nodes_seq_does_not_lift_this_nodes() {
    let mut driver = Driver::welcomed();
    driver.receive(frame::Command {
        node_id: NodeId::from_uuid(Uuid::from_u128(8)),
        ..command(900, "diag.nvml")
    });
    assert_eq!(driver.daemon.hello().highest_seq, 0);
}
