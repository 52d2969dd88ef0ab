//! What a session says in the log about what its daemon sends: enough for people to see it, and no
//! more than that, for a daemon can send faster than anybody reads.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::limits::COMPLAIN_EVERY;

/// Decides which complaints of one session are said.
#[derive(Debug, Default)]
pub(super) struct Complaints(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    last: Option<Instant>,
    left_out: u64,
}

impl Complaints {
    /// Whether one more is to be said now; if so, how many were left out since the one before.
    pub(super) fn admit(&self) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said
            .last
            .is_some_and(|last| last.elapsed() < COMPLAIN_EVERY)
        {
            said.left_out += 1;
            return None;
        }
        said.last = Some(Instant::now());
        Some(std::mem::take(&mut said.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn d13_complaints_are_bounded_and_what_is_left_out_is_counted() {
        let complaints = Complaints::default();
        assert_eq!(complaints.admit(), Some(0));
        assert_eq!((complaints.admit(), complaints.admit()), (None, None));
        tokio::time::advance(COMPLAIN_EVERY + Duration::from_millis(1)).await;
        assert_eq!(complaints.admit(), Some(2));
        assert_eq!(complaints.admit(), None);
    }
}
