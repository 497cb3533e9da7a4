//! Decimal numbers in requests and in items.

/// Parses a number that is the whole of `text`: digits, with one optional sign out of `signs` in front.
fn parse(text: &[u8], signs: &[u8]) -> Option<(bool, u64)> {
    let (negative, digits) = match text {
        [sign, digits @ ..] if signs.contains(sign) => (*sign == b'-', digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some((negative, value))
}

/// Parses a number from 0 to 2^64 - 1.
pub(crate) fn parse_u64(text: &[u8]) -> Option<u64> {
    parse(text, b"+").map(|(_, value)| value)
}

/// Parses a number from 0 to 2^32 - 1.
pub(crate) fn parse_u32(text: &[u8]) -> Option<u32> {
    parse_u64(text).and_then(|value| value.try_into().ok())
}

/// Parses a number from -2^63 to 2^63 - 1.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    match parse(text, b"+-")? {
        (true, value) => 0i64.checked_sub_unsigned(value),
        (false, value) => value.try_into().ok(),
    }
}

/// Parses the number that a stored value holds. White space may precede it, and white space or the NUL of a C string
/// ends it; the bytes after that are ignored.
pub(crate) fn parse_stored_number(value: &[u8]) -> Option<u64> {
    // The same bytes as C's `isspace`.
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = value.iter().position(|byte| !is_space(byte))?;
    let text = value.get(start..)?;
    let end = text.iter().position(|byte| is_space(byte) || *byte == 0).unwrap_or(text.len());
    parse_u64(text.get(..end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_up_to_the_bounds_of_their_type_are_accepted() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775808"), None);
    }

    #[test]
    fn a_number_has_only_digits_and_one_sign() {
        assert_eq!(parse_u64(b"+7"), Some(7));
        for text in [&b""[..], b"-1", b"+", b"++1", b"1x", b"0x1", b"1.5", b" 1", b"1 "] {
            assert_eq!(parse_u64(text), None, "{text:?}");
        }
        assert_eq!(parse_i64(b"-"), None);
        assert_eq!(parse_i64(b"-1"), Some(-1));
    }

    #[test]
    fn stored_numbers_may_be_padded() {
        assert_eq!(parse_stored_number(b"5 "), Some(5));
        assert_eq!(parse_stored_number(b" 12 apples"), Some(12));
        assert_eq!(parse_stored_number(b"\t\x0b12\x0b34"), Some(12));
        assert_eq!(parse_stored_number(b"7\0x"), Some(7));
        for value in [&b""[..], b" ", b"a", b"1a", b"-1"] {
            assert_eq!(parse_stored_number(value), None, "{value:?}");
        }
    }
}
