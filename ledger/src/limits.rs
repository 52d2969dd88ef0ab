//! Limits of the append and its database, each with its unit in its name.

use std::time::Duration;

/// Most requests that wait for the append; one more is refused at once.
pub const QUEUE_REQUESTS_MAX: usize = 8_192;
/// Most requests of one group.
pub const GROUP_REQUESTS_MAX: usize = 512;
/// Most bytes of payloads, results and specs in one group.
pub const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Commands of one look for what approved batches still hold.
pub const RELEASES_PAGE_ROWS: u32 = 500;
/// Releases that are appended at once; they share commits.
pub const RELEASES_AT_ONCE: usize = 256;
/// Most notices of commits that wait for the tail's task; what does not fit is read from the log.
pub const TAIL_COMMITS_MAX: usize = 1_024;
/// Most commits that a slow subscriber may lag behind before it is told so.
pub const SUBSCRIBER_COMMITS_MAX: usize = 4_096;
/// Most events that are read from the log at once.
pub const READ_EVENTS_MAX: u32 = 1_000;
/// How often the head is looked at, in case a wake-up was lost (SPEC D3).
pub const HEAD_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Life of a worker key from when it is made, in seconds (SPEC P1).
pub const WORKER_SECONDS: u32 = 24 * 3_600;
/// How far worker keys are dated back, in seconds, for whoever's clock is behind.
pub const WORKER_BACKDATED_SECONDS: u32 = 5 * 60;
/// How often the clock is looked at, to replace a worker key at half its life.
pub const WORKER_LOOK_EVERY: Duration = Duration::from_secs(30);
/// First wait before a root that did not sign is asked again; the waits double.
pub const WORKER_RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest wait before a root that did not sign is asked again.
pub const WORKER_RETRY_MAX: Duration = Duration::from_mins(1);
/// Longest wait for a root's signature.
pub const ROOT_WITHIN: Duration = Duration::from_secs(10);
/// Tries to publish a trust bundle, each lost to another who published one.
pub const PUBLISH_ATTEMPTS_MAX: u32 = 8;
/// Tries to put a secret, each lost to another who put the same.
pub const PUT_SECRET_ATTEMPTS_MAX: u32 = 8;
/// Longest wait for a store of secrets.
pub const SECRET_WITHIN: Duration = Duration::from_secs(5);
/// How long a gateway waits for the answer to a node's question for a secret, before it says that there
/// is none yet.
pub const EXCHANGE_WITHIN: Duration = Duration::from_secs(1);
/// How often the answer is looked for, in case another process gives it.
pub const EXCHANGE_LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often the keeper looks for questions that other processes have asked.
pub const KEEPER_LOOK_EVERY: Duration = Duration::from_millis(500);
/// Questions that the keeper takes at once.
pub const KEEPER_PAGE_ROWS: u32 = 16;
/// How long a question may wait for the keeper, in seconds; its node waits for a minute.
pub const EXCHANGE_ANSWERED_SECONDS: u32 = 120;
/// How long a question is kept, in seconds.
pub const EXCHANGE_KEPT_SECONDS: u32 = 3_600;
/// How often old questions are forgotten.
pub const FORGET_EVERY: Duration = Duration::from_mins(1);
/// Questions that are forgotten at once.
pub const FORGET_PAGE_ROWS: u32 = 1_000;
/// Pages of questions that are forgotten in one turn.
pub const FORGET_PAGES_MAX: u32 = 20;
/// How often secrets under an older master key are looked for.
pub const REKEY_EVERY: Duration = Duration::from_secs(5);
/// Secrets that cannot be read of which the log says so one by one.
pub const UNREADABLE_TOLD_MAX: usize = 1_000;
/// Secrets that are put under the new master key at once.
pub const REKEY_PAGE_ROWS: u32 = 200;
/// Most versions of trust bundles that are left out at once: far more than were ever published, so
/// that a node that lies about its version cannot make an operator use them all up.
pub const TRUST_VERSIONS_LEFT_OUT_MAX: u64 = 1_000_000;
/// How often a service looks whether nodes are told what it was configured with.
pub const TRUST_LOOK_EVERY: Duration = Duration::from_secs(10);
/// Longest such look.
pub const TRUST_LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How long a statement of the service may take.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a statement may wait for a lock.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a caller waits for a connection of the pool.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
