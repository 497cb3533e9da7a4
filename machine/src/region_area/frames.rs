//! The memory that a cell may map into its region area: its own.

use crate::memory::direct;
use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::descriptor::{ImageSegment, LiveWords};
use isola_abi::id::{PhysAddr, PhysRange};

/// The memory of a cell to which it may write.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    /// The pool, in ascending order.
    pool: Vec<PhysRange>,
    /// The index of the range in which a page was found last.
    recent: AtomicUsize,
    /// The variables of the image.
    data: Option<ImageSegment>,
    /// The live words, in which the supervisor lists plugged blocks and unplugged ranges.
    live: &'static LiveWords,
}

impl OwnMemory {
    /// Creates the memory of a cell with this pool, this segment of variables, and these live words.
    pub(crate) fn new(
        mut pool: Vec<PhysRange>,
        data: Option<ImageSegment>,
        live: &'static LiveWords,
    ) -> Self {
        pool.sort_unstable();
        Self { pool, recent: AtomicUsize::new(0), data, live }
    }

    /// Returns the physical address of the page of `bytes` bytes at `frame`; `None` if it is not completely the cell's.
    pub(crate) fn phys(&self, frame: NonNull<u8>, bytes: u64) -> Option<PhysAddr> {
        let address = frame.addr().get() as u64;
        let data = self.data.and_then(|data| {
            let offset = address.checked_sub(data.virt)?;
            (offset.checked_add(bytes)? <= data.memory.len_bytes).then_some(data.memory.start.0 + offset)
        });
        let phys = match data {
            Some(phys) => phys,
            None => {
                let phys = address.checked_sub(direct(PhysAddr(0)).addr() as u64)?;
                self.in_pool(phys, bytes).then_some(phys)?
            }
        };
        phys.is_multiple_of(bytes).then_some(PhysAddr(phys))
    }

    /// Returns the address by which the cell accesses memory of its own.
    pub(crate) fn frame(&self, phys: PhysAddr) -> Option<NonNull<u8>> {
        if self.in_pool(phys.0, 1) {
            return NonNull::new(direct(phys));
        }
        let data = self.data.filter(|data| data.memory.contains(phys))?;
        NonNull::new((data.virt + (phys.0 - data.memory.start.0)) as *mut u8)
    }

    fn in_pool(&self, phys: u64, bytes: u64) -> bool {
        let within = |range: PhysRange| {
            range.start.0 <= phys && phys.checked_add(bytes).is_some_and(|end| end <= range.end().0)
        };
        let is_within = |index: usize| self.pool.get(index).is_some_and(|range| within(*range));
        let is_found = || {
            let index = self.pool.partition_point(|range| range.start.0 <= phys).wrapping_sub(1);
            self.recent.store(index, Ordering::Relaxed);
            is_within(index)
        };
        let was_given = is_within(self.recent.load(Ordering::Relaxed))
            || is_found()
            || self.live.plugged_memory.iter().any(|(chunk, _)| within(chunk));
        was_given && !self.live.unplug_request.is_unplugged(PhysRange::new(PhysAddr(phys), bytes))
    }
}
