//! Grace periods: after unmapped pages are retired, determines when every core has flushed its TLB.
//!
//! Only the core itself can flush its TLB. It does so in a pass of its loop, between two events, and only if pages were
//! retired since its last flush:
//!
//! ```text
//!   a core that retires pages                  each core, in every pass
//!   -------------------------                  ------------------------
//!   makes entries non-present                  g = generation
//!   generation += 1  ───────────────────────►  if g differs from its last flush: flushes, then stores g
//!   over when every core has stored
//!   that generation or a later one
//! ```
//!
//! A halted core accesses no memory. Before it halts it stores `HALTED`, which is more than any generation, so no grace
//! period waits for it. When it wakes it withdraws that before any other access. A fence orders this store before the
//! core's next load of the generation; another orders the increment of the generation before the check of the cores. So
//! either the retiring core sees that the other runs, or that core sees the new generation.

use super::address_window::Retirement;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

const HALTED: u64 = u64::MAX;

impl<const N: usize> Default for GracePeriods<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The state of TLB flushes of a cell's cores, of which there are at most `N`.
pub struct GracePeriods<const N: usize> {
    generation: AtomicU64,
    /// The generation at each core's last flush; `HALTED` while the core is halted.
    flushed: [AtomicU64; N],
    /// The generation at each core's last flush, also while it is halted. Accessed only by that core.
    last_flush: [AtomicU64; N],
}

impl<const N: usize> GracePeriods<N> {
    /// Returns the initial state: all cores are halted, nothing was retired.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            flushed: [const { AtomicU64::new(HALTED) }; N],
            last_flush: [const { AtomicU64::new(0) }; N],
        }
    }

    /// Returns the same; loom's atomics cannot be created at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            flushed: core::array::from_fn(|_| AtomicU64::new(HALTED)),
            last_flush: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Records that entries were made non-present.
    pub fn retire(&self) -> Retirement {
        let retired = Retirement(self.generation.fetch_add(1, Ordering::AcqRel) + 1);
        fence(Ordering::SeqCst);
        retired
    }

    /// Returns whether every core has flushed its TLB since that call of [`Self::retire`], or is halted.
    pub fn is_over(&self, retired: Retirement) -> bool {
        self.flushed.iter().all(|flushed| flushed.load(Ordering::Acquire) >= retired.0)
    }

    /// Called in each pass of a core's loop: calls `flush_tlb`, which flushes the TLB, if anything was retired since
    /// the last flush. Returns whether it did.
    #[inline]
    pub fn pass(&self, core: usize, flush_tlb: impl FnOnce()) -> bool {
        let generation = self.generation.load(Ordering::Acquire);
        if self.last_flush[core].load(Ordering::Relaxed) == generation {
            return false;
        }
        flush_tlb();
        self.last_flush[core].store(generation, Ordering::Relaxed);
        self.flushed[core].store(generation, Ordering::Release);
        true
    }

    /// Returns whether nothing was retired since the core's last flush: its next call of [`Self::pass`] has nothing to do.
    #[inline]
    pub fn is_current(&self, core: usize) -> bool {
        self.last_flush[core].load(Ordering::Relaxed) == self.generation.load(Ordering::Acquire)
    }

    /// Called before a core halts.
    pub fn halt(&self, core: usize) {
        self.flushed[core].store(HALTED, Ordering::Release);
    }

    /// Called when a core starts or wakes, before it accesses memory; a call of [`Self::pass`] follows.
    pub fn wake(&self, core: usize) {
        self.flushed[core].store(self.last_flush[core].load(Ordering::Relaxed), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod models {
    extern crate std;

    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// An address, and its frame according to the page table and to a core's TLB.
    struct Machine {
        grace: GracePeriods<2>,
        entry: AtomicUsize,
        /// Whether the other core may use the address again.
        handed_over: AtomicUsize,
    }

    /// A core whose TLB has frame 1, the previous frame of the address.
    struct Core<'a> {
        machine: &'a Machine,
        remembered: Option<usize>,
    }

    impl Core<'_> {
        fn pass(&mut self) {
            let remembered = &mut self.remembered;
            self.machine.grace.pass(1, || *remembered = None);
        }

        /// Uses the address if permitted; the frame must then be that of the page table.
        fn event(&mut self) {
            if self.machine.handed_over.load(Ordering::Acquire) == 1 {
                let frame = self.remembered.unwrap_or_else(|| self.machine.entry.load(Ordering::Relaxed));
                assert_eq!(frame, 2, "a core still uses the previous frame");
            }
        }
    }

    #[test]
    fn addresses_are_reused_after_every_core_has_flushed() {
        loom::model(|| {
            let machine = Arc::new(Machine {
                grace: GracePeriods::new(),
                entry: AtomicUsize::new(1),
                handed_over: AtomicUsize::new(0),
            });
            machine.grace.wake(0);
            machine.grace.wake(1);
            let other = machine.clone();
            let core = thread::spawn(move || {
                let mut core = Core { machine: &other, remembered: Some(1) };
                core.event();
                core.pass();
                core.event();
                other.grace.halt(1);
                other.grace.wake(1);
                core.pass();
                core.event();
            });
            machine.entry.store(0, Ordering::Relaxed);
            let retired = machine.grace.retire();
            machine.grace.pass(0, || {});
            if machine.grace.is_over(retired) {
                machine.entry.store(2, Ordering::Relaxed);
                machine.handed_over.store(1, Ordering::Release);
            }
            core.join().unwrap();
            machine.grace.halt(1);
            assert!(machine.grace.is_over(retired), "a grace period waits for a halted core");
        });
    }
}
