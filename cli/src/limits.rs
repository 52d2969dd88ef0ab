//! Every bound of the program, with its unit.

use std::time::Duration;

/// Opening a connection to the API.
pub(crate) const API_CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// One call of the API, from connecting to the last byte of the answer.
pub(crate) const API_ANSWER_WITHIN: Duration = Duration::from_mins(1);
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

/// From a worker's first failure to its next start.
pub(crate) const WORKER_RESTART_AFTER_MIN: Duration = Duration::from_millis(500);
/// The longest pause between a worker's failure and its next start.
pub(crate) const WORKER_RESTART_AFTER_MAX: Duration = Duration::from_secs(30);
/// A worker that ran this long before it failed counts as healthy: its pause begins small again.
pub(crate) const WORKER_HEALTHY_AFTER: Duration = Duration::from_mins(1);
/// Endings of essential parts that wait to be read; the first one ends the process.
pub(crate) const ENDINGS_WAITING_MAX: usize = 4;

/// From the first packet to a Postgres connection that answers.
pub(crate) const POSTGRES_CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// All migrations of one run; on a large database a new index takes its time.
pub(crate) const MIGRATE_WITHIN: Duration = Duration::from_hours(1);

/// Requests and sessions in progress, once a service stops.
pub(crate) const STOP_EDGE_WITHIN: Duration = Duration::from_secs(10);
/// Workers, once a service stops.
pub(crate) const STOP_WORKERS_WITHIN: Duration = Duration::from_secs(5);
/// The append, once nobody appends any more.
pub(crate) const STOP_LEDGER_WITHIN: Duration = Duration::from_secs(5);
/// Closing the connections to Postgres.
pub(crate) const CLOSE_POOL_WITHIN: Duration = Duration::from_secs(2);
/// Connections to Postgres of one process, unless set otherwise.
pub(crate) const CONNECTIONS_DEFAULT: u32 = 16;
/// Connections to Postgres of a command that asks one thing and ends.
pub(crate) const CONNECTIONS_OF_ONE_CALL: u32 = 2;
/// Items that one page of the API is asked for.
pub(crate) const PAGE_ITEMS: u32 = 200;
