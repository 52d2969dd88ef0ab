//! Runs schedules, on all cores.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::bug::Bug;
use crate::tally::Tally;
use crate::world::{Shared, World};

/// A schedule in which something did not hold.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What did not hold.
    pub wrong: String,
    /// The steps that led there; empty unless they were asked for.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        let Self { seed, wrong, .. } = self;
        writeln!(f, "seed {seed}: {wrong}")?;
        write!(f, "replay it with SIM_SEED={seed}")
    }
}

/// A planted bug that was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The first seed that shows it.
    pub seed: u64,
    /// What it broke.
    pub wrong: String,
}

/// Runs one schedule.
pub fn run_one(seed: u64, bug: Option<Bug>, tracing: bool) -> Result<Tally, Failure> {
    run_with(&Shared::new(), seed, bug, tracing)
}

fn run_with(shared: &Shared, seed: u64, bug: Option<Bug>, tracing: bool) -> Result<Tally, Failure> {
    let mut world = World::new(seed, bug, tracing, shared);
    let ran = catch_unwind(AssertUnwindSafe(|| run(&mut world)));
    let wrong = ran.unwrap_or_else(|_| Some("a panic; its message stands above".to_owned()));
    match wrong {
        None => Ok(world.tally),
        Some(wrong) => Err(Failure {
            seed,
            wrong,
            trace: world.trace,
        }),
    }
}

fn run(world: &mut World) -> Option<String> {
    world.tally.schedules = 1;
    let steps = world.chance.between(40, 500);
    for _ in 0..steps {
        world.step();
        if let Some(wrong) = world.check() {
            return Some(wrong);
        }
    }
    world.calm()
}

/// Runs the schedules of `count` seeds from `first` on, and counts what happened in them. The
/// failure is that of the lowest seed among those that failed until all threads had stopped.
pub fn run_many(first: u64, count: u64, bug: Option<Bug>) -> Result<Tally, Failure> {
    let next = AtomicU64::new(first);
    let end = first.saturating_add(count);
    let over = AtomicBool::new(false);
    let total = Mutex::new((Tally::default(), None::<Failure>));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let shared = Shared::new();
                let mut tally = Tally::default();
                let mut failed = None;
                while !over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    match run_with(&shared, seed, bug, false) {
                        Ok(one) => tally.add(&one),
                        Err(failure) => {
                            failed = Some(failure);
                            over.store(true, Ordering::Relaxed);
                        }
                    }
                }
                if let Ok(mut total) = total.lock() {
                    total.0.add(&tally);
                    if let Some(failed) = failed {
                        let first = total.1.take().filter(|known| known.seed < failed.seed);
                        total.1 = Some(first.unwrap_or(failed));
                    }
                }
            });
        }
    });
    let (tally, failed) = total.into_inner().unwrap_or_default();
    match failed {
        None => Ok(tally),
        // Once more, to see the way there.
        Some(failed) => run_one(failed.seed, bug, true).and(Err(failed)),
    }
}

/// The first seed below `count` that finds the bug.
pub fn first_failure(bug: Bug, count: u64) -> Option<Found> {
    let shared = Shared::new();
    (0..count).find_map(|seed| {
        let failure = run_with(&shared, seed, Some(bug), false).err()?;
        let wrong = failure.wrong;
        Some(Found { seed, wrong })
    })
}
