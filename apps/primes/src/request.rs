//! What comes in a datagram, and what goes back.

use core::fmt;

/// Largest number that the service counts to.
pub const MAX_NUMBER: u64 = 10_000_000_000;

/// Why a datagram is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It is no decimal number.
    NotANumber,
    /// It is larger than [`MAX_NUMBER`].
    TooLarge,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber => f.write_str("error: send a decimal number, such as 1000000"),
            Self::TooLarge => write!(f, "error: the largest number is {MAX_NUMBER}"),
        }
    }
}

impl core::error::Error for RequestError {}

/// The number in a datagram; white space around it is ignored.
///
/// # Errors
/// [`RequestError`], whose text is the answer to send.
pub fn parse(datagram: &[u8]) -> Result<u64, RequestError> {
    let text = datagram.trim_ascii();
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(RequestError::NotANumber);
    }
    let digit = |number: u64, digit: &u8| number.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    let number = text.iter().try_fold(0, digit).ok_or(RequestError::TooLarge)?;
    if number > MAX_NUMBER { Err(RequestError::TooLarge) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_requests() {
        assert_eq!(parse(b"1000000"), Ok(1_000_000));
        assert_eq!(parse(b" 0\r\n"), Ok(0));
        assert_eq!(parse(b"10000000000"), Ok(MAX_NUMBER));
    }

    #[test]
    fn everything_else_is_an_error() {
        for datagram in [&b""[..], b" ", b"-1", b"0x10", b"1 2", b"1\0", &[0xff]] {
            assert_eq!(parse(datagram), Err(RequestError::NotANumber));
        }
        assert_eq!(parse(b"10000000001"), Err(RequestError::TooLarge));
        assert_eq!(parse(b"99999999999999999999999999"), Err(RequestError::TooLarge));
    }
}
