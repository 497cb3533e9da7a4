//! Unlinked objects that wait to be freed.

use alloc::boxed::Box;
use isola_events::defer;
use isola_events::quiescence::Domain;

/// An object that new readers cannot find, and earlier readers may still use.
struct RetiredValue<T>(*mut T);

// SAFETY: the holder owns the object alone, and it may move to other cores.
unsafe impl<T: Send> Send for RetiredValue<T> {}

impl<T> Drop for RetiredValue<T> {
    fn drop(&mut self) {
        // SAFETY: by the contract of `retire`, the pointer is from a box, was given up once, and has no readers left.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Frees `object` after a grace period, when no event that runs now is still running.
///
/// # Safety
/// `object` was created by [`Box::into_raw`]; later readers do not find it; no other code frees it; and all readers
/// read it in [`quiescence::read`](isola_events::quiescence::read) on cores of the calling core's cell.
pub(crate) unsafe fn retire<T: Send + 'static>(object: *mut T) {
    let retired = RetiredValue(object);
    defer(move || drop(retired));
}

/// Panics if the calling core is not in the cell of `domain`, because grace periods are per cell.
#[inline]
pub(crate) fn check(domain: Domain) {
    assert!(domain == Domain::current(), "data that the cores of a cell share is used in that cell alone");
}
