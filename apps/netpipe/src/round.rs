//! What a client says before a round of messages.

use crate::sizes::MAX_SIZE;

/// Messages of a round at most.
pub const MAX_COUNT: u32 = 1_000_000;

/// A number of messages of one size, there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The size of each, in bytes; 0 for the end of all rounds.
    pub size: usize,
    /// How many go each way.
    pub count: u32,
}

impl Round {
    /// Length of a round on the wire, in bytes.
    pub const LEN: usize = 8;

    /// The end of all rounds.
    pub const END: Self = Self { size: 0, count: 0 };

    /// The round on the wire.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&(self.size as u32).to_be_bytes());
        bytes[4..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    /// The round that these bytes are; `None` where it is larger than any.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let [size, count] = [&bytes[..4], &bytes[4..]]
            .map(|word| word.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte)));
        let size = usize::try_from(size).ok()?;
        (size <= MAX_SIZE && count <= MAX_COUNT).then_some(Self { size, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_round_is_what_was_said_and_never_larger_than_any(bytes in any::<[u8; 8]>(), size in 0..=MAX_SIZE, count in 0..=MAX_COUNT) {
            let round = Round { size, count };
            prop_assert_eq!(Round::from_bytes(round.to_bytes()), Some(round));
            if let Some(round) = Round::from_bytes(bytes) {
                prop_assert!(round.size <= MAX_SIZE && round.count <= MAX_COUNT);
                prop_assert_eq!(round.to_bytes(), bytes);
            }
        }
    }
}
