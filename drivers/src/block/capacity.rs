//! The capacity of a device, which can change while it runs.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

/// A device's capacity as last read, shared by the device and its queues, which may belong to several cores.
#[derive(Clone, Debug)]
pub(super) struct Capacity(Arc<AtomicU64>);

impl Capacity {
    pub(super) fn new(sectors: u64) -> Self {
        Self(Arc::new(AtomicU64::new(sectors)))
    }

    /// Returns the capacity in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, sectors: u64) {
        self.0.store(sectors, Ordering::Relaxed);
    }
}
