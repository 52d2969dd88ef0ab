//! Every bound of this crate, with its unit.

use std::time::Duration;

/// From spawning a server to its first answer, unless the options say otherwise. Generous, because
/// Postgres first recovers what a crash left in its log.
pub(crate) const READY_WITHIN: Duration = Duration::from_mins(1);
/// `initdb` on a new folder.
pub(crate) const INIT_WITHIN: Duration = Duration::from_mins(2);
/// `--version` of a program.
pub(crate) const VERSION_WITHIN: Duration = Duration::from_secs(10);
/// One connection attempt, or one statement, while a server starts.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// `CREATE DATABASE`, which copies the template and forces a checkpoint on some versions.
pub(crate) const STATEMENT_WITHIN: Duration = Duration::from_mins(1);

/// Postgres after SIGINT (fast shutdown: writes a checkpoint).
pub(crate) const POSTGRES_FAST_STOP_WITHIN: Duration = Duration::from_secs(6);
/// Postgres after SIGQUIT (immediate shutdown: the next start recovers).
pub(crate) const POSTGRES_IMMEDIATE_STOP_WITHIN: Duration = Duration::from_secs(2);
/// NATS after SIGINT.
pub(crate) const NATS_STOP_WITHIN: Duration = Duration::from_secs(6);
/// Any process after SIGKILL.
pub(crate) const KILLED_WITHIN: Duration = Duration::from_secs(5);
/// A dropped handle blocks its thread for at most this long.
pub(crate) const DROP_WITHIN: Duration = Duration::from_millis(1500);

/// A folder's lock that is held: longer than a child takes to load its program.
pub(crate) const LOCK_WITHIN: Duration = Duration::from_secs(1);
/// Between two looks at something that sends no notice.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(10);

/// What an error quotes of a server's log.
pub(crate) const LOG_TAIL_LINES_MAX: usize = 20;
/// How much of the log's end is read for that.
pub(crate) const LOG_TAIL_BYTES_MAX: u64 = 16 * 1024;
/// A log longer than this is put aside (one generation) when its server starts.
pub(crate) const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A socket's address holds 108 bytes, of which `/.s.PGSQL.5432` and a NUL take 15.
pub(crate) const SOCKET_FOLDER_BYTES_MAX: usize = 90;
/// One message from Postgres to the launcher.
pub(crate) const POSTGRES_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// One line from NATS to the launcher: INFO is about 400 bytes.
pub(crate) const NATS_LINE_BYTES_MAX: usize = 64 * 1024;
/// Ports tried before giving up; another process may take one between choosing and listening.
pub(crate) const NATS_PORT_ATTEMPTS_MAX: usize = 5;
/// Postgres' limit on a name, which it would cut in silence.
pub(crate) const DATABASE_NAME_BYTES_MAX: usize = 63;
