//! The contents of mappings.

use crate::Errno;
use alloc::boxed::Box;
use alloc::sync::Weak;
use core::future::Future;
use core::pin::Pin;
use isola_memory::frame::Frame;

/// A future on the heap, for operations that rarely wait. It stays on the core that created it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The contents of a mapping: a file's page cache, shared memory. Its frames are shared by all mappings, and by reads and
/// writes of the file, so all of them see the same bytes.
pub trait PageSource: Send + Sync {
    /// Returns the frame of page `index`, if it is in memory. A private mapping copies it before a write.
    fn frame(&self, index: u64) -> Option<Frame>;

    /// Calls `see` with the frames of pages that are in memory, from `first` on, below `end`, in ascending order. `see`
    /// must not use the source.
    fn frames(&self, first: u64, end: u64, see: &mut dyn FnMut(u64, &Frame)) {
        for index in first..end {
            if let Some(frame) = self.frame(index) {
                see(index, &frame);
            }
        }
    }

    /// Reads the frame of page `index` into memory and returns it.
    ///
    /// The future's error is [`Errno::EFAULT`] behind the end of the object (the program gets SIGBUS), otherwise that of
    /// the device or [`Errno::ENOMEM`].
    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>>;

    /// Records that a shared mapping may have written to page `index`.
    fn mark_dirty(&self, index: u64);

    /// Writes the dirty pages from `first` on, `count` pages, to where they are permanent, if there is such a place
    /// (`msync`).
    fn sync(&self, first: u64, count: u64) -> BoxFuture<'_, Result<(), Errno>>;

    /// Returns the path of the object, for `/proc/PID/maps`.
    fn path(&self) -> alloc::vec::Vec<u8>;

    /// Returns the device and inode number, for `/proc/PID/maps` and for futexes in shared memory. No two objects that
    /// exist have the same.
    fn identity(&self) -> (u64, u64);

    /// Returns whether the object is memory without a permanent place: its pages count as shared memory, and a shared
    /// mapping need not announce which pages it wrote.
    fn is_memory(&self) -> bool {
        false
    }

    /// Removes `count` pages from `first` on from the object: they read as zeros (`MADV_REMOVE`).
    ///
    /// The future's error is [`Errno::EOPNOTSUPP`] if the object cannot.
    fn punch(&self, _first: u64, _count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        Box::pin(core::future::ready(Err(Errno::EOPNOTSUPP)))
    }

    /// Records that a process maps the object: it is called when pages of the object go away. An object whose size never
    /// shrinks ignores it.
    fn attach(&self, _mapper: Weak<dyn Mapper>) {}

    /// Returns whether shared mappings may permit writes: not if the object is sealed.
    fn permits_shared_writes(&self) -> bool {
        true
    }
}

/// A process that maps an object.
pub trait Mapper: Send + Sync {
    /// Unmaps the pages of the object with this identity from page `first` on, `count` pages (to the end if it is
    /// [`u64::MAX`]): after a truncation, or a hole. Private copies of pages stay if `keep_copies`. The future ends when no
    /// program can access the frames.
    ///
    /// The caller must have removed the pages from the object, and must hold no lock.
    fn forget_pages(
        &self,
        identity: (u64, u64),
        first: u64,
        count: u64,
        keep_copies: bool,
    ) -> BoxFuture<'_, ()>;

    /// Returns whether a shared mapping of the object with this identity permits writes, now or after `mprotect`.
    fn may_write(&self, identity: (u64, u64)) -> bool;
}
