//! The server's time on a node whose own clock may be anything (SPEC D10).

use crate::time::Timestamp;

/// A point of a clock that never jumps, in microseconds since some start that stays the same for
/// the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(i64);

impl Monotonic {
    /// From microseconds since the clock's start.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the clock's start.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This point plus whole seconds.
    #[must_use]
    pub fn plus_seconds(self, seconds: u32) -> Self {
        Self(
            self.0
                .saturating_add(i64::from(seconds) * crate::time::MICROS_PER_SECOND),
        )
    }

    /// Microseconds from this point to a later one; 0 when it has passed.
    pub fn micros_until(self, later: Self) -> u64 {
        u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0)
    }
}

/// What is known of the server's time: its distance from the local clock that never jumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct ServerClock {
    offset_micros: Option<i64>,
}

impl ServerClock {
    /// The server's time now; `None` before a server has ever told it.
    pub(super) fn now(self, now: Monotonic) -> Option<Timestamp> {
        self.offset_micros
            .map(|offset| Timestamp::from_micros(now.0.saturating_add(offset)))
    }

    /// When the server's time will have passed `at`.
    pub(super) fn after(self, at: Timestamp) -> Option<Monotonic> {
        self.offset_micros.map(|offset| {
            let passed = at.as_micros().saturating_sub(offset);
            Monotonic(passed.saturating_add(1))
        })
    }

    /// Takes an answer in. The server read its clock between `asked` and `now`, which leaves an
    /// interval for the distance; what is known already moves only as far as the interval asks.
    pub(super) fn answered(&mut self, server: Timestamp, asked: Monotonic, now: Monotonic) {
        let low = server.as_micros().saturating_sub(now.0);
        let high = server.as_micros().saturating_sub(asked.0.min(now.0));
        let middle = low.saturating_add(high.saturating_sub(low) / 2);
        let known = self.offset_micros.unwrap_or(middle);
        self.offset_micros = Some(known.clamp(low, high));
    }

    /// Takes an unasked word in: it may be old, so it can only move the clock forward.
    pub(super) fn told(&mut self, server: Timestamp, now: Monotonic) {
        let low = server.as_micros().saturating_sub(now.0);
        self.offset_micros = Some(self.offset_micros.map_or(low, |known| known.max(low)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: i64) -> Monotonic {
        Monotonic::from_micros(micros)
    }

    const fn server(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn d10_an_answer_is_taken_at_the_middle_of_its_round_trip() {
        let mut clock = ServerClock::default();
        assert_eq!(clock.now(at(0)), None);
        clock.answered(server(1_000_050), at(0), at(100));
        assert_eq!(clock.now(at(100)), Some(server(1_000_100)));
    }

    #[test]
    fn d10_a_slow_answer_does_not_spoil_a_good_one() {
        let mut clock = ServerClock::default();
        clock.answered(server(1_000_001), at(0), at(2));
        clock.answered(server(1_005_000), at(1_000), at(60_001_000));
        assert_eq!(clock.now(at(0)), Some(server(1_000_000)));
    }

    #[test]
    fn d10_a_server_whose_clock_was_set_is_followed() {
        let mut clock = ServerClock::default();
        clock.answered(server(9_000_000), at(0), at(2));
        clock.answered(server(5_000_000), at(10), at(20));
        let now = clock.now(at(20)).unwrap();
        assert!((server(5_000_000)..=server(5_000_010)).contains(&now));
    }

    #[test]
    fn d10_an_old_unasked_word_does_not_turn_the_clock_back() {
        let mut clock = ServerClock::default();
        clock.answered(server(1_000_000), at(0), at(0));
        clock.told(server(1_000_000), at(60_000_000));
        assert_eq!(clock.now(at(60_000_000)), Some(server(61_000_000)));
        clock.told(server(70_000_000), at(60_000_000));
        assert_eq!(clock.now(at(60_000_000)), Some(server(70_000_000)));
    }

    #[test]
    fn d10_what_is_due_is_due_after_it_and_not_at_it() {
        let mut clock = ServerClock::default();
        assert_eq!(clock.after(server(5)), None);
        clock.answered(server(1_000), at(0), at(0));
        let due = clock.after(server(1_500)).unwrap();
        assert!(clock.now(due).unwrap() > server(1_500));
        assert_eq!(clock.now(at(due.as_micros() - 1)), Some(server(1_500)));
    }

    #[test]
    fn d10_no_time_makes_the_clock_overflow() {
        for micros in [i64::MIN, -1, 0, 1, i64::MAX] {
            for asked in [i64::MIN, 0, i64::MAX] {
                let mut clock = ServerClock::default();
                clock.answered(server(micros), at(asked), at(0));
                clock.told(server(micros), at(i64::MAX));
                let _ = (clock.now(at(i64::MAX)), clock.after(server(i64::MIN)));
            }
        }
    }
}
