//! The service to which a member of a group is entitled.

use super::MemoryBudget;
use crate::size::ByteSize;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The service to which a client or group is entitled within its parent group. Each policy uses the values that it
/// knows, so that a policy can be replaced while requests wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entitlement {
    /// The share of the parent's service, in proportion to the weights of the other members with waiting requests.
    /// Used by `wfq` and `reserve`.
    pub weight: Weight,
    /// Used by `priority`.
    pub priority: Priority,
    /// The time from a request's arrival to its deadline, in nanoseconds. Used by `edf`.
    pub deadline_ns: u64,
    /// The least service. Used by `reserve`.
    pub reservation: Option<Rate>,
    /// The most service. Used by `reserve`.
    pub limit: Option<Rate>,
    /// The memory, for the resource `memory`.
    pub memory: MemoryBudget,
}

impl Entitlement {
    /// Returns an entitlement to a share by `weight`, with the default values otherwise.
    pub fn by_weight(weight: Weight) -> Self {
        Self { weight, ..Self::default() }
    }

    /// Verifies that the values agree.
    ///
    /// # Errors
    /// [`EntitlementError::ReservationAboveLimit`], [`EntitlementError::SoftAboveHard`].
    pub fn check(&self) -> Result<(), EntitlementError> {
        self.memory.check()?;
        match (self.reservation, self.limit) {
            (Some(reservation), Some(limit)) if reservation > limit => {
                Err(EntitlementError::ReservationAboveLimit { reservation, limit })
            }
            _ => Ok(()),
        }
    }
}

/// A weight between 1 and 10,000; 100 by default (the range and default of cgroup v2's `cpu.weight`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

impl Weight {
    /// The largest weight.
    pub const MAX: u32 = 10_000;
    /// The default weight.
    pub const DEFAULT: Self = Self(100);

    /// Returns that weight.
    ///
    /// # Errors
    /// [`EntitlementError::Weight`] if it is out of range.
    pub const fn new(weight: u32) -> Result<Self, EntitlementError> {
        match weight {
            1..=Self::MAX => Ok(Self(weight)),
            _ => Err(EntitlementError::Weight(weight)),
        }
    }

    /// Returns the weight as a number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Weight {
    type Error = EntitlementError;

    fn try_from(weight: u32) -> Result<Self, EntitlementError> {
        Self::new(weight)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> Self {
        weight.get()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A priority. A member of a higher priority is served before all members of lower ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Priority(pub u8);

/// A rate of service, between 1 and 10^12 units of cost per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Rate(u64);

impl Rate {
    /// The largest rate, in units per second.
    pub const MAX: u64 = 1_000_000_000_000;

    /// Returns a rate of `units` per second.
    ///
    /// # Errors
    /// [`EntitlementError::Rate`] if it is out of range.
    pub const fn per_second(units: u64) -> Result<Self, EntitlementError> {
        match units {
            1..=Self::MAX => Ok(Self(units)),
            _ => Err(EntitlementError::Rate(units)),
        }
    }

    /// Returns this number of thousandths of the rate.
    ///
    /// # Errors
    /// [`EntitlementError::Rate`] if that is out of range.
    pub const fn part(self, thousandths: u32) -> Result<Self, EntitlementError> {
        // At most 10^12 times 2^32 thousandths.
        let units = self.0 as u128 * thousandths as u128 / 1_000;
        Self::per_second(if units > u64::MAX as u128 { u64::MAX } else { units as u64 })
    }

    /// Returns the units per second.
    pub const fn units(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Rate {
    type Error = EntitlementError;

    fn try_from(units: u64) -> Result<Self, EntitlementError> {
        Self::per_second(units)
    }
}

impl From<Rate> for u64 {
    fn from(rate: Rate) -> Self {
        rate.units()
    }
}

/// An entitlement that no policy can grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntitlementError {
    /// A weight outside of 1 to [`Weight::MAX`].
    Weight(u32),
    /// A rate outside of 1 to [`Rate::MAX`] units per second.
    Rate(u64),
    /// A part of a resource whose capacity is unknown.
    UnknownCapacity,
    /// A reservation above the limit of the same member.
    ReservationAboveLimit {
        /// The reservation.
        reservation: Rate,
        /// The limit.
        limit: Rate,
    },
    /// A soft budget above the hard one of the same activity, in bytes.
    SoftAboveHard {
        /// The soft budget.
        soft: u64,
        /// The hard budget.
        hard: u64,
    },
    /// A budget for another resource than memory.
    BudgetWithoutMemory,
    /// A rate for memory.
    RateOfMemory,
}

impl fmt::Display for EntitlementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight(weight) => write!(f, "weight {weight}: give a weight from 1 to {}", Weight::MAX),
            Self::Rate(rate) => write!(f, "rate {rate}/s: give a rate from 1 to {} per second", Rate::MAX),
            Self::UnknownCapacity => {
                f.write_str("a part of a resource of unknown capacity: give a rate in its unit per second")
            }
            Self::ReservationAboveLimit { reservation, limit } => write!(
                f,
                "reservation {}/s above limit {}/s: lower the reservation or raise the limit",
                reservation.units(),
                limit.units()
            ),
            Self::SoftAboveHard { soft, hard } => write!(
                f,
                "soft budget {} above the hard one of {}: lower the soft budget or raise the hard one",
                ByteSize(*soft),
                ByteSize(*hard)
            ),
            Self::BudgetWithoutMemory => f.write_str(
                "soft and hard budgets are for the resource memory: give a reservation or a limit",
            ),
            Self::RateOfMemory => f.write_str(
                "memory has no rate, and is not given back after use: give a soft or a hard budget",
            ),
        }
    }
}

impl core::error::Error for EntitlementError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn values_out_of_range_are_errors_that_name_the_range() {
        assert_eq!(Weight::new(0), Err(EntitlementError::Weight(0)));
        assert!(Weight::new(10_000).is_ok());
        assert!(Weight::new(10_001).unwrap_err().to_string().contains("1 to 10000"));
        assert_eq!(Rate::per_second(0), Err(EntitlementError::Rate(0)));
        assert!(Rate::per_second(Rate::MAX).is_ok());
        assert!(Rate::per_second(Rate::MAX + 1).is_err());
    }

    #[test]
    fn encoded_values_out_of_range_are_refused() {
        for weight in [0, Weight::MAX + 1] {
            let bytes = postcard::to_allocvec(&weight).unwrap();
            assert!(postcard::from_bytes::<Weight>(&bytes).is_err());
        }
        let bytes = postcard::to_allocvec(&(Rate::MAX + 1)).unwrap();
        assert!(postcard::from_bytes::<Rate>(&bytes).is_err());
        let weight = Weight::new(300).unwrap();
        assert_eq!(postcard::from_bytes(&postcard::to_allocvec(&weight).unwrap()), Ok(weight));
    }

    #[test]
    fn a_reservation_above_the_limit_is_an_error() {
        let rate = |units| Rate::per_second(units).ok();
        let entitlement = |reservation, limit| Entitlement { reservation, limit, ..Entitlement::default() };
        assert!(entitlement(rate(2), rate(1)).check().is_err());
        assert!(entitlement(rate(2), rate(2)).check().is_ok());
        assert!(entitlement(rate(2), None).check().is_ok());
    }
}
