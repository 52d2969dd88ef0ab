//! Points in time as stored and sent: whole microseconds since the Unix epoch, UTC.

use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Microseconds in one second.
pub const MICROS_PER_SECOND: i64 = 1_000_000;

/// A point in time, in microseconds since 1970-01-01T00:00:00Z.
///
/// It is a plain integer on the wire and in the log (SPEC L1), RFC 3339 text in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The latest time that RFC 3339 can write (the last microsecond of the year 9999).
    pub const MAX: Self = Self(253_402_300_799_999_999);

    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since the Unix epoch; times before it count as the epoch (UUIDv7 has no sign).
    pub fn unix_millis(self) -> u64 {
        u64::try_from(self.0 / 1_000).unwrap_or(0)
    }

    /// This time plus whole seconds, kept within what can be written.
    #[must_use]
    pub fn plus_seconds(self, seconds: u32) -> Self {
        self.plus_micros(i64::from(seconds) * MICROS_PER_SECOND)
    }

    /// This time plus microseconds (may be negative), kept within what can be written.
    #[must_use]
    pub fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros).min(Self::MAX.0))
    }

    /// Microseconds from `earlier` to this time; negative when it lies before.
    pub const fn micros_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Reads RFC 3339 text; `None` when it is not such text.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        i64::try_from(at.unix_timestamp_nanos() / 1_000)
            .ok()
            .map(Self)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with six digits of a second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = i128::from(self.0) * 1_000;
        let at =
            OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            at.microsecond()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn a7_times_are_rfc_3339_with_microseconds() {
        let at = Timestamp::from_micros(1_764_490_000_123_456);
        assert_eq!(at.to_string(), "2025-11-30T08:06:40.123456Z");
        assert_eq!(Timestamp::parse_rfc3339(&at.to_string()), Some(at));
        assert_eq!(Timestamp::parse_rfc3339("yesterday"), None);
    }

    #[test]
    fn d10_time_arithmetic_saturates() {
        assert_eq!(
            Timestamp::from_micros(i64::MAX).plus_seconds(5),
            Timestamp::MAX
        );
        assert_eq!(Timestamp::from_micros(-1).unix_millis(), 0);
    }
}
