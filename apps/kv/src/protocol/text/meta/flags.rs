//! The flags of a meta command.

use crate::number::{parse_i64, parse_u32, parse_u64};
use crate::time::Exptime;

use super::super::command::Word;

/// The largest number of flags of a command.
const MOST_FLAGS: usize = 17;

/// The length of the longest opaque token, in bytes.
pub(super) const LONGEST_OPAQUE: usize = 32;

/// The flags of a command, without their order (the answer repeats them in the order of the line).
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// `b`: the key is base64.
    pub is_base64: bool,
    /// `v`: the answer contains the value.
    pub has_value: bool,
    /// `q`: the expected answer is omitted.
    pub is_quiet: bool,
    /// `u`: the read does not count as a use of the item.
    pub is_unnoticed: bool,
    /// `I`: the item becomes stale.
    pub invalidates: bool,
    /// `T`: the expiration time.
    pub exptime: Option<Exptime>,
    /// `N`: creates an item with this expiration time if there is none.
    pub vivify: Option<Exptime>,
    /// `R`: the remaining time to live below which the client is to store the item again.
    pub recache: Option<Exptime>,
    /// `F`: the flags of the client.
    pub client_flags: u32,
    /// `C`: the version that the client expects.
    pub cas: Option<u64>,
    /// `M`: the mode.
    pub mode: Option<u8>,
    /// `J`: the number in an item that the command creates.
    pub initial: u64,
    /// `D`: the number to add or subtract.
    pub delta: Option<u64>,
}

/// The errors in flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagError {
    TooMany,
    Unknown,
    Duplicate,
    BadToken,
    BadInitial,
    BadDelta,
    OpaqueTooLong,
    ModeLength,
}

impl FlagError {
    /// Returns the line that reports the error.
    pub fn text(self) -> &'static [u8] {
        match self {
            Self::TooMany => b"CLIENT_ERROR options flags are too long\r\n",
            Self::Unknown => b"CLIENT_ERROR invalid flag\r\n",
            Self::Duplicate => b"CLIENT_ERROR duplicate flag\r\n",
            Self::BadToken => b"CLIENT_ERROR bad token in command line format\r\n",
            Self::BadInitial => b"CLIENT_ERROR invalid numeric initial value\r\n",
            Self::BadDelta => b"CLIENT_ERROR invalid numeric delta value\r\n",
            Self::OpaqueTooLong => b"CLIENT_ERROR opaque token too long\r\n",
            Self::ModeLength => b"CLIENT_ERROR incorrect length for M token\r\n",
        }
    }
}

impl Flags {
    /// Parses flags, one per word.
    pub fn of<'a>(words: impl Iterator<Item = Word<'a>>) -> Result<Self, FlagError> {
        let mut flags = Self::default();
        let mut seen = 0u128;
        for (number, word) in words.enumerate() {
            let Some((&name, token)) = word.text.split_first() else { break };
            if number == MOST_FLAGS {
                return Err(FlagError::TooMany);
            }
            flags.take(name, token)?;
            // Only letters reach this line.
            let bit = 1 << (name & 0x7f);
            if seen & bit != 0 {
                return Err(FlagError::Duplicate);
            }
            seen |= bit;
        }
        Ok(flags)
    }

    fn take(&mut self, name: u8, token: &[u8]) -> Result<(), FlagError> {
        match name {
            b'b' => self.is_base64 = true,
            b'v' => self.has_value = true,
            b'q' => self.is_quiet = true,
            b'u' => self.is_unnoticed = true,
            b'I' => self.invalidates = true,
            b'T' => self.exptime = Some(exptime(token)?),
            b'N' => self.vivify = Some(exptime(token)?),
            b'R' => self.recache = Some(exptime(token)?),
            b'F' => self.client_flags = parse_u32(token).ok_or(FlagError::BadToken)?,
            b'C' => self.cas = Some(parse_u64(token).ok_or(FlagError::BadToken)?),
            b'J' => self.initial = parse_u64(token).ok_or(FlagError::BadInitial)?,
            b'D' => self.delta = Some(parse_u64(token).ok_or(FlagError::BadDelta)?),
            b'M' => match token {
                [mode] => self.mode = Some(*mode),
                _ => return Err(FlagError::ModeLength),
            },
            b'O' if token.len() > LONGEST_OPAQUE => return Err(FlagError::OpaqueTooLong),
            // These select fields of the answer, or are hints for a proxy.
            b'O' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' | b'P' | b'L' => {}
            _ => return Err(FlagError::Unknown),
        }
        Ok(())
    }
}

/// Parses an expiration time of 32 bits, like memcached.
fn exptime(token: &[u8]) -> Result<Exptime, FlagError> {
    let seconds = parse_i64(token).filter(|&seconds| i32::try_from(seconds).is_ok());
    seconds.map(Exptime).ok_or(FlagError::BadToken)
}

#[cfg(test)]
mod tests {
    use super::super::super::command::Words;
    use super::*;
    use alloc::format;
    use alloc::string::String;

    fn read(line: &str) -> Result<Flags, FlagError> {
        Flags::of(Words { line: line.as_bytes(), at: 0 })
    }

    fn error(line: &str) -> FlagError {
        read(line).expect_err(line)
    }

    #[test]
    fn each_flag_is_read() {
        let flags = read("b v q u I T5 N-1 R30 F7 C18446744073709551615 J3 D4 ME").unwrap();
        assert!(
            flags.is_base64 && flags.has_value && flags.is_quiet && flags.is_unnoticed && flags.invalidates
        );
        let times = (flags.exptime, flags.vivify, flags.recache);
        assert_eq!(times, (Some(Exptime(5)), Some(Exptime(-1)), Some(Exptime(30))));
        assert_eq!((flags.client_flags, flags.cas, flags.mode), (7, Some(u64::MAX), Some(b'E')));
        assert_eq!((flags.initial, flags.delta), (3, Some(4)));
        assert!(read("O k s t c f l h P/path Lhint").is_ok());
        assert!(read("").is_ok());
    }

    #[test]
    fn invalid_numbers_are_rejected() {
        for name in ["T", "N", "R", "F", "C"] {
            for token in ["", "x", "1x", "0x1", "1.5", "--1", "99999999999999999999"] {
                assert_eq!(error(&format!("{name}{token}")), FlagError::BadToken, "{name}{token}");
            }
        }
        for token in ["", "x", "-1", "18446744073709551616"] {
            assert_eq!(error(&format!("J{token}")), FlagError::BadInitial, "J{token}");
            assert_eq!(error(&format!("D{token}")), FlagError::BadDelta, "D{token}");
        }
    }

    #[test]
    fn times_have_32_bits_and_client_flags_have_no_sign() {
        assert!(read("T2147483647").is_ok() && read("T-2147483648").is_ok());
        assert_eq!(error("T2147483648"), FlagError::BadToken);
        assert_eq!(error("N-2147483649"), FlagError::BadToken);
        assert!(read("F4294967295").is_ok());
        assert_eq!(
            (error("F4294967296"), error("F-1"), error("C-1")),
            (FlagError::BadToken, FlagError::BadToken, FlagError::BadToken)
        );
    }

    #[test]
    fn a_mode_is_one_byte() {
        assert_eq!((error("M"), error("MEE")), (FlagError::ModeLength, FlagError::ModeLength));
    }

    #[test]
    fn an_opaque_token_has_up_to_32_bytes() {
        assert!(read(&format!("O{}", "o".repeat(32))).is_ok());
        assert_eq!(error(&format!("O{}", "o".repeat(33))), FlagError::OpaqueTooLong);
    }

    #[test]
    fn unknown_and_repeated_flags_are_rejected() {
        for flag in ["a", "S", "x", "1", "\u{80}", "\0", "~"] {
            assert_eq!(error(flag), FlagError::Unknown, "{flag:?}");
        }
        assert_eq!((error("v v"), error("T1 v T2")), (FlagError::Duplicate, FlagError::Duplicate));
    }

    #[test]
    fn at_most_seventeen_flags_are_accepted() {
        let most = "b N1 T1 R1 l O P L k s t c f v h u q";
        assert!(read(most).is_ok());
        assert_eq!(error(&(String::from(most) + " F1")), FlagError::TooMany);
    }
}
