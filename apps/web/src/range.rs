//! Range requests (RFC 9110, 14).

use core::ops::Range;

/// The result of a `Range` field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeRequest {
    /// The whole file: the field is not understood, or lists several ranges.
    Whole,
    /// This range of bytes.
    Part(Range<usize>),
    /// No byte of the file is in the range.
    Unsatisfiable,
}

/// Evaluates the field's value for a file of `len` bytes.
pub fn requested(value: &[u8], len: usize) -> RangeRequest {
    parse(value, len).unwrap_or(RangeRequest::Whole)
}

/// Parses the value; returns `None` if it is not understood.
fn parse(value: &[u8], len: usize) -> Option<RangeRequest> {
    let (unit, set) = value.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    let dash = set.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (set[..dash].trim_ascii(), set[dash + 1..].trim_ascii());
    if first.is_empty() {
        // A suffix length.
        let count = number(last)?.min(len);
        return Some(if count == 0 {
            RangeRequest::Unsatisfiable
        } else {
            RangeRequest::Part(len - count..len)
        });
    }
    let first = number(first)?;
    let end = if last.is_empty() { len } else { number(last)?.saturating_add(1) };
    if end <= first && !last.is_empty() {
        return None;
    }
    Some(if first >= len { RangeRequest::Unsatisfiable } else { RangeRequest::Part(first..end.min(len)) })
}

/// Parses digits; a number that is too large saturates.
fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: usize, digit: &u8| sum.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
    Some(digits.iter().fold(0, add))
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves(
        "RFC 9110 14.1.2",
        "a range has a first and a last byte, or one of them; a last byte after the end means the end."
    )]
    #[test]
    fn a_range_selects_its_bytes() {
        for (value, part) in [
            (&b"bytes=0-0"[..], 0..1),
            (b"bytes=0-499", 0..500),
            (b"BYTES=500-", 500..1000),
            (b"bytes=-1", 999..1000),
            (b"bytes=-5000", 0..1000),
            (b"bytes=999-99999999999999999999999999", 999..1000),
            (b"bytes= 1 - 2 ", 1..3),
        ] {
            assert_eq!(requested(value, 1000), RangeRequest::Part(part), "{value:?}");
        }
    }

    #[proves("RFC 9110 15.5.17", "a range without any byte of the file is unsatisfiable.")]
    #[test]
    fn a_range_after_the_end_is_unsatisfiable() {
        for value in [&b"bytes=1000-"[..], b"bytes=1000-1001", b"bytes=-0"] {
            assert_eq!(requested(value, 1000), RangeRequest::Unsatisfiable, "{value:?}");
        }
        assert_eq!(requested(b"bytes=0-", 0), RangeRequest::Unsatisfiable);
        assert_eq!(requested(b"bytes=-1", 0), RangeRequest::Unsatisfiable);
    }

    #[proves("RFC 9110 14.2", "a server ignores a range that it does not understand, and may ignore any.")]
    #[test]
    fn invalid_and_multiple_ranges_are_ignored() {
        for value in [
            &b""[..],
            b"bytes",
            b"bytes=",
            b"bytes=-",
            b"bytes=a-b",
            b"bytes=2-1",
            b"bytes=0-1,5-6",
            b"lines=0-1",
            b"bytes=+1-2",
            b"bytes=1-2x",
        ] {
            assert_eq!(requested(value, 1000), RangeRequest::Whole, "{value:?}");
        }
    }
}
