//! When every core has forgotten pages that are gone.
//!
//! A core remembers translations, and nobody but it can make it forget them. It does so when it passes its loop, in
//! between events, and only if something was retired since it last did:
//!
//! ```text
//!   who retires                                a core, at each pass
//!   -----------                                --------------------
//!   entries made not present                   g = generation
//!   generation += 1  ───────────────────────►  g is not what it forgot last: forgets all, then says g
//!   over when every core says that much
//!   or more
//! ```
//!
//! A halted core touches nothing. It says so before it halts (`HALTED` is more than any generation), so that nobody
//! waits for it, and takes that back before it does anything else: the store and the load of the generation that
//! follows are ordered by a fence, as are the new generation and the look at the cores where something is retired: so
//! either who retires sees that the core runs, or the core sees the new generation.

use super::window::Retired;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

const HALTED: u64 = u64::MAX;

impl<const N: usize> Default for Grace<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// What the cores of a cell have forgotten; `N` of them at most.
pub struct Grace<const N: usize> {
    generation: AtomicU64,
    /// The generation up to which a core has forgotten; `HALTED` while it is.
    said: [AtomicU64; N],
    /// The same, and kept while it is halted. Of that core alone.
    forgotten: [AtomicU64; N],
}

impl<const N: usize> Grace<N> {
    /// No core runs, nothing was retired.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            said: [const { AtomicU64::new(HALTED) }; N],
            forgotten: [const { AtomicU64::new(0) }; N],
        }
    }

    /// The same; loom's atomics are not made at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            said: core::array::from_fn(|_| AtomicU64::new(HALTED)),
            forgotten: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Notes that entries were made not present.
    pub fn retire(&self) -> Retired {
        let retired = Retired(self.generation.fetch_add(1, Ordering::AcqRel) + 1);
        fence(Ordering::SeqCst);
        retired
    }

    /// Whether every core has forgotten what was retired then.
    pub fn is_over(&self, retired: Retired) -> bool {
        self.said.iter().all(|said| said.load(Ordering::Acquire) >= retired.0)
    }

    /// A pass of a core's loop: calls `forget` if it has to. True where it had to.
    #[inline]
    pub fn pass(&self, core: usize, forget: impl FnOnce()) -> bool {
        let generation = self.generation.load(Ordering::Acquire);
        if self.forgotten[core].load(Ordering::Relaxed) == generation {
            return false;
        }
        forget();
        self.forgotten[core].store(generation, Ordering::Relaxed);
        self.said[core].store(generation, Ordering::Release);
        true
    }

    /// Before a core halts.
    pub fn halt(&self, core: usize) {
        self.said[core].store(HALTED, Ordering::Release);
    }

    /// When a core runs again, or for the first time, before it touches anything; [`Self::pass`] is next.
    pub fn wake(&self, core: usize) {
        self.said[core].store(self.forgotten[core].load(Ordering::Relaxed), Ordering::Relaxed);
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

    /// An address, and the frames that a table and a core's translation cache say it has.
    struct Machine {
        grace: Grace<2>,
        entry: AtomicUsize,
        /// Whether the other core may use the address again.
        handed_over: AtomicUsize,
    }

    /// A core that remembers frame 1, which the address had before.
    struct Core<'a> {
        machine: &'a Machine,
        remembered: Option<usize>,
    }

    impl Core<'_> {
        fn pass(&mut self) {
            let remembered = &mut self.remembered;
            self.machine.grace.pass(1, || *remembered = None);
        }

        /// Uses the address if it may; what it finds there must be what the table says now.
        fn event(&mut self) {
            if self.machine.handed_over.load(Ordering::Acquire) == 1 {
                let frame = self.remembered.unwrap_or_else(|| self.machine.entry.load(Ordering::Relaxed));
                assert_eq!(frame, 2, "a core has not forgotten a page that is gone");
            }
        }
    }

    #[test]
    fn addresses_are_used_again_when_every_core_has_forgotten() {
        loom::model(|| {
            let machine = Arc::new(Machine {
                grace: Grace::new(),
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
            assert!(machine.grace.is_over(retired), "who halts is waited for");
        });
    }
}
