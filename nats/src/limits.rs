//! Every bound of this crate, with its unit.

use std::time::Duration;

/// Events published before the oldest of their acknowledgements must have come. Far below the
/// 5,000 unresolved acknowledgements at which the client would wait for ever.
pub(crate) const WINDOW_EVENTS: u32 = 256;
/// Unresolved acknowledgements that the client may hold, those of windows given up included.
pub(crate) const UNRESOLVED_ACKS_MAX: usize = 4_096;
/// From sending a window to the last of its acknowledgements.
pub(crate) const WINDOW_WITHIN: Duration = Duration::from_secs(10);
/// One request to JetStream and its answer, or one acknowledgement.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Handing a window's copies and wakes to the socket.
pub(crate) const COPIES_WITHIN: Duration = Duration::from_secs(5);
/// One connection attempt, from the first packet to the server's greeting.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// One question to Postgres, the wait for a connection included.
pub(crate) const DATABASE_WITHIN: Duration = Duration::from_secs(15);
/// Between pings, so that a server that went silent is noticed.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(10);
/// Commands handed to the client's task and not yet written to the socket.
pub(crate) const UNSENT_COMMANDS_MAX: usize = 2_048;
/// Messages received and not yet read; more of them are dropped, for a wake repeats.
pub(crate) const UNREAD_MESSAGES_MAX: usize = 1_024;

/// Between two looks at the log when nothing wakes the publisher.
pub(crate) const POLL_EVERY: Duration = Duration::from_secs(1);
/// Between two looks for a new checkpoint of the log, at least.
pub(crate) const CHECKPOINT_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at an idle stream, which finds one that was wiped or changed.
pub(crate) const STREAM_CHECK_EVERY: Duration = Duration::from_secs(5);
/// First wait after a failure; it doubles up to the next bound.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest wait between two attempts.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Between two looks at a stream that does not agree with the log; each of them alarms.
pub(crate) const ALARM_EVERY: Duration = Duration::from_secs(30);
/// How long the lease lasts when its holder dies, unless the options say otherwise.
pub(crate) const LEASE_SECONDS: u64 = 15;
/// Renewals in the time of one lease.
pub(crate) const LEASE_RENEWALS: u32 = 3;
/// Longest wait between two attempts to become the publisher.
pub(crate) const LEASE_RETRY: Duration = Duration::from_secs(1);
/// A publisher that can publish nothing for so long gives the lease up to whoever can.
pub(crate) const STUCK_MAX: Duration = Duration::from_secs(10);
/// How long it then leaves the lease to others: several of their attempts to take it.
pub(crate) const LEASE_REST: Duration = Duration::from_secs(5);

/// Within this time JetStream drops a message with an id that it has, unless messages live
/// shorter than that.
pub(crate) const DUPLICATE_WINDOW: Duration = Duration::from_mins(2);
/// Commands whose workflow is remembered between their transitions.
pub(crate) const WORKFLOWS_MAX: usize = 65_536;
