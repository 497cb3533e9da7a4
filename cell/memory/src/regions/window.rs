//! What a platform provides: addresses, and pages at them.

use core::fmt;
use core::ptr::NonNull;
use isola_abi::layout::PageSize;
use spin::Once;

/// Virtual memory of the cell that regions are made of, and the pages in it.
///
/// # Safety
/// Implementors promise that what was filled can be read and written at its address, is nobody else's and holds
/// what it was filled with, until it is retired; and that memory which was retired appears nowhere else before
/// the retirement is over and it was collected.
pub unsafe trait Window: Sync {
    /// Where it is.
    fn extent(&self) -> Extent;

    /// How many page tables regions can have in all.
    fn table_count(&self) -> usize;

    /// The largest pages there are.
    fn largest_page(&self) -> PageSize;

    /// Puts a page at `address`, a multiple of its size. Called in page faults, by several cores at once.
    ///
    /// # Errors
    /// A [`FillError`]. That a page of this size is there already is none.
    ///
    /// # Safety
    /// The address is in the window, and the page is the caller's to fill.
    unsafe fn fill(
        &self,
        address: usize,
        size: PageSize,
        frame: FrameChoice,
        contents: Contents<'_>,
    ) -> Result<Filled, FillError>;

    /// The size of the page that is at `address`.
    fn page_at(&self, address: usize) -> Option<PageSize>;

    /// Takes all pages from `address` on, `len` bytes, out of use.
    ///
    /// # Safety
    /// They are the caller's, and nobody uses them any more.
    unsafe fn retire(&self, address: usize, len: usize) -> Retired;

    /// Whether every core has forgotten what was retired then.
    fn is_over(&self, retired: Retired) -> bool;

    /// Makes the memory of retired pages free.
    ///
    /// # Safety
    /// They were retired, and that is over.
    unsafe fn collect(&self, address: usize, len: usize);

    /// Puts memory, whole pages of it, at `address` too: in the largest pages that both allow.
    ///
    /// # Errors
    /// A [`FillError`]; then nothing is there.
    ///
    /// # Safety
    /// No page is at these addresses; they are the caller's, and so is the memory, which the caller uses by them alone.
    unsafe fn map(
        &self,
        address: usize,
        memory: NonNull<u8>,
        len: usize,
        carry: Carry,
    ) -> Result<(), FillError>;

    /// Takes all pages from `address` on, `len` bytes, out of use that came by [`Self::map`], and passes their memory to
    /// `take`, with its length. It is the caller's again, and may hold anything.
    ///
    /// # Safety
    /// They are the caller's, and nobody uses them any more. The addresses count as retired.
    unsafe fn unmap(&self, address: usize, len: usize, take: &mut dyn FnMut(NonNull<u8>, usize)) -> Retired;

    /// Moves all pages from `from` on, `len` bytes, that came by [`Self::map`] to the addresses from `to` on, with what
    /// is in them. The addresses where they were count as retired.
    ///
    /// # Safety
    /// As for [`Self::unmap`]; no page is where they go, those addresses are the caller's, and there are enough tables.
    unsafe fn shift(&self, from: usize, len: usize, to: usize) -> Retired;

    /// Makes addresses free where pages were that came by [`Self::map`].
    ///
    /// # Safety
    /// They were retired, and that is over.
    unsafe fn forget(&self, address: usize, len: usize);
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first; a multiple of 1 GiB.
    pub start: usize,
    /// How many, in bytes; a multiple of 1 GiB.
    pub len: usize,
}

impl Extent {
    /// The first address behind it.
    pub const fn end(&self) -> usize {
        self.start + self.len
    }

    /// So many eighths of it, from one on.
    pub(crate) const fn eighths(&self, first: usize, count: usize) -> Self {
        let eighth = self.len / 8;
        Self { start: self.start + first * eighth, len: count * eighth }
    }
}

/// Whether what is in memory is of use where it appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// It is there too.
    Contents,
    /// Anything is there.
    Nothing,
}

/// Which page of memory is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameChoice {
    /// Any.
    #[default]
    Any,
    /// One whose number leaves the remainder `color` when divided by `colors`: pages of different colours share no
    /// lines of a cache whose sets are that many pages. For pages of 4 KiB. Where physical addresses are unknown, any
    /// will do.
    Colored {
        /// Which colour.
        color: u32,
        /// How many there are.
        colors: u32,
    },
}

/// What is in a page when it comes to be there.
pub enum Contents<'a> {
    /// Zeros.
    Zero,
    /// What this writes to the page, which is zero before; nobody else sees the page until it is done.
    Written(&'a mut dyn FnMut(&mut [u8])),
}

/// What became of a page that was to be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// It was.
    Now,
    /// It had been before, perhaps by another core at the same time. What was to be in it is forgotten.
    Before,
}

/// When something was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Retired(pub u64);

/// Why a page is not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillError {
    /// There is no page of memory of that size, in bytes.
    OutOfMemory(usize),
    /// There is no page table.
    OutOfTables,
    /// The page is not in the region, does not begin at a multiple of its size, or is smaller than the pager said.
    NoPage(usize),
    /// The processor has no pages of this size.
    NoSuchSize(PageSize),
    /// Pages of another size are there.
    Occupied,
    /// Nothing is meant to be there, ever: somebody ran over the end of what is.
    Guard,
}

impl fmt::Display for FillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(bytes) => {
                write!(f, "memory ran out: a page of {bytes} bytes was wanted; give the cell more")
            }
            Self::OutOfTables => {
                f.write_str("page tables ran out: use larger pages, or give the cell more memory")
            }
            Self::NoPage(offset) => write!(f, "no page that its pager may fill begins at offset {offset:#x}"),
            Self::NoSuchSize(size) => {
                write!(f, "there are no pages of {} bytes on this machine: choose smaller ones", size.bytes())
            }
            Self::Occupied => f.write_str("pages of another size are there already"),
            Self::Guard => f.write_str("nothing is there: a guard page was hit"),
        }
    }
}

impl core::error::Error for FillError {}

static WINDOW: Once<&'static dyn Window> = Once::new();

/// Has regions use that window. The first of a program counts.
pub fn install(window: &'static dyn Window) {
    WINDOW.call_once(|| window);
}

/// The window, where the platform has one.
pub(crate) fn window() -> Option<&'static dyn Window> {
    WINDOW.get().copied()
}
