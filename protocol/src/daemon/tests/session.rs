use super::*;
use crate::frame::{EntryState, JournalEntry, Ping};
use crate::limits::{FRAME_BYTES_MAX, RESULT_BYTES_MAX, UPDATES_PER_FRAME_MAX};

fn none() -> Vec<String> {
    Vec::new()
}

#[test]
fn d6_hello_names_open_and_unconfirmed_entries_in_seq_order() {
    let mut driver = Driver::welcomed();
    driver.receive(command(3, "inventory.refresh"));
    driver.receive(command(1, "diag.nvml"));
    driver.receive(command(2, "diag.nvml"));
    driver.finish(1, End::Succeeded);
    driver.acknowledge(1, UpdateState::Succeeded, None);
    driver.finish(2, End::Failed);
    let hello = driver.daemon.hello();
    let entry = |number: u64, state| JournalEntry {
        command_id: command_id(number.into()),
        seq: number,
        state,
    };
    assert_eq!(
        hello.entries,
        [
            entry(2, EntryState::Finished),
            entry(3, EntryState::Started)
        ]
    );
    assert_eq!((hello.highest_seq, hello.journal_id), (3, journal_id(1)));
}

#[test]
fn d6_updates_are_said_again_after_welcome_until_they_are_confirmed() {
    let mut driver = Driver::welcomed();
    driver.receive(command(1, "diag.nvml"));
    driver.acknowledge(1, UpdateState::Acked, None);
    driver.give(Input::Disconnected);
    assert_eq!(driver.finish(1, End::Succeeded), ["journal ended 1"]);
    assert_eq!(driver.connect(), ["say running 1, succeeded 1"]);
    driver.give(Input::Disconnected);
    assert_eq!(driver.connect(), ["say running 1, succeeded 1"]);
    driver.acknowledge(1, UpdateState::Running, None);
    driver.acknowledge(1, UpdateState::Succeeded, None);
    driver.give(Input::Disconnected);
    assert_eq!(driver.connect(), none());
}

#[test]
fn d6_after_a_restart_everything_unconfirmed_is_said_again() {
    let mut driver = Driver::welcomed();
    driver.receive(command(1, "diag.nvml"));
    driver.acknowledge(1, UpdateState::Acked, None);
    driver.finish(1, End::Succeeded);
    driver.restart();
    assert_eq!(driver.connect(), ["say acked 1, running 1, succeeded 1"]);
}

#[test]
fn d6_an_answer_to_another_end_confirms_nothing() {
    let mut driver = Driver::welcomed();
    assert_eq!(driver.acknowledge(1, UpdateState::Succeeded, None), none());
    driver.receive(command(1, "diag.nvml"));
    assert_eq!(driver.acknowledge(1, UpdateState::Succeeded, None), none());
    driver.finish(1, End::Failed);
    assert_eq!(driver.acknowledge(1, UpdateState::Succeeded, None), none());
    assert_eq!(driver.acknowledge(1, UpdateState::Busy, None), none());
    driver.acknowledge(1, UpdateState::Failed, None);
    assert_eq!(driver.acknowledge(1, UpdateState::Failed, None), none());
}

#[test]
fn d5_a_refused_update_stays_visible_and_is_not_sent_again() {
    let mut driver = Driver::welcomed();
    driver.receive(command(1, "diag.nvml"));
    driver.finish(1, End::Succeeded);
    driver.acknowledge(1, UpdateState::Succeeded, Some("command cmd_… not found"));
    for restarted in [false, true] {
        if restarted {
            driver.restart();
        }
        let refused: Vec<_> = driver.daemon.refused().collect();
        assert_eq!(refused, [(command_id(1), "command cmd_… not found")]);
        driver.give(Input::Disconnected);
        assert_eq!(driver.connect(), none());
    }
}

#[test]
fn d6_unanswered_updates_are_said_again_within_the_session() {
    let mut driver = Driver::welcomed();
    driver.receive(command(1, "diag.nvml"));
    driver.acknowledge(1, UpdateState::Acked, None);
    driver.finish(1, End::Succeeded);
    let mut said = none();
    for _ in 0..7 {
        let done = driver.pass(2);
        said.extend(done.into_iter().filter(|word| word.starts_with("say")));
        driver.receive(Ping {
            nonce: 1,
            reply: false,
            server_time: None,
        });
    }
    assert_eq!(
        said,
        ["say running 1, succeeded 1", "say running 1, succeeded 1"]
    );
}

#[test]
fn d6_batches_hold_at_most_64_updates_and_fit_a_frame() {
    let full = |number: u64| Update {
        result: Some(vec![0; RESULT_BYTES_MAX]),
        details: Some(vec![0; 4 * 1024]),
        reason: Some("x".repeat(200)),
        ..Update::bare(command_id(number.into()), UpdateState::Failed)
    };
    let updates: Vec<_> = (0..300)
        .map(|number| match number % 10 {
            0 => full(number),
            _ => Update::bare(command_id(number.into()), UpdateState::Acked),
        })
        .collect();
    let frames = update_frames(updates.clone());
    let mut seen = Vec::new();
    for frame in frames {
        assert!(frame.encode().unwrap().len() <= FRAME_BYTES_MAX);
        let Frame::CommandUpdate(body) = frame else {
            panic!("not an update")
        };
        assert!((1..=UPDATES_PER_FRAME_MAX).contains(&body.updates.len()));
        seen.extend(body.updates);
    }
    assert_eq!(seen, updates);
    assert_eq!(update_frames(Vec::new()), []);
}

#[test]
fn d6_hello_with_the_most_entries_fits_a_frame() {
    let mut hello = Driver::new().daemon.hello();
    hello.entries = (0..crate::limits::HELLO_ENTRIES_MAX as u64)
        .map(|seq| JournalEntry {
            command_id: command_id(u128::MAX),
            seq: u64::MAX - seq,
            state: EntryState::Accepted,
        })
        .collect();
    assert!(Frame::from(hello).encode().unwrap().len() <= FRAME_BYTES_MAX);
}

#[test]
fn d5_what_the_ledger_does_not_confirm_bounds_what_is_accepted() {
    let mut driver = Driver::welcomed();
    let most = crate::limits::HELLO_ENTRIES_MAX as u64;
    for number in 1..=most {
        driver.receive(command(number, "diag.nvml"));
        driver.finish(number, End::Succeeded);
    }
    let next = most + 1;
    let busy = format!("say busy {next}");
    assert_eq!(
        driver.receive(command(next, "diag.nvml")),
        std::slice::from_ref(&busy)
    );
    let expired = frame::Command {
        not_after: None,
        ..command(next, "diag.nvml")
    };
    assert_eq!(driver.receive(expired), [busy]);
    driver.acknowledge(1, UpdateState::Succeeded, None);
    assert_eq!(driver.receive(command(next, "diag.nvml")).len(), 4);
}

#[test]
fn d12_a_cancel_before_the_start_ends_the_command() {
    let mut driver = Driver::welcomed();
    let waits = frame::Command {
        min_generation: Some(9),
        ..command(1, "diag.nvml")
    };
    driver.receive(waits.clone());
    assert_eq!(driver.cancel(1), ["journal ended 1", "say cancelled 1"]);
    driver.restart();
    driver.connect();
    assert_eq!(driver.receive(waits), ["say cancelled 1"]);
    assert!(driver.starts.is_empty());
}

#[test]
fn d12_a_cancel_of_a_running_command_is_passed_on_once_and_the_real_outcome_is_told() {
    for (end, said) in [
        (End::Cancelled, "say cancelled 1"),
        (End::Succeeded, "say succeeded 1"),
        (End::Failed, "say failed 1"),
    ] {
        let mut driver = Driver::welcomed();
        driver.receive(command(1, "diag.nvml"));
        assert_eq!(driver.cancel(1), ["stop 1"]);
        assert_eq!(driver.cancel(1), none());
        assert_eq!(driver.finish(1, end), ["journal ended 1", said]);
        assert_eq!(driver.cancel(1), none());
    }
}

#[test]
fn d12_a_cancel_of_an_unknown_command_is_ignored() {
    assert_eq!(Driver::welcomed().cancel(1), none());
}

#[test]
fn d9_a_cancel_comes_too_late_for_an_effect_under_way() {
    let mut driver = Driver::welcomed();
    driver.receive(command(1, "node.reboot"));
    assert_eq!(driver.finish(1, End::Underway), none());
    assert_eq!(driver.cancel(1), none());
    assert_eq!(driver.daemon.hello().entries[0].state, EntryState::Started);
}

#[test]
fn d9_an_effect_under_way_that_never_comes_fails_at_its_timeout() {
    let mut driver = Driver::welcomed();
    driver.receive(command(1, "node.reboot"));
    driver.finish(1, End::Underway);
    driver.give(Input::Disconnected);
    assert_eq!(driver.pass(600 + 900), none());
    assert_eq!(driver.pass(1), ["journal ended 1"]);
    driver.connect();
    assert_eq!(driver.last_update(1).reason.as_deref(), Some("timeout"));
    assert_eq!(driver.details(1), json!({ "phase": "started" }));
}

#[test]
fn d1_a_ping_is_answered_once_and_an_answer_is_not() {
    let mut driver = Driver::welcomed();
    let ping = |reply| Ping {
        nonce: 5,
        reply,
        server_time: None,
    };
    assert_eq!(driver.receive(ping(false)), ["send Ping"]);
    let Some(Effect::Send(Frame::Ping(answer))) = driver.performed.last() else {
        panic!("no ping")
    };
    assert_eq!(*answer, ping(true));
    assert_eq!(driver.receive(ping(true)), none());
}

#[test]
fn d1_pings_go_out_and_silence_ends_the_session() {
    let mut driver = Driver::welcomed();
    assert_eq!(driver.pass(10), ["send Ping"]);
    assert_eq!(
        driver.pass(60),
        ["send Ping", "close nothing was heard for 30 s"]
    );
    assert!(!driver.daemon.is_welcome());
}

#[test]
fn d1_a_gateway_that_does_not_welcome_is_left() {
    let mut driver = Driver::new();
    assert_eq!(driver.give(Input::Connected), ["send Hello"]);
    assert_eq!(driver.pass(29), none());
    assert_eq!(driver.pass(2), ["close no `Welcome` within 30 s"]);
}

#[test]
fn d1_frames_out_of_place_close_the_session() {
    let mut driver = Driver::new();
    driver.give(Input::Connected);
    assert_eq!(
        driver.receive(command(1, "diag.nvml")),
        ["close `Command` came before `Welcome`"]
    );
    assert_eq!(driver.receive(command(1, "diag.nvml")), none());
    let mut driver = Driver::welcomed();
    let hello = driver.daemon.hello();
    assert_eq!(
        driver.receive(hello),
        ["close `Hello` is not for a gateway to send now"]
    );
}

#[test]
fn d10_pings_refresh_the_servers_time() {
    let mut driver = Driver::welcomed();
    driver.pass(10);
    let ahead = server_at(3_600 * SECOND);
    let nonce = driver.daemon.nonce;
    driver.receive(Ping {
        nonce,
        reply: true,
        server_time: Some(ahead),
    });
    assert_eq!(driver.daemon.server_time(driver.now), Some(ahead));
    assert_eq!(
        driver.receive(command(1, "diag.nvml"))[1],
        "say rejected 1 EXPIRED"
    );
}

#[test]
fn d5_a_journal_that_cannot_be_written_makes_the_daemon_busy_and_silent() {
    let mut driver = Driver::welcomed();
    driver.receive(command(1, "diag.nvml"));
    let effects = driver
        .daemon
        .handle(Input::Frame(command(2, "disk.wipe").into()), driver.now);
    let wipe_is_refused = words(&effects);
    assert_eq!(wipe_is_refused[1], "say rejected 2 UNSUPPORTED");
    let unperformed = effects;
    assert_eq!(
        driver.give(Input::JournalFailed { unperformed }),
        ["say busy 2"]
    );

    let effects = driver
        .daemon
        .handle(Input::Frame(command(3, "gpu.reset").into()), driver.now);
    assert_eq!(words(&effects), ["say busy 3"]);
    assert_eq!(
        driver.finish(1, End::Succeeded),
        none(),
        "no word that a crash could take back"
    );
    assert_eq!(driver.receive(command(1, "diag.nvml")), none());

    // The disk is still full at the first attempt.
    driver.now = driver.daemon.next_deadline().unwrap();
    let unperformed = driver.daemon.handle(Input::Timer, driver.now);
    assert_eq!(words(&unperformed)[0], "rewrite");
    assert_eq!(driver.give(Input::JournalFailed { unperformed }), none());

    let mended = driver.pass(1);
    assert_eq!(mended, ["rewrite", "say acked 1, running 1, succeeded 1"]);
    assert_eq!(driver.receive(command(3, "gpu.reset")).len(), 4);
    driver.restart();
    let states: Vec<_> = driver
        .daemon
        .hello()
        .entries
        .into_iter()
        .map(|entry| entry.seq)
        .collect();
    assert_eq!(states, [1, 3]);
}

#[test]
fn d5_a_start_that_could_not_be_journaled_happens_once_the_journal_is_whole() {
    for cut in 0..4 {
        let mut driver = Driver::welcomed();
        let effects = driver
            .daemon
            .handle(Input::Frame(command(1, "gpu.reset").into()), driver.now);
        let (performed, unperformed) = effects.split_at(cut);
        driver.perform(performed);
        let unperformed = unperformed.to_vec();
        driver.give(Input::JournalFailed { unperformed });
        driver.pass(1);
        assert_eq!(driver.starts[&command_id(1)], 1, "cut at {cut}");
    }
}

#[test]
fn d5_an_acceptance_that_may_have_reached_the_disk_is_not_given_back() {
    let mut driver = Driver::welcomed();
    let effects = driver
        .daemon
        .handle(Input::Frame(command(1, "diag.nvml").into()), driver.now);
    // The write failed, and the record is there after the crash all the same.
    driver.perform(&effects[..1]);
    let said = driver.give(Input::JournalFailed {
        unperformed: effects,
    });
    assert_eq!(
        said,
        none(),
        "the ledger must not take it for one that waits"
    );
    driver.restart();
    let started = driver.connect();
    assert!(started.contains(&"start 1".to_owned()), "{started:?}");
}

#[test]
fn d12_a_start_that_waits_for_the_journal_can_be_cancelled() {
    let mut driver = Driver::welcomed();
    let effects = driver
        .daemon
        .handle(Input::Frame(command(1, "gpu.reset").into()), driver.now);
    driver.perform(&effects[..1]);
    driver.give(Input::JournalFailed {
        unperformed: effects[1..].to_vec(),
    });
    assert_eq!(driver.cancel(1), none());
    let mended = driver.pass(1);
    assert_eq!(mended[0], "rewrite");
    assert!(mended[1].ends_with("cancelled 1"), "{mended:?}");
    assert!(driver.starts.is_empty());
}

#[test]
fn d7_stopping_stops_what_runs_and_accepts_nothing_more() {
    let mut driver = Driver::welcomed();
    driver.receive(command(1, "diag.nvml"));
    driver.receive(command(2, "diag.nvml"));
    driver.receive(command(3, "diag.nvml"));
    driver.cancel(3);
    assert_eq!(driver.give(Input::Stopping), ["stop 1", "stop 2", "stop 3"]);
    assert_eq!(driver.receive(command(4, "diag.nvml")), ["say busy 4"]);
    assert_eq!(
        driver.finish(1, End::Cancelled)[1],
        "say failed 1 interrupted",
        "nobody asked for it to be cancelled"
    );
    assert_eq!(driver.finish(2, End::Succeeded)[1], "say succeeded 2");
    assert_eq!(driver.finish(3, End::Cancelled)[1], "say cancelled 3");
    assert!(!driver.daemon.is_running());
}
