//! Durations, counts and times of day in readable form.

use isola_abi::size::ByteSize;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Formats a short duration with three digits and its unit: `812 ns`, `1.53 ms`, `2.04 s`.
pub fn duration_ns(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", digits(value / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", digits(value / 1e6)),
        _ => format!("{} s", digits(value / 1e9)),
    }
}

/// Formats an optional duration as [`duration_ns`] does, and `None` as `-`.
pub fn maybe_duration_ns(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), duration_ns)
}

fn digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a long duration in its two largest units: `5s`, `3m 20s`, `2h 5m`, `4d 1h`.
pub fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m {}s", seconds % 60),
        3600..86400 => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// Formats a count with thousands separators: `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a size that may be negative, as an activity's memory: it can free memory that others allocated.
pub fn signed_size(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", ByteSize(bytes.unsigned_abs()))
}

/// Formats a cost in the unit of a resource of the grid, given by the unit's name.
pub fn cost(cost: u64, metric: &str) -> String {
    match metric {
        "bytes" => ByteSize(cost).to_string(),
        "nanoseconds" => duration_ns(cost),
        _ => count(cost),
    }
}

/// Formats a time of day, given in ns since 1970-01-01 UTC, in the local time zone: `2026-03-01 12:00:00.250`.
pub fn local_time(unix_ns: u64) -> String {
    let zoned = timestamp(unix_ns).to_zoned(TimeZone::system());
    format!("{}.{:03}", zoned.strftime("%Y-%m-%d %H:%M:%S"), zoned.millisecond())
}

/// Formats a time of day for programs (RFC 3339, UTC).
pub fn rfc3339(unix_ns: u64) -> String {
    format!("{:.9}", timestamp(unix_ns))
}

/// Returns the time since a time of day; zero if that is in the future, as after a clock adjustment.
pub fn since(unix_ns: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(unix_ns))
}

/// Returns the time until a time of day; zero if that is in the past.
pub fn until(unix_ns: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_nanos(unix_ns).saturating_sub(now)
}

fn timestamp(unix_ns: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_530, "1.53 us"),
            (21_440_000, "21.4 ms"),
            (9_999_000, "10.0 ms"),
            (812_000_000, "812 ms"),
            (2_040_000_000, "2.04 s"),
        ] {
            assert_eq!(duration_ns(ns), text);
        }
    }

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [(5, "5s"), (200, "3m 20s"), (7500, "2h 5m"), (349_200, "4d 1h")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn counts_and_times_are_formatted() {
        assert_eq!(count(0), "0");
        assert_eq!(count(123), "123");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!((signed_size(-2048), signed_size(10)), ("-2 KiB".to_owned(), "10 B".to_owned()));
        assert_eq!((cost(2048, "bytes"), cost(2048, "cycles")), ("2 KiB".to_owned(), "2,048".to_owned()));
        assert_eq!(cost(2_048_000, "nanoseconds"), duration_ns(2_048_000));
        assert_eq!(rfc3339(1_700_000_000_250_000_000), "2023-11-14T22:13:20.250000000Z");
        assert_eq!(since(u64::MAX / 2), Duration::ZERO);
        assert_eq!(until(1_700_000_000_250_000_000), Duration::ZERO);
    }
}
