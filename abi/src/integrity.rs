//! Digests and signatures of images, and the requirements that an image must meet before the supervisor uses it.
//!
//! The supervisor computes the digest during the upload, and checks the requirements itself.
//!
//! Digest and signature cover the uploaded bytes: the segments that a machine loads, without debug information. In text
//! formats, JSON included, they are hexadecimal digits.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The error for a text that is not a hexadecimal number of the required length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HexError {
    /// The required number of digits.
    digits: usize,
}

impl fmt::Display for HexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write {} hexadecimal digits", self.digits)
    }
}

impl core::error::Error for HexError {}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

fn parse_hex<const LEN: usize>(text: &str) -> Result<[u8; LEN], HexError> {
    let wrong = HexError { digits: 2 * LEN };
    let mut bytes = [0; LEN];
    if text.len() != 2 * LEN || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(wrong);
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        let digits = text.get(2 * index..2 * index + 2).ok_or(wrong)?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong)?;
    }
    Ok(bytes)
}

/// Defines a byte array of fixed length whose text form is hexadecimal digits.
macro_rules! hex_bytes {
    ($(#[$about:meta])* $name:ident, $len:literal) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = HexError;

            fn from_str(text: &str) -> Result<Self, HexError> {
                parse_hex(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    serializer.serialize_bytes(&self.0)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    return String::deserialize(deserializer)?.parse().map_err(de::Error::custom);
                }
                let bytes = Vec::<u8>::deserialize(deserializer)?;
                let bytes = bytes.try_into().map_err(|_| de::Error::custom("wrong length"))?;
                Ok(Self(bytes))
            }
        }
    };
}

hex_bytes! {
    /// The SHA-256 of an image (FIPS 180-4).
    ImageDigest, 32
}

hex_bytes! {
    /// An Ed25519 public key (RFC 8032).
    PublicKey, 32
}

hex_bytes! {
    /// An Ed25519 signature of [`ImageDigest::signed_text`].
    Signature, 64
}

impl ImageDigest {
    /// Returns the text that a signer of the image signs: `isola image sha256:` and the digest's digits.
    pub fn signed_text(&self) -> String {
        format!("isola image sha256:{self}")
    }
}

/// The requirements on a cell's image. An absent field requires nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The required digest.
    pub sha256: Option<ImageDigest>,
    /// The key with which the image must be signed.
    pub signed_by: Option<PublicKey>,
    /// The image's signature, if it has one.
    pub signature: Option<Signature>,
}

/// The reason why an image does not meet its requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnmetRequirement {
    /// The image has another digest.
    Digest {
        /// The required digest.
        required: ImageDigest,
        /// The digest that the supervisor computed.
        measured: ImageDigest,
    },
    /// The image has no signature.
    Unsigned,
    /// The signature is not a signature of this image by this key.
    Signature(PublicKey),
}

impl fmt::Display for UnmetRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest { required, measured } => {
                write!(f, "its SHA-256 is {measured}, and must be {required}")
            }
            Self::Unsigned => f.write_str("it must be signed, and is not: sign it with `isola image sign`"),
            Self::Signature(key) => write!(
                f,
                "its signature is not one of this image by the holder of the key {key}: sign it again as it is now"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn hex_bytes_round_trip_through_text_and_postcard() {
        let digest = ImageDigest(core::array::from_fn(|index| index as u8 * 8));
        let text = digest.to_string();
        assert_eq!((text.len(), text.get(..8)), (64, Some("00081018")));
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(text.to_uppercase().parse(), Ok(digest));
        let encoded = postcard::to_allocvec(&digest).unwrap();
        assert_eq!((encoded.len(), postcard::from_bytes(&encoded)), (33, Ok(digest)));
    }

    #[test]
    fn texts_and_encodings_of_the_wrong_length_or_alphabet_are_refused() {
        let short = "0".repeat(63);
        let long = "0".repeat(65);
        let wrong = "g".repeat(64);
        let signed = alloc::format!("+{}", "0".repeat(63));
        for text in ["", &short, &long, &wrong, &signed, &"ä".repeat(32)] {
            assert_eq!(text.parse::<ImageDigest>(), Err(HexError { digits: 64 }), "{text}");
        }
        for len in [0usize, 31, 33] {
            let encoded = postcard::to_allocvec(&alloc::vec![7u8; len]).unwrap();
            assert!(postcard::from_bytes::<ImageDigest>(&encoded).is_err(), "{len}");
        }
    }
}
