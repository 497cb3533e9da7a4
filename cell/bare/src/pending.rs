//! Interrupts that arrived and that the loop has not taken yet: one bit per vector, for each vcore.
//!
//! The core that runs a vcore changes these words, each by one atomic instruction: the supervisor can suspend the
//! interrupt stub midway, and another core can then note an interrupt for the same vcore.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use isola_abi::id::MAX_CORES;
use isola_platform::{CoreIndex, OtherVectors, PendingVectors};

/// The interrupts of each core.
static PENDING: [Pending; MAX_CORES] = [const { Pending::new() }; MAX_CORES];

/// The interrupts of a core.
pub(crate) struct Pending {
    /// One bit for each quarter of the vectors that may have pending ones, so that one load shows whether there is any.
    quarters: AtomicU64,
    words: [AtomicU64; 4],
}

/// Returns the interrupts of `core`.
#[inline]
pub(crate) fn of(core: CoreIndex) -> &'static Pending {
    &PENDING[core.0 as usize]
}

impl Pending {
    const fn new() -> Self {
        Self { quarters: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 4] }
    }

    /// Notes an interrupt.
    #[inline]
    pub fn note(&self, vector: u8) {
        let quarter = vector / 64;
        self.words[usize::from(quarter)].fetch_or(1 << (vector % 64), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.quarters.fetch_or(1 << quarter, Ordering::Relaxed);
    }

    /// Returns whether an interrupt was noted and not taken.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.quarters.load(Ordering::Relaxed) != 0
    }

    /// Takes the interrupts of a quarter that has some.
    #[inline]
    pub fn take(&self) -> PendingVectors {
        let quarters = self.quarters.load(Ordering::Relaxed);
        if quarters == 0 {
            return PendingVectors::default();
        }
        let quarter = quarters.trailing_zeros() as u8 & 3;
        self.quarters.fetch_and(!(1 << quarter), Ordering::Relaxed);
        // An interrupt that is noted from here on sets the bit again.
        compiler_fence(Ordering::SeqCst);
        let bits = self.words[usize::from(quarter)].swap(0, Ordering::Relaxed);
        let others = if quarters & (quarters - 1) != 0 { OtherVectors::Arrived } else { OtherVectors::None };
        PendingVectors::of_quarter(quarter, bits, others)
    }
}
