//! Factories: the functions that create the representatives of a cell's Ebbs. An application can replace them.

use crate::representative::Representative;
use crate::table::Pointers;
use core::fmt;
use core::sync::atomic::Ordering;

/// The factory of each Ebb of a cell, by number: null until the first representative is created or the factory is
/// replaced, and constant from then on.
pub(crate) struct Factories(Pointers);

/// The error for the replacement of an Ebb that has representatives in this cell, or was replaced already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EbbInUse;

impl fmt::Display for EbbInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the Ebb is in use already: replace it once, before it is first invoked")
    }
}

impl core::error::Error for EbbInUse {}

impl Factories {
    /// Returns a table without factories.
    pub const fn new() -> Self {
        Self(Pointers::null())
    }

    /// Sets the factory of the Ebb with this number.
    ///
    /// # Safety
    /// The Ebb's representatives are of type `T`.
    pub unsafe fn replace<T>(&self, number: usize, create: fn() -> T) -> Result<(), EbbInUse> {
        let (none, create) = (core::ptr::null_mut(), create as *mut ());
        let replaced =
            self.0.get(number).compare_exchange(none, create, Ordering::Release, Ordering::Relaxed);
        replaced.map(drop).map_err(|_| EbbInUse)
    }

    /// Creates a representative of the Ebb with this number.
    ///
    /// # Safety
    /// The Ebb's representatives are of type `T`.
    pub unsafe fn make<T: Representative>(&self, number: usize) -> T {
        let (none, own) = (core::ptr::null_mut(), T::create as fn() -> T);
        match self.0.get(number).compare_exchange(none, own as *mut (), Ordering::Acquire, Ordering::Acquire)
        {
            Ok(_) => own(),
            // SAFETY: an entry holds a function that returns a representative of its Ebb, a `T`.
            Err(named) => unsafe { core::mem::transmute::<*mut (), fn() -> T>(named)() },
        }
    }
}
