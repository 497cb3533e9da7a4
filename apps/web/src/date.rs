//! Dates in HTTP (RFC 9110, 5.6.7).

use core::fmt::Write;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Seconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixSeconds(pub u64);

/// The form in which dates are sent: "Sun, 06 Nov 1994 08:49:37 GMT".
const SENT: &str = "%a, %d %b %Y %H:%M:%S GMT";

/// The accepted forms; the last two are obsolete.
const UNDERSTOOD: [&str; 3] = [SENT, "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];

/// Writes a date; a date after the year 9999 becomes the end of that year.
pub fn write(out: &mut impl Write, at: UnixSeconds) -> core::fmt::Result {
    let seconds = i64::try_from(at.0).unwrap_or(i64::MAX).min(Timestamp::MAX.as_second());
    let at = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    write!(out, "{}", at.to_zoned(TimeZone::UTC).datetime().strftime(SENT))
}

/// Parses a date; returns `None` if it is invalid or before 1970.
pub fn parse(text: &[u8]) -> Option<UnixSeconds> {
    let date = UNDERSTOOD.iter().find_map(|form| DateTime::strptime(form, text).ok())?;
    let at = TimeZone::UTC.to_timestamp(date).ok()?;
    u64::try_from(at.as_second()).ok().map(UnixSeconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use isola_proves::proves;

    #[proves("RFC 9110 5.6.7", "a recipient accepts all three forms of a date.")]
    #[test]
    fn dates_are_accepted_in_all_three_forms() {
        let at = Some(UnixSeconds(784_111_777));
        assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GMT"), at);
        assert_eq!(parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), at);
        assert_eq!(parse(b"Sun Nov  6 08:49:37 1994"), at);
    }

    #[proves("RFC 9110 5.6.7", "a sender makes dates of the first form.")]
    #[test]
    fn dates_are_sent_in_one_form() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT"),
        ] {
            let mut out = String::new();
            write(&mut out, UnixSeconds(seconds)).unwrap();
            assert_eq!(out, text);
            assert_eq!(parse(text.as_bytes()), Some(UnixSeconds(seconds)));
        }
    }

    #[test]
    fn invalid_dates_are_rejected() {
        for text in [
            &b""[..],
            b"0",
            b"Sun, 06 Nov 1994",
            b"Mon, 06 Nov 1994 08:49:37 GMT",
            b"Sun, 06 Nov 1994 08:49:37 CET",
            b"Wed, 31 Dec 1969 23:59:59 GMT",
            b"Sun, 31 Feb 1994 08:49:37 GMT",
            b"\xff\xfe",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        let mut far = String::new();
        write(&mut far, UnixSeconds(u64::MAX)).unwrap();
        assert!(far.contains("9999"));
    }
}
