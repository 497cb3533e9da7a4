//! Changes of a resource's settings.

use super::{
    BudgetChange, Entitlement, EntitlementError, MemoryBudget, PolicyKind, Priority, Rate, Resource, Weight,
};
use alloc::string::String;
use core::num::NonZeroU32;
use serde::{Deserialize, Serialize};

/// A change of a resource's settings: all of it is made, or none. Settings that are `None` stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridChange {
    /// The resource.
    pub resource: Resource,
    /// Whether the change is only checked.
    pub dry_run: bool,
    /// The policy.
    pub policy: Option<PolicyChange>,
    /// The most requests of an activity that one decision dispatches.
    pub batch: Option<NonZeroU32>,
    /// The most that each scheduler serves.
    pub limit: Option<RateChange>,
    /// The entitlement of all activities with that name.
    pub activity: Option<(String, EntitlementChange)>,
}

/// A new policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyChange {
    /// No scheduler: requests are function calls, or wait in the order of their arrival.
    Direct,
    /// This policy.
    Policy(PolicyKind),
}

/// A new rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RateChange {
    /// No reservation or limit.
    None,
    /// This rate.
    Rate(Rate),
    /// So many thousandths of the most that a scheduler can serve.
    Part(u32),
}

/// A change of an activity's entitlement. Values that are `None` stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntitlementChange {
    /// The weight.
    pub weight: Option<Weight>,
    /// The priority.
    pub priority: Option<Priority>,
    /// The time from a request's arrival to its deadline, in nanoseconds.
    pub deadline_ns: Option<u64>,
    /// The least service.
    pub reservation: Option<RateChange>,
    /// The most service.
    pub limit: Option<RateChange>,
    /// The memory that it does not lose to others.
    pub soft: Option<BudgetChange>,
    /// The most memory.
    pub hard: Option<BudgetChange>,
}

impl GridChange {
    /// Verifies that the values are some that the resource has.
    ///
    /// # Errors
    /// [`EntitlementError::BudgetWithoutMemory`], [`EntitlementError::RateOfMemory`].
    pub fn check(&self) -> Result<(), EntitlementError> {
        let entitlement = self.activity.as_ref().map(|(_, entitlement)| *entitlement).unwrap_or_default();
        let has_budget = entitlement.soft.is_some() || entitlement.hard.is_some();
        let has_rate =
            self.limit.is_some() || entitlement.reservation.is_some() || entitlement.limit.is_some();
        match self.resource {
            Resource::Memory if has_rate => Err(EntitlementError::RateOfMemory),
            Resource::Memory => Ok(()),
            _ if has_budget => Err(EntitlementError::BudgetWithoutMemory),
            _ => Ok(()),
        }
    }
}

impl PolicyChange {
    /// Returns the policy, if there is one.
    pub fn policy(self) -> Option<PolicyKind> {
        match self {
            Self::Direct => None,
            Self::Policy(policy) => Some(policy),
        }
    }
}

impl RateChange {
    /// Returns the rate, if there is one, at a scheduler that can serve `capacity`, if that is known.
    ///
    /// # Errors
    /// [`EntitlementError::Rate`], [`EntitlementError::UnknownCapacity`].
    pub fn rate(self, capacity: Option<Rate>) -> Result<Option<Rate>, EntitlementError> {
        match self {
            Self::None => Ok(None),
            Self::Rate(rate) => Ok(Some(rate)),
            Self::Part(thousandths) => {
                let capacity = capacity.ok_or(EntitlementError::UnknownCapacity)?;
                capacity.part(thousandths).map(Some)
            }
        }
    }
}

impl EntitlementChange {
    /// Returns the entitlement after the change, at a scheduler that can serve `capacity`, if that is known.
    ///
    /// # Errors
    /// Those of [`RateChange::rate`] and of [`Entitlement::check`].
    pub fn of(&self, before: Entitlement, capacity: Option<Rate>) -> Result<Entitlement, EntitlementError> {
        let rate =
            |change: Option<RateChange>, before| change.map_or(Ok(before), |change| change.rate(capacity));
        let after = Entitlement {
            weight: self.weight.unwrap_or(before.weight),
            priority: self.priority.unwrap_or(before.priority),
            deadline_ns: self.deadline_ns.unwrap_or(before.deadline_ns),
            reservation: rate(self.reservation, before.reservation)?,
            limit: rate(self.limit, before.limit)?,
            memory: MemoryBudget {
                soft: self.soft.map_or(before.memory.soft, BudgetChange::bytes),
                hard: self.hard.map_or(before.memory.hard, BudgetChange::bytes),
            },
        };
        after.check()?;
        Ok(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_without_a_change_stay() {
        let rate = |units| Rate::per_second(units).ok();
        let before = Entitlement {
            weight: Weight::new(7).unwrap(),
            priority: Priority(3),
            deadline_ns: 5,
            reservation: rate(1),
            limit: rate(9),
            memory: MemoryBudget { soft: Some(4), hard: None },
        };
        assert_eq!(EntitlementChange::default().of(before, None), Ok(before));
        let change = EntitlementChange {
            priority: Some(Priority(4)),
            limit: Some(RateChange::None),
            ..EntitlementChange::default()
        };
        assert_eq!(change.of(before, None), Ok(Entitlement { priority: Priority(4), limit: None, ..before }));
    }

    #[test]
    fn a_part_needs_a_capacity_and_a_contradiction_is_an_error() {
        let rate = |units| Rate::per_second(units).unwrap();
        assert_eq!(RateChange::Part(250).rate(Some(rate(4_000))), Ok(Some(rate(1_000))));
        assert_eq!(RateChange::Part(250).rate(None), Err(EntitlementError::UnknownCapacity));
        assert_eq!(RateChange::Part(0).rate(Some(rate(4_000))), Err(EntitlementError::Rate(0)));
        let change = EntitlementChange {
            reservation: Some(RateChange::Part(500)),
            limit: Some(RateChange::Part(250)),
            ..EntitlementChange::default()
        };
        let refused = change.of(Entitlement::default(), Some(rate(4_000)));
        assert!(matches!(refused, Err(EntitlementError::ReservationAboveLimit { .. })));
    }

    #[test]
    fn memory_has_budgets_and_no_rates_and_the_other_resources_the_reverse() {
        let budget = EntitlementChange { soft: Some(BudgetChange::Bytes(1)), ..EntitlementChange::default() };
        let rate = EntitlementChange { limit: Some(RateChange::None), ..EntitlementChange::default() };
        let change = |resource, entitlement| GridChange {
            resource,
            dry_run: false,
            policy: None,
            batch: None,
            limit: None,
            activity: Some(("web".into(), entitlement)),
        };
        assert_eq!(change(Resource::Memory, budget).check(), Ok(()));
        assert_eq!(change(Resource::Memory, rate).check(), Err(EntitlementError::RateOfMemory));
        assert_eq!(change(Resource::Disk, budget).check(), Err(EntitlementError::BudgetWithoutMemory));
        assert_eq!(change(Resource::Disk, rate).check(), Ok(()));
    }
}
