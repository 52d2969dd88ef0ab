//! The one place of this crate that asks for the time or for chance.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ledger_protocol::daemon::Monotonic;
use ledger_protocol::time::Timestamp;
use rand::rngs::{SysError, SysRng};
use rand::{RngExt as _, TryRng as _};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use zeroize::Zeroizing;

/// No server has told the time yet.
const UNKNOWN: i64 = i64::MIN;
/// A correction of the server's time above this wakes who waits for a moment of it, in microseconds.
const JUMP_MICROS: u64 = 1_000_000;

/// The node's clocks, and what is known of the server's (SPEC D10). Clones share what is known.
#[derive(Debug, Clone)]
pub struct Clock {
    server_offset_micros: Arc<AtomicI64>,
    jumped: Arc<Notify>,
}

impl Clock {
    /// A clock that knows nothing of a server yet.
    pub fn system() -> Self {
        Self {
            server_offset_micros: Arc::new(AtomicI64::new(UNKNOWN)),
            jumped: Arc::new(Notify::new()),
        }
    }

    /// A point of the clock that never jumps and that goes on while the machine sleeps: a command
    /// that came before a suspend has expired after it.
    pub fn monotonic(&self) -> Monotonic {
        #[cfg(target_os = "linux")]
        const ID: ClockId = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const ID: ClockId = ClockId::Monotonic;
        let at = clock_gettime(ID);
        Monotonic::from_micros(at.tv_sec * 1_000_000 + at.tv_nsec / 1_000)
    }

    /// The wall clock of the node, which may be anything. It dates; it decides nothing.
    #[expect(clippy::disallowed_methods, reason = "this is the crate's one clock")]
    pub fn wall(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = since.unwrap_or(Duration::ZERO).as_micros();
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    /// Keeps what the daemon has learnt of the server's time.
    pub(crate) fn learn(&self, server_now: Timestamp) {
        let offset = server_now
            .as_micros()
            .saturating_sub(self.monotonic().as_micros());
        let before = self.server_offset_micros.swap(offset, Ordering::Relaxed);
        if before.abs_diff(offset) > JUMP_MICROS {
            self.jumped.notify_one();
        }
    }

    /// Waits until the server's time becomes known, or turns out to be another than it seemed. For
    /// one who waits at a time.
    pub(crate) async fn jump(&self) {
        self.jumped.notified().await;
    }

    /// The server's time, once a server has told it.
    pub(crate) fn server(&self) -> Option<Timestamp> {
        self.knows_server().then(|| self.best())
    }

    /// Whether a server has told the time.
    pub(crate) fn knows_server(&self) -> bool {
        self.server_offset_micros.load(Ordering::Relaxed) != UNKNOWN
    }

    /// The best guess at the true time: the server's, or else the wall clock.
    pub fn best(&self) -> Timestamp {
        match self.server_offset_micros.load(Ordering::Relaxed) {
            UNKNOWN => self.wall(),
            offset => Timestamp::from_micros(self.monotonic().as_micros().saturating_add(offset)),
        }
    }
}

/// Bits that nobody can guess.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the crate's one source of chance"
)]
pub(crate) fn random<T>() -> T
where
    rand::distr::StandardUniform: rand::distr::Distribution<T>,
{
    rand::rng().random()
}

/// What a key is made of, from the system itself. An error where the system has none: a key that can
/// be guessed would be worse than no key.
pub(crate) fn random_seed() -> Result<Zeroizing<[u8; 32]>, SysError> {
    let mut seed = Zeroizing::new([0; 32]);
    SysRng.try_fill_bytes(seed.as_mut_slice())?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d10_the_servers_time_is_believed_over_the_wall_clock() {
        let clock = Clock::system();
        assert!(clock.best().micros_since(clock.wall()).abs() < 1_000_000);
        let server = Timestamp::from_micros(1_000_000_000);
        clock.clone().learn(server);
        assert!(clock.best().micros_since(server) < 1_000_000);
    }
}
