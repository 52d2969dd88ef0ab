//! Every bound of the program, with its unit.

use std::time::Duration;

/// Opening a connection to the API.
pub(crate) const API_CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// One call of the API, from connecting to the last byte of the answer.
pub(crate) const API_ANSWER_WITHIN: Duration = Duration::from_mins(1);
/// The largest answer that is read: a full page of the largest commands is below 30 MiB.
pub(crate) const API_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The largest list of approvers that is read.
pub(crate) const APPROVERS_FILE_BYTES_MAX: u64 = 64 * 1024;
/// The largest key file that is read.
pub(crate) const KEY_FILE_BYTES_MAX: u64 = 16 * 1024;
/// The largest file of a batch's commands that is read, with their payloads.
pub(crate) const SCOPE_FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The largest file with one payload that is read: 48 KiB of payload, spelled with escapes and blanks.
pub(crate) const PAYLOAD_FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The largest input that `api --json` reads; the service refuses bodies above 1 MiB.
pub(crate) const API_INPUT_BYTES_MAX: u64 = 1024 * 1024;
/// What is read of an export at once.
pub(crate) const EXPORT_READ_BYTES: usize = 256 * 1024;
/// Between two lines about how far long work has come.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_secs(2);

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

/// From the first signal that ends a process: what comes within it is the same wish, told twice.
pub(crate) const SAME_SIGNAL_WITHIN: Duration = Duration::from_secs(1);
/// Requests and sessions in progress, once a service stops.
pub(crate) const STOP_EDGE_WITHIN: Duration = Duration::from_secs(10);
/// Workers, once a service stops.
pub(crate) const STOP_WORKERS_WITHIN: Duration = Duration::from_secs(5);
/// The append, once nobody appends any more.
pub(crate) const STOP_LEDGER_WITHIN: Duration = Duration::from_secs(5);
/// Closing the connections to Postgres.
pub(crate) const CLOSE_POOL_WITHIN: Duration = Duration::from_secs(2);
/// Shortest validity of a node's certificate, in seconds.
pub(crate) const CERTIFICATE_SECONDS_MIN: u32 = 60;
/// Connections to Postgres of one process, unless set otherwise.
pub(crate) const CONNECTIONS_DEFAULT: u32 = 16;
/// Connections to Postgres of a command that asks one thing and ends.
pub(crate) const CONNECTIONS_OF_ONE_CALL: u32 = 2;
/// Items that one page of the API is asked for.
pub(crate) const PAGE_ITEMS: u32 = 200;

/// Nodes that `up` can run.
pub(crate) const UP_NODES_MAX: u16 = 500;
/// Connections to Postgres of `up`.
pub(crate) const UP_CONNECTIONS: u32 = 32;
/// From a server's end to its next start.
pub(crate) const SERVER_RESTART_AFTER_MIN: Duration = Duration::from_millis(200);
/// The longest pause between two attempts to start a server.
pub(crate) const SERVER_RESTART_AFTER_MAX: Duration = Duration::from_secs(10);
/// How long `up` waits for the stream that the publisher makes.
pub(crate) const UP_STREAM_WITHIN: Duration = Duration::from_secs(10);
/// How long `up` waits for the first checkpoint of the log.
pub(crate) const UP_CHECKPOINT_WITHIN: Duration = Duration::from_secs(10);
/// How long `up` waits for the sessions of its nodes, apart from what each node adds.
pub(crate) const UP_SESSIONS_WITHIN: Duration = Duration::from_mins(1);
/// What each node adds to that time: joins happen one after the other.
pub(crate) const UP_SESSION_EACH: Duration = Duration::from_millis(200);
/// Between two looks at what `up` waits for.
pub(crate) const UP_LOOK_EVERY: Duration = Duration::from_millis(50);

/// Nodes that `agent --simulate` plays in one process.
pub(crate) const SIMULATE_NODES_MAX: u32 = 20_000;
/// Simulated nodes that are registered at a time.
pub(crate) const SIMULATE_JOINS_AT_A_TIME: usize = 16;

// `up` stops everything within 10 s; the times below add up to less.

/// Requests, sessions and agents, once `up` stops.
pub(crate) const UP_STOP_EDGE_WITHIN: Duration = Duration::from_millis(2_500);
/// Sessions, once the gateway of `up` stops; below the time of the whole edge.
pub(crate) const UP_STOP_SESSIONS_WITHIN: Duration = Duration::from_secs(2);
/// Sweeper and publisher, once `up` stops.
pub(crate) const UP_STOP_WORKERS_WITHIN: Duration = Duration::from_secs(1);
/// The append and its connections, once `up` stops.
pub(crate) const UP_STOP_LEDGER_WITHIN: Duration = Duration::from_millis(1_500);
/// A server's own way of stopping, before it is killed.
pub(crate) const STOP_SERVER_POLITELY_WITHIN: Duration = Duration::from_secs(3);
/// Both servers, killing included.
pub(crate) const UP_STOP_SERVERS_WITHIN: Duration = Duration::from_millis(4_500);
/// Validity of a node's certificate under `up`, in seconds: a year, because the same folder is to
/// start again after a long pause.
pub(crate) const UP_CERTIFICATE_SECONDS: u32 = 365 * 24 * 3_600;
/// From a stop to the process's end: what is left is dropped, child processes included.
pub(crate) const DROP_TASKS_WITHIN: Duration = Duration::from_millis(300);
/// Fewest days for which an ended command stays: its idempotency key answers retries for so long.
pub(crate) const COMMANDS_KEPT_DAYS_MIN: u32 = 30;
/// Most days that a policy keeps anything: a hundred years, which is for ever.
pub(crate) const KEPT_DAYS_MAX: u32 = 36_525;
