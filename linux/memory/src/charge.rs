//! The limit of frames.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

/// The account to which the frames of processes are charged: that of the cell, or of a group of processes.
///
/// A frame is charged to the account of the process that creates it, when it is created, and given back to that account
/// when the last process that has it unmaps it.
pub trait MemoryCharge: Send + Sync {
    /// Charges frames. Returns false, without a charge, if the limit does not permit them.
    fn take(&self, frames: u64) -> bool;

    /// Gives frames back.
    fn give_back(&self, frames: u64);

    /// Returns the number of the account, which its frames record; 0 for that of the cell.
    fn account(&self) -> u16 {
        0
    }

    /// Gives frames back to the account with this number, which they have recorded.
    fn give_back_to(&self, _account: u16, frames: u64) {
        self.give_back(frames);
    }
}

/// A limit of frames for all processes of a cell.
pub struct FrameBudget {
    taken: AtomicU64,
    limit: FrameLimit,
}

/// What limits the frames of a [`FrameBudget`].
enum FrameLimit {
    /// This number of frames at a time.
    Fixed(u64),
    /// The number of frames that can be taken now, which the cell answers: its memory grows and shrinks.
    Free(Box<dyn Fn() -> u64 + Send + Sync>),
}

impl FrameBudget {
    /// Creates a fixed limit.
    pub const fn new(frames: u64) -> Self {
        Self { taken: AtomicU64::new(0), limit: FrameLimit::Fixed(frames) }
    }

    /// Creates a limit that follows the memory of the cell: `free` returns the number of frames that can be taken besides
    /// those that were.
    pub fn following(free: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { taken: AtomicU64::new(0), limit: FrameLimit::Free(Box::new(free)) }
    }

    /// Returns the number of frames that are left.
    pub fn left(&self) -> u64 {
        match &self.limit {
            FrameLimit::Fixed(limit) => limit.saturating_sub(self.taken()),
            FrameLimit::Free(free) => free(),
        }
    }

    /// Returns the number of frames that are taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

impl MemoryCharge for FrameBudget {
    fn take(&self, frames: u64) -> bool {
        match &self.limit {
            FrameLimit::Fixed(limit) => {
                let take = |taken: u64| taken.checked_add(frames).filter(|taken| taken <= limit);
                self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
            }
            // Cores that take the last frames at the same time may exceed the limit by some: it leaves room for that.
            FrameLimit::Free(free) => {
                let has_room = free() >= frames;
                if has_room {
                    self.taken.fetch_add(frames, Ordering::Relaxed);
                }
                has_room
            }
        }
    }

    fn give_back(&self, frames: u64) {
        self.taken.fetch_sub(frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;

    #[test]
    fn a_fixed_limit_permits_its_number_of_frames() {
        let budget = FrameBudget::new(3);
        assert!(budget.take(2) && !budget.take(2) && !budget.take(u64::MAX) && budget.take(1));
        assert_eq!((budget.left(), budget.taken()), (0, 3));
        budget.give_back(2);
        assert_eq!((budget.left(), budget.taken()), (2, 1));
    }

    #[test]
    fn a_limit_follows_the_memory_of_the_cell() {
        let free = Arc::new(AtomicU64::new(1));
        let budget = FrameBudget::following({
            let free = free.clone();
            move || free.load(Ordering::Relaxed)
        });
        assert!(!budget.take(2) && budget.take(1));
        free.store(5, Ordering::Relaxed);
        assert!(budget.take(5), "the cell has grown");
        free.store(0, Ordering::Relaxed);
        assert!(!budget.take(1), "the cell has shrunk");
        assert_eq!((budget.taken(), budget.left()), (6, 0));
    }
}
