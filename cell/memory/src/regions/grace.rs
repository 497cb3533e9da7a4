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
//! follows are ordered (both are sequentially consistent), so that either who retires sees that the core runs, or
//! the core sees the new generation.

use super::window::Retired;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

const HALTED: u64 = u64::MAX;

#[cfg(not(loom))]
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

    /// Notes that entries were made not present.
    pub fn retire(&self) -> Retired {
        Retired(self.generation.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Whether every core has forgotten what was retired then.
    pub fn is_over(&self, retired: Retired) -> bool {
        self.said.iter().all(|said| said.load(Ordering::SeqCst) >= retired.0)
    }

    /// A pass of a core's loop: calls `forget` if it has to. True where it had to.
    #[inline]
    pub fn pass(&self, core: usize, forget: impl FnOnce()) -> bool {
        let generation = self.generation.load(Ordering::SeqCst);
        if self.forgotten[core].load(Ordering::Relaxed) == generation {
            return false;
        }
        forget();
        self.forgotten[core].store(generation, Ordering::Relaxed);
        self.said[core].store(generation, Ordering::SeqCst);
        true
    }

    /// Before a core halts.
    pub fn halt(&self, core: usize) {
        self.said[core].store(HALTED, Ordering::SeqCst);
    }

    /// When a core runs again, or for the first time, before it touches anything; [`Self::pass`] is next.
    pub fn wake(&self, core: usize) {
        self.said[core].store(self.forgotten[core].load(Ordering::Relaxed), Ordering::SeqCst);
    }
}
