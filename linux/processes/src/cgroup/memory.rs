//! The frames of a group, and their limit.
//!
//! A frame is charged to the group of the process that creates it, and to the groups above. It records the group's number,
//! so that the same group gets it back, whatever process has it last. As in Linux, the frames of a process that moves stay
//! charged to its former group.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use isola_linux_memory::MemoryCharge;
use spin::Mutex;

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// The frames of a group.
#[derive(Debug)]
pub struct GroupMemory {
    /// From 1 on; 0 is the cell.
    number: u16,
    parent: Option<Arc<GroupMemory>>,
    used: AtomicU64,
    peak: AtomicU64,
    /// `memory.max`, in frames.
    max: AtomicU64,
    /// `memory.high` and `memory.low`, in frames: recorded, without effect but the count of `high`.
    pub(super) high: AtomicU64,
    pub(super) low: AtomicU64,
    /// The events of `memory.events`.
    pub(super) events: MemoryEvents,
    is_removed: AtomicBool,
}

/// How often a group met its limits.
#[derive(Debug, Default)]
pub struct MemoryEvents {
    /// Frames above `memory.high`.
    pub high: AtomicU64,
    /// Frames that `memory.max` did not permit.
    pub max: AtomicU64,
    /// Times at which a process had to be killed.
    pub out_of_memory: AtomicU64,
    /// Processes that were killed.
    pub kills: AtomicU64,
}

impl GroupMemory {
    /// Returns the frames of the group and those below it.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the most frames so far.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the limit, in frames.
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Sets the limit. Frames above it stay.
    pub fn set_max(&self, frames: u64) {
        self.max.store(frames, Ordering::Relaxed);
    }

    /// Returns the events.
    pub fn events(&self) -> &MemoryEvents {
        &self.events
    }

    /// Returns whether the limit permits no frame more.
    pub fn is_full(&self) -> bool {
        self.used() >= self.max()
    }

    fn with_ancestors(&self) -> impl Iterator<Item = &Self> {
        core::iter::successors(Some(self), |memory| memory.parent.as_deref())
    }

    fn take_here(&self, frames: u64) -> bool {
        let max = self.max();
        let take = |used: u64| used.checked_add(frames).filter(|used| *used <= max);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => true,
            Err(_) => {
                self.events.max.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Records a charge that all limits have permitted.
    fn note_taken(&self) {
        for memory in self.with_ancestors() {
            let used = memory.used();
            memory.peak.fetch_max(used, Ordering::Relaxed);
            if used > memory.high.load(Ordering::Relaxed) {
                memory.events.high.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn give_back_here(&self, frames: u64) {
        self.used.fetch_sub(frames, Ordering::Relaxed);
    }

    /// Charges frames to the group and those above: to all, or to none.
    fn take(&self, frames: u64) -> bool {
        for (level, memory) in self.with_ancestors().enumerate() {
            if !memory.take_here(frames) {
                self.with_ancestors().take(level).for_each(|memory| memory.give_back_here(frames));
                return false;
            }
        }
        true
    }

    fn give_back(&self, frames: u64) {
        self.with_ancestors().for_each(|memory| memory.give_back_here(frames));
    }
}

/// The accounts of all groups of a cell.
pub struct GroupAccounts {
    cell: Arc<dyn MemoryCharge>,
    /// By number, less 1.
    groups: Mutex<Vec<Arc<GroupMemory>>>,
}

impl GroupAccounts {
    /// Creates accounts without groups. `cell` has the limit of all processes.
    pub(super) fn new(cell: Arc<dyn MemoryCharge>) -> Arc<Self> {
        Arc::new(Self { cell, groups: Mutex::default() })
    }

    /// Adds a group. Returns `None` if 65,535 groups exist, or have frames.
    pub(super) fn add(&self, parent: Option<Arc<GroupMemory>>) -> Option<Arc<GroupMemory>> {
        let mut groups = self.groups.lock();
        let is_free =
            |memory: &Arc<GroupMemory>| memory.is_removed.load(Ordering::Relaxed) && memory.used() == 0;
        let index = groups.iter().position(is_free).unwrap_or(groups.len());
        let memory = Arc::new(GroupMemory {
            number: u16::try_from(index + 1).ok()?,
            parent,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            max: AtomicU64::new(UNLIMITED),
            high: AtomicU64::new(UNLIMITED),
            low: AtomicU64::new(0),
            events: MemoryEvents::default(),
            is_removed: AtomicBool::new(false),
        });
        match groups.get_mut(index) {
            Some(former) => *former = memory.clone(),
            None => groups.push(memory.clone()),
        }
        Some(memory)
    }

    /// Ends a group. Its number is free once it has no frames.
    pub(super) fn remove(&self, memory: &GroupMemory) {
        memory.is_removed.store(true, Ordering::Relaxed);
    }

    /// Returns the account for the processes of a group; `None` for the root.
    pub(super) fn charge(self: &Arc<Self>, memory: Option<Arc<GroupMemory>>) -> Arc<dyn MemoryCharge> {
        Arc::new(GroupCharge { memory, accounts: self.clone() })
    }
}

/// The account for the processes of one group.
struct GroupCharge {
    memory: Option<Arc<GroupMemory>>,
    accounts: Arc<GroupAccounts>,
}

impl MemoryCharge for GroupCharge {
    fn take(&self, frames: u64) -> bool {
        let Some(memory) = &self.memory else { return self.accounts.cell.take(frames) };
        if !memory.take(frames) {
            return false;
        }
        let is_taken = self.accounts.cell.take(frames);
        match is_taken {
            true => memory.note_taken(),
            false => memory.give_back(frames),
        }
        is_taken
    }

    fn give_back(&self, frames: u64) {
        self.give_back_to(self.account(), frames);
    }

    fn account(&self) -> u16 {
        self.memory.as_ref().map_or(0, |memory| memory.number)
    }

    fn give_back_to(&self, account: u16, frames: u64) {
        self.accounts.cell.give_back(frames);
        match &self.memory {
            Some(memory) if memory.number == account => memory.give_back(frames),
            _ if account == 0 => {}
            _ => {
                let memory = self.accounts.groups.lock().get(usize::from(account) - 1).cloned();
                if let Some(memory) = memory {
                    memory.give_back(frames);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_linux_memory::FrameBudget;

    #[test]
    fn frames_count_for_a_group_and_those_above_and_return_to_it() {
        let cell = Arc::new(FrameBudget::new(100));
        let accounts = GroupAccounts::new(cell.clone());
        let outer = accounts.add(None).unwrap();
        let inner = accounts.add(Some(outer.clone())).unwrap();
        outer.set_max(10);
        let (of_inner, of_root) = (accounts.charge(Some(inner.clone())), accounts.charge(None));
        assert!(of_inner.take(7) && !of_inner.take(4), "the limit above holds");
        assert_eq!((inner.used(), outer.used(), cell.taken()), (7, 7, 7));
        assert_eq!(outer.events().max.load(Ordering::Relaxed), 1);
        assert!(of_root.take(93) && !of_inner.take(1), "the cell has no more");
        assert_eq!((inner.used(), outer.used()), (7, 7));
        // A process of another group unmaps frames of this one last.
        of_root.give_back_to(of_inner.account(), 3);
        assert_eq!((inner.used(), outer.used(), cell.taken()), (4, 4, 97));
        assert_eq!((outer.peak(), outer.is_full()), (7, false));
    }

    #[test]
    fn a_number_is_used_again_when_the_removed_group_has_no_frames() {
        let accounts = GroupAccounts::new(Arc::new(FrameBudget::new(100)));
        let first = accounts.add(None).unwrap();
        let charge = accounts.charge(Some(first.clone()));
        assert!(charge.take(1));
        accounts.remove(&first);
        assert_eq!((first.number, accounts.add(None).unwrap().number), (1, 2));
        charge.give_back(1);
        assert_eq!(accounts.add(None).unwrap().number, 1);
        assert_eq!((accounts.add(None).unwrap().number, first.used()), (3, 0));
    }
}
