//! Whatever the order, the repetition and the moment of death: what must always hold.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::limits::lane_credits;

const COMMANDS: u64 = 12;
const KINDS: [&str; 6] = [
    "diag.nvml",
    "gpu.reset",
    "logs.collect",
    "node.reboot",
    "inventory.refresh",
    "diag.dcgm",
];

#[derive(Debug, Clone, Copy)]
enum Step {
    Command(u64),
    Stale(u64),
    Cancel(u64),
    Finish(u64, End),
    Acknowledge(u64, UpdateState, bool),
    Applied(u64),
    Reconnect,
    Pass(i64),
    /// The process dies.
    Crash {
        new_boot: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 1..=COMMANDS;
    let end = prop_oneof![
        Just(End::Succeeded),
        Just(End::Failed),
        Just(End::Cancelled),
        Just(End::Underway)
    ];
    let state = prop_oneof![
        Just(UpdateState::Acked),
        Just(UpdateState::Running),
        Just(UpdateState::Succeeded),
        Just(UpdateState::Failed),
        Just(UpdateState::Cancelled),
        Just(UpdateState::Rejected),
    ];
    prop_oneof![
        6 => number().prop_map(Step::Command),
        1 => number().prop_map(Step::Stale),
        2 => number().prop_map(Step::Cancel),
        4 => (number(), end).prop_map(|(number, end)| Step::Finish(number, end)),
        4 => (number(), state, any::<bool>())
            .prop_map(|(number, state, refused)| Step::Acknowledge(number, state, refused)),
        1 => (1..4_u64).prop_map(Step::Applied),
        2 => Just(Step::Reconnect),
        1 => (1..400_i64).prop_map(Step::Pass),
        2 => any::<bool>().prop_map(|new_boot| Step::Crash { new_boot }),
    ]
}

fn kind_of(number: u64) -> &'static str {
    KINDS[usize::try_from(number).unwrap() % KINDS.len()]
}

/// What may be true of the world outside at any moment.
struct World {
    driver: Driver,
    boot: u32,
    durable_ends: BTreeMap<CommandId, Update>,
    checked: usize,
    running: BTreeSet<CommandId>,
}

impl World {
    fn identity(&self) -> Identity {
        Identity {
            boot_id: format!("boot-{}", self.boot),
            ..identity()
        }
    }

    /// Performs at most `budget` effects. What is cut off is lost with the process, or was not
    /// written by a disk that is full.
    fn step(&mut self, input: Input, budget: usize, full_disk: bool) {
        let effects = self.driver.daemon.handle(input, self.driver.now);
        // A disk that is full only stops at something that is to be written.
        let is_write = |effect: &Effect| matches!(effect, Effect::Journal(_) | Effect::Rewrite(_));
        let mut cut = budget.min(effects.len());
        while full_disk && cut < effects.len() && !is_write(&effects[cut]) {
            cut += 1;
        }
        self.driver.perform(&effects[..cut]);
        self.check();
        if full_disk && cut < effects.len() {
            let unperformed = effects[cut..].to_vec();
            self.step(Input::JournalFailed { unperformed }, usize::MAX, false);
        }
    }

    /// Every effect that was performed stands on records that were durable before it.
    fn check(&mut self) {
        let performed = self.driver.performed[self.checked..].to_vec();
        self.checked = self.driver.performed.len();
        let mut accepted = BTreeSet::new();
        let mut started = BTreeSet::new();
        for record in &self.driver.durable {
            match record {
                Record::Accepted(command) => _ = accepted.insert(command.command_id),
                Record::Started(body) => _ = started.insert(body.command_id),
                Record::Ended(ended) => {
                    let id = ended.update.command_id;
                    let first = self.durable_ends.entry(id).or_insert(ended.update.clone());
                    assert_eq!(*first, ended.update, "an end was changed");
                    if ended.accepted {
                        accepted.insert(id);
                    }
                    if ended.started {
                        started.insert(id);
                    }
                    self.running.remove(&id);
                }
                _ => {}
            }
        }
        for effect in performed {
            match effect {
                Effect::Start(job) => {
                    assert!(started.contains(&job.command_id), "started unjournaled");
                    self.running.insert(job.command_id);
                }
                Effect::Send(Frame::CommandUpdate(body)) => {
                    for update in body.updates {
                        let id = update.command_id;
                        match update.state {
                            UpdateState::Busy => {}
                            UpdateState::Acked => assert!(accepted.contains(&id), "acked {id}"),
                            UpdateState::Running => assert!(started.contains(&id), "running {id}"),
                            _ => assert_eq!(Some(&update), self.durable_ends.get(&id)),
                        }
                    }
                }
                _ => {}
            }
        }
        for lane in Lane::ALL {
            let in_lane = |id: &&CommandId| {
                let number = u64::try_from(id.uuid().as_u128()).unwrap();
                command(number, kind_of(number)).lane == lane
            };
            let running = self.running.iter().filter(in_lane).count();
            assert!(
                running <= lane_credits(lane) as usize,
                "too much runs in {lane}"
            );
        }
        for (id, starts) in &self.driver.starts {
            assert!(*starts <= 1, "{id} took effect {starts} times");
        }
    }

    fn restart(&mut self) {
        let identity = self.identity();
        self.driver.restart_as(identity);
        self.running.clear();
        self.check();
        // A second restart at once finds nothing more to do.
        assert_eq!(
            self.driver.restart_as(self.identity()),
            Vec::<String>::new()
        );
        self.driver.connect();
        self.check();
    }

    fn play(&mut self, step: Step, budget: usize, full_disk: bool) {
        let id = |number: u64| command_id(number.into());
        let frame = |frame: Frame| Input::Frame(frame);
        let input = match step {
            Step::Command(number) => frame(command(number, kind_of(number)).into()),
            Step::Stale(number) => {
                let stale = frame::Command {
                    min_generation: Some(3),
                    ..command(number, kind_of(number))
                };
                frame(stale.into())
            }
            Step::Cancel(number) => frame(
                Cancel {
                    command_id: id(number),
                }
                .into(),
            ),
            Step::Finish(number, end) => {
                // Only what was started can be done.
                if !self.running.contains(&id(number)) {
                    return;
                }
                let report = report(end);
                Input::Finished {
                    command_id: id(number),
                    report,
                }
            }
            Step::Acknowledge(number, state, refused) => {
                let answer = Acknowledgement {
                    code: None,
                    command_id: id(number),
                    refused: refused.then(|| "never".to_owned()),
                    state,
                };
                frame(
                    UpdateAck {
                        updates: vec![answer],
                    }
                    .into(),
                )
            }
            Step::Applied(generation) => Input::Applied { generation },
            Step::Reconnect => {
                self.step(Input::Disconnected, usize::MAX, false);
                self.driver.connect();
                return self.check();
            }
            Step::Pass(seconds) => {
                self.driver.pass(seconds);
                if !self.driver.daemon.is_welcome() {
                    self.driver.connect();
                }
                return self.check();
            }
            Step::Crash { new_boot } => {
                self.boot += u32::from(new_boot);
                return self.restart();
            }
        };
        self.step(input, budget, full_disk);
        if budget < usize::MAX && !full_disk {
            self.restart();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn d5_d7_d9_at_most_one_effect_and_no_word_before_its_record(
        steps in prop::collection::vec(
            (step(), prop_oneof![4 => Just(usize::MAX), 1 => 0..6_usize], any::<bool>()),
            1..60,
        )
    ) {
        let mut world = World {
            driver: Driver::welcomed(),
            boot: 1,
            durable_ends: BTreeMap::new(),
            checked: 0,
            running: BTreeSet::new(),
        };
        for (step, budget, full_disk) in steps {
            world.play(step, budget, full_disk);
        }
        // In the end the disk has room, the gateway confirms everything, and nothing is left.
        world.driver.pass(2);
        world.check();
        world.boot += 1;
        world.restart();
        for (id, end) in world.durable_ends.clone() {
            world.driver.acknowledge(
                u64::try_from(id.uuid().as_u128()).unwrap(),
                end.state,
                None,
            );
        }
        let left: Vec<_> = world.driver.daemon.hello().entries;
        prop_assert!(
            left.iter().all(|entry| world.running.contains(&entry.command_id)),
            "{left:?} neither runs nor ends"
        );
    }

    #[test]
    fn d5_a_journal_says_the_same_after_a_rewrite(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut world = World {
            driver: Driver::welcomed(),
            boot: 1,
            durable_ends: BTreeMap::new(),
            checked: 0,
            running: BTreeSet::new(),
        };
        for step in steps {
            world.play(step, usize::MAX, false);
        }
        let snapshot = world.driver.daemon.book.snapshot();
        let now = world.driver.now;
        let read = |records: Vec<Record>| {
            let recovered = Daemon::recover(world.identity(), journal_id(1), records, now);
            let (daemon, effects) = recovered.unwrap();
            (daemon.hello(), effects, daemon.book.snapshot())
        };
        prop_assert_eq!(read(snapshot), read(world.driver.durable.clone()));
    }
}
