//! When a busy node is asked again (SPEC D4).

use std::time::Duration;

use crate::limits::{BUSY_BACKOFF_SECONDS_MAX, BUSY_BACKOFF_SECONDS_MIN};

/// How long a command waits after `BUSY`: doubled with every attempt, from 1 to 30 seconds, of
/// which the upper half is drawn by `random`, so that the commands of one node spread.
pub fn busy_backoff(attempts: u32, random: u32) -> Duration {
    let least = u64::from(BUSY_BACKOFF_SECONDS_MIN) * 1_000;
    let doublings = attempts.saturating_sub(1).min(31);
    let most = (least << doublings).min(u64::from(BUSY_BACKOFF_SECONDS_MAX) * 1_000);
    let half = most / 2;
    let drawn = half * u64::from(random) / u64::from(u32::MAX);
    Duration::from_millis((half + drawn).max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d4_backoff_doubles_within_1_to_30_seconds() {
        for attempts in 0..100 {
            for random in [0, 1, u32::MAX / 2, u32::MAX] {
                let wait = busy_backoff(attempts, random);
                assert!(
                    (Duration::from_secs(1)..=Duration::from_secs(30)).contains(&wait),
                    "attempt {attempts} waits {wait:?}"
                );
            }
        }
        assert_eq!(busy_backoff(3, u32::MAX), Duration::from_secs(4));
        assert_eq!(busy_backoff(3, 0), Duration::from_secs(2));
        assert_eq!(busy_backoff(9, u32::MAX), Duration::from_secs(30));
    }
}
