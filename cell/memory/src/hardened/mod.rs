//! A heap for tests: an allocator around another one, that finds what a program does wrong with its memory.
//!
//! ```text
//!  from the inner allocator                 what the program has
//!  v                                        v
//!  | padding | header | guard, 16 bytes     | object ...         | guard, 16 bytes |
//!  size, alignment, number, mark  ^        aligned as asked
//! ```
//!
//! - A new object is full of [`FRESH`], a freed one of [`FREED`]: what is read before it was written, or after it
//!   was freed, is conspicuous.
//! - A freed object stays in a [`quarantine`] for a while before its memory is used again; one that was
//!   written to meanwhile is found when it leaves.
//! - Freeing twice, freeing with another size or alignment than the object has, and writing in front of it or
//!   behind it are found when it is freed.
//!
//! What is found ends the cell, with a [`Misuse`] that names the object. What is not found: reads, writes that
//! jump over the guards, and a second free long after the first, when the memory is another object's.
//!
//! It costs 64 bytes an object, a lock, and writing every object twice: not for service.

pub mod misdeed;
mod misuse;
mod quarantine;

use self::quarantine::{Freed, Quarantine};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use spin::Mutex;

pub use self::misuse::{Misuse, Object};

/// What a new object is full of.
pub const FRESH: u8 = 0xa5;

/// What a freed object is full of.
pub const FREED: u8 = 0xdf;

/// What stands around objects.
const GUARD: u8 = 0xfd;

/// Bytes of a guard.
const GUARD_LEN: usize = 16;

/// Objects and what is in front of them are aligned at this at the least, so that a header is, too.
const GRAIN: usize = 16;

/// Bytes from the end of the padding to the object.
const FRONT_LEN: usize = size_of::<Header>() + GUARD_LEN;

/// An allocator around `A` that finds misuse.
///
/// ```ignore
/// isola::app!(main, allocator: Hardened<CellHeap> = Hardened::new(CellHeap));
/// ```
pub struct Hardened<A> {
    inner: A,
    state: Mutex<State>,
}

struct State {
    /// Objects made so far.
    count: u64,
    quarantine: Quarantine,
}

/// What is known of an object. The inner allocator may use the start of what it has back; the mark is last.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    /// Not a `Layout`: what the program overwrites need not be one.
    len_bytes: usize,
    align: usize,
    /// The how-manieth object it is.
    number: u64,
    mark: u64,
}

const LIVE: u64 = 0x6c69_7665_6f62_6a21;
const DEAD: u64 = 0x6465_6164_6f62_6a21;

const _: () = assert!(size_of::<Header>().is_multiple_of(GRAIN));

/// Where an object stands in the block that the inner allocator has given for it.
#[derive(Clone, Copy)]
struct Placement {
    block: Layout,
    /// From the start of the block to the object.
    offset: usize,
}

impl Placement {
    /// `None` where there is no block so large.
    fn of(object: Layout) -> Option<Self> {
        let align = object.align().max(GRAIN);
        let offset = FRONT_LEN.checked_next_multiple_of(align)?;
        let len = offset.checked_add(object.size())?.checked_add(GUARD_LEN)?;
        Some(Self { block: Layout::from_size_align(len, align).ok()?, offset })
    }
}

impl<A> Hardened<A> {
    /// An allocator that takes its memory from `inner`, and keeps at most 64 KiB of freed objects back.
    pub const fn new(inner: A) -> Self {
        Self { inner, state: Mutex::new(State { count: 0, quarantine: Quarantine::new() }) }
    }
}

impl<A: GlobalAlloc> Hardened<A> {
    /// Looks whether all freed objects that are kept back are as they were left, and gives their memory back.
    ///
    /// # Panics
    /// Where one was written to.
    pub fn empty_quarantine(&self) {
        loop {
            let oldest = self.state.lock().quarantine.oldest();
            let Some(oldest) = oldest else { return };
            self.release(oldest);
        }
    }

    /// Gives the memory of a freed object back, if it is as it was left.
    fn release(&self, freed: Freed) {
        let Some(placement) = Placement::of(freed.layout) else { return };
        // SAFETY: the object was the program's until it was freed, and is nobody's since.
        let changed = unsafe { first_other(freed.object, freed.layout.size(), FREED) };
        if let Some(offset) = changed {
            fail(Misuse::WrittenAfterFree(freed.described(), offset));
        }
        // SAFETY: the block begins `offset` before the object, came from there with that layout, and its object is
        // freed.
        unsafe { self.inner.dealloc(freed.object.as_ptr().sub(placement.offset), placement.block) }
    }

    /// The object's header, and where it stands, if it may be freed with `layout`.
    ///
    /// # Safety
    /// `object` came from this allocator.
    unsafe fn check(&self, object: NonNull<u8>, layout: Layout) -> (NonNull<Header>, Placement) {
        // SAFETY: in front of every object of this allocator stand a header and a guard.
        let header = unsafe { object.sub(FRONT_LEN) }.cast::<Header>();
        // SAFETY: as above; where the object is freed already, and its memory has gone back, this reads what the inner
        // allocator or the next owner has there: memory all the same.
        let found = unsafe { header.read() };
        let address = object.addr().get();
        let described = Object { address, layout, number: Some(found.number) };
        match found.mark {
            LIVE => {}
            DEAD => fail(Misuse::FreedTwice(described)),
            _ => fail(Misuse::Unknown(Object { number: None, ..described })),
        }
        match Layout::from_size_align(found.len_bytes, found.align) {
            Ok(real) if real == layout => {}
            Ok(real) => fail(Misuse::OtherLayout(Object { layout: real, ..described }, layout)),
            Err(_) => fail(Misuse::WrittenBefore(described, GUARD_LEN + 1)),
        }
        // SAFETY: the guard stands between header and object.
        let front = unsafe { first_other(object.sub(GUARD_LEN), GUARD_LEN, GUARD) };
        if let Some(offset) = front {
            fail(Misuse::WrittenBefore(described, GUARD_LEN - offset));
        }
        // SAFETY: the other guard stands behind the object, whose size has been compared.
        let back = unsafe { first_other(object.add(layout.size()), GUARD_LEN, GUARD) };
        if let Some(offset) = back {
            fail(Misuse::WrittenBehind(described, offset));
        }
        match Placement::of(layout) {
            Some(placement) => (header, placement),
            None => fail(Misuse::Unknown(described)),
        }
    }

    /// A block; where there is no memory, what is kept back makes room.
    fn block(&self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the block has room for a header at the least, so that its size is not 0.
        NonNull::new(unsafe { self.inner.alloc(layout) }).or_else(|| {
            self.empty_quarantine();
            // SAFETY: as above.
            NonNull::new(unsafe { self.inner.alloc(layout) })
        })
    }
}

/// Ends the cell.
#[cold]
fn fail(misuse: Misuse) -> ! {
    panic!("{misuse}")
}

/// Where the first byte stands that is not `expected`.
///
/// # Safety
/// `len` bytes from `start` on may be read.
unsafe fn first_other(start: NonNull<u8>, len: usize, expected: u8) -> Option<usize> {
    // SAFETY: the caller's promise.
    (0..len).find(|&offset| unsafe { start.add(offset).read() } != expected)
}

// SAFETY: an object lies within a block of the inner allocator that is its own, is as large and aligned as asked for
// (`Placement`), and its block goes back once, after it was freed. Panics mean that memory is corrupt, and end a cell.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Hardened<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(placement) = Placement::of(layout) else { return ptr::null_mut() };
        let Some(block) = self.block(placement.block) else { return ptr::null_mut() };
        let number = {
            let mut state = self.state.lock();
            state.count += 1;
            state.count
        };
        let header = Header { len_bytes: layout.size(), align: layout.align(), number, mark: LIVE };
        // SAFETY: all is within the new block: header and guard end where the object begins, as the offset is
        // at least `FRONT_LEN`, and the block ends a guard behind the object.
        unsafe {
            block.as_ptr().expose_provenance();
            let object = block.add(placement.offset);
            object.sub(FRONT_LEN).cast::<Header>().write(header);
            object.sub(GUARD_LEN).write_bytes(GUARD, GUARD_LEN);
            object.write_bytes(FRESH, layout.size());
            object.add(layout.size()).write_bytes(GUARD, GUARD_LEN);
            object.as_ptr()
        }
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        // What the program was given may have been narrowed to what it asked for; `alloc` has exposed the whole.
        let Some(object) = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(object.addr())) else {
            return;
        };
        // SAFETY: the caller's promise.
        let (header, _) = unsafe { self.check(object, layout) };
        // SAFETY: the object is the caller's, who gives it up; the header is the allocator's.
        unsafe {
            (*header.as_ptr()).mark = DEAD;
            object.write_bytes(FREED, layout.size());
        }
        let freed = Freed { object, layout };
        loop {
            let evicted = self.state.lock().quarantine.put(freed);
            match evicted {
                quarantine::Put::Kept => return,
                quarantine::Put::TooLarge => return self.release(freed),
                quarantine::Put::NoRoom(oldest) => self.release(oldest),
            }
        }
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if let Some(object) = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(object.addr())) {
            // Before anything is copied of a size that it does not have.
            // SAFETY: the caller's promise.
            unsafe { self.check(object, layout) };
        }
        // SAFETY: the caller promises that the size is not 0.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both are at least that large, and the new one is nobody else's.
            unsafe { ptr::copy_nonoverlapping(object, moved, layout.size().min(new_size)) };
            // SAFETY: the caller's promise; what was in it has moved.
            unsafe { self.dealloc(object, layout) };
        }
        moved
    }
}
