//! The one place on the server's side that asks the time, and draws random numbers for ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ledger_protocol::time::Timestamp;
use rand::RngExt as _;

/// Where the time comes from.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands until it is set.
    pub fn manual(at: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicI64::new(at.as_micros()))))
    }

    /// The time.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that asks the time"
    )]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                let since = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
            }
            Source::Manual(micros) => Timestamp::from_micros(micros.load(Ordering::SeqCst)),
        }
    }

    /// Sets a manual clock; the machine's clock stays as it is.
    pub fn set(&self, at: Timestamp) {
        if let Source::Manual(micros) = &self.0 {
            micros.store(at.as_micros(), Ordering::SeqCst);
        }
    }

    /// Moves a manual clock on by whole seconds.
    pub fn advance_seconds(&self, seconds: u32) {
        self.set(self.now().plus_seconds(seconds));
    }
}

/// Ten random bytes, as an id takes them.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that draws random ids"
)]
pub(crate) fn random() -> [u8; 10] {
    rand::rng().random()
}
