use super::service::*;
use super::*;
use crate::limits::TRUST_BUNDLES_PER_FRAME_MAX;

fn first() -> SignedBundle {
    sign_bundle(&bundle(1, &[1]), &[1])
}

/// Bundle `version` of a chain in which each one's only root is its version.
fn link(version: u8) -> SignedBundle {
    let before = version.saturating_sub(1).max(1);
    sign_bundle(&bundle(version.into(), &[version]), &[before, version])
}

/// Signed as it should be, and with more signatures than anybody makes.
fn too_large() -> SignedBundle {
    let mut bundle = link(3);
    let again = bundle.signatures[0].clone();
    bundle.signatures.extend(vec![again; 512]);
    bundle
}

fn version(driver: &Driver) -> u64 {
    driver.daemon.hello().trust_version
}

fn last_status(driver: &Driver) -> &frame::Status {
    let status = driver
        .performed
        .iter()
        .rev()
        .find_map(|effect| match effect {
            Effect::Send(Frame::Status(status)) => Some(status),
            _ => None,
        });
    status.unwrap()
}

fn loses_its_journal(driver: &mut Driver) {
    driver.durable.clear();
    driver.restart();
}

#[test]
fn p1_the_first_bundle_is_journaled_and_its_roots_are_pinned_before_anything_is_accepted() {
    let mut driver = Driver::welcomed();
    assert_eq!(driver.verdict(command(1, "diag.nvml")), "accepted");
    let done = driver.receive(trust(&[first()]));
    assert_eq!(done, ["journal trusted 1", "pin 1", "send Status"]);
    assert_eq!(last_status(&driver).trust_version, 1);
    assert_eq!(driver.verdict(command(2, "diag.nvml")), "BAD_SIGNATURE");
    driver.restart();
    assert_eq!(version(&driver), 1);
    driver.connect();
    assert_eq!(driver.verdict(command(3, "diag.nvml")), "BAD_SIGNATURE");
    assert_eq!(driver.verdict(signed(4, "diag.nvml")), "accepted");
}

#[test]
fn p1_a_process_that_died_between_journal_and_pins_pins_at_its_start() {
    let mut driver = Driver::trusting_root_1();
    driver.pins = None;
    assert_eq!(driver.restart(), ["pin 1"]);
    assert_eq!(driver.restart(), Vec::<String>::new());
}

#[test]
fn p1_a_bundle_outlives_a_rewrite_of_the_journal() {
    let mut driver = Driver::trusting(&[first(), link(2)]);
    driver.durable = driver.daemon.book.snapshot();
    driver.restart();
    assert_eq!(version(&driver), 2);
}

#[test]
fn p1_a_chain_of_any_length_is_followed_by_a_node_that_was_away_during_all_of_it() {
    let mut driver = Driver::trusting_root_1();
    driver.give(Input::Disconnected);
    let chain: Vec<_> = (2..=40).map(link).collect();
    let mut frames = chain.chunks(TRUST_BUNDLES_PER_FRAME_MAX);
    driver.welcome_trust = frames.next().unwrap().to_vec();
    driver.connect();
    for frame in frames {
        driver.receive(trust(frame));
    }
    assert_eq!(version(&driver), 40);
    assert_eq!(driver.pins.as_ref().unwrap().version, 40);
    // Root 1 has long been replaced.
    let new = |number| signed_by(&worker(40), command(number, "diag.nvml"));
    assert_eq!(driver.verdict(new(1)), "accepted");
    driver.restart();
    driver.connect();
    assert_eq!(driver.verdict(new(2)), "accepted");
    driver.receive(signed(3, "diag.nvml"));
    driver.pass(10);
    assert_eq!(
        driver.last_update(3).reason.as_deref(),
        Some("BAD_SIGNATURE")
    );
}

#[test]
fn p1_old_and_new_root_overlap() {
    let mut driver = Driver::trusting_root_1();
    driver.receive(trust(&[sign_bundle(&bundle(2, &[1, 2]), &[1, 2])]));
    assert_eq!(driver.verdict(signed(1, "diag.nvml")), "accepted");
    let new = signed_by(&worker(2), command(2, "diag.nvml"));
    assert_eq!(driver.verdict(new), "accepted");
}

#[test]
fn p1_a_chain_with_a_gap_is_not_followed() {
    let mut driver = Driver::trusting_root_1();
    let done = driver.receive(trust(&[link(3)]));
    let told = "doubt a trust bundle was passed over: trust bundle 3 is signed by no root that is \
                trusted";
    assert_eq!(done, [told]);
    assert_eq!(version(&driver), 1);
}

#[test]
fn p1_no_bundle_that_is_older_the_same_foreign_or_unsigned_is_believed() {
    let mut driver = Driver::trusting(&[first(), link(2)]);
    let own_only = sign_bundle(&bundle(3, &[3]), &[3]);
    let mut swapped = sign_bundle(&bundle(3, &[2, 3]), &[2]);
    swapped.signatures[0].root = public(3);
    for bad in [
        first(),
        link(2),
        sign_bundle(&bundle(2, &[2, 9]), &[2]),
        // By the root before the newest bundle, which is trusted no more.
        sign_bundle(&bundle(3, &[1]), &[1]),
        own_only,
        swapped,
        sign_bundle(&bundle(3, &[2]), &[]),
        SignedBundle {
            bundle: Vec::new(),
            ..link(3)
        },
        SignedBundle {
            bundle: bundle(3, &[]).encode().unwrap(),
            signatures: Vec::new(),
        },
        sign_bundle(&bundle(3, &[]), &[2]),
        too_large(),
    ] {
        let done = driver.receive(trust(&[bad]));
        assert!(done.len() == 1 && done[0].starts_with("doubt"), "{done:?}");
        assert_eq!(version(&driver), 2);
    }
    assert_eq!(driver.receive(trust(&[])), Vec::<String>::new());
    driver.receive(trust(&[link(3)]));
    assert_eq!(version(&driver), 3);
}

#[test]
fn p1_a_bundle_that_is_damaged_at_any_byte_is_refused_and_nothing_unsigned_is_taken() {
    let newer = sign_bundle(&approved_by_two(0), &[1]);
    let mut next = approved_by_two(0);
    next.version = 2;
    let next = sign_bundle(&next, &[1]);
    for base in [None, Some(first())] {
        let good = if base.is_some() { &next } else { &newer };
        let start = || Driver::trusting(base.as_slice());
        let mut damaged = Vec::new();
        for byte in 0..good.bundle.len() {
            let mut flipped = good.clone();
            flipped.bundle[byte] ^= 1 << (byte % 8);
            damaged.push(flipped);
            let mut cut = good.clone();
            cut.bundle.truncate(byte);
            damaged.push(cut);
        }
        for byte in 0..64 {
            let mut flipped = good.clone();
            flipped.signatures[0].signature[byte] ^= 1 << (byte % 8);
            damaged.push(flipped);
        }
        let mut driver = start();
        let before = version(&driver);
        for bad in damaged {
            let done = driver.receive(trust(&[bad]));
            assert!(done.len() == 1 && done[0].starts_with("doubt"), "{done:?}");
            assert_eq!(version(&driver), before);
        }
        if base.is_some() {
            assert_eq!(driver.verdict(command(1, "diag.nvml")), "BAD_SIGNATURE");
        }
        driver.receive(trust(std::slice::from_ref(good)));
        assert_eq!(version(&driver), before + 1);
    }
}

#[test]
fn p1_with_its_journal_lost_a_node_refuses_until_the_chain_comes_and_follows_it_from_its_pins() {
    let mut driver = Driver::trusting(&[first(), link(2)]);
    loses_its_journal(&mut driver);
    assert_eq!(version(&driver), 0);
    driver.connect();
    assert_eq!(driver.verdict(command(1, "diag.nvml")), "BAD_SIGNATURE");
    // Signed under the pinned root, and yet nobody knows whether that root still counts.
    let new = |number| signed_by(&worker(2), command(number, "diag.nvml"));
    assert_eq!(driver.receive(new(2)), ["send Status"]);
    assert!(last_status(&driver).wants_trust);
    // The gateway sends all that it has: what is older than the pins is passed over.
    let done = driver.receive(trust(&[first(), link(2), link(3)]));
    assert!(done[0].starts_with("doubt"));
    assert_eq!(
        done[1..5],
        [
            "journal trusted 2",
            "journal trusted 3",
            "pin 3",
            "send Status"
        ]
    );
    assert_eq!(version(&driver), 3);
    let last = signed_by(&worker(3), command(3, "diag.nvml"));
    assert_eq!(driver.verdict(last), "accepted");
}

#[test]
fn p1_with_its_journal_lost_a_node_does_not_go_back_nor_begin_anew() {
    let mut driver = Driver::trusting(&[first(), link(2)]);
    loses_its_journal(&mut driver);
    driver.connect();
    // Root 1 was trusted once; a stranger's own first bundle never was.
    for bad in [
        first(),
        sign_bundle(&bundle(3, &[1]), &[1]),
        sign_bundle(&bundle(9, &[9]), &[9]),
    ] {
        let done = driver.receive(trust(&[bad]));
        assert!(done.len() == 1 && done[0].starts_with("doubt"), "{done:?}");
    }
    driver.receive(signed(1, "diag.nvml"));
    driver.pass(10);
    assert_eq!(
        driver.last_update(1).reason.as_deref(),
        Some("BAD_SIGNATURE")
    );
    assert_eq!(
        driver.why(1),
        "the command cannot be verified, because this node has lost its trust bundle"
    );
    assert!(driver.starts.is_empty());
}

#[test]
fn p1_an_older_copy_of_the_journal_does_not_take_the_node_back() {
    let mut driver = Driver::trusting_root_1();
    let older = driver.durable.clone();
    driver.receive(trust(&[link(2)]));
    driver.durable = older;
    driver.restart();
    assert_eq!(version(&driver), 0);
    driver.connect();
    driver.receive(signed(1, "diag.nvml"));
    driver.pass(10);
    assert_eq!(
        driver.last_update(1).reason.as_deref(),
        Some("BAD_SIGNATURE")
    );
    driver.receive(trust(&[first(), link(2)]));
    assert_eq!(version(&driver), 2);
}

#[test]
fn d4_an_unknown_root_is_asked_for_once_and_then_refused() {
    let mut driver = Driver::trusting_root_1();
    let unknown = |number| signed_by(&worker(2), command(number, "diag.nvml"));
    assert_eq!(driver.receive(unknown(1)), ["send Status"]);
    let status = last_status(&driver);
    assert!(status.wants_trust && !status.wants_spec && status.trust_version == 1);
    // A second one asks no more, and a copy waits with the first.
    assert_eq!(driver.receive(unknown(2)), Vec::<String>::new());
    assert_eq!(driver.receive(unknown(1)), Vec::<String>::new());
    assert_eq!(driver.pass(9), Vec::<String>::new());
    let done = driver.pass(1).join("; ");
    for number in [1, 2] {
        let refused = format!("journal ended {number}; say rejected {number} BAD_SIGNATURE");
        assert!(done.contains(&refused), "{done}");
    }
    let why = driver.why(1);
    assert!(
        why.contains(&public(2).to_string()) && why.contains("not trusted here"),
        "{why}"
    );
}

#[test]
fn d4_trust_is_asked_for_at_most_once_a_minute_also_across_sessions() {
    let mut driver = Driver::trusting_root_1();
    let mut asked = 0;
    for number in 1..=50 {
        let lives = frame::Command {
            not_after: Some(server_at(HOUR)),
            ..command(number, "diag.nvml")
        };
        driver.receive(signed_by(&worker(2), lives));
        asked += usize::from(last_status(&driver).wants_trust);
        driver.performed.clear();
        driver.performed.push(driver.daemon.status(false, false));
        driver.pass(3);
        driver.give(Input::Disconnected);
        driver.connect();
    }
    assert_eq!(asked, 3);
}

#[test]
fn d4_what_waits_for_its_root_is_accepted_once_a_bundle_names_it() {
    let mut driver = Driver::trusting_root_1();
    let unknown = |number| signed_by(&worker(4), command(number, "diag.nvml"));
    driver.receive(unknown(2));
    driver.receive(unknown(1));
    // The chain comes in two frames; the first one does not name the root yet.
    driver.receive(trust(&[link(2), link(3)]));
    assert!(driver.starts.is_empty());
    let done = driver.receive(trust(&[link(4)]));
    let started: Vec<_> = done
        .iter()
        .filter(|word| word.starts_with("start"))
        .collect();
    assert_eq!(started, ["start 1", "start 2"]);
    let journaled = done.iter().position(|word| word == "journal trusted 4");
    let pinned = done.iter().position(|word| word == "pin 4");
    let accepted = done.iter().position(|word| word == "journal accepted 1");
    assert!(
        journaled < pinned && pinned < accepted && journaled.is_some(),
        "{done:?}"
    );
}

#[test]
fn d4_a_trust_frame_without_anything_newer_ends_the_wait() {
    let mut driver = Driver::trusting_root_1();
    driver.receive(signed_by(&worker(2), command(1, "diag.nvml")));
    let done = driver.receive(trust(&[first()]));
    assert_eq!(done.last().unwrap(), "say rejected 1 BAD_SIGNATURE");
}

#[test]
fn d4_what_waits_for_its_root_can_be_cancelled_expires_and_is_dropped_with_the_session() {
    let mut driver = Driver::trusting_root_1();
    let unknown = |number, seconds| {
        let command = frame::Command {
            not_after: Some(server_at(seconds * SECOND)),
            ..command(number, "diag.nvml")
        };
        signed_by(&worker(2), command)
    };
    driver.receive(unknown(1, 600));
    assert_eq!(driver.cancel(1), ["journal ended 1", "say cancelled 1"]);
    driver.receive(unknown(2, 5));
    let done = driver.pass(10).join("; ");
    let expired = "journal ended 2; say rejected 2 EXPIRED";
    assert!(done.contains(expired), "{done}");
    driver.receive(unknown(3, 600));
    driver.give(Input::Disconnected);
    let entries = driver.daemon.hello().entries;
    assert!(entries.iter().all(|entry| entry.seq < 3), "{entries:?}");
    assert_eq!(driver.pass(3_600), Vec::<String>::new());
}

#[test]
fn d4_not_more_than_a_bounded_number_waits_for_trust() {
    let mut driver = Driver::trusting_root_1();
    let most = u64::try_from(limits::WAITING_MAX).unwrap();
    for number in 1..=most {
        driver.receive(signed_by(&worker(2), command(number, "diag.nvml")));
    }
    let next = signed_by(&worker(2), command(most + 1, "diag.nvml"));
    assert_eq!(driver.receive(next), [format!("say busy {}", most + 1)]);
}

#[test]
fn p1_while_the_journal_cannot_take_a_bundle_nothing_is_accepted_and_nothing_pinned() {
    let mut driver = Driver::welcomed();
    let effects = driver
        .daemon
        .handle(Input::Frame(trust(&[first()]).into()), driver.now);
    assert_eq!(
        words(&effects),
        ["journal trusted 1", "pin 1", "send Status"]
    );
    driver.give(Input::JournalFailed {
        unperformed: effects,
    });
    assert_eq!((driver.durable.len(), &driver.pins), (0, &None));
    assert_eq!(driver.receive(signed(1, "diag.nvml")), ["say busy 1"]);
    assert_eq!(driver.receive(command(2, "diag.nvml")), ["say busy 2"]);
    assert_eq!(driver.pass(1), ["rewrite", "pin 1"]);
    assert_eq!(driver.verdict(signed(1, "diag.nvml")), "accepted");
    driver.restart();
    assert_eq!(version(&driver), 1);
}

#[test]
fn p1_roots_that_cannot_be_pinned_are_pinned_before_anything_else_is_done() {
    let mut driver = Driver::welcomed();
    let input = |frame| Input::Frame(frame);
    let mut effects = driver
        .daemon
        .handle(input(trust(&[first()]).into()), driver.now);
    effects.extend(
        driver
            .daemon
            .handle(input(signed(1, "diag.nvml").into()), driver.now),
    );
    let pin = effects
        .iter()
        .position(|effect| matches!(effect, Effect::Pin(_)));
    let unperformed = effects.split_off(pin.unwrap());
    driver.perform(&effects);
    driver.give(Input::JournalFailed { unperformed });
    assert!(driver.starts.is_empty());
    let done = driver.pass(1);
    assert_eq!(done[..3], ["rewrite", "pin 1", "start 1"]);
}

#[test]
fn p1_a_journal_with_a_bundle_that_cannot_have_been_believed_makes_no_sense() {
    let records = |bundles: &[SignedBundle]| {
        let records = bundles
            .iter()
            .cloned()
            .map(|it| Record::Trusted(Box::new(it)));
        let records: Vec<_> = records.collect();
        Daemon::recover(
            identity(),
            journal_id(1),
            records,
            Monotonic::from_micros(0),
        )
    };
    assert!(records(&[first(), link(2)]).is_ok());
    assert!(records(&[link(2), first()]).is_err());
    assert!(records(&[sign_bundle(&bundle(1, &[]), &[1])]).is_err());
}
