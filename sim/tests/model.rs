//! Every state of a small world, by a model checker.

use std::time::Instant;

use ledger_sim::Bug;
use ledger_sim::small::{Action, Small, State};
use stateright::{Checker, HasDiscoveries, Model, Property};

struct Every(Small);

impl Model for Every {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.0.begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.0.actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.0.next(last, &action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no invariant is broken", |_, state: &State| {
                state.wrong().is_none()
            }),
            Property::always("time ends everything", |_, state: &State| {
                state.time_ends_all()
            }),
            Property::sometimes("both succeed", |_, state: &State| {
                state.ends().iter().all(|end| end == "succeeded")
            }),
            Property::sometimes("a journal is lost", |_, state: &State| {
                state.ends().contains(&"failed/journal-lost".to_owned())
            }),
            Property::sometimes("a crash interrupts", |_, state: &State| {
                state.ends().contains(&"failed/interrupted".to_owned())
            }),
            Property::sometimes("a word comes late", |_, state: &State| {
                state.has_late_result()
            }),
        ]
    }
}

fn explore(small: Small) -> impl Checker<Every> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failure = HasDiscoveries::AnyFailures;
    let checker = Every(small).checker().threads(threads).finish_when(failure);
    checker.spawn_bfs().join()
}

/// Goes through every state; nothing may be broken, and each of these must have happened.
fn holds(small: Small, states_min: usize, happens: &[&'static str]) {
    let kinds = small.kinds.clone();
    let began = Instant::now();
    let checker = explore(small);
    let states = checker.unique_state_count();
    println!("{kinds:?}: {states} states in {:?}", began.elapsed());
    for broken in ["no invariant is broken", "time ends everything"] {
        if let Some(path) = checker.discovery(broken) {
            let wrong = path.last_state().wrong().map(str::to_owned);
            panic!("{broken}: {wrong:?}\n{:?}", path.into_actions());
        }
    }
    assert!(states >= states_min, "only {states} states");
    for example in happens {
        assert!(checker.discovery(example).is_some(), "never: {example}");
    }
}

#[test]
fn d7_d8_every_state_of_two_commands_two_sessions_a_crash_and_a_lost_journal_holds() {
    let both = Small::new(&["disk.wipe", "logs.collect"]);
    let happens = ["both succeed", "a journal is lost", "a crash interrupts"];
    holds(both, 300_000, &happens);
}

#[test]
fn d9_every_state_of_a_reboot_that_is_cancelled_and_swept_holds() {
    let reboot = Small {
        cancels: 1,
        sweeps: 1,
        ..Small::new(&["node.reboot"])
    };
    let happens = [
        "a journal is lost",
        "a crash interrupts",
        "a word comes late",
    ];
    holds(reboot, 10_000, &happens);
}

#[test]
fn d8_a_bug_in_the_small_world_is_found() {
    for bug in [
        Bug::RejoinProvesNothing,
        Bug::LostJournalKeepsItsId,
        Bug::EpochNotCompared,
    ] {
        let small = Small {
            bug: Some(bug),
            ..Small::new(&["disk.wipe"])
        };
        let checker = explore(small);
        let found = checker.discovery("no invariant is broken");
        let path = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: {:?}", path.last_state().wrong());
    }
}
