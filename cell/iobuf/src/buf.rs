//! A contiguous buffer: [`IoBufMut`] owns it, [`IoBuf`] is a shared view of it.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, Range};
use triomphe::{Arc, UniqueArc};

#[derive(Clone)]
enum Storage {
    Shared(Arc<[u8]>),
    Static(&'static [u8]),
}

/// A shared, read-only view of bytes.
#[derive(Clone)]
pub struct IoBuf {
    storage: Storage,
    start: u32,
    end: u32,
}

/// Converts a position to its stored form. Views are moved on every packet, so they are small.
const fn index(len: usize) -> u32 {
    assert!(len <= u32::MAX as usize, "a buffer is shorter than 4 GiB");
    len as u32
}

impl IoBuf {
    /// Returns a view of bytes in the image.
    ///
    /// # Panics
    /// Panics for 4 GiB or more, as all buffers do.
    pub const fn from_static(bytes: &'static [u8]) -> Self {
        Self { storage: Storage::Static(bytes), start: 0, end: index(bytes.len()) }
    }

    /// Returns a view of a new copy of `bytes`. Not for data paths.
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        Self { storage: Storage::Shared(Arc::from(bytes)), start: 0, end: index(bytes.len()) }
    }

    /// Returns the number of bytes. Unlike the length of the slice, this checks no bounds.
    #[inline]
    pub const fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// Returns the address of the first byte. Like [`Self::len`], this checks no bounds.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        let bytes: &[u8] = match &self.storage {
            Storage::Shared(bytes) => bytes,
            Storage::Static(bytes) => bytes,
        };
        bytes.as_ptr().wrapping_add(self.start as usize)
    }

    /// Returns a view of `range` of this view, in the same memory.
    ///
    /// Returns `None` if `range` is not within the view.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(Self {
            storage: self.storage.clone(),
            start: self.start + range.start as u32,
            end: self.start + range.end as u32,
        })
    }

    /// Removes the first `count` bytes from the view, or all if it is shorter.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.start += count.min(self.len()) as u32;
    }

    /// Shortens the view to its first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.end = self.start + len.min(self.len()) as u32;
    }

    /// Splits the first `count` bytes off and returns them as a view.
    ///
    /// Returns `None`, and changes nothing, if the view is shorter.
    #[inline]
    pub fn split_to(&mut self, count: usize) -> Option<Self> {
        let front = self.slice(0..count)?;
        self.start += count as u32;
        Some(front)
    }

    /// Returns the length of the memory that this view keeps alive, in bytes: at least `len()`, or 0 for bytes in the
    /// image. A holder of many small views of large buffers has to count this against its memory limit.
    #[inline]
    pub fn storage_len(&self) -> usize {
        match &self.storage {
            Storage::Shared(bytes) => bytes.len(),
            Storage::Static(_) => 0,
        }
    }

    /// Returns the memory as its sole owner.
    ///
    /// # Errors
    /// Returns the view if the memory has other views, or is in the image.
    pub fn try_into_mut(self) -> Result<IoBufMut, Self> {
        let (start, end) = (self.start, self.end);
        match self.storage {
            Storage::Shared(bytes) => match Arc::try_unique(bytes) {
                Ok(bytes) => Ok(IoBufMut { bytes, start, end }),
                Err(bytes) => Err(Self { storage: Storage::Shared(bytes), start, end }),
            },
            storage => Err(Self { storage, start, end }),
        }
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes: &[u8] = match &self.storage {
            Storage::Shared(bytes) => bytes,
            Storage::Static(bytes) => bytes,
        };
        &bytes[self.start as usize..self.end as usize]
    }
}

impl From<Vec<u8>> for IoBuf {
    /// Copies the bytes into reference-counted memory. For set-up and tests; data paths fill an [`IoBufMut`].
    fn from(bytes: Vec<u8>) -> Self {
        Self::copy_from_slice(&bytes)
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len())
    }
}

impl PartialEq for IoBuf {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for IoBuf {}

/// The sole owner of a buffer: `headroom | data | tailroom`.
pub struct IoBufMut {
    bytes: UniqueArc<[u8]>,
    start: u32,
    end: u32,
}

/// Returns zeroed memory. Up to a page of zeros is copied from the image, and more of them from new zeroed memory: an
/// iterator would write byte by byte.
fn zeros(len: usize) -> UniqueArc<[u8]> {
    static ZEROS: [u8; 4096] = [0; 4096];
    let zeros = ZEROS.get(..len).map_or_else(|| Arc::from(vec![0; len]), Arc::from);
    // The only reference was made just now.
    Arc::try_unique(zeros).unwrap_or_else(|_| core::iter::repeat_n(0, len).collect())
}

impl IoBufMut {
    /// Returns an empty buffer with `headroom` bytes before and `tailroom` bytes after the data.
    pub fn with_room(headroom: usize, tailroom: usize) -> Self {
        let (start, _) = (index(headroom), index(headroom + tailroom));
        Self { bytes: zeros(headroom + tailroom), start, end: start }
    }

    /// Returns the number of bytes of data. Unlike the length of the slice, this checks no bounds.
    #[inline]
    pub const fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns whether there is no data.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// Returns the address of the first byte of data. Like [`Self::len`], this checks no bounds.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(self.start as usize)
    }

    /// Returns the number of bytes that can be prepended.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// Returns the length of the whole memory, in bytes.
    #[inline]
    pub fn storage_len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of bytes that can be appended.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.bytes.len() - self.end as usize
    }

    /// Extends the data by `count` bytes at its front and returns them, contents unspecified.
    ///
    /// Returns `None`, and changes nothing, if the headroom is smaller.
    #[inline]
    pub fn prepend(&mut self, count: usize) -> Option<&mut [u8]> {
        let start = self.headroom().checked_sub(count)?;
        self.start = start as u32;
        self.bytes.get_mut(start..start + count)
    }

    /// Extends the data by `count` bytes at its end and returns them, contents unspecified.
    ///
    /// Returns `None`, and changes nothing, if the tailroom is smaller.
    #[inline]
    pub fn append(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.tailroom() {
            return None;
        }
        let end = self.end as usize;
        self.end += count as u32;
        self.bytes.get_mut(end..end + count)
    }

    /// Appends a copy of `bytes`. Returns `None`, and changes nothing, if the tailroom is smaller.
    pub fn append_slice(&mut self, bytes: &[u8]) -> Option<()> {
        self.append(bytes.len())?.copy_from_slice(bytes);
        Some(())
    }

    /// Returns the data, writable.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start as usize..self.end as usize]
    }

    /// Empties the buffer and sets its headroom, to reuse its memory.
    ///
    /// A headroom larger than the memory leaves no tailroom.
    #[inline]
    pub fn reset(&mut self, headroom: usize) {
        self.start = headroom.min(self.bytes.len()) as u32;
        self.end = self.start;
    }

    /// Extends the data to the whole memory.
    #[inline]
    pub fn extend(&mut self) {
        (self.start, self.end) = (0, self.bytes.len() as u32);
    }

    /// Removes the first `count` bytes of the data, or all if it is shorter.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.start += count.min(self.len()) as u32;
    }

    /// Shortens the data to its first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.end = self.start + len.min(self.len()) as u32;
    }

    /// Converts the buffer to a view of its data that can be shared, without a copy.
    #[inline]
    pub fn freeze(self) -> IoBuf {
        IoBuf { storage: Storage::Shared(self.bytes.shareable()), start: self.start, end: self.end }
    }
}

impl Deref for IoBufMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start as usize..self.end as usize]
    }
}

impl fmt::Debug for IoBufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBufMut({} < {} > {})", self.headroom(), self.len(), self.tailroom())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepending_and_appending_stay_within_the_room() {
        let mut buf = IoBufMut::with_room(4, 6);
        buf.append_slice(b"world").unwrap();
        assert!(buf.append(2).is_none());
        assert!(buf.prepend(5).is_none());
        buf.prepend(3).unwrap().copy_from_slice(b"my ");
        assert_eq!(&*buf, b"my world");
        assert_eq!((buf.headroom(), buf.tailroom()), (1, 1));
    }

    #[test]
    fn freezing_and_thawing_keep_the_memory() {
        let mut buf = IoBufMut::with_room(0, 8);
        buf.append_slice(b"12345678").unwrap();
        let address = buf.as_ptr();
        let frozen = buf.freeze();
        assert_eq!(frozen.as_ptr(), address);
        let thawed = frozen.try_into_mut().unwrap();
        assert_eq!(thawed.as_ptr(), address);
    }

    #[test]
    fn a_shared_view_cannot_be_thawed() {
        let view = IoBuf::copy_from_slice(b"abc");
        let other = view.clone();
        let view = view.try_into_mut().unwrap_err();
        drop(other);
        assert!(view.try_into_mut().is_ok());
    }

    #[test]
    fn slices_share_and_cannot_leave_the_view() {
        let view = IoBuf::copy_from_slice(b"0123456789");
        let mut inner = view.slice(2..6).unwrap();
        assert_eq!(&*inner, b"2345");
        assert!(inner.slice(0..5).is_none());
        assert_eq!(&*inner.split_to(3).unwrap(), b"234");
        assert!(inner.split_to(2).is_none());
        assert_eq!(&*inner, b"5");
        assert_eq!(inner.storage_len(), 10);
    }
}
