//! The limit of frames.

use core::sync::atomic::{AtomicU64, Ordering};

/// The account to which the frames of processes are charged: a limit of the cell, or an activity.
///
/// A frame is charged to the process that creates it, when it is created, and given back when the last process that has it
/// unmaps it.
pub trait MemoryCharge: Send + Sync {
    /// Charges frames. Returns false, without a charge, if the limit does not permit them.
    fn take(&self, frames: u64) -> bool;

    /// Gives frames back.
    fn give_back(&self, frames: u64);
}

/// A limit of frames for all processes of a cell.
pub struct FrameBudget {
    left: AtomicU64,
}

impl FrameBudget {
    /// Creates a limit.
    pub const fn new(frames: u64) -> Self {
        Self { left: AtomicU64::new(frames) }
    }

    /// Returns the number of frames that are left.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

impl MemoryCharge for FrameBudget {
    fn take(&self, frames: u64) -> bool {
        let take = |left: u64| left.checked_sub(frames);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn give_back(&self, frames: u64) {
        self.left.fetch_add(frames, Ordering::Relaxed);
    }
}
