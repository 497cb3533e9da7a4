//! Frames: pages of memory that programs in user mode have mapped, with a count of their references.
//!
//! A program on another core can write to a frame at any time, and so can another core of the cell. Its bytes are therefore
//! only accessed by the atomic copies of `isola-atomic-memcpy` and as atomic words, and never referenced.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use isola_atomic_memcpy as atomic;

/// The size of a frame, in bytes.
pub const FRAME_SIZE: usize = 4096;

/// A reference to a frame. Clones refer to the same memory; it is freed with the last of them.
#[derive(Clone)]
pub struct Frame(Arc<OwnedPage>);

struct OwnedPage {
    bytes: Box<FrameBytes>,
    /// The owners in the lower half, see [`Frame::owners`], and the account in the upper, see [`Frame::account`].
    owners: AtomicU32,
    /// See [`Frame::pin`].
    pins: AtomicU32,
}

/// The part of a frame's word that counts owners.
const OWNERS: u32 = 0xffff;

#[repr(C, align(4096))]
struct FrameBytes(UnsafeCell<[u8; FRAME_SIZE]>);

// SAFETY: once a frame is complete, its bytes are accessed by atomic copies and operations only, see `Frame`.
unsafe impl Sync for FrameBytes {}

impl Frame {
    /// Allocates a frame of zeros.
    pub fn zeroed() -> Self {
        // SAFETY: zero bytes are a value of the type.
        let bytes = unsafe { Box::<FrameBytes>::new_zeroed().assume_init() };
        Self(Arc::new(OwnedPage { bytes, owners: AtomicU32::new(0), pins: AtomicU32::new(0) }))
    }

    /// Allocates a frame of zeros, or returns `None` if no page is free. For frames whose number a program decides.
    pub fn try_zeroed() -> Option<Self> {
        let layout = core::alloc::Layout::new::<FrameBytes>();
        // SAFETY: the layout has a size.
        let bytes = NonNull::new(unsafe { alloc::alloc::alloc_zeroed(layout) })?;
        // SAFETY: allocated with the type's layout by the allocator of boxes, and zero bytes are a value of the type.
        let bytes = unsafe { Box::from_raw(bytes.cast::<FrameBytes>().as_ptr()) };
        Some(Self(Arc::new(OwnedPage { bytes, owners: AtomicU32::new(0), pins: AtomicU32::new(0) })))
    }

    /// Allocates a frame that begins with these bytes. The others are zero.
    ///
    /// # Panics
    /// If they do not fit into a frame.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let rest = FRAME_SIZE.checked_sub(bytes.len()).expect("the bytes fit into a frame");
        let mut page = Box::<FrameBytes>::new_uninit();
        let start = page.as_mut_ptr().cast::<u8>();
        // SAFETY: the new page has `FRAME_SIZE` bytes and no other user; `bytes.len() + rest` is that length.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            core::ptr::write_bytes(start.add(bytes.len()), 0, rest);
        }
        // SAFETY: all its bytes were written.
        let bytes = unsafe { page.assume_init() };
        Self(Arc::new(OwnedPage { bytes, owners: AtomicU32::new(0), pins: AtomicU32::new(0) }))
    }

    /// Allocates a copy of the frame, or returns `None` as [`Self::try_zeroed`] does.
    pub fn try_duplicate(&self) -> Option<Self> {
        let layout = core::alloc::Layout::new::<FrameBytes>();
        // SAFETY: the layout has a size.
        let bytes = NonNull::new(unsafe { alloc::alloc::alloc(layout) })?;
        // SAFETY: two pages, each of this length; the new one has no other user, and all accesses to the other are atomic. A
        // program may write to it meanwhile: the copy then has some of its bytes from before and others from after.
        unsafe { atomic::copy_nonoverlapping(self.bytes(), bytes.as_ptr(), FRAME_SIZE) };
        // SAFETY: allocated with the type's layout by the allocator of boxes, and all bytes were written.
        let bytes = unsafe { Box::from_raw(bytes.cast::<FrameBytes>().as_ptr()) };
        Some(Self(Arc::new(OwnedPage { bytes, owners: AtomicU32::new(0), pins: AtomicU32::new(0) })))
    }

    /// Makes the reference a pointer, for [`Self::from_raw`].
    pub fn into_raw(self) -> NonNull<()> {
        // SAFETY: the pointer of an `Arc` is not null.
        unsafe { NonNull::new_unchecked(Arc::into_raw(self.0).cast_mut().cast()) }
    }

    /// Makes a pointer a reference again.
    ///
    /// # Safety
    /// The pointer must come from [`Self::into_raw`], each call of which permits one of this function.
    pub unsafe fn from_raw(pointer: NonNull<()>) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Arc::from_raw(pointer.as_ptr().cast()) })
    }

    /// Returns whether there are other references to the frame.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns whether both refer to the same frame.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the number of private mappings that own the frame. A process that is the only owner may write; with several
    /// owners, the frame is copied before a write. 0 for the frame of a file, which its page cache owns.
    ///
    /// The count is that of [`Self::add_owner`] and [`Self::remove_owner`], independent of the references to the frame.
    pub fn owners(&self) -> u32 {
        self.0.owners.load(Ordering::SeqCst) & OWNERS
    }

    /// Counts an owner more. There are fewer processes than 65,535.
    pub fn add_owner(&self) {
        self.0.owners.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of the account to which the frame is charged; 0 at first.
    pub fn account(&self) -> u16 {
        (self.0.owners.load(Ordering::Relaxed) >> 16) as u16
    }

    /// Records the account to which the frame is charged. Only once, by the frame's creator.
    pub fn set_account(&self, account: u16) {
        self.0.owners.fetch_or(u32::from(account) << 16, Ordering::Relaxed);
    }

    /// Counts an owner less. Returns whether it was the last one.
    ///
    /// # Panics
    /// If the frame has no owner.
    pub fn remove_owner(&self) -> bool {
        let before = self.0.owners.fetch_sub(1, Ordering::SeqCst) & OWNERS;
        assert!(before > 0, "a frame without owners loses one");
        before == 1
    }

    /// Counts a call more that will write to the frame, or read from it. A `fork` meanwhile leaves a pinned frame to the
    /// process of the call, and gives a copy to the child.
    pub fn pin(&self) {
        self.0.pins.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts such a call less.
    ///
    /// # Panics
    /// If the frame is not pinned.
    pub fn unpin(&self) {
        let before = self.0.pins.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a frame without pins loses one");
    }

    /// Returns whether a call will write to the frame, or read from it.
    pub fn is_pinned(&self) -> bool {
        self.0.pins.load(Ordering::SeqCst) > 0
    }

    /// Returns the address by which the platform maps the frame.
    pub fn address(&self) -> NonNull<u8> {
        NonNull::from(&*self.0.bytes).cast()
    }

    /// Copies bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not all within the frame.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        // SAFETY: within the frame, as checked, all accesses to which are atomic; `bytes` are other memory, as no reference to
        // a frame's exists. A program may write meanwhile: each byte is old or new.
        unsafe { atomic::copy_nonoverlapping(self.bytes().add(offset), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies bytes to `offset`.
    ///
    /// # Panics
    /// If they do not all fit into the frame.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: as in `read`.
        unsafe { atomic::copy_nonoverlapping(bytes.as_ptr(), self.bytes().add(offset), bytes.len()) };
    }

    /// Copies `len` bytes from `source_offset` of another frame to `offset`. It may be the same frame.
    ///
    /// # Panics
    /// If they are not all within the frames.
    pub fn copy_from(&self, offset: usize, source: &Self, source_offset: usize, len: usize) {
        self.check(offset, len);
        source.check(source_offset, len);
        // SAFETY: within both frames, as checked, all accesses to which are atomic; they may overlap. A program may write
        // meanwhile: each byte is old or new.
        unsafe { atomic::copy(source.bytes().add(source_offset), self.bytes().add(offset), len) };
    }

    /// Sets `len` bytes from `offset` on to zero.
    ///
    /// # Panics
    /// If they are not all within the frame.
    pub fn clear(&self, offset: usize, len: usize) {
        self.check(offset, len);
        // SAFETY: within the frame, as checked, all accesses to which are atomic.
        unsafe { atomic::clear(self.bytes().add(offset), len) };
    }

    /// Loads the word of 32 bits at `offset`, a multiple of 4, for a futex.
    ///
    /// # Panics
    /// If the offset is not that of a word.
    pub fn load(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::SeqCst)
    }

    /// Stores the word of 32 bits at `offset`, a multiple of 4, after all earlier accesses: for rings that programs share.
    ///
    /// # Panics
    /// If the offset is not that of a word.
    pub fn store(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::SeqCst);
    }

    /// Replaces the word at `offset` by `new` if it is `current`. Returns the word before.
    ///
    /// # Errors
    /// The word, if it is not `current`.
    ///
    /// # Panics
    /// If the offset is not that of a word.
    pub fn compare_exchange(&self, offset: usize, current: u32, new: u32) -> Result<u32, u32> {
        self.word(offset).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < FRAME_SIZE, "{offset} is not the offset of a word");
        // SAFETY: aligned and within the frame, as checked; it lives as long as the reference, and other code accesses it
        // by copies, as a program on another core does.
        unsafe { AtomicU32::from_ptr(self.bytes().add(offset).cast()) }
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= FRAME_SIZE),
            "{len} bytes at {offset} are not within a frame"
        );
    }

    fn bytes(&self) -> *mut u8 {
        self.0.bytes.0.get().cast()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({:p})", self.address())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn copy_of(frame: &Frame) -> Frame {
        frame.try_duplicate().expect("a page is free")
    }

    #[test]
    fn a_frame_of_bytes_has_zeros_behind_them() {
        for len in [0, 1, 100, FRAME_SIZE] {
            // Freed memory that is not zero, which the next frame may get.
            drop(Frame::of_bytes(&[0xff; FRAME_SIZE]));
            let frame = Frame::of_bytes(&alloc::vec![7; len]);
            let mut bytes = [1; FRAME_SIZE];
            frame.read(0, &mut bytes);
            assert!(bytes[..len].iter().all(|byte| *byte == 7) && bytes[len..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    #[should_panic(expected = "the bytes fit into a frame")]
    fn a_frame_of_more_bytes_than_a_page_is_refused() {
        drop(Frame::of_bytes(&[0; FRAME_SIZE + 1]));
    }

    #[test]
    fn clones_share_their_bytes_and_duplicates_do_not() {
        let frame = Frame::zeroed();
        assert!(frame.address().addr().get().is_multiple_of(FRAME_SIZE) && !frame.is_shared());
        let (clone, duplicate) = (frame.clone(), copy_of(&frame));
        assert!(frame.is_shared() && clone.is(&frame) && !duplicate.is(&frame));
        clone.write(FRAME_SIZE - 3, b"abc");
        let mut bytes = [0; 4];
        frame.read(FRAME_SIZE - 4, &mut bytes);
        assert_eq!(&bytes, b"\0abc");
        duplicate.read(FRAME_SIZE - 4, &mut bytes);
        assert_eq!(bytes, [0; 4]);
        let copy = copy_of(&frame);
        assert!(copy.address().addr().get().is_multiple_of(FRAME_SIZE));
        copy.read(FRAME_SIZE - 4, &mut bytes);
        assert_eq!(&bytes, b"\0abc");
        clone.clear(FRAME_SIZE - 2, 1);
        assert_eq!(frame.load(FRAME_SIZE - 4), u32::from_le_bytes(*b"\0a\0c"));
        assert_eq!(frame.compare_exchange(8, 0, 7), Ok(0));
        assert_eq!(frame.compare_exchange(8, 0, 8), Err(7));
        clone.store(8, 9);
        assert_eq!(frame.load(8), 9);
    }

    #[test]
    fn owners_are_counted_independently_of_references_and_not_copied() {
        let frame = Frame::zeroed();
        let clone = frame.clone();
        assert_eq!(frame.owners(), 0);
        frame.add_owner();
        clone.add_owner();
        assert_eq!((clone.owners(), copy_of(&clone).owners()), (2, 0));
        frame.set_account(0xffff);
        assert_eq!((clone.owners(), clone.account(), copy_of(&clone).account()), (2, 0xffff, 0));
        assert!(!clone.remove_owner() && frame.remove_owner());
        assert_eq!((clone.owners(), clone.account()), (0, 0xffff));
        frame.pin();
        assert!(clone.is_pinned() && !copy_of(&clone).is_pinned());
        clone.unpin();
        assert!(!frame.is_pinned());
    }

    #[test]
    fn bytes_are_copied_between_frames_and_within_one() {
        let (frame, other) = (Frame::zeroed(), Frame::zeroed());
        frame.write(10, b"abcdef");
        other.copy_from(FRAME_SIZE - 3, &frame, 11, 3);
        frame.copy_from(12, &frame, 10, 6);
        let (mut bytes, mut of_other) = ([0; 8], [0; 3]);
        frame.read(10, &mut bytes);
        other.read(FRAME_SIZE - 3, &mut of_other);
        assert_eq!((&bytes, &of_other), (b"ababcdef", b"bcd"));
        frame.copy_from(9, &frame, 11, 7);
        frame.read(9, &mut bytes);
        assert_eq!(&bytes, b"babcdefe");
    }

    #[test]
    fn a_new_frame_has_zeros_in_place_of_former_contents() {
        for create in [Frame::zeroed, || Frame::try_zeroed().expect("a page is free")] {
            drop(Frame::of_bytes(&[0xff; FRAME_SIZE]));
            let mut bytes = [1; FRAME_SIZE];
            create().read(0, &mut bytes);
            assert_eq!(bytes, [0; FRAME_SIZE]);
        }
    }

    #[test]
    fn clearing_changes_no_bytes_beside_its_own() {
        let frame = Frame::of_bytes(&[7; FRAME_SIZE]);
        frame.clear(100, 900);
        frame.clear(FRAME_SIZE, 0);
        let (mut bytes, mut expected) = ([0; FRAME_SIZE], [7; FRAME_SIZE]);
        frame.read(0, &mut bytes);
        expected[100..1000].fill(0);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_reference_as_a_pointer_stays_a_reference() {
        let frame = Frame::zeroed();
        let pointer = frame.clone().into_raw();
        assert!(frame.is_shared());
        // SAFETY: made above, and used once.
        let back = unsafe { Frame::from_raw(pointer) };
        assert!(back.is(&frame));
        drop(back);
        assert!(!frame.is_shared());
    }

    #[test]
    fn no_access_leaves_the_frame() {
        let refuses = |access: &dyn Fn(&Frame)| {
            let frame = Frame::zeroed();
            std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| access(&frame))).is_err()
        };
        for (offset, len) in [(FRAME_SIZE - 1, 2), (FRAME_SIZE, 1), (FRAME_SIZE + 1, 0), (usize::MAX, 2)] {
            assert!(refuses(&|frame| frame.write(offset, &[0; 2][..len])), "a write at {offset}");
            assert!(refuses(&|frame| frame.read(offset, &mut [0; 2][..len])), "a read at {offset}");
            assert!(refuses(&|frame| frame.clear(offset, len)), "a clear at {offset}");
            assert!(refuses(&|frame| frame.copy_from(offset, frame, 0, len)), "a copy to {offset}");
            assert!(refuses(&|frame| frame.copy_from(0, frame, offset, len)), "a copy from {offset}");
        }
        for offset in [2, FRAME_SIZE - 1, FRAME_SIZE, FRAME_SIZE + 4] {
            assert!(refuses(&|frame| assert_eq!(frame.load(offset), 0)), "a load at {offset}");
            assert!(refuses(&|frame| frame.store(offset, 1)), "a store at {offset}");
            assert!(
                refuses(&|frame| assert_eq!(frame.compare_exchange(offset, 0, 1), Ok(0))),
                "an exchange at {offset}"
            );
        }
        assert!(!refuses(&|frame| frame.store(FRAME_SIZE - 4, frame.load(0))));
    }

    #[test]
    #[should_panic(expected = "a frame without owners loses one")]
    fn an_owner_that_does_not_exist_cannot_leave() {
        let _ = Frame::zeroed().remove_owner();
    }

    #[test]
    #[should_panic(expected = "a frame without pins loses one")]
    fn a_pin_that_does_not_exist_cannot_be_removed() {
        Frame::zeroed().unpin();
    }
}
