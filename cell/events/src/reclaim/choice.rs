//! The choice of the activity that loses memory.
//!
//! An activity with a *soft budget* is entitled to it: while it uses no more, it loses nothing. The others are entitled
//! to equal parts of the rest of the memory, but lose some below that too if none is above. The next to lose memory is
//! the activity that uses most in proportion to its part.

use isola_abi::grid::MemoryBudget;
use isola_abi::id::ActivityId;

/// An activity that holds memory that can be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub activity: ActivityId,
    /// All memory of the activity, in bytes.
    pub used: u64,
    /// The part of it that can be freed.
    pub reclaimable: u64,
    pub budget: MemoryBudget,
}

/// The next one to lose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub activity: ActivityId,
    /// The most that it loses before the choice is made again, in bytes.
    pub most: u64,
}

/// Returns an activity that uses more than its hard budget, and by how much.
pub(crate) fn over_hard_budget(shares: &[Share]) -> Option<Victim> {
    let over = |share: &Share| {
        let excess = share.used.saturating_sub(share.budget.hard?);
        let most = excess.min(share.reclaimable);
        (most > 0).then_some(Victim { activity: share.activity, most })
    };
    shares.iter().filter_map(over).max_by_key(|victim| victim.most)
}

/// Returns the activity that loses memory next, of those that hold `shares`, in a cell that is to use `total` bytes.
pub(crate) fn next_victim(shares: &[Share], total: u64) -> Option<Victim> {
    let budgets: u64 = shares.iter().filter_map(|share| share.budget.soft).fold(0, u64::saturating_add);
    let sharing = shares.iter().filter(|share| share.budget.soft.is_none()).count() as u64;
    let equal_part = total.saturating_sub(budgets) / sharing.max(1);
    let part_of = |share: &Share| share.budget.soft.unwrap_or(equal_part);
    let may_lose =
        |share: &&Share| share.reclaimable > 0 && share.budget.soft.is_none_or(|soft| share.used > soft);
    // Compares used/part of two activities.
    let product = |one: &Share, other: &Share| u128::from(one.used) * u128::from(part_of(other).max(1));
    let share =
        shares.iter().filter(may_lose).max_by(|one, other| product(one, other).cmp(&product(other, one)))?;
    let part = part_of(share);
    let excess = match share.used.checked_sub(part) {
        Some(excess @ 1..) => excess,
        // Within its equal part, like all others.
        _ => share.reclaimable,
    };
    Some(Victim { activity: share.activity, most: excess.min(share.reclaimable) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn share(activity: u32, used: u64, soft: Option<u64>) -> Share {
        let budget = MemoryBudget { soft, hard: None };
        Share { activity: ActivityId(activity), used, reclaimable: used, budget }
    }

    #[test]
    fn the_activity_furthest_above_its_part_loses_memory_first() {
        let shares = [share(1, 60, Some(50)), share(2, 30, Some(10)), share(3, 5, Some(10))];
        assert_eq!(next_victim(&shares, 100), Some(Victim { activity: ActivityId(2), most: 20 }));
    }

    #[test]
    fn without_budgets_all_have_equal_parts() {
        let shares = [share(1, 40, None), share(2, 60, None)];
        assert_eq!(next_victim(&shares, 90), Some(Victim { activity: ActivityId(2), most: 15 }));
        // None is above: the largest loses nevertheless.
        assert_eq!(next_victim(&shares, 900), Some(Victim { activity: ActivityId(2), most: 60 }));
    }

    #[test]
    fn an_activity_within_its_soft_budget_loses_nothing() {
        let shares = [share(1, 50, Some(50)), Share { reclaimable: 0, ..share(2, 950, None) }];
        assert_eq!(next_victim(&shares, 100), None, "the other has nothing to free");
    }

    /// Frees what the rule says, in slices, until so much is free or none can be freed.
    fn reclaim(shares: &mut [Share], mut wanted: u64, total: u64) {
        while wanted > 0
            && let Some(Victim { activity, most }) = next_victim(shares, total - wanted)
        {
            let share = shares.iter_mut().find(|share| share.activity == activity).unwrap();
            let freed = most.min(wanted).min(7);
            assert!((1..=share.reclaimable).contains(&freed), "{share:?} loses {most}");
            (share.used, share.reclaimable) = (share.used - freed, share.reclaimable - freed);
            wanted -= freed;
        }
    }

    #[test]
    fn a_neighbour_within_its_soft_budget_never_loses_memory() {
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        for _ in 0..300 {
            // One leaks, the others are many and hold any amounts.
            let mut shares: Vec<Share> = (0..2 + below(30) as u32)
                .map(|number| Share {
                    reclaimable: if number == 0 { 0 } else { below(300) },
                    ..share(number, 300 + below(2_000), (below(3) == 0).then(|| below(400)))
                })
                .collect();
            let neighbour = share(100, 1 + below(200), Some(200));
            shares.push(neighbour);
            let total: u64 = shares.iter().map(|share| share.used).sum();
            let able = |share: &Share| match share.budget.soft {
                Some(soft) => share.reclaimable.min(share.used.saturating_sub(soft)),
                None => share.reclaimable,
            };
            let (able, wanted): (u64, u64) = (shares.iter().map(able).sum(), below(total));
            reclaim(&mut shares, wanted, total);
            assert_eq!(shares.last(), Some(&neighbour));
            let freed = total - shares.iter().map(|share| share.used).sum::<u64>();
            assert_eq!(freed, wanted.min(able), "all that may be freed is, if it is wanted");
        }
    }

    #[test]
    fn a_hard_budget_is_exceeded_by_what_is_above_it() {
        let mut over = share(1, 70, None);
        over.budget.hard = Some(40);
        assert_eq!(over_hard_budget(&[over]), Some(Victim { activity: ActivityId(1), most: 30 }));
        over.reclaimable = 10;
        assert_eq!(over_hard_budget(&[over]), Some(Victim { activity: ActivityId(1), most: 10 }));
        over.used = 40;
        assert_eq!(over_hard_budget(&[over]), None);
    }
}
