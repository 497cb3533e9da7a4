//! What makes the representatives of an Ebb in a cell: its fault handler, which an application can replace.

use crate::ebb::Representative;
use crate::table::Pointers;
use core::fmt;
use core::sync::atomic::Ordering;

/// What makes the representatives of each Ebb of a cell, by number: null until the first is made or another factory is named,
/// and for good from then on.
pub(crate) struct Factories(Pointers);

/// An Ebb cannot be replaced any more: representatives of it exist in this cell, or it was replaced already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse;

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the Ebb is in use already: replace it once, before it is first invoked")
    }
}

impl core::error::Error for InUse {}

impl Factories {
    /// None named yet.
    pub const fn new() -> Self {
        Self(Pointers::null())
    }

    /// Names what makes the representatives of the Ebb of that number.
    ///
    /// # Safety
    /// The Ebb's representatives are of type `T`.
    pub unsafe fn replace<T>(&self, number: usize, create: fn() -> T) -> Result<(), InUse> {
        let (none, create) = (core::ptr::null_mut(), create as *mut ());
        let replaced =
            self.0.get(number).compare_exchange(none, create, Ordering::Release, Ordering::Relaxed);
        replaced.map(drop).map_err(|_| InUse)
    }

    /// Makes a representative of the Ebb of that number.
    ///
    /// # Safety
    /// The Ebb's representatives are of type `T`.
    pub unsafe fn make<T: Representative>(&self, number: usize) -> T {
        let (none, own) = (core::ptr::null_mut(), T::create as fn() -> T);
        match self.0.get(number).compare_exchange(none, own as *mut (), Ordering::Acquire, Ordering::Acquire)
        {
            Ok(_) => own(),
            // SAFETY: an entry holds a function that makes what its Ebb has, which is `T`.
            Err(named) => unsafe { core::mem::transmute::<*mut (), fn() -> T>(named)() },
        }
    }
}
