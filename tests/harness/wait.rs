//! Waiting for a condition, with a deadline.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// How long anything may take before its test fails. Generous, because all tests share a machine.
pub const DEADLINE: Duration = Duration::from_secs(50);
/// Between two looks at what sends no notice.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until something holds.
pub async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    until_within(DEADLINE, what, holds).await;
}

/// The same, for what takes its own time.
pub async fn until_within(within: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !holds().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        sleep(LOOK_EVERY).await;
    }
}

/// Waits until there is something.
pub async fn found<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        sleep(LOOK_EVERY).await;
    }
}

/// Awaits something that must end.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// A number that whoever runs a test may set, to let it run longer or larger.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number; it is `{text}`"))
    })
}
