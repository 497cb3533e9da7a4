//! Pages of regions that move to other memory while their owners have them.
//!
//! ```text
//!               begin                      (every core flushes)          finish
//!   present ────────────► migrating ──────────────────────────────► present, elsewhere
//!      ▲                      │
//!      └── stay: it is touched, or named to a device ──┘
//! ```
//!
//! A migrating page faults when it is touched, and its entry remembers where it is. Once every core has flushed, no one gets
//! at it but by a fault: then it is copied, and its entry changes from the one place to the other in one step. A touch
//! before that makes it present where it was, and the step fails: so bytes that are written are never left behind. What is
//! retired meanwhile is no longer migrating.
//!
//! A page that was ever named to a device is *pinned*: who lends memory to devices does not say when they have let go of
//! a page. Only pages of 4 KiB move.

use super::{Window, frame_of, in_window};
use crate::paging::{ADDRESS, PRESENT, index, leaf_bytes};
use crate::window::tables::Below;
use core::arch::asm;
use core::ops::ControlFlow;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::layout::{PAGE_SIZE, PageSize};

/// In the entry of a page: a device was told where it is. Processors leave the bit to software, as the next.
const PINNED: u64 = 1 << 9;

/// In the entry of a page that is not present: it is migrating.
pub(super) const MIGRATING: u64 = 1 << 10;

impl Window {
    /// Passes pages that can move to `see`, from `address` on and before `end`, with their memory: those of 4 KiB that are
    /// not pinned. Looks at `most` entries (at least one). Returns where to go on: at the page for which `see` breaks, or
    /// behind what it looked at.
    pub fn look_at_movable(
        &self,
        address: u64,
        end: u64,
        most: usize,
        see: &mut dyn FnMut(u64, NonNull<u8>) -> ControlFlow<()>,
    ) -> u64 {
        let mut address = address;
        for _ in 0..most {
            if address >= end || !in_window(address) {
                return end;
            }
            let (place, step) = match self.small_entry(address) {
                Ok(place) => (place, PAGE_SIZE),
                Err(step) => {
                    address = (address / step + 1).saturating_mul(step);
                    continue;
                }
            };
            let entry = place.load(Ordering::Acquire);
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

    /// Has the page at `address` be migrating, if it is at `frame` and can move. Whether it is. Safe for any address: a page in
    /// migration keeps its memory and its bytes, and the next access to it has it [stay](Self::stay).
    pub fn begin_migration(&self, address: u64, frame: NonNull<u8>) -> bool {
        let begin = |entry: u64| {
            let is_it = self.memory.frame(frame_of(entry, PageSize::FourKib)) == Some(frame);
            let can_move = entry & (PRESENT | MIGRATING) != 0 && entry & PINNED == 0 && is_it;
            can_move.then_some(entry & !PRESENT | MIGRATING)
        };
        let Ok(place) = self.small_entry(address) else { return false };
        place.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin).is_ok()
    }

    /// Moves the page at `address`, which is migrating, with its bytes from one page of memory to another. Whether it has
    /// moved: otherwise somebody has touched it.
    ///
    /// # Safety
    /// `to` is a page of the caller's that nobody else knows of, and every core has called [`super::flush`] since the page's
    /// migration began.
    pub unsafe fn finish_migration(&self, address: u64, from: NonNull<u8>, to: NonNull<u8>) -> bool {
        let (Ok(place), Some(new)) = (self.small_entry(address), self.memory.phys(to, PAGE_SIZE)) else {
            return false;
        };
        let entry = place.load(Ordering::Acquire);
        let is_it = self.memory.frame(frame_of(entry, PageSize::FourKib)) == Some(from);
        if entry & (PRESENT | MIGRATING) != MIGRATING || !is_it {
            return false;
        }
        // SAFETY: `to` is the caller's. `from` is a page of memory, and not used for anything else before the caller's core
        // has flushed again; who writes to it meanwhile has made the page stay.
        unsafe { copy(from, to) };
        let moved = entry & !(ADDRESS | MIGRATING) | new.0 | PRESENT;
        place.compare_exchange(entry, moved, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends the migration of the page at `address`, if it is migrating: it stays where it is. Whether a page of 4 KiB is there
    /// now.
    pub fn stay(&self, address: u64) -> bool {
        self.small_entry(address).is_ok_and(|place| settle(place, 0) & PRESENT != 0)
    }

    /// The entry of the page of 4 KiB at an address; where there is no table of such, how many bytes it is that have none.
    fn small_entry(&self, address: u64) -> Result<&AtomicU64, u64> {
        let mut table = self.tables.top().filter(|_| in_window(address)).ok_or(u64::MAX)?;
        for level in [2, 1] {
            let entry = table[index(address, level)].load(Ordering::Acquire);
            let Below::Table(below) = self.tables.below(entry) else { return Err(leaf_bytes(level)) };
            table = below;
        }
        Ok(&table[index(address, 0)])
    }
}

/// Has the page whose entry that is stay where it is from here on, as a device is told of it. Returns the entry.
pub(super) fn pin(place: &AtomicU64) -> u64 {
    settle(place, PINNED)
}

/// Ends a page's migration, and sets bits in its entry, if it is present then. Returns the entry.
fn settle(place: &AtomicU64, bits: u64) -> u64 {
    let settled = |entry: u64| {
        let present = if entry & MIGRATING != 0 { entry & !MIGRATING | PRESENT } else { entry };
        if present & PRESENT != 0 { present | bits } else { present }
    };
    let mut entry = place.load(Ordering::Acquire);
    while settled(entry) != entry {
        match place.compare_exchange_weak(entry, settled(entry), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return settled(entry),
            Err(now) => entry = now,
        }
    }
    entry
}

/// Copies a page. By an instruction that the compiler does not know as an access, as somebody may write there meanwhile:
/// then what is copied is of no use, and not used.
///
/// # Safety
/// Both are whole pages that are mapped, and the caller may write to the second.
unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>) {
    // SAFETY: the caller's promise. The direction flag is clear.
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
