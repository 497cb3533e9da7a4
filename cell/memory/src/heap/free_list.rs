//! Free objects of a class, linked by their first word.
//!
//! A [`FreeList`] transfers a batch. A [`Bin`], the list in a core's cache, has a limit, and each of its objects
//! records how many more objects may be pushed on top of it:
//!
//! ```text
//!  head ->  object     ->  object     ->  bottom (of the bin, no object)
//!           room: 61       room: 62       room: 63, the limit
//! ```
//!
//! So a pop is a load of the head, a load of the next pointer, and a store; a push is a load of the head, a load of its
//! room, and three stores. There is no separate count. "Empty" and "full" are one test each: the bottom has no next
//! object, and the room is 0.

use core::cell::Cell;
use core::ptr::{self, NonNull};

/// The first words of a free object.
#[repr(C)]
pub(crate) struct FreeObject {
    next: Cell<*mut FreeObject>,
    /// In a bin: how many more objects may be on top of this one.
    room: Cell<usize>,
}

const _: () = assert!(size_of::<FreeObject>() <= super::class::GRAIN);

impl FreeObject {
    /// Returns the bottom of a bin with limit 0.
    pub const fn bottom() -> Self {
        Self { next: Cell::new(ptr::null_mut()), room: Cell::new(0) }
    }
}

/// A list of free objects of one class.
///
/// The list owns its objects: `push` takes ownership, `pop` passes it to the caller.
pub(crate) struct FreeList {
    first: *mut FreeObject,
    count: usize,
}

impl FreeList {
    /// Returns an empty list.
    pub const fn new() -> Self {
        Self { first: ptr::null_mut(), count: 0 }
    }

    /// Removes the first object.
    pub fn pop(&mut self) -> Option<NonNull<u8>> {
        self.count = self.count.checked_sub(1)?;
        let object = NonNull::new(self.first)?;
        // SAFETY: an object in the list is memory of at least 16 bytes, aligned at 16, that only the list owns and
        // whose first word a `push` (of this list or of a bin) has written.
        self.first = unsafe { object.as_ref() }.next.get();
        Some(object.cast())
    }

    /// Adds an object in front.
    ///
    /// # Safety
    /// It is an unused object of the list's class, in memory of the heap.
    pub unsafe fn push(&mut self, object: NonNull<u8>) {
        let first = FreeObject { next: Cell::new(self.first), room: Cell::new(0) };
        // SAFETY: the caller gives up the object, which has at least 16 bytes and is aligned at 16.
        unsafe { object.cast::<FreeObject>().write(first) };
        self.first = object.as_ptr().cast();
        self.count += 1;
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.count
    }
}

/// A core's free objects of a class; the head of this file describes the structure.
///
/// Invariant: the list from the head consists of objects that the bin owns and ends at the bottom; each `room` is one
/// less than that of the next.
#[derive(Clone, Copy)]
pub(crate) struct Bin<'a> {
    pub head: &'a Cell<NonNull<FreeObject>>,
    pub bottom: &'a FreeObject,
}

impl Bin<'_> {
    /// Removes the object on top.
    #[inline(always)]
    pub fn pop(self) -> Option<NonNull<u8>> {
        let object = self.head.get();
        // SAFETY: the head is an object of the bin or the bottom; both may be read.
        let next = NonNull::new(unsafe { object.as_ref() }.next.get())?;
        self.head.set(next);
        Some(object.cast())
    }

    /// Adds an object on top; returns it as the error if there is no room.
    ///
    /// # Safety
    /// It is an unused object of the bin's class, in memory of the heap.
    #[inline(always)]
    pub unsafe fn push(self, object: NonNull<u8>) -> Result<(), NonNull<u8>> {
        let head = self.head.get();
        // SAFETY: as in `pop`.
        let Some(room) = unsafe { head.as_ref() }.room.get().checked_sub(1) else { return Err(object) };
        let top = FreeObject { next: Cell::new(head.as_ptr()), room: Cell::new(room) };
        // SAFETY: the caller gives up the object, which has at least 16 bytes and is aligned at 16.
        unsafe { object.cast::<FreeObject>().write(top) };
        self.head.set(object.cast());
        Ok(())
    }

    /// Returns the maximum number of objects.
    pub fn limit(self) -> usize {
        self.bottom.room.get()
    }

    /// Returns the number of objects.
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

    /// Removes all objects below the top `kept`.
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

    /// Removes all objects and sets the limit to 0.
    pub fn empty(self) -> FreeList {
        let list = self.take_below(0);
        self.bottom.room.set(0);
        list
    }

    /// Adds `added` to the room of the top `count` objects, of which the bin has at least as many; returns the last of
    /// them.
    fn make_room(&self, count: usize, added: usize) -> Option<&FreeObject> {
        let mut last = None;
        let mut object: *const FreeObject = self.head.get().as_ptr();
        for _ in 0..count {
            // SAFETY: an object of the bin, as the caller guarantees that it has at least `count`.
            let found = unsafe { &*object };
            found.room.set(found.room.get() + added);
            object = found.next.get();
            last = Some(found);
        }
        last
    }
}
