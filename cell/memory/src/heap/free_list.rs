//! Free objects of a class, linked by their first word.
//!
//! A [`FreeList`] carries batches. A [`Bin`], what a core keeps, has a limit, and each of its objects knows how many more
//! may be put on top of it:
//!
//! ```text
//!  head ->  object     ->  object     ->  bottom (of the bin, no object)
//!           room: 61       room: 62       room: 63, the limit
//! ```
//!
//! So taking an object is a load of the head, a load of what is next, and a store; putting one in is a load of the
//! head, a load of its room, and three stores. No count is kept beside, there is no list to compare with null, and
//! both ends of the road are one test: nothing is below the bottom, and no room is left.

use core::cell::Cell;
use core::ptr::{self, NonNull};

/// The first words of a free object.
#[repr(C)]
pub(crate) struct FreeObject {
    next: Cell<*mut FreeObject>,
    /// Of an object in a bin: how many more may stand on it.
    room: Cell<usize>,
}

const _: () = assert!(size_of::<FreeObject>() <= super::class::GRAIN);

impl FreeObject {
    /// What is below all objects of a bin that may hold none.
    pub const fn bottom() -> Self {
        Self { next: Cell::new(ptr::null_mut()), room: Cell::new(0) }
    }
}

/// A list of free objects of one class.
///
/// Whoever puts an object in gives it up, and whoever takes one out owns it.
pub(crate) struct FreeList {
    first: *mut FreeObject,
    count: usize,
}

impl FreeList {
    /// A list without objects.
    pub const fn new() -> Self {
        Self { first: ptr::null_mut(), count: 0 }
    }

    /// Takes the first object out.
    pub fn pop(&mut self) -> Option<NonNull<u8>> {
        self.count = self.count.checked_sub(1)?;
        let object = NonNull::new(self.first)?;
        // SAFETY: an object in the list is memory of at least 16 bytes, aligned at 16, which is the list's
        // alone and whose first word `push` (here or of a bin) has written.
        self.first = unsafe { object.as_ref() }.next.get();
        Some(object.cast())
    }

    /// Puts an object in front.
    ///
    /// # Safety
    /// It is an object of the list's class that nobody uses, in memory of the heap.
    pub unsafe fn push(&mut self, object: NonNull<u8>) {
        let first = FreeObject { next: Cell::new(self.first), room: Cell::new(0) };
        // SAFETY: the caller gives the object up: at least 16 bytes, aligned at 16.
        unsafe { object.cast::<FreeObject>().write(first) };
        self.first = object.as_ptr().cast();
        self.count += 1;
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }
}

/// A core's objects of a class: see the head of this file.
///
/// Invariant: the head leads over objects that are the bin's to the bottom, and their rooms are as drawn.
#[derive(Clone, Copy)]
pub(crate) struct Bin<'a> {
    pub head: &'a Cell<NonNull<FreeObject>>,
    pub bottom: &'a FreeObject,
}

impl Bin<'_> {
    /// Takes the object on top.
    #[inline(always)]
    pub fn pop(self) -> Option<NonNull<u8>> {
        let object = self.head.get();
        // SAFETY: the head is an object of the bin, or the bottom: both may be read.
        let next = NonNull::new(unsafe { object.as_ref() }.next.get())?;
        self.head.set(next);
        Some(object.cast())
    }

    /// Puts an object on top; gives it back where there is no room.
    ///
    /// # Safety
    /// It is an object of the bin's class that nobody uses, in memory of the heap.
    #[inline(always)]
    pub unsafe fn push(self, object: NonNull<u8>) -> Result<(), NonNull<u8>> {
        let head = self.head.get();
        // SAFETY: as in `pop`.
        let Some(room) = unsafe { head.as_ref() }.room.get().checked_sub(1) else { return Err(object) };
        let top = FreeObject { next: Cell::new(head.as_ptr()), room: Cell::new(room) };
        // SAFETY: the caller gives the object up: at least 16 bytes, aligned at 16.
        unsafe { object.cast::<FreeObject>().write(top) };
        self.head.set(object.cast());
        Ok(())
    }

    /// How many it may hold.
    pub fn limit(self) -> usize {
        self.bottom.room.get()
    }

    /// How many it holds.
    pub fn held(self) -> usize {
        // SAFETY: as in `pop`.
        self.limit() - unsafe { self.head.get().as_ref() }.room.get()
    }

    /// Raises the limit.
    pub fn raise_limit(self, limit: usize) {
        let added = limit.saturating_sub(self.limit());
        self.make_room(self.held(), added);
        self.bottom.room.set(self.limit() + added);
    }

    /// Takes out what stands below the `kept` objects on top.
    pub fn take_below(self, kept: usize) -> FreeList {
        let kept = kept.min(self.held());
        let taken = self.held() - kept;
        let bottom = ptr::from_ref(self.bottom).cast_mut();
        let below = match self.make_room(kept, taken) {
            Some(last) => last.next.replace(bottom),
            None => self.head.replace(NonNull::from(self.bottom)).as_ptr(),
        };
        FreeList { first: below, count: taken }
    }

    /// Takes everything out, and the right to hold anything.
    pub fn empty(self) -> FreeList {
        let list = self.take_below(0);
        self.bottom.room.set(0);
        list
    }

    /// Adds to the room on the first `count` objects, which the bin holds at the least, and returns the last of
    /// them.
    fn make_room(&self, count: usize, added: usize) -> Option<&FreeObject> {
        let mut last = None;
        let mut object: *const FreeObject = self.head.get().as_ptr();
        for _ in 0..count {
            // SAFETY: an object of the bin, as many as the caller says there are.
            let found = unsafe { &*object };
            found.room.set(found.room.get() + added);
            object = found.next.get();
            last = Some(found);
        }
        last
    }
}
