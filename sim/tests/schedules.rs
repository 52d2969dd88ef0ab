//! The protocol as it is, under many schedules.

use std::time::Instant;

use ledger_sim::{Failure, Tally, run_many, run_one};

/// Schedules of one run, unless `SIM_SCHEDULES` says otherwise.
const SCHEDULES: u64 = 100_000;
/// Seeds that once failed. To add one: its number, and what was wrong.
const ONCE_FAILED: &[u64] = &[];

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number; it is `{text}`")),
    )
}

fn fail(failure: &Failure) -> ! {
    panic!("{failure}")
}

#[test]
fn s4_d7_d8_t2_every_schedule_of_faults_keeps_the_invariants() {
    if let Some(seed) = setting("SIM_SEED") {
        let tally = run_one(seed, None, true).unwrap_or_else(|failure| fail(&failure));
        println!("seed {seed} holds\n{tally}");
        return;
    }
    let count = setting("SIM_SCHEDULES").unwrap_or(SCHEDULES);
    let began = Instant::now();
    let tally = run_many(0, count, None).unwrap_or_else(|failure| fail(&failure));
    let seconds = began.elapsed().as_secs_f64();
    println!("{count} schedules in {seconds:.1} s\n{tally}");
    if count >= SCHEDULES {
        assert_enough(&tally);
    }
}

/// A run in which nothing happened has shown nothing.
fn assert_enough(tally: &Tally) {
    let at_least = [("accepted", tally.accepted, 0)];
    for (what, count, least) in at_least {
        assert!(
            count >= least,
            "{what}: {count}, which is below {least}\n{tally}"
        );
    }
}

#[test]
fn d5_seeds_that_once_failed_hold() {
    for seed in ONCE_FAILED {
        if let Err(failure) = run_one(*seed, None, true) {
            fail(&failure);
        }
    }
}
