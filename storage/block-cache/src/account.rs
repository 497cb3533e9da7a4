//! The blocks and the budget of each activity.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_activities::generation;

/// The memory of an activity in a cache, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Up to this amount, other activities lose blocks first. `None`: an equal part of the cache.
    pub soft: Option<usize>,
    /// The most, even if the cache has room.
    pub hard: usize,
}

impl Budget {
    /// An equal part when memory is short, and no limit before.
    pub const EQUAL: Self = Self { soft: None, hard: usize::MAX };
}

/// The use of a cache by an activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Its blocks.
    pub blocks: usize,
    /// The number of its accesses to blocks that were in the cache, whichever activity brought them in.
    pub hits: u64,
    /// The number of its accesses to blocks that had to be read, or were written as a whole for the first time.
    pub misses: u64,
    /// The number of its blocks that were evicted.
    pub evicted: u64,
}

/// The account of an activity. A later activity of the same id has another account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner(u64);

pub(crate) struct Account {
    pub activity: ActivityId,
    generation: Generation,
    /// All blocks of the activity, in the order in which the hand of the clock visits them.
    pub clock: VecDeque<u64>,
    pub budget: Budget,
    pub hits: u64,
    pub misses: u64,
    pub evicted: u64,
}

impl Account {
    fn new(activity: ActivityId, generation: Generation) -> Self {
        let (clock, budget) = (VecDeque::new(), Budget::EQUAL);
        Self { activity, generation, clock, budget, hits: 0, misses: 0, evicted: 0 }
    }

    fn is_current(&self) -> bool {
        generation(self.activity) == self.generation
    }
}

#[derive(Default)]
pub(crate) struct Accounts {
    all: BTreeMap<Owner, Account>,
    /// The latest account of each activity.
    latest: BTreeMap<ActivityId, Owner>,
    next: u64,
}

impl Accounts {
    /// Returns the account of an activity.
    pub fn owner(&mut self, activity: ActivityId) -> Owner {
        let generation = generation(activity);
        if let Some(owner) = self.latest.get(&activity)
            && self.all.get(owner).is_some_and(|account| account.generation == generation)
        {
            return *owner;
        }
        let owner = Owner(self.next);
        self.next += 1;
        self.all.insert(owner, Account::new(activity, generation));
        self.latest.insert(activity, owner);
        owner
    }

    pub fn of(&mut self, activity: ActivityId) -> &mut Account {
        let owner = self.owner(activity);
        self.all.entry(owner).or_insert_with(|| Account::new(activity, generation(activity)))
    }

    /// Returns an account that has blocks, or is its activity's latest.
    pub fn get_mut(&mut self, owner: Owner) -> Option<&mut Account> {
        self.all.get_mut(&owner)
    }

    pub fn get(&self, activity: ActivityId) -> Option<&Account> {
        self.latest
            .get(&activity)
            .and_then(|owner| self.all.get(owner))
            .filter(|account| account.is_current())
    }

    /// Returns the activities that have blocks, with the bytes of each.
    pub fn held(&self, block_len: usize) -> Vec<(ActivityId, usize)> {
        let with_blocks = self.all.values().filter(|account| !account.clock.is_empty());
        with_blocks.map(|account| (account.activity, account.clock.len() * block_len)).collect()
    }

    /// Returns the owners of blocks by their excess over the soft budget, the largest first, in a cache of `capacity`
    /// blocks. Ended activities are before all others; those without blocks are forgotten.
    pub fn by_excess(&mut self, capacity: usize, block_len: usize) -> Vec<Owner> {
        self.all.retain(|_, account| account.is_current() || !account.clock.is_empty());
        let Self { all, latest, .. } = self;
        latest.retain(|_, owner| all.contains_key(owner));
        let with_blocks = self.all.iter().filter(|(_, account)| !account.clock.is_empty());
        let sharing = with_blocks.clone().filter(|(_, account)| account.is_current()).count();
        let equal_part = capacity / sharing.max(1);
        let excess = |(owner, account): (&Owner, &Account)| {
            if !account.is_current() {
                return (isize::MAX, *owner);
            }
            let soft = account.budget.soft.map_or(equal_part, |bytes| bytes / block_len);
            (account.clock.len() as isize - soft as isize, *owner)
        };
        let mut owners: Vec<(isize, Owner)> = with_blocks.map(excess).collect();
        owners.sort_unstable_by_key(|(excess, owner)| (Reverse(*excess), *owner));
        owners.into_iter().map(|(_, owner)| owner).collect()
    }
}
