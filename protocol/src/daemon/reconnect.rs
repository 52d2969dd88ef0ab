//! How long a daemon waits before it connects again (SPEC D14).

use std::time::Duration;

use super::limits::{RECONNECT_MILLIS_MAX, RECONNECT_MILLIS_MIN};

/// A wait anywhere between nothing and a bound that doubles with every failed attempt, from 0.2
/// to 30 s. The whole range is drawn by `random`, so that nodes which lost their gateway in the
/// same moment do not come back in the same moment.
pub fn reconnect_delay(failures: u32, random: u32) -> Duration {
    let bound = (RECONNECT_MILLIS_MIN << failures.min(16)).min(RECONNECT_MILLIS_MAX);
    Duration::from_micros(bound * 1_000 * u64::from(random) / u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_the_wait_is_jittered_below_a_bound_that_doubles() {
        for failures in 0..200 {
            let bound = reconnect_delay(failures, u32::MAX);
            assert!((Duration::from_millis(200)..=Duration::from_secs(30)).contains(&bound));
            assert_eq!(reconnect_delay(failures, 0), Duration::ZERO);
            let half = reconnect_delay(failures, u32::MAX / 2);
            assert!(half > bound * 49 / 100 && half < bound * 51 / 100);
        }
        assert_eq!(reconnect_delay(3, u32::MAX), Duration::from_millis(1_600));
        assert_eq!(reconnect_delay(u32::MAX, u32::MAX), Duration::from_secs(30));
    }
}
