//! Bugs that were planted, and are found.

use ledger_sim::{Bug, first_failure};

/// Seeds within which each bug must be found.
const SEEDS: u64 = 1_000;

#[test]
fn s4_d5_d8_every_planted_bug_is_found_within_1_000_seeds() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        match first_failure(*bug, SEEDS) {
            Some(found) => println!("{bug:?}: seed {}: {}", found.seed, found.wrong),
            None => missed.push(bug),
        }
    }
    assert!(
        missed.is_empty(),
        "not found within {SEEDS} seeds: {missed:?}"
    );
}
