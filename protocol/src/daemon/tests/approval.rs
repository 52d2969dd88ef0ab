use super::service::*;
use super::*;
use crate::batch::{BatchProof, Leaf};
use crate::id::BatchId;

fn leaf(kind: &str) -> Leaf {
    Leaf::of(node_id(), kind, &[0x80])
}

fn leaves() -> [Leaf; 3] {
    let other = NodeId::from_uuid(Uuid::from_u128(8));
    [
        leaf("node.reboot"),
        leaf("gpu.reset"),
        Leaf::of(other, "node.reboot", &[0x80]),
    ]
}

fn approving(unbatched_per_hour: u32) -> Driver {
    Driver::trusting(&[sign_bundle(&approved_by_two(unbatched_per_hour), &[1])])
}

fn with(number: u64, kind: &str, proof: BatchProof) -> frame::Command {
    let command = frame::Command {
        batch: Some(Box::new(proof)),
        batch_id: Some(batch_id()),
        ..command(number, kind)
    };
    signed_by(&worker(1), command)
}

fn refused(why: &str, proof: BatchProof) {
    let mut driver = approving(0);
    let verdict = driver.verdict(with(1, "node.reboot", proof));
    assert_eq!(verdict, "BATCH_UNAPPROVED", "{why}");
    assert!(driver.why(1).contains(why), "{why}: {}", driver.why(1));
}

#[test]
fn p3_a_command_of_an_approved_batch_is_accepted() {
    let mut driver = approving(0);
    let reboot = with(1, "node.reboot", batch(&leaves(), 0, &[50, 51]));
    assert_eq!(driver.verdict(reboot), "accepted");
    let reset = with(2, "gpu.reset", batch(&leaves(), 1, &[52, 51]));
    assert_eq!(driver.verdict(reset), "accepted");
    // What does no harm needs no batch.
    assert_eq!(driver.verdict(signed(3, "diag.nvml")), "accepted");
}

#[test]
fn p3_approvals_that_are_stripped_too_few_or_not_by_two_people_do_not_count() {
    refused("has 0 of 2 approvals", batch(&leaves(), 0, &[]));
    refused("has 1 of 2 approvals", batch(&leaves(), 0, &[50]));
    refused("has 1 of 2 approvals", batch(&leaves(), 0, &[50, 50]));
    // One person with two keys.
    refused("has 1 of 2 approvals", batch(&leaves(), 0, &[52, 53]));
    // Strangers, the service's own root and worker among them.
    refused(
        "has 0 of 2 approvals",
        batch(&leaves(), 0, &[60, 61, 1, WORKER]),
    );
    let mut stolen = batch(&leaves(), 0, &[50, 60]);
    stolen.approvals[1].key = public(51);
    refused("has 1 of 2 approvals", stolen);
}

#[test]
fn p3_nothing_that_the_approvers_signed_can_be_altered() {
    let good = batch(&leaves(), 0, &[50, 51]);
    let none = "has 0 of 2 approvals";
    let altered = |alter: fn(&mut BatchProof)| {
        let mut proof = good.clone();
        alter(&mut proof);
        proof
    };
    refused(
        none,
        altered(|it| it.expires_at = it.expires_at.plus_seconds(1)),
    );
    refused(none, altered(|it| it.reason.push('!')));
    refused(
        none,
        altered(|it| it.tenant_id = crate::id::TenantId::from_uuid(Uuid::nil())),
    );
    refused("is not in the scope", altered(|it| it.leaf_count = 2));
    refused("is not in the scope", altered(|it| it.root[0] ^= 1));
    let mut driver = approving(0);
    let other_batch = frame::Command {
        batch: Some(Box::new(good.clone())),
        batch_id: Some(BatchId::from_uuid(Uuid::from_u128(72))),
        ..command(1, "node.reboot")
    };
    assert_eq!(
        driver.verdict(signed_by(&worker(1), other_batch)),
        "BATCH_UNAPPROVED"
    );
    assert!(driver.why(1).contains(none));
}

#[test]
fn p3_a_proof_that_is_of_another_leaf_or_tree_or_was_left_out_proves_nothing() {
    let outside = "is not in the scope";
    refused(outside, batch(&leaves(), 1, &[50, 51]));
    refused(outside, batch(&leaves(), 2, &[50, 51]));
    refused(outside, batch(&leaves()[1..], 0, &[50, 51]));
    // The path of one tree under the root that was approved of another.
    let mut substituted = batch(&leaves()[1..], 0, &[50, 51]);
    substituted.inclusion = batch(&leaves(), 0, &[]).inclusion;
    refused(outside, substituted);
    let good = batch(&leaves(), 0, &[50, 51]);
    for byte in 0..good.inclusion.path.len() {
        let mut flipped = good.clone();
        flipped.inclusion.path[byte] ^= 1;
        refused(outside, flipped);
    }
    let mut driver = approving(0);
    let named = frame::Command {
        batch_id: Some(batch_id()),
        ..command(1, "node.reboot")
    };
    assert_eq!(
        driver.verdict(signed_by(&worker(1), named)),
        "BATCH_UNAPPROVED"
    );
    assert!(driver.why(1).ends_with("without its approvals"));
}

#[test]
fn p3_a_proof_is_for_one_payload() {
    let payload = canonical::from_json(&json!({ "gpus": ["GPU-1"] })).unwrap();
    let bound = Leaf::of(node_id(), "gpu.reset", &payload);
    let mut driver = approving(0);
    let of = |number, payload: &[u8], leaf: &Leaf| {
        let command = frame::Command {
            batch: Some(Box::new(batch(std::slice::from_ref(leaf), 0, &[50, 51]))),
            batch_id: Some(batch_id()),
            payload: payload.to_vec(),
            ..command(number, "gpu.reset")
        };
        signed_by(&worker(1), command)
    };
    assert_eq!(
        driver.verdict(of(1, &payload, &leaf("gpu.reset"))),
        "BATCH_UNAPPROVED"
    );
    assert_eq!(driver.verdict(of(2, &[0x80], &bound)), "BATCH_UNAPPROVED");
    assert_eq!(driver.verdict(of(3, &payload, &bound)), "accepted");
}

#[test]
fn p3_a_command_does_not_outlive_its_batch() {
    let proof = BatchProof {
        expires_at: server_at(600 * SECOND - 1),
        ..batch(&leaves(), 0, &[])
    };
    refused(
        "may be accepted after its batch expires",
        approved(proof, &[50, 51]),
    );
    let proof = BatchProof {
        expires_at: server_at(600 * SECOND),
        ..batch(&leaves(), 0, &[])
    };
    let reboot = with(1, "node.reboot", approved(proof, &[50, 51]));
    assert_eq!(approving(0).verdict(reboot), "accepted");
}

#[test]
fn p3_a_batch_id_cannot_be_stripped_nor_a_command_be_called_harmless() {
    let good = with(1, "node.reboot", batch(&leaves(), 0, &[50, 51]));
    let stripped = frame::Command {
        batch_id: None,
        ..good
    };
    // With an allowance that would let it through.
    assert_eq!(approving(5).verdict(stripped), "BAD_SIGNATURE");
    // Even a signed one: the daemon knows the kind.
    let harmless = frame::Command {
        destructive: false,
        ..command(1, "node.reboot")
    };
    let mut driver = approving(0);
    assert_eq!(
        driver.verdict(signed_by(&worker(1), harmless)),
        "BATCH_UNAPPROVED"
    );
    let by_its_flag = frame::Command {
        destructive: true,
        ..command(2, "diag.nvml")
    };
    assert_eq!(
        driver.verdict(signed_by(&worker(1), by_its_flag)),
        "BATCH_UNAPPROVED"
    );
    // Whatever names a batch is to be of it.
    let unproven = frame::Command {
        batch_id: Some(batch_id()),
        ..command(3, "diag.nvml")
    };
    assert_eq!(
        driver.verdict(signed_by(&worker(1), unproven)),
        "BATCH_UNAPPROVED"
    );
}

#[test]
fn p3_without_approvers_a_batch_is_for_audit_only() {
    let mut driver = Driver::trusting_root_1();
    let named = frame::Command {
        batch_id: Some(batch_id()),
        ..command(1, "node.reboot")
    };
    assert_eq!(driver.verdict(signed_by(&worker(1), named)), "accepted");
    assert_eq!(driver.verdict(signed(2, "gpu.reset")), "accepted");
    assert!(
        !driver
            .durable
            .iter()
            .any(|record| matches!(record, Record::Unbatched(_)))
    );
}

#[test]
fn p4_with_no_allowance_a_destructive_command_needs_a_batch() {
    let mut driver = approving(0);
    assert_eq!(driver.verdict(signed(1, "node.reboot")), "BATCH_UNAPPROVED");
    let why = "the command has no batch, and destructive commands need one here";
    assert_eq!(driver.why(1), why);
}

/// Accepts or refuses a command at this second, and ends it.
fn at(driver: &mut Driver, second: i64, number: u64) -> String {
    driver.now = Monotonic::from_micros(second * SECOND);
    let command = frame::Command {
        not_after: Some(server_at((second + 60) * SECOND)),
        self_terminating: false,
        ..command(number, "node.reboot")
    };
    let verdict = driver.verdict(signed_by(&worker(1), command));
    driver.finish(number, End::Succeeded);
    verdict
}

#[test]
fn p4_an_allowance_is_for_any_hour_and_outlives_restart_and_rewrite() {
    for restarts in [false, true] {
        let mut driver = approving(2);
        let again = |driver: &mut Driver| {
            if restarts {
                let rewritten = driver.daemon.book.snapshot();
                driver.durable = rewritten;
                driver.restart();
                driver.connect();
            }
        };
        assert_eq!(at(&mut driver, 0, 1), "accepted");
        assert_eq!(
            driver
                .durable
                .iter()
                .filter(|it| matches!(it, Record::Unbatched(_)))
                .count(),
            1
        );
        again(&mut driver);
        assert_eq!(at(&mut driver, 1_800, 2), "accepted");
        again(&mut driver);
        assert_eq!(at(&mut driver, 1_801, 3), "UNBATCHED_LIMIT");
        assert!(driver.why(3).contains("took 2 destructive ones"));
        again(&mut driver);
        assert_eq!(at(&mut driver, 3_599, 4), "UNBATCHED_LIMIT");
        // The first is an hour old; the hour slides.
        assert_eq!(at(&mut driver, 3_600, 5), "accepted");
        again(&mut driver);
        assert_eq!(at(&mut driver, 5_399, 6), "UNBATCHED_LIMIT");
        assert_eq!(at(&mut driver, 5_400, 7), "accepted");
        // One of a batch, and a harmless one, take nothing of it.
        driver.now = Monotonic::from_micros(0);
    }
}

#[test]
fn p4_what_is_refused_or_busy_takes_nothing_of_the_allowance() {
    let mut driver = approving(1);
    assert_eq!(driver.verdict(command(1, "node.reboot")), "BAD_SIGNATURE");
    for number in 101..109 {
        driver.verdict(signed(number, "diag.nvml"));
    }
    assert_eq!(driver.verdict(signed(2, "node.reboot")), "say busy 2");
    driver.finish(101, End::Succeeded);
    assert_eq!(driver.verdict(signed(2, "node.reboot")), "accepted");
    let batched = with(3, "gpu.reset", batch(&leaves(), 1, &[50, 51]));
    assert_eq!(driver.verdict(batched), "accepted");
    assert_eq!(driver.verdict(signed(4, "gpu.reset")), "UNBATCHED_LIMIT");
}

#[test]
fn p4_a_server_whose_time_goes_back_does_not_renew_the_allowance() {
    let mut driver = approving(1);
    assert_eq!(at(&mut driver, 10_000, 1), "accepted");
    driver.restart();
    driver.now = Monotonic::from_micros(0);
    driver.connect();
    assert_eq!(at(&mut driver, 0, 2), "UNBATCHED_LIMIT");
}

#[test]
fn p4_the_count_is_bounded_whatever_a_bundle_allows() {
    let mut driver = approving(u32::MAX);
    for _ in 0..limits::UNBATCHED_PER_HOUR_MAX - 1 {
        let record = Record::Unbatched(server_at(0));
        driver.daemon.book.apply(&record).unwrap();
    }
    assert_eq!(driver.verdict(signed(1, "node.reboot")), "accepted");
    assert_eq!(driver.verdict(signed(2, "gpu.reset")), "UNBATCHED_LIMIT");
    assert_eq!(
        driver.daemon.book.unbatched().iter().count(),
        limits::UNBATCHED_PER_HOUR_MAX
    );
}
