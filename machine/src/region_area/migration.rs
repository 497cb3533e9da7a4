//! Page migration: pages of regions move to other memory while they are in use.
//!
//! ```text
//!               begin                      (every core flushes)          finish
//!   present ────────────► migrating ──────────────────────────────► present, elsewhere
//!      ▲                      │
//!      └── stay: an access, or a pin for a device ──┘
//! ```
//!
//! A migrating page is not present, and its entry keeps the frame's address. After every core has flushed its TLB, an
//! access to the page faults. Then the page is copied, and its entry changes to the new frame by a single
//! compare-and-swap. An access before that makes the old frame present again, and the compare-and-swap fails: so no
//! write is lost. Retirement cancels a migration.
//!
//! A page whose address was ever given to a device is *pinned*: drivers do not report when devices are done with a
//! page. Only pages of 4 KiB migrate.

use super::{RegionArea, frame_of, in_region_area};
use crate::paging::{ADDRESS, PRESENT, index, leaf_bytes};
use crate::region_area::tables::EntryTarget;
use core::arch::asm;
use core::ops::ControlFlow;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::layout::{PAGE_SIZE, PageSize};

/// Bit of a page's entry: pinned, as a device may know its address. Processors ignore this bit and the next.
const PINNED: u64 = 1 << 9;

/// Bit of the entry of a page that is not present: it is migrating.
pub(super) const MIGRATING: u64 = 1 << 10;

impl RegionArea {
    /// Passes the pages that can migrate to `see`, in `address..end`, with their memory: those of 4 KiB that are not
    /// pinned. Inspects `most` entries (at least one). Returns the address at which to continue: the page for which
    /// `see` breaks, or the end of the inspected part.
    pub fn look_at_movable(
        &self,
        address: u64,
        end: u64,
        most: usize,
        see: &mut dyn FnMut(u64, NonNull<u8>) -> ControlFlow<()>,
    ) -> u64 {
        let mut address = address;
        for _ in 0..most {
            if address >= end || !in_region_area(address) {
                return end;
            }
            let (pte, step) = match self.small_entry(address) {
                Ok(pte) => (pte, PAGE_SIZE),
                Err(step) => {
                    address = (address / step + 1).saturating_mul(step);
                    continue;
                }
            };
            let entry = pte.load(Ordering::Acquire);
            if entry & (PRESENT | MIGRATING) != 0
                && entry & PINNED == 0
                && let Some(frame) = self.memory.frame(frame_of(entry, PageSize::FourKib))
                && see(address, frame).is_break()
            {
                return address;
            }
            address += step;
        }
        address.min(end)
    }

    /// Starts the migration of the page at `address`, if it is at `frame` and can migrate. Returns whether it is
    /// migrating. Safe for any address: a migrating page keeps its memory and its bytes, and the next access to it
    /// makes it [stay](Self::stay).
    pub fn begin_migration(&self, address: u64, frame: NonNull<u8>) -> bool {
        let begin = |entry: u64| {
            let is_it = self.memory.frame(frame_of(entry, PageSize::FourKib)) == Some(frame);
            let can_move = entry & (PRESENT | MIGRATING) != 0 && entry & PINNED == 0 && is_it;
            can_move.then_some(entry & !PRESENT | MIGRATING)
        };
        let Ok(pte) = self.small_entry(address) else { return false };
        pte.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin).is_ok()
    }

    /// Completes the migration of the page at `address`: copies its bytes from one page of memory to another. Returns
    /// whether the page was moved; if not, the page has been accessed, or is not migrating.
    ///
    /// # Safety
    /// `to` must be a page of the caller's that no other code accesses, and every core must have called
    /// [`super::flush`] since the page's migration began.
    pub unsafe fn finish_migration(&self, address: u64, from: NonNull<u8>, to: NonNull<u8>) -> bool {
        let (Ok(pte), Some(new)) = (self.small_entry(address), self.memory.phys(to, PAGE_SIZE)) else {
            return false;
        };
        let entry = pte.load(Ordering::Acquire);
        let is_it = self.memory.frame(frame_of(entry, PageSize::FourKib)) == Some(from);
        if entry & (PRESENT | MIGRATING) != MIGRATING || !is_it {
            return false;
        }
        // SAFETY: `to` is the caller's. `from` is a page of memory, which is not used for anything else before the
        // caller's core has flushed again; a write to it meanwhile has cancelled the migration first.
        unsafe { copy(from, to) };
        let moved = entry & !(ADDRESS | MIGRATING) | new.0 | PRESENT;
        pte.compare_exchange(entry, moved, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Cancels the migration of the page at `address`, if it is migrating. Returns whether a page of 4 KiB is present
    /// there now.
    pub fn stay(&self, address: u64) -> bool {
        self.small_entry(address).is_ok_and(|pte| settle(pte, 0) & PRESENT != 0)
    }

    /// Returns the entry of the page of 4 KiB at an address; if no table of such pages exists there, the size of the
    /// range without one, in bytes.
    fn small_entry(&self, address: u64) -> Result<&AtomicU64, u64> {
        let mut table = self.tables.top().filter(|_| in_region_area(address)).ok_or(u64::MAX)?;
        for level in [2, 1] {
            let entry = table[index(address, level)].load(Ordering::Acquire);
            let EntryTarget::Table(below) = self.tables.target(entry) else { return Err(leaf_bytes(level)) };
            table = below;
        }
        Ok(&table[index(address, 0)])
    }
}

/// Pins the page of an entry, for a device, which cancels its migration. Returns the entry.
pub(super) fn pin(pte: &AtomicU64) -> u64 {
    settle(pte, PINNED)
}

/// Cancels a page's migration, and sets bits in its entry if it is present then. Returns the entry.
fn settle(pte: &AtomicU64, bits: u64) -> u64 {
    let settled = |entry: u64| {
        let present = if entry & MIGRATING != 0 { entry & !MIGRATING | PRESENT } else { entry };
        if present & PRESENT != 0 { present | bits } else { present }
    };
    let mut entry = pte.load(Ordering::Acquire);
    while settled(entry) != entry {
        match pte.compare_exchange_weak(entry, settled(entry), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return settled(entry),
            Err(now) => entry = now,
        }
    }
    entry
}

/// Copies a page, by an instruction that the compiler does not treat as an access, as another core may write to the
/// source meanwhile; the copy is discarded then.
///
/// # Safety
/// Both must be whole mapped pages, and the caller must be allowed to write to the second.
unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>) {
    // SAFETY: the caller guarantees both pages. The direction flag is clear.
    unsafe {
        asm!(
            "rep movsq",
            inout("rcx") PAGE_SIZE / 8 => _,
            inout("rsi") from.as_ptr() => _,
            inout("rdi") to.as_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}
