//! What a client says before a round of messages.

use crate::sizes::MAX_SIZE;

/// Messages of a round at most.
pub const MAX_COUNT: u32 = 1_000_000;

/// Which way messages go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// To the server, and back from there: each once the one before is back.
    #[default]
    Both = 0,
    /// To the server, one behind the other; it says by one byte that it has all of them.
    ToServer = 1,
    /// From the server, one behind the other.
    ToClient = 2,
}

/// A number of messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Which way they go.
    pub way: Way,
    /// The size of each, in bytes; 0 for the end of all rounds.
    pub size: usize,
    /// How many go that way.
    pub count: u32,
}

impl Round {
    /// Length of a round on the wire, in bytes.
    pub const LEN: usize = 9;

    /// The end of all rounds.
    pub const END: Self = Self { way: Way::Both, size: 0, count: 0 };

    /// The round on the wire: a byte for the way, and size and number in four bytes each, the highest first.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [self.way as u8; Self::LEN];
        bytes[1..5].copy_from_slice(&(self.size as u32).to_be_bytes());
        bytes[5..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    /// The round that these bytes are; `None` where it is larger than any.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let way = [Way::Both, Way::ToServer, Way::ToClient].into_iter().find(|way| *way as u8 == bytes[0])?;
        let [size, count] = [&bytes[1..5], &bytes[5..]]
            .map(|word| word.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte)));
        let size = usize::try_from(size).ok()?;
        (size <= MAX_SIZE && count <= MAX_COUNT).then_some(Self { way, size, count })
    }

    /// Bytes of all its messages, one way.
    pub fn bytes(self) -> u64 {
        self.size as u64 * u64::from(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn way() -> impl Strategy<Value = Way> {
        prop_oneof![Just(Way::Both), Just(Way::ToServer), Just(Way::ToClient)]
    }

    proptest! {
        #[test]
        fn a_round_is_what_was_said_and_never_larger_than_any(
            bytes in any::<[u8; 9]>(),
            way in way(),
            size in 0..=MAX_SIZE,
            count in 0..=MAX_COUNT,
        ) {
            let round = Round { way, size, count };
            prop_assert_eq!(Round::from_bytes(round.to_bytes()), Some(round));
            if let Some(round) = Round::from_bytes(bytes) {
                prop_assert!(round.size <= MAX_SIZE && round.count <= MAX_COUNT);
                prop_assert_eq!(round.to_bytes(), bytes);
            }
        }
    }
}
