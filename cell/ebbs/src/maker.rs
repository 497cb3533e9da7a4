//! What makes the representatives of an Ebb: its fault handler, which an application can replace.

use crate::ebb::Representative;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

/// What makes representatives of type `T`: [`Representative::create`], or what was named in its place.
pub(crate) struct Maker<T> {
    named: AtomicPtr<()>,
    makes: PhantomData<fn() -> T>,
}

/// An Ebb cannot be replaced any more: it was used, so that representatives of it may exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse;

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the Ebb is in use already: replace it before it is first invoked")
    }
}

impl core::error::Error for InUse {}

impl<T: Representative> Maker<T> {
    /// The one that the type has.
    pub const fn new() -> Self {
        Self { named: AtomicPtr::new(core::ptr::null_mut()), makes: PhantomData }
    }

    /// Names another.
    pub fn replace(&self, create: fn() -> T) {
        self.named.store(create as *mut (), Ordering::Release);
    }

    /// Makes a representative.
    pub fn make(&self) -> T {
        let named = self.named.load(Ordering::Acquire);
        if named.is_null() {
            return T::create();
        }
        // SAFETY: `replace` alone stores anything, which is a function of this type.
        let create = unsafe { core::mem::transmute::<*mut (), fn() -> T>(named) };
        create()
    }
}
