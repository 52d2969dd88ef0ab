//! Every bound of this crate, with its unit.

use std::time::Duration;

/// Events or rows that are read at once.
pub(crate) const PAGE_ROWS: i64 = 1_000;
/// Trust bundles that are read at once.
pub(crate) const TRUST_BUNDLES_PAGE_ROWS: u32 = 256;
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
