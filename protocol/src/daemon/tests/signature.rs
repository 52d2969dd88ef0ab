use super::service::*;
use super::*;
use crate::batch::Leaf;
use crate::dsse::Purpose;
use crate::id::BatchId;
use crate::trust::{Signed, intent};

#[test]
fn p1_a_signed_command_is_accepted_and_an_unsigned_one_of_any_kind_is_not() {
    let kinds = [
        "diag.nvml",
        "inventory.refresh",
        "logs.collect",
        "node.reboot",
    ];
    for kind in kinds {
        let mut driver = Driver::trusting_root_1();
        assert_eq!(driver.verdict(command(1, kind)), "BAD_SIGNATURE", "{kind}");
        assert_eq!(driver.why(1), "the command is not signed");
        assert_eq!(driver.verdict(signed(2, kind)), "accepted", "{kind}");
    }
}

#[test]
fn p1_without_trust_nothing_is_asked_and_a_signature_changes_nothing() {
    let mut driver = Driver::welcomed();
    assert_eq!(driver.verdict(command(1, "diag.nvml")), "accepted");
    assert_eq!(driver.verdict(signed(2, "node.reboot")), "accepted");
    assert_eq!(driver.daemon.hello().trust_version, 0);
}

#[test]
fn p1_no_field_of_a_signed_command_can_be_altered() {
    type Alter = fn(&mut frame::Command);
    let alterations: [(&str, Alter); 15] = [
        ("attested", |it| it.attested = !it.attested),
        ("batchId", |it| {
            it.batch_id = Some(BatchId::from_uuid(Uuid::from_u128(1)));
        }),
        ("commandId", |it| it.command_id = command_id(2)),
        ("destructive", |it| it.destructive = !it.destructive),
        ("kind", |it| it.kind = "diag.nvml".to_owned()),
        ("kindVersion", |it| it.kind_version = 0),
        ("lane", |it| it.lane = Lane::Bulk),
        ("minGeneration", |it| it.min_generation = Some(0)),
        ("notAfter, later", |it| {
            it.not_after = it.not_after.map(|at| at.plus_micros(1));
        }),
        ("notAfter, earlier", |it| {
            it.not_after = it.not_after.map(|at| at.plus_micros(-1));
        }),
        ("payload", |it| {
            it.payload = canonical::from_json(&json!({ "rescan": true })).unwrap();
        }),
        ("retrySafe", |it| it.retry_safe = !it.retry_safe),
        ("selfTerminating", |it| {
            it.self_terminating = !it.self_terminating;
        }),
        ("seq", |it| it.seq += 1),
        ("timeoutSeconds", |it| it.timeout_seconds += 1),
    ];
    for (field, alter) in alterations {
        let mut driver = Driver::trusting_root_1();
        let mut altered = signed(1, "inventory.refresh");
        alter(&mut altered);
        let number = u64::try_from(altered.command_id.uuid().as_u128()).unwrap();
        assert_eq!(driver.verdict(altered), "BAD_SIGNATURE", "{field}");
        let why = "the command is not what its worker key has signed";
        assert_eq!(driver.why(number), why, "{field}");
        assert!(driver.starts.is_empty());
    }
    // Earlier checks find these.
    let mut other_node = signed(1, "diag.nvml");
    other_node.node_id = NodeId::from_uuid(Uuid::from_u128(8));
    assert_eq!(Driver::trusting_root_1().verdict(other_node), "UNSUPPORTED");
    let mut endless = signed(1, "diag.nvml");
    endless.not_after = None;
    assert_eq!(Driver::trusting_root_1().verdict(endless), "EXPIRED");
}

#[test]
fn p1_a_command_that_was_signed_for_another_node_is_not_taken_over() {
    let other = NodeId::from_uuid(Uuid::from_u128(8));
    let theirs = frame::Command {
        node_id: other,
        ..command(1, "diag.nvml")
    };
    let moved = frame::Command {
        node_id: node_id(),
        ..signed_by(&worker(1), theirs)
    };
    assert_eq!(Driver::trusting_root_1().verdict(moved), "BAD_SIGNATURE");
}

#[test]
fn p1_no_bit_of_a_signature_or_certificate_can_be_altered() {
    let good = signed(1, "diag.nvml");
    let parts: [fn(&mut Signed) -> &mut Vec<u8>; 2] =
        [|it| &mut it.signature, |it| &mut it.worker.signature];
    for part in parts {
        for byte in 0..64 {
            let mut bad = good.clone();
            part(bad.signed.as_mut().unwrap())[byte] ^= 1 << (byte % 8);
            let mut driver = Driver::trusting_root_1();
            assert_eq!(driver.verdict(bad), "BAD_SIGNATURE", "byte {byte}");
        }
        let mut empty = good.clone();
        part(empty.signed.as_mut().unwrap()).clear();
        assert_eq!(Driver::trusting_root_1().verdict(empty), "BAD_SIGNATURE");
    }
    for alter in [
        (|it: &mut Signed| it.worker.key = public(101)) as fn(&mut Signed),
        |it| it.worker.not_after = server_at(48 * HOUR),
        |it| it.worker.not_before = server_at(-HOUR),
    ] {
        let mut bad = good.clone();
        alter(bad.signed.as_mut().unwrap());
        let mut driver = Driver::trusting_root_1();
        assert_eq!(driver.verdict(bad), "BAD_SIGNATURE");
        let why = "the command is signed by a worker key that its root has not certified";
        assert_eq!(driver.why(1), why);
    }
}

#[test]
fn p1_the_signature_of_another_command_or_for_another_purpose_is_none() {
    let mut driver = Driver::trusting_root_1();
    let borrowed = frame::Command {
        signed: signed(2, "diag.nvml").signed,
        ..command(1, "diag.nvml")
    };
    assert_eq!(driver.verdict(borrowed), "BAD_SIGNATURE");
    let payload = intent::of_command(&command(2, "diag.nvml")).unwrap();
    for purpose in [
        Purpose::DesiredState,
        Purpose::WorkerKey,
        Purpose::CommandUpdate,
    ] {
        let mut driver = Driver::trusting_root_1();
        let other = Signed::new(&key(WORKER), &worker(1), purpose, &payload);
        let other = frame::Command {
            signed: Some(Box::new(other)),
            ..command(2, "diag.nvml")
        };
        assert_eq!(driver.verdict(other), "BAD_SIGNATURE", "{purpose:?}");
    }
    // A root signs worker keys and bundles, not commands.
    let by_root = Signed::new(&key(1), &worker(1), Purpose::Command, &payload);
    let by_root = frame::Command {
        signed: Some(Box::new(by_root)),
        ..command(2, "diag.nvml")
    };
    assert_eq!(driver.verdict(by_root), "BAD_SIGNATURE");
}

#[test]
fn p1_a_worker_key_counts_within_its_time_and_for_commands_that_it_outlives() {
    let mut driver = Driver::trusting_root_1();
    let of = |times| signed_by(&worker_of(1, times), command(1, "diag.nvml"));
    let until = 600 * SECOND;
    assert_eq!(driver.verdict(of((1, until))), "BAD_SIGNATURE");
    let why = driver.why(1);
    assert!(
        why.starts_with("the command is signed by a worker key that is valid from 2025"),
        "{why}"
    );
    let mut driver = Driver::trusting_root_1();
    assert_eq!(driver.verdict(of((-HOUR, until - 1))), "BAD_SIGNATURE");
    let why = driver.why(1);
    assert!(
        why.starts_with("the command may be accepted after its worker key ends"),
        "{why}"
    );
    let mut driver = Driver::trusting_root_1();
    assert_eq!(driver.verdict(of((-HOUR, -1))), "BAD_SIGNATURE");
    let mut driver = Driver::trusting_root_1();
    assert_eq!(driver.verdict(of((0, until))), "accepted");
}

#[test]
fn p1_a_worker_key_that_certifies_itself_or_another_is_none() {
    let mut worker = worker(1);
    let lives = (worker.not_before, worker.not_after);
    let statement =
        crate::trust::WorkerCertificate::statement(worker.key, lives, worker.root).unwrap();
    worker.signature = crate::dsse::sign(&key(WORKER), Purpose::WorkerKey, &statement).to_vec();
    let mut driver = Driver::trusting_root_1();
    let forged = signed_by(&worker, command(1, "diag.nvml"));
    assert_eq!(driver.verdict(forged), "BAD_SIGNATURE");
}

#[test]
fn d4_bad_signature_comes_after_expired_and_before_the_batch_and_busy() {
    let mut driver = Driver::trusting(&[sign_bundle(&approved_by_two(0), &[1])]);
    for number in 101..109 {
        assert_eq!(driver.verdict(signed(number, "diag.nvml")), "accepted");
    }
    let late = frame::Command {
        not_after: Some(server_at(-1)),
        ..command(1, "node.reboot")
    };
    assert_eq!(driver.verdict(late), "EXPIRED");
    assert_eq!(driver.verdict(command(2, "node.reboot")), "BAD_SIGNATURE");
    assert_eq!(driver.verdict(signed(3, "node.reboot")), "BATCH_UNAPPROVED");
    let leaf = Leaf::of(node_id(), "node.reboot", &[0x80]);
    let allowed = frame::Command {
        batch: Some(Box::new(batch(&[leaf], 0, &[50, 51]))),
        batch_id: Some(batch_id()),
        ..command(4, "node.reboot")
    };
    assert_eq!(driver.verdict(signed_by(&worker(1), allowed)), "say busy 4");
}

#[test]
fn p5_a_desired_state_is_applied_only_if_it_is_signed_for_this_node() {
    let not_applied = |driver: &mut Driver, spec| {
        let done = driver.receive(spec);
        assert_eq!(done.len(), 1, "{done:?}");
        assert!(
            done[0].starts_with("doubt desired state 1 was not applied"),
            "{done:?}"
        );
    };
    let good = spec(1, &worker(1));
    let mut driver = Driver::trusting_root_1();
    let mut unsigned = good.clone();
    unsigned.signed = None;
    not_applied(&mut driver, unsigned);
    let mut altered = good.clone();
    altered.spec = vec![0x81, 0xa1, 0x61, 0x01];
    not_applied(&mut driver, altered);
    let mut newer = spec(2, &worker(1));
    newer.generation = 1;
    not_applied(&mut driver, newer);
    not_applied(&mut driver, spec(1, &worker_of(1, (1, HOUR))));
    let payload = intent::of_spec(NodeId::from_uuid(Uuid::from_u128(8)), 1, &[0x80]).unwrap();
    let mut theirs = good.clone();
    let over_theirs = Signed::new(&key(WORKER), &worker(1), Purpose::DesiredState, &payload);
    theirs.signed = Some(Box::new(over_theirs));
    not_applied(&mut driver, theirs);
    assert_eq!(driver.receive(good.clone()), ["apply 1"]);
    assert_eq!(Driver::welcomed().receive(good), ["apply 1"]);
    // A node may come for it long after its worker key has ended.
    let old = spec(1, &worker_of(1, (-HOUR, -1)));
    assert_eq!(Driver::trusting_root_1().receive(old), ["apply 1"]);
}

#[test]
fn p5_a_desired_state_under_a_new_root_is_asked_for_again_once_the_root_is_known() {
    let mut driver = Driver::trusting_root_1();
    let done = driver.receive(spec(1, &worker(2)));
    assert!(
        done[0].starts_with("doubt") && done[1] == "send Status",
        "{done:?}"
    );
    let done = driver.receive(trust(&[sign_bundle(&bundle(2, &[1, 2]), &[1, 2])]));
    assert_eq!(done, ["journal trusted 2", "pin 2", "send Status"]);
    let Some(Effect::Send(Frame::Status(status))) = driver.performed.last() else {
        panic!("no status")
    };
    assert!(status.wants_spec && !status.wants_trust);
    assert_eq!(driver.receive(spec(1, &worker(2))), ["apply 1"]);
}
