//! Byte sizes in text.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes. In text `512`, `64K`, `64M`, `1G`, `64MiB`, `1GiB`: all units are powers of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// The reason why a text is not a byte size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteSizeError {
    /// The text does not begin with a number, or has an unknown unit.
    Malformed,
    /// The size does not fit in 64 bits.
    TooLarge,
}

impl fmt::Display for ByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("not a size: write a number and K, M or G, as in 64M or 1GiB"),
            Self::TooLarge => f.write_str("a size beyond 2^64 bytes"),
        }
    }
}

impl core::error::Error for ByteSizeError {}

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(ByteSizeError::Malformed);
        }
        let number: u64 = number.parse().map_err(|_| ByteSizeError::TooLarge)?;
        let unit = match unit.trim() {
            "" | "B" | "b" => 1,
            "K" | "k" | "KiB" | "KB" | "kB" => 1 << 10,
            "M" | "m" | "MiB" | "MB" => 1 << 20,
            "G" | "g" | "GiB" | "GB" => 1 << 30,
            "T" | "t" | "TiB" | "TB" => 1 << 40,
            _ => return Err(ByteSizeError::Malformed),
        };
        number.checked_mul(unit).map(Self).ok_or(ByteSizeError::TooLarge)
    }
}

impl fmt::Display for ByteSize {
    /// Writes the size in its largest unit, exactly or rounded to one decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.into_iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) if self.0.is_multiple_of(unit) => write!(f, "{} {name}", self.0 / unit),
            Some((unit, name)) => {
                // Without floating point, whose formatting is 11 KB of code in each image.
                let tenths = (u128::from(self.0) * 10 + u128::from(unit) / 2) / u128::from(unit);
                write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

impl Serialize for ByteSize {
    /// Writes a number of bytes, in every format.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    /// Reads a number, or in human-readable formats also a text with a unit.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer).map(Self);
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn sizes_with_units_parse() {
        for (text, bytes) in
            [("7", 7), ("64K", 65536), ("64M", 64 << 20), ("1GiB", 1 << 30), (" 2 TB ", 2 << 40)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn malformed_and_too_large_sizes_are_refused() {
        for text in ["", "M", "-1", "1X", "1.5G", "0x10"] {
            assert_eq!(text.parse::<ByteSize>(), Err(ByteSizeError::Malformed), "{text}");
        }
        assert_eq!("99999999999999999999".parse::<ByteSize>(), Err(ByteSizeError::TooLarge));
        assert_eq!("18446744073709551615K".parse::<ByteSize>(), Err(ByteSizeError::TooLarge));
    }

    #[test]
    fn sizes_print_in_the_largest_fitting_unit() {
        assert_eq!(ByteSize(64 << 20).to_string(), "64 MiB");
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteSize((1 << 30) - 1).to_string(), "1024.0 MiB");
        assert_eq!(ByteSize((1 << 20) + (51 << 10)).to_string(), "1.0 MiB");
        assert_eq!(ByteSize((1 << 20) + (52 << 10)).to_string(), "1.1 MiB");
        assert_eq!(ByteSize(u64::MAX).to_string(), "16777216.0 TiB");
        assert_eq!(ByteSize(12).to_string(), "12 B");
    }
}
