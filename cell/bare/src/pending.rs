//! Interrupts that came and were not handed to the loop yet: by core, a bit a vector.
//!
//! A core's words are changed by the processor core that runs it, and each by one instruction: what notes a vector can be set
//! aside, and another processor core note something for the same core.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use isola_abi::id::MAX_CORES;
use isola_platform::{CoreIndex, Others, PendingVectors};

/// By core.
static PENDING: [Pending; MAX_CORES] = [const { Pending::new() }; MAX_CORES];

/// Interrupts of a core.
pub(crate) struct Pending {
    /// A bit for each quarter of the vectors in which there may be some, so that one load says that there is none.
    quarters: AtomicU64,
    words: [AtomicU64; 4],
}

/// Interrupts of that core.
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

    /// Whether an interrupt was noted and not taken.
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
        // What is noted from here on says so again.
        compiler_fence(Ordering::SeqCst);
        let bits = self.words[usize::from(quarter)].swap(0, Ordering::Relaxed);
        let others = if quarters & (quarters - 1) != 0 { Others::Arrived } else { Others::None };
        PendingVectors::of_quarter(quarter, bits, others)
    }
}
