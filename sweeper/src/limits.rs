//! Every bound of this crate, with its unit.

use std::time::Duration;

use ledger_protocol::limits::SWEEP_SECONDS;

/// Between the starts of two sweeps (SPEC T2).
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(SWEEP_SECONDS as u64);
/// How long the lease lasts when its holder dies: less than two sweeps, so that the next leader
/// sweeps within the time that SPEC T2 allows.
pub(crate) const LEASE: Duration = Duration::from_secs(2 * SWEEP_SECONDS as u64 - 2);
/// Renewals in the time of one lease.
pub(crate) const LEASE_RENEWALS: u32 = 4;
/// Longest wait between two attempts to become the leader.
pub(crate) const LEASE_RETRY: Duration = Duration::from_secs(1);
/// Between two extensions of the log's partitions.
pub(crate) const MAINTAIN_EVERY: Duration = Duration::from_mins(1);
/// One question to Postgres, the wait for a connection included.
pub(crate) const DATABASE_WITHIN: Duration = Duration::from_secs(15);
/// Rows of one page of a sweep.
pub(crate) const PAGE_ROWS: u32 = 500;
/// Ends that are being appended at once; they share commits.
pub(crate) const APPENDS_AT_ONCE: usize = 256;
/// Lapsed leases of gateways that one sweep looks at.
pub(crate) const GATEWAYS_PER_SWEEP_MAX: u32 = 64;
/// Sessions of one lost gateway that one sweep closes.
pub(crate) const CLOSES_PER_SWEEP_MAX: u32 = 4_096;
/// Commands remembered as told of, because they could not be ended.
pub(crate) const POISONED_MAX: usize = 1_000;
