//! Every bound of the program, with its unit.

use std::time::Duration;

/// Opening a connection to the API.
pub(crate) const API_CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// One call of the API, from connecting to the last byte of the answer.
pub(crate) const API_ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// The largest answer that is read: a full page of the largest commands is below 30 MiB.
pub(crate) const API_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The largest input that `api --json` reads; the service refuses bodies above 1 MiB.
pub(crate) const API_INPUT_BYTES_MAX: u64 = 1024 * 1024;

/// From connecting to NATS to knowing that a subscription has taken effect.
pub(crate) const WATCH_READY_WITHIN: Duration = Duration::from_secs(10);
/// From the first failure of a subscription to the next attempt.
pub(crate) const WATCH_RETRY_AFTER_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to subscribe.
pub(crate) const WATCH_RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
