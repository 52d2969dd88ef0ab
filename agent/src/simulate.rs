//! A fleet of simulated nodes in one process: every agent is a real one, with its state directory,
//! its journal and its session; only the machine under it is played, and things go wrong as often
//! as they are asked to.
//!
//! To add a fault: a field in [`Faults`], an arm where it strikes.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::random;
use crate::error::Error;
use crate::journal;
use crate::limits::{SIMULATED_DOWN_MILLIS_MAX, SIMULATED_OPEN_WITHIN};
use crate::run::{AgentOptions, live};
use crate::session::Ended;

/// What goes wrong on a simulated node, each at random moments with this mean time between two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// The agent dies as by SIGKILL, and is started again a moment later.
    pub crash_every: Option<Duration>,
    /// The connection to the gateway breaks off, without a word.
    pub cut_every: Option<Duration>,
    /// The agent dies, and its journal is gone when it comes back (SPEC D8).
    pub lose_journal_every: Option<Duration>,
}

enum Died {
    Ended(Result<Ended, Error>),
    Crashed,
    LostJournal,
}

/// Runs one simulated node until it is stopped, through every death that its faults bring.
///
/// Ends early with an error where [`crate::run`] would.
pub async fn simulate(options: AgentOptions, shutdown: CancellationToken) -> Result<(), Error> {
    let faults = options.faults;
    loop {
        let life = shutdown.child_token();
        let died = tokio::select! {
            biased;
            ended = born(&options, &life) => Died::Ended(ended),
            () = wait_for(faults.crash_every) => Died::Crashed,
            () = wait_for(faults.lose_journal_every) => Died::LostJournal,
        };
        let state_dir = options.state_dir.display();
        match died {
            Died::Ended(Ok(Ended::Stopped)) => return Ok(()),
            Died::Ended(Ok(Ended::Rebooted)) => info!(%state_dir, "rebooted"),
            Died::Ended(Err(error)) => return Err(error),
            Died::Crashed => info!(%state_dir, "crashed, as it was asked to"),
            Died::LostJournal => {
                journal::remove(&options.state_dir)?;
                info!(%state_dir, "crashed and lost its journal, as it was asked to");
            }
        }
        let down = SIMULATED_DOWN_MILLIS_MAX * u64::from(random::<u32>()) / u64::from(u32::MAX);
        let waited = shutdown.run_until_cancelled(sleep(Duration::from_millis(down)));
        if waited.await.is_none() {
            return Ok(());
        }
    }
}

/// One life. The write that a dead agent had begun goes on for a moment, and keeps the state
/// directory until it is done.
async fn born(options: &AgentOptions, shutdown: &CancellationToken) -> Result<Ended, Error> {
    let give_up_at = Instant::now() + SIMULATED_OPEN_WITHIN;
    loop {
        match live(options, shutdown).await {
            Err(Error::StateDirTaken { path }) if Instant::now() < give_up_at => {
                warn!(state_dir = %path.display(), "still in use; tried again");
                sleep(Duration::from_millis(20)).await;
            }
            ended => return ended,
        }
    }
}

/// Waits for something that happens at random, so often in the mean; for ever when it never does.
async fn wait_for(mean: Option<Duration>) {
    match mean {
        Some(mean) => sleep(draw_wait(mean, random())).await,
        None => pending().await,
    }
}

/// Drawn from the exponential distribution: what is independent of all that was before.
pub(crate) fn draw_wait(mean: Duration, random: u32) -> Duration {
    let share = (f64::from(random) + 1.0) / (f64::from(u32::MAX) + 2.0);
    mean.mul_f64(-share.ln())
}

/// When the connection is cut next.
#[derive(Debug)]
pub(crate) struct Cuts {
    every: Option<Duration>,
    next: Option<Instant>,
}

impl Cuts {
    pub(crate) fn new(every: Option<Duration>) -> Self {
        let mut cuts = Self { every, next: None };
        cuts.draw();
        cuts
    }

    /// Waits for the next one. May be dropped and called again.
    pub(crate) async fn next(&mut self) {
        match self.next {
            Some(next) => sleep_until(next).await,
            None => pending().await,
        }
        self.draw();
    }

    fn draw(&mut self) {
        self.next = self
            .every
            .map(|every| Instant::now() + draw_wait(every, random()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_faults_come_as_often_as_they_are_asked_to() {
        let mean = Duration::from_secs(10);
        let draws = 10_000_u32;
        let waits = (0..draws).map(|draw| draw_wait(mean, draw * (u32::MAX / draws)));
        let found = waits.sum::<Duration>() / draws;
        assert!(
            found > mean * 95 / 100 && found < mean * 105 / 100,
            "{found:?}"
        );
        assert!(draw_wait(mean, u32::MAX) < Duration::from_millis(1));
        assert!(draw_wait(mean, 0) < mean * 30);
    }
}
