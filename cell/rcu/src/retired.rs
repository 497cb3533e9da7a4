//! Objects that were unlinked, on their way to being freed.

use alloc::boxed::Box;
use isola_events::defer;
use isola_events::quiescence::Domain;

/// An object that nobody finds any more, and some may still look at.
struct Retired<T>(*mut T);

// SAFETY: whoever drops it owns the object alone, which may move to other cores.
unsafe impl<T: Send> Send for Retired<T> {}

impl<T> Drop for Retired<T> {
    fn drop(&mut self) {
        // SAFETY: by `retire`, the pointer is of a box, given up once, and nobody looks at it any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Frees `object` once no event that runs now still does.
///
/// # Safety
/// It was made by [`Box::into_raw`], nobody who looks from now on finds it, nobody else frees it, and everybody who looks
/// does so in [`quiescence::read`](isola_events::quiescence::read) on cores of the calling core's cell.
pub(crate) unsafe fn retire<T: Send + 'static>(object: *mut T) {
    let retired = Retired(object);
    defer(move || drop(retired));
}

/// Panics where the calling core is not of the cell that `domain` is of: grace periods are a cell's own.
#[inline]
pub(crate) fn check(domain: Domain) {
    assert!(domain == Domain::current(), "what a cell shares between its cores is used in that cell alone");
}
