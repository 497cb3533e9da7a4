//! Free objects, linked by their first word.

use core::cell::Cell;
use core::ptr::{self, NonNull};

/// A free object's first word.
#[repr(C)]
struct FreeObject {
    next: *mut u8,
}

/// A list of free objects of one class.
///
/// Whoever puts an object in gives it up, and whoever takes one out owns it. The list does not know its
/// length.
#[repr(transparent)]
pub(crate) struct FreeList {
    first: Cell<*mut u8>,
}

impl FreeList {
    /// A list without objects.
    pub const fn new() -> Self {
        Self { first: Cell::new(ptr::null_mut()) }
    }

    /// Takes the first object out.
    #[inline(always)]
    pub fn pop(&self) -> Option<NonNull<u8>> {
        let object = NonNull::new(self.first.get())?;
        // SAFETY: an object in the list is memory of at least 16 bytes, aligned at 16, which is the list's
        // alone and whose first word `push` has written.
        self.first.set(unsafe { object.cast::<FreeObject>().as_ref().next });
        Some(object)
    }

    /// Puts an object in front.
    ///
    /// # Safety
    /// It is an object of the list's class that nobody uses, in memory of the heap.
    #[inline(always)]
    pub unsafe fn push(&self, object: NonNull<u8>) {
        // SAFETY: the caller gives the object up: at least 16 bytes, aligned at 16.
        unsafe { object.cast::<FreeObject>().write(FreeObject { next: self.first.get() }) };
        self.first.set(object.as_ptr());
    }

    /// Takes everything out.
    pub fn take(&self) -> FreeList {
        FreeList { first: Cell::new(self.first.replace(ptr::null_mut())) }
    }

    /// Takes out what stands behind the first `kept` objects.
    pub fn take_behind(&self, kept: usize) -> FreeList {
        let mut last = &self.first;
        for _ in 0..kept {
            let Some(object) = NonNull::new(last.get()) else { break };
            // SAFETY: as in `pop`; a `Cell` has the layout of what it holds.
            last = unsafe { object.cast::<Cell<*mut u8>>().as_ref() };
        }
        FreeList { first: Cell::new(last.replace(ptr::null_mut())) }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first.get().is_null()
    }
}
