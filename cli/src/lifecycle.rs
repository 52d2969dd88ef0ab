//! How long-running parts start, fail, come back and stop.
//!
//! A process is a list of phases. Each holds the tasks that stop together; phases stop in the order
//! that their owner chooses, so that nobody loses what it still needs (sessions end before the
//! ledger that records their end). Every wait of a stop has a bound.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::exit::{Failure, chain};
use crate::limits::{
    ENDINGS_WAITING_MAX, SAME_SIGNAL_WITHIN, WORKER_HEALTHY_AFTER, WORKER_RESTART_AFTER_MAX,
    WORKER_RESTART_AFTER_MIN,
};

/// The signals that end a process: the first asks it to finish, a later one not to take its time.
///
/// Who stops a process often signals it twice in one breath: `timeout` tells the process and then
/// its whole group, a supervisor the group and the terminal again. What comes within
/// [`SAME_SIGNAL_WITHIN`] of the first is therefore the same wish.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// When the first came.
    first: Option<Instant>,
}

impl Signals {
    /// Takes over what the signals do; from here on, none of them ends the process by itself.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            first: None,
        })
    }

    /// Waits for a signal that asks the process to finish. May be dropped and called again.
    pub(crate) async fn asked(&mut self) -> &'static str {
        let signal = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hang_up.recv() => "SIGHUP",
        };
        self.first.get_or_insert_with(Instant::now);
        signal
    }

    /// Waits for a signal that means more than the first did: one that comes later than it. May be
    /// dropped and called again.
    pub(crate) async fn insisted(&mut self) -> &'static str {
        loop {
            let signal = self.asked().await;
            let since = self.first.map(|first| first.elapsed());
            if since.is_some_and(|since| since > SAME_SIGNAL_WITHIN) {
                return signal;
            }
            tracing::debug!("{signal} once more at the same time; the stop goes on");
        }
    }
}

/// Says that a part that must not end has ended, and why.
pub(crate) type Endings = mpsc::Sender<Failure>;

/// A channel for endings; only the first matters.
pub(crate) fn endings() -> (Endings, mpsc::Receiver<Failure>) {
    mpsc::channel(ENDINGS_WAITING_MAX)
}

/// Tasks that stop together.
pub(crate) struct Phase {
    name: &'static str,
    token: CancellationToken,
    tasks: TaskTracker,
}

impl Phase {
    /// A phase without tasks.
    pub(crate) fn new(name: &'static str) -> Self {
        let (token, tasks) = (CancellationToken::new(), TaskTracker::new());
        Self { name, token, tasks }
    }

    /// What tells its tasks to stop.
    pub(crate) fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// What waits for its tasks, for parts that start tasks of their own.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Keeps a worker going: one that ends or panics before the phase stops is started again,
    /// after a pause that grows with each failure.
    pub(crate) fn worker<F, E>(
        &self,
        name: &'static str,
        start: impl Fn(CancellationToken) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<anyhow::Error> + Send + 'static,
    {
        self.tasks
            .spawn(keep_going(name, self.token.clone(), start));
    }

    /// Runs what cannot be started again, such as a listener: should it end before the phase
    /// stops, `endings` is told, and the process is expected to end.
    pub(crate) fn essential<E>(
        &self,
        name: &'static str,
        endings: Endings,
        part: impl Future<Output = Result<(), E>> + Send + 'static,
    ) where
        E: Into<anyhow::Error> + Send + 'static,
    {
        let token = self.token.clone();
        self.tasks.spawn(async move {
            let ended = caught(part).await;
            if token.is_cancelled() {
                if let Err(error) = ended {
                    tracing::warn!("{name} stopped badly: {}", chain(&error));
                }
                return;
            }
            let error = ended
                .err()
                .unwrap_or_else(|| anyhow::anyhow!("it ended by itself"));
            let failure = Failure::from(error.context(format!("{name} has ended")));
            // A full queue has an ending in it already.
            let _ = endings.try_send(failure);
        });
    }

    /// Tells the tasks to stop and waits for them, at most `within`.
    pub(crate) async fn stop(&self, within: Duration) {
        self.token.cancel();
        self.tasks.close();
        if timeout(within, self.tasks.wait()).await.is_err() {
            let (left, seconds) = (self.tasks.len(), within.as_secs_f32());
            tracing::warn!(
                "{left} tasks of {} did not stop within {seconds} s",
                self.name
            );
        }
    }
}

/// Waits for a part to end; a panic is an error like any other.
async fn caught<E: Into<anyhow::Error>>(
    part: impl Future<Output = Result<(), E>>,
) -> Result<(), anyhow::Error> {
    match AssertUnwindSafe(part).catch_unwind().await {
        Ok(ended) => ended.map_err(Into::into),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("without a message");
            Err(anyhow::anyhow!("it panicked: {text}"))
        }
    }
}

async fn keep_going<F, E>(
    name: &'static str,
    token: CancellationToken,
    start: impl Fn(CancellationToken) -> F,
) where
    F: Future<Output = Result<(), E>>,
    E: Into<anyhow::Error>,
{
    let mut restart_after = WORKER_RESTART_AFTER_MIN;
    loop {
        let began = Instant::now();
        let ended = caught(start(token.clone())).await;
        if token.is_cancelled() {
            return;
        }
        if began.elapsed() >= WORKER_HEALTHY_AFTER {
            restart_after = WORKER_RESTART_AFTER_MIN;
        }
        let seconds = restart_after.as_secs_f32();
        match ended {
            Ok(()) => tracing::error!("{name} ended by itself; it starts again in {seconds} s"),
            Err(error) => {
                let error = chain(&error);
                tracing::error!("{name} failed; it starts again in {seconds} s: {error}");
            }
        }
        tokio::select! {
            () = token.cancelled() => return,
            () = sleep(restart_after) => {}
        }
        restart_after = (restart_after * 2).min(WORKER_RESTART_AFTER_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn h7_a_worker_that_fails_or_panics_is_started_again() {
        let phase = Phase::new("workers");
        let starts = Arc::new(AtomicU32::new(0));
        let (up, mut is_up) = mpsc::channel(1);
        let counted = starts.clone();
        phase.worker("test", move |token| {
            let (start, up) = (counted.fetch_add(1, Ordering::SeqCst), up.clone());
            async move {
                match start {
                    0 => Err(anyhow::anyhow!("planned")),
                    1 => panic!("planned"),
                    2 => Ok(()),
                    _ => {
                        up.send(()).await?;
                        token.cancelled().await;
                        Ok(())
                    }
                }
            }
        });
        is_up.recv().await.unwrap();
        phase.stop(Duration::from_secs(1)).await;
        assert_eq!(starts.load(Ordering::SeqCst), 4);
        assert!(phase.tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn h7_a_listener_that_ends_is_told_with_its_causes() {
        let phase = Phase::new("edge");
        let (endings, mut ended) = endings();
        phase.essential("the API", endings, async {
            let cause = std::io::Error::other("no more sockets");
            Err(anyhow::Error::from(cause).context("accept failed"))
        });
        let failure = ended.recv().await.unwrap();
        assert_eq!(
            failure.to_string(),
            "the API has ended: accept failed: no more sockets"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn h7_a_stop_is_bounded_and_an_end_after_it_is_no_failure() {
        let phase = Phase::new("edge");
        let (endings, mut ended) = endings();
        let token = phase.token();
        phase.essential::<anyhow::Error>("obedient", endings.clone(), async move {
            token.cancelled().await;
            Ok(())
        });
        phase.essential::<anyhow::Error>("stubborn", endings, std::future::pending());
        phase.stop(Duration::from_secs(3)).await;
        assert!(ended.try_recv().is_err());
        assert_eq!(phase.tasks.len(), 1);
    }
}
