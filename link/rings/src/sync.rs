//! Atomic types. For the models, loom's versions replace them and try all interleavings (`cargo xtask test models`).

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
