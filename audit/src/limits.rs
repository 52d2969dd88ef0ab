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
/// Largest memory of the log's signer, or of a witness, that is read, in bytes: a note with the log's
/// signature, or one as it was served, with those of witnesses.
pub(crate) const MEMORY_BYTES_MAX: u64 = 64 * 1024;
/// Between two checkpoints while the log grows; SPEC U1 asks for one each second at least.
pub(crate) const CHECKPOINT_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at the log, also when nobody told of growth: nobody tells of what another process
/// appends where there is no NATS.
pub(crate) const LOG_LOOK_EVERY: Duration = Duration::from_millis(500);
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
/// Blocks of 512 ended commands that stay in memory while rules are checked, 16 KiB each; the others
/// go to a temporary file.
pub(crate) const SHELF_BLOCKS_HERE: usize = 256;
/// Between two looks whether an archive lacks something of the log.
pub(crate) const ARCHIVE_EVERY: Duration = Duration::from_secs(10);
/// How long the archiver's lease lasts when its holder dies.
pub(crate) const ARCHIVER_LEASE: Duration = Duration::from_secs(30);
/// Renewals in the time of one lease.
pub(crate) const ARCHIVER_RENEWALS: u32 = 4;
/// How long the drop of a partition waits for whoever reads the log, while appends wait behind it.
pub(crate) const DROP_LOCK_WITHIN: Duration = Duration::from_millis(500);
/// How often it is tried.
pub(crate) const DROP_ATTEMPTS: u32 = 20;
/// Between two tries.
pub(crate) const DROP_RETRY: Duration = Duration::from_secs(3);
/// Commands that are looked at, and taken out of the read tables, at once.
pub(crate) const FORGET_PAGE_ROWS: u32 = 500;
/// A connection to an archive's bucket.
pub(crate) const BUCKET_CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// An answer of it; the largest object has 16 MiB.
pub(crate) const BUCKET_ANSWER_WITHIN: Duration = Duration::from_mins(1);
/// How often a request is sent that may yet succeed.
pub(crate) const BUCKET_ATTEMPTS: u32 = 4;
/// Before the second attempt; before each later one as much longer.
pub(crate) const BUCKET_RETRY: Duration = Duration::from_millis(300);
/// How long a signed URL holds.
pub(crate) const BUCKET_SIGNED_FOR: Duration = Duration::from_mins(5);
/// Largest answer that is no object, in bytes: a list of a thousand.
pub(crate) const BUCKET_LIST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Witnesses that a log may ask.
pub(crate) const WITNESSES_MAX: usize = 16;
/// How long a checkpoint waits for cosignatures. With what else there is to do, it must be less than
/// the second in which SPEC U1 asks for a checkpoint.
pub(crate) const COSIGNED_WITHIN: Duration = Duration::from_millis(600);
/// Largest answer of a witness that is read, in bytes; a cosignature takes some 200.
pub(crate) const WITNESS_ANSWER_BYTES_MAX: usize = 16 * 1024;
/// What is told of a witness's refusal, in characters.
pub(crate) const WITNESS_TOLD_CHARS_MAX: usize = 120;
/// First pause after a witness failed to cosign; it doubles up to the next bound.
pub(crate) const WITNESS_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause before a witness is asked again.
pub(crate) const WITNESS_PAUSE_MAX: Duration = Duration::from_secs(15);
/// Largest `add-checkpoint` body that our witness reads, in bytes: a note with 16 quantum-safe
/// signatures of nearly 7,000 bytes fits.
pub(crate) const ADD_CHECKPOINT_BYTES_MAX: usize = 128 * 1024;
/// Longest time in which such a body must have arrived.
pub(crate) const ADD_CHECKPOINT_READ_WITHIN: Duration = Duration::from_secs(10);
/// Checkpoints that our witness verifies and flushes at once; the others wait.
pub(crate) const COSIGNINGS_AT_ONCE: usize = 16;
/// How long one may wait for its turn.
pub(crate) const COSIGNING_WAIT_MAX: Duration = Duration::from_secs(10);
/// Between two times at which old checkpoints are thinned out, once there is no more to do.
pub(crate) const THIN_EVERY: Duration = Duration::from_mins(10);
/// Checkpoints that are looked at in one go; more are left for the next look at the log.
pub(crate) const THINNED_AT_ONCE_ROWS: u32 = 1_000;
/// What is read of an export at once while it is folded.
pub(crate) const FILE_READ_BYTES: usize = 256 * 1024;
