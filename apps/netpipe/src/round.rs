//! The request that a client sends before a round of messages.

use crate::sizes::MAX_SIZE;

/// The maximum number of messages in a round.
pub const MAX_COUNT: u32 = 1_000_000;

/// The direction of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// To the server and back; the client waits for each answer before the next message.
    #[default]
    Both = 0,
    /// To the server, back to back; the server sends one byte after it has received all of them.
    ToServer = 1,
    /// From the server, back to back.
    ToClient = 2,
}

/// A number of messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The direction.
    pub direction: Direction,
    /// The size of each message in bytes; 0 ends the session.
    pub size: usize,
    /// The number of messages in that direction.
    pub count: u32,
}

impl Round {
    /// The length of an encoded round, in bytes.
    pub const LEN: usize = 9;

    /// The request that ends the session.
    pub const END: Self = Self { direction: Direction::Both, size: 0, count: 0 };

    /// Encodes the round: one byte for the direction, and four bytes each for size and number, in network byte order.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [self.direction as u8; Self::LEN];
        bytes[1..5].copy_from_slice(&(self.size as u32).to_be_bytes());
        bytes[5..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    /// Decodes a round; returns `None` if it exceeds a limit.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let direction = [Direction::Both, Direction::ToServer, Direction::ToClient]
            .into_iter()
            .find(|direction| *direction as u8 == bytes[0])?;
        let [size, count] = [&bytes[1..5], &bytes[5..]]
            .map(|word| word.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte)));
        let size = usize::try_from(size).ok()?;
        (size <= MAX_SIZE && count <= MAX_COUNT).then_some(Self { direction, size, count })
    }

    /// Returns the total bytes of all messages in one direction.
    pub fn bytes(self) -> u64 {
        self.size as u64 * u64::from(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn direction() -> impl Strategy<Value = Direction> {
        prop_oneof![Just(Direction::Both), Just(Direction::ToServer), Just(Direction::ToClient)]
    }

    proptest! {
        #[test]
        fn rounds_round_trip_within_the_limits(
            bytes in any::<[u8; 9]>(),
            direction in direction(),
            size in 0..=MAX_SIZE,
            count in 0..=MAX_COUNT,
        ) {
            let round = Round { direction, size, count };
            prop_assert_eq!(Round::from_bytes(round.to_bytes()), Some(round));
            if let Some(round) = Round::from_bytes(bytes) {
                prop_assert!(round.size <= MAX_SIZE && round.count <= MAX_COUNT);
                prop_assert_eq!(round.to_bytes(), bytes);
            }
        }
    }
}
