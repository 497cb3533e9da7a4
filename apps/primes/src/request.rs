//! The requests in datagrams, and the errors.

use core::fmt;

/// The largest number that the service accepts in a datagram: it takes some tenths of a second on one core. Any client
/// can send one, and requests are served one after another.
pub const MAX_NUMBER: u64 = 100_000_000;

/// The largest number of a batch job, which the cell's owner starts.
pub const MAX_BATCH: u64 = 10_000_000_000;

/// The reasons why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It is not a decimal number.
    NotANumber,
    /// It is larger than this maximum.
    TooLarge(u64),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber => f.write_str("error: send a decimal number, such as 1000000"),
            Self::TooLarge(most) => write!(f, "error: the largest number is {most}"),
        }
    }
}

impl core::error::Error for RequestError {}

/// Returns the number in a datagram, or in an argument, if it is at most `most`; white space around it is ignored.
///
/// # Errors
/// [`RequestError`], whose text is the answer to send.
pub fn parse(datagram: &[u8], most: u64) -> Result<u64, RequestError> {
    let text = datagram.trim_ascii();
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(RequestError::NotANumber);
    }
    let digit = |number: u64, digit: &u8| number.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    let number = text.iter().try_fold(0, digit).ok_or(RequestError::TooLarge(most))?;
    if number > most { Err(RequestError::TooLarge(most)) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn numbers_are_requests() {
        assert_eq!(parse(b"1000000", MAX_NUMBER), Ok(1_000_000));
        assert_eq!(parse(b" 0\r\n", MAX_NUMBER), Ok(0));
        assert_eq!(parse(b"100000000", MAX_NUMBER), Ok(MAX_NUMBER));
        assert_eq!(parse(b"10000000000", MAX_BATCH), Ok(MAX_BATCH));
    }

    #[test]
    fn everything_else_is_an_error() {
        for datagram in [&b""[..], b" ", b"-1", b"0x10", b"1 2", b"1\0", &[0xff]] {
            assert_eq!(parse(datagram, MAX_NUMBER), Err(RequestError::NotANumber));
        }
        for datagram in [&b"100000001"[..], b"10000000000", b"99999999999999999999999999"] {
            assert_eq!(parse(datagram, MAX_NUMBER), Err(RequestError::TooLarge(MAX_NUMBER)));
        }
        let text = RequestError::TooLarge(MAX_NUMBER).to_string();
        assert_eq!(text, "error: the largest number is 100000000", "the client learns the limit");
    }
}
