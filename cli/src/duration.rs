//! Lengths of time as people write them.

use std::time::Duration;

/// The longest that is accepted, in seconds: a hundred days.
const SECONDS_MAX: u64 = 100 * 24 * 3_600;

/// Reads `500ms`, `30s`, `5m`, `2h`, `7d`, or a bare number of seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let wrong = || format!("`{text}` is no length of time; write 500ms, 30s, 5m, 2h or 7d");
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let milliseconds_each = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number
        .checked_mul(milliseconds_each)
        .filter(|milliseconds| *milliseconds <= SECONDS_MAX * 1_000)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("`{text}` is too long; the most is 100d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_lengths_of_time_are_read_with_their_unit() {
        for (text, seconds) in [
            ("30", 30),
            ("30s", 30),
            ("5m", 300),
            ("2h", 7_200),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("100d"), Ok(Duration::from_hours(2_400)));
    }

    #[test]
    fn h2_other_lengths_are_refused() {
        for text in [
            "",
            "s",
            "-1",
            "1.5s",
            "1w",
            "5 m",
            "101d",
            "99999999999999999999",
            "1\u{e9}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
