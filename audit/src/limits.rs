//! Every bound of this crate, with its unit.

use std::time::Duration;

/// Events or rows that are read at once.
pub(crate) const PAGE_ROWS: i64 = 1_000;
/// Trust bundles that are read at once.
pub(crate) const TRUST_BUNDLES_PAGE_ROWS: u32 = 256;
/// Events of a node that are read at once while its certificate is looked for.
pub(crate) const CERTIFICATE_PAGE_ROWS: u32 = 256;
/// One question to Postgres, the wait for a connection included.
pub(crate) const DATABASE_WITHIN: Duration = Duration::from_mins(1);
/// Differences that a report names; the others are counted only.
pub(crate) const DIFFERENCES_MAX: usize = 1_000;
/// Longest value that a difference quotes, in characters.
pub(crate) const VALUE_CHARS_MAX: usize = 200;
/// Violations that a check names; the others are counted only.
pub(crate) const VIOLATIONS_MAX: usize = 1_000;
/// How long a gateway under load may take from reading what is due to dispatching it, in seconds.
pub(crate) const LOOK_SECONDS: u32 = 10;
/// How late a sweep may be before a command that has not ended counts as overdue, in seconds.
pub(crate) const SWEEP_LATE_SECONDS: u32 = 60;
/// Largest memory of the log's signer that is read, in bytes: a note with one signature.
pub(crate) const MEMORY_BYTES_MAX: u64 = 16 * 1024;
/// Between two checkpoints while the log grows; SPEC U1 asks for one each second at least.
pub(crate) const CHECKPOINT_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at the log, also when nobody told of growth.
pub(crate) const LOG_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Events of one read for the tree; each may have 64 KiB.
pub(crate) const LEAVES_PAGE_ROWS: u32 = 512;
/// Leaves whose tiles wait to be written, at most, but for one page.
pub(crate) const LEAVES_UNWRITTEN_MAX: u64 = 4_096;
/// How long the checkpointer's lease lasts when its holder dies.
pub(crate) const CHECKPOINTER_LEASE: Duration = Duration::from_secs(6);
/// Renewals in the time of one lease.
pub(crate) const CHECKPOINTER_RENEWALS: u32 = 4;
/// Between two attempts to become the checkpointer, or to go on after a failure.
pub(crate) const CHECKPOINTER_RETRY: Duration = Duration::from_secs(1);
/// After a refusal to sign: another process may try in the meantime.
pub(crate) const CHECKPOINTER_REFUSED_PAUSE: Duration = Duration::from_secs(2);
/// Between two tellings of the same alarm, and between two summaries.
pub(crate) const TOLD_EVERY: Duration = Duration::from_mins(1);
/// One step of the checkpointer, or one question of who reads the log.
pub(crate) const LOG_STEP_WITHIN: Duration = Duration::from_secs(15);
/// Resources of the log that are read at once; the others wait.
pub(crate) const LOG_READS_AT_ONCE: usize = 8;
/// Bundles of 256 events whose hashes an export reads at once.
pub(crate) const EXPORT_PAGE_BUNDLES: usize = 16;
/// Checkpoints that an export reads at once; most are below a kilobyte.
pub(crate) const CHECKPOINTS_PAGE_ROWS: u32 = 64;
/// Bundles of events that wait to be held against the rules while others are hashed.
pub(crate) const BUNDLES_WAITING_MAX: usize = 2;
/// What is read of an export at once while it is folded.
pub(crate) const FILE_READ_BYTES: usize = 256 * 1024;
