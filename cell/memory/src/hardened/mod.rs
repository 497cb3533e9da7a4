//! A heap for tests: an allocator around another one that detects misuse of memory.
//!
//! ```text
//!  start of the inner block                 pointer that the program gets
//!  v                                        v
//!  | padding | header | guard, 16 bytes     | object ...         | guard, 16 bytes |
//!  size, alignment, number, mark  ^        aligned as requested
//! ```
//!
//! - The allocator fills a new object with [`FRESH`] and a freed one with [`FREED`], which makes reads of uninitialised
//!   or freed memory conspicuous.
//! - A freed object stays in a [`quarantine`] before its memory is reused. The allocator detects a write to it when it
//!   leaves the quarantine.
//! - A free detects a double free, a wrong size or alignment, and writes in front of the object or behind it.
//!
//! A detected misuse ends the cell with a [`Misuse`] that names the object. Undetected are reads, writes that jump over
//! the guards, and a second free long after the first, when the memory belongs to another object.
//!
//! The cost is 64 bytes per object, a lock, and two writes of each object: not for production.

mod misuse;
pub mod misuse_injection;
mod quarantine;

use self::quarantine::{FreedObject, Quarantine};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use spin::Mutex;

pub use self::misuse::{Misuse, Object};

/// The byte that fills a new object.
pub const FRESH: u8 = 0xa5;

/// The byte that fills a freed object.
pub const FREED: u8 = 0xdf;

/// The byte that fills a guard.
const GUARD: u8 = 0xfd;

/// The length of a guard, in bytes.
const GUARD_LEN: usize = 16;

/// The minimum alignment of an object, which is also that of its header.
const GRAIN: usize = 16;

/// The bytes of header and front guard.
const FRONT_LEN: usize = size_of::<Header>() + GUARD_LEN;

/// An allocator around `A` that detects misuse.
///
/// ```ignore
/// isola::app!(main, allocator: Hardened<CellHeap> = Hardened::new(CellHeap));
/// ```
pub struct Hardened<A> {
    inner: A,
    state: Mutex<State>,
}

struct State {
    /// Objects allocated so far.
    count: u64,
    quarantine: Quarantine,
}

/// The record in front of an object. `mark` is last, because the inner allocator may overwrite the start of a freed
/// block.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    /// Size and alignment as two words, not as a `Layout`: after an overwrite they need not form a valid one.
    len_bytes: usize,
    align: usize,
    /// The sequence number of the allocation.
    number: u64,
    mark: u64,
}

const LIVE: u64 = 0x6c69_7665_6f62_6a21;
const DEAD: u64 = 0x6465_6164_6f62_6a21;

const _: () = assert!(size_of::<Header>().is_multiple_of(GRAIN));

/// The position of an object within its block of the inner allocator.
#[derive(Clone, Copy)]
struct Placement {
    block: Layout,
    /// Bytes from the start of the block to the object.
    offset: usize,
}

impl Placement {
    /// Computes the position of an object; `None` if the block would be too large for a `Layout`.
    fn of(object: Layout) -> Option<Self> {
        let align = object.align().max(GRAIN);
        let offset = FRONT_LEN.checked_next_multiple_of(align)?;
        let len = offset.checked_add(object.size())?.checked_add(GUARD_LEN)?;
        Some(Self { block: Layout::from_size_align(len, align).ok()?, offset })
    }
}

impl<A> Hardened<A> {
    /// Returns an allocator that takes its memory from `inner` and keeps at most 64 KiB of freed objects in quarantine.
    pub const fn new(inner: A) -> Self {
        Self { inner, state: Mutex::new(State { count: 0, quarantine: Quarantine::new() }) }
    }
}

impl<A: GlobalAlloc> Hardened<A> {
    /// Checks all objects in quarantine and frees their memory.
    ///
    /// # Panics
    /// If an object was written to after its free.
    pub fn empty_quarantine(&self) {
        loop {
            let oldest = self.state.lock().quarantine.oldest();
            let Some(oldest) = oldest else { return };
            self.release(oldest);
        }
    }

    /// Checks a freed object, and returns its block to the inner allocator.
    fn release(&self, freed: FreedObject) {
        let Some(placement) = Placement::of(freed.layout) else { return };
        // SAFETY: the program freed the object, and the quarantine owned it since; its `layout.size()` bytes may be
        // read.
        let changed = unsafe { first_other(freed.object, freed.layout.size(), FREED) };
        if let Some(offset) = changed {
            fail(Misuse::WrittenAfterFree(freed.described(), offset));
        }
        // SAFETY: the object lies `offset` bytes behind the start of a block that `inner` allocated with this layout,
        // and the program has freed it.
        unsafe { self.inner.dealloc(freed.object.as_ptr().sub(placement.offset), placement.block) }
    }

    /// Returns the object's header and position, if it may be freed with `layout`. Otherwise ends the cell.
    ///
    /// # Safety
    /// `object` came from this allocator.
    unsafe fn check(&self, object: NonNull<u8>, layout: Layout) -> (NonNull<Header>, Placement) {
        // SAFETY: each object of this allocator has a header and a guard in front of it.
        let header = unsafe { object.sub(FRONT_LEN) }.cast::<Header>();
        // SAFETY: as above. If the object was freed and has left the quarantine, this reads the bytes of the inner
        // allocator or of the memory's next owner, which are readable memory too.
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
        // SAFETY: the front guard lies between header and object.
        let front = unsafe { first_other(object.sub(GUARD_LEN), GUARD_LEN, GUARD) };
        if let Some(offset) = front {
            fail(Misuse::WrittenBefore(described, GUARD_LEN - offset));
        }
        // SAFETY: the back guard lies behind the object, whose size was compared with the header's.
        let back = unsafe { first_other(object.add(layout.size()), GUARD_LEN, GUARD) };
        if let Some(offset) = back {
            fail(Misuse::WrittenBehind(described, offset));
        }
        match Placement::of(layout) {
            Some(placement) => (header, placement),
            None => fail(Misuse::Unknown(described)),
        }
    }

    /// Allocates a block; if there is no memory, empties the quarantine and tries again.
    fn block(&self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the block has room for at least a header, so its size is not 0.
        NonNull::new(unsafe { self.inner.alloc(layout) }).or_else(|| {
            self.empty_quarantine();
            // SAFETY: as above.
            NonNull::new(unsafe { self.inner.alloc(layout) })
        })
    }
}

/// Ends the cell with a message.
#[cold]
fn fail(misuse: Misuse) -> ! {
    panic!("{misuse}")
}

/// Returns the offset of the first byte that differs from `expected`.
///
/// # Safety
/// `len` bytes from `start` on may be read.
unsafe fn first_other(start: NonNull<u8>, len: usize, expected: u8) -> Option<usize> {
    // SAFETY: the caller guarantees that the bytes may be read.
    (0..len).find(|&offset| unsafe { start.add(offset).read() } != expected)
}

// SAFETY: each object lies within a block of the inner allocator that no other object shares, with the requested size
// and alignment (`Placement`). The block is freed once, after the object. A panic means that memory is corrupt, and
// ends the cell.
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
        // SAFETY: all writes are within the new block: header and front guard end where the object begins, as the
        // offset is at least `FRONT_LEN`, and the block ends with a guard behind the object.
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
        // The caller's pointer may have the provenance of the requested size only; `alloc` exposed that of the whole
        // block.
        let Some(object) = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(object.addr())) else {
            return;
        };
        // SAFETY: the caller guarantees that `object` came from this allocator.
        let (header, _) = unsafe { self.check(object, layout) };
        // SAFETY: the caller gives the object up, and `check` has verified its size; the header belongs to the
        // allocator.
        unsafe {
            (*header.as_ptr()).mark = DEAD;
            object.write_bytes(FREED, layout.size());
        }
        let freed = FreedObject { object, layout };
        loop {
            let evicted = self.state.lock().quarantine.put(freed);
            match evicted {
                quarantine::PutOutcome::Kept => return,
                quarantine::PutOutcome::TooLarge => return self.release(freed),
                quarantine::PutOutcome::NoRoom(oldest) => self.release(oldest),
            }
        }
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if let Some(object) = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(object.addr())) {
            // SAFETY: the caller guarantees that `object` came from this allocator. The check precedes the copy below,
            // which relies on the size.
            unsafe { self.check(object, layout) };
        }
        // SAFETY: the caller promises that the size is not 0.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both objects have at least that many bytes, and no other pointer to the new one exists.
            unsafe { ptr::copy_nonoverlapping(object, moved, layout.size().min(new_size)) };
            // SAFETY: the caller guarantees that the object is allocated with `layout`; its contents have been copied.
            unsafe { self.dealloc(object, layout) };
        }
        moved
    }
}
