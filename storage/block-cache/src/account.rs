//! The blocks and the budget of each activity.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_activities::generation;
use isola_resources::MEMORY;

/// The memory of an activity in a cache, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Up to this amount, other activities lose blocks first. `None`: the soft budget of the resource
    /// [`MEMORY`](isola_resources::MEMORY), or without one an equal part of what the budgets of others leave.
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
    /// The activity's soft budget of memory, in bytes.
    memory_soft: Option<usize>,
    pub hits: u64,
    pub misses: u64,
    pub evicted: u64,
}

impl Account {
    fn new(activity: ActivityId, generation: Generation) -> Self {
        let (clock, budget) = (VecDeque::new(), Budget::EQUAL);
        let memory_soft = memory_soft(activity);
        Self { activity, generation, clock, budget, memory_soft, hits: 0, misses: 0, evicted: 0 }
    }

    /// Returns the soft budget in bytes: that of the cache before that of the memory.
    fn soft(&self) -> Option<usize> {
        self.budget.soft.or(self.memory_soft)
    }

    fn is_current(&self) -> bool {
        generation(self.activity) == self.generation
    }
}

/// Returns the soft budget of memory of an activity, in bytes.
fn memory_soft(activity: ActivityId) -> Option<usize> {
    let soft = MEMORY.entitlement(activity).memory.soft?;
    Some(usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Which activities lose blocks first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Protection {
    /// The activity has ended.
    None,
    /// It has no budget, or more than that.
    Part,
    /// It is within its soft budget.
    Budget,
}

#[derive(Default)]
pub(crate) struct Accounts {
    all: BTreeMap<Owner, Account>,
    /// The version of the memory's settings that the accounts follow.
    memory_version: u64,
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

    /// Follows changes of the memory's budgets.
    fn follow_memory(&mut self) {
        let version = MEMORY.version();
        if core::mem::replace(&mut self.memory_version, version) != version {
            let current = self.all.values_mut().filter(|account| account.is_current());
            current.for_each(|account| account.memory_soft = memory_soft(account.activity));
        }
    }

    /// Returns the owners of blocks in the order in which they lose some, in a cache of `capacity` blocks: ended
    /// activities, then those above their parts by their excess, the largest first, and last those within a soft
    /// budget. Ended activities without blocks are forgotten.
    pub fn by_excess(&mut self, capacity: usize, block_len: usize) -> Vec<Owner> {
        self.follow_memory();
        self.all.retain(|_, account| account.is_current() || !account.clock.is_empty());
        let Self { all, latest, .. } = self;
        latest.retain(|_, owner| all.contains_key(owner));
        let with_blocks = self.all.iter().filter(|(_, account)| !account.clock.is_empty());
        let (mut budgets, mut sharing) = (0_usize, 0);
        for (_, account) in with_blocks.clone().filter(|(_, account)| account.is_current()) {
            match account.soft() {
                Some(bytes) => budgets = budgets.saturating_add(bytes / block_len),
                None => sharing += 1,
            }
        }
        let equal_part = capacity.saturating_sub(budgets) / sharing.max(1);
        let rank = |(owner, account): (&Owner, &Account)| {
            let len = account.clock.len();
            if !account.is_current() {
                return (Protection::None, Reverse(len as isize), *owner);
            }
            let soft = account.soft().map(|bytes| bytes / block_len);
            let protection = match soft {
                Some(soft) if len <= soft => Protection::Budget,
                _ => Protection::Part,
            };
            (protection, Reverse(len as isize - soft.unwrap_or(equal_part) as isize), *owner)
        };
        let mut owners: Vec<_> = with_blocks.map(rank).collect();
        owners.sort_unstable();
        owners.into_iter().map(|(_, _, owner)| owner).collect()
    }
}
