//! The platform's interface for virtual memory: addresses, and pages at them.

use core::fmt;
use core::ptr::NonNull;
use isola_abi::layout::PageSize;
use spin::Once;

/// The account of an activity in the platform's ledger: its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account(pub u32);

/// The region area of a cell, and the pages in it.
///
/// # Safety
/// Implementors guarantee that a filled page can be read and written at its address, is shared with no other owner, and
/// has the contents with which it was filled, until it is retired. Retired memory must not be used elsewhere before the
/// retirement is over and it was collected.
pub unsafe trait AddressWindow: Sync {
    /// Returns the addresses of the region area; start and length are multiples of 1 GiB.
    fn extent(&self) -> Extent;

    /// Returns the number of page tables available to the region area.
    fn table_count(&self) -> usize;

    /// Returns the largest page size that the processor supports.
    fn largest_page(&self) -> PageSize;

    /// Fills a page at `address`, a multiple of its size. Called in page faults, by several cores at once.
    ///
    /// # Errors
    /// A [`FillError`]. A page of this size that is already present is no error.
    ///
    /// # Safety
    /// The address is in the region area, and the caller owns the page.
    unsafe fn fill(
        &self,
        address: usize,
        size: PageSize,
        frame: FrameChoice,
        contents: Contents<'_>,
    ) -> Result<FillOutcome, FillError>;

    /// Returns the size of the page at `address`, if there is one.
    fn page_at(&self, address: usize) -> Option<PageSize>;

    /// Unmaps all pages of `len` bytes from `address` on.
    ///
    /// # Safety
    /// The caller owns the pages, and they are unused.
    unsafe fn retire(&self, address: usize, len: usize) -> Retirement;

    /// Returns whether every core has flushed its TLB since that retirement.
    fn is_over(&self, retired: Retirement) -> bool;

    /// Frees the memory of retired pages.
    ///
    /// # Safety
    /// They were retired, and that is over.
    unsafe fn collect(&self, address: usize, len: usize);

    /// Maps existing memory, in whole pages, at `address`, with the largest pages that the alignment of both allows.
    ///
    /// # Errors
    /// A [`FillError`]; then no page of it is mapped.
    ///
    /// # Safety
    /// No page is mapped at these addresses. The caller owns them and the memory, and accesses the memory only by them.
    unsafe fn map(
        &self,
        address: usize,
        memory: NonNull<u8>,
        len: usize,
        contents: MapContents,
    ) -> Result<(), FillError>;

    /// Unmaps all pages of `len` bytes from `address` on that [`Self::map`] mapped, and passes their memory, with its
    /// length, to `take`. The caller owns that memory again, with any contents. The addresses are retired.
    ///
    /// # Safety
    /// The caller owns the pages, and they are unused.
    unsafe fn unmap(
        &self,
        address: usize,
        len: usize,
        take: &mut dyn FnMut(NonNull<u8>, usize),
    ) -> Retirement;

    /// Moves all pages of `len` bytes from `from` on that [`Self::map`] mapped to the addresses from `to` on, with
    /// their contents. The old addresses are retired.
    ///
    /// # Safety
    /// As for [`Self::unmap`]. No page is mapped at the new addresses, which the caller owns, and enough page tables
    /// are reserved.
    unsafe fn move_pages(&self, from: usize, len: usize, to: usize) -> Retirement;

    /// Frees the addresses, and the page tables, of pages that [`Self::map`] mapped.
    ///
    /// # Safety
    /// They were retired, and that is over.
    unsafe fn free_tables(&self, address: usize, len: usize);

    /// Returns the account of the activity that runs on the calling core; `None` if the platform has no ledger, as by
    /// default.
    fn account(&self) -> Option<Account> {
        None
    }

    /// Charges `len` bytes of pages to an account. Called in page faults.
    fn charge(&self, account: Account, len: usize) {
        let _ = (account, len);
    }

    /// Takes `len` bytes from an account that was charged for them.
    fn discharge(&self, account: Account, len: usize) {
        let _ = (account, len);
    }
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first address.
    pub start: usize,
    /// The length, in bytes.
    pub len: usize,
}

impl Extent {
    /// Returns the first address behind the range.
    pub const fn end(&self) -> usize {
        self.start + self.len
    }

    /// Returns `count` eighths of the range, from eighth `first` on.
    pub(crate) const fn eighths(&self, first: usize, count: usize) -> Self {
        let eighth = self.len / 8;
        Self { start: self.start + first * eighth, len: count * eighth }
    }
}

/// Whether mapped memory keeps its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapContents {
    /// The memory keeps its contents.
    Keep,
    /// The contents are undefined.
    Discard,
}

/// The choice of a page frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameChoice {
    /// Any frame.
    #[default]
    Any,
    /// A frame whose number is congruent to `color` modulo `colors`. Pages of different colours share no lines of a
    /// cache whose sets span that many pages. Only for pages of 4 KiB. A platform that does not know physical addresses
    /// uses any frame.
    Colored {
        /// The colour.
        color: u32,
        /// The number of colours.
        colors: u32,
    },
}

/// The initial contents of a page.
pub enum Contents<'a> {
    /// Zeros.
    Zero,
    /// The bytes that this function writes to the page, which is zero before. The page is not visible elsewhere until
    /// the function returns.
    Written(&'a mut dyn FnMut(&mut [u8])),
}

/// The result of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillOutcome {
    /// The page was filled.
    Filled,
    /// The page was present before, possibly filled concurrently by another core. The new contents are discarded.
    AlreadyPresent,
}

/// The time of a retirement, as a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Retirement(pub u64);

/// The reason why a page is not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillError {
    /// There is no free memory for a page of this size in bytes.
    OutOfMemory(usize),
    /// The page tables have run out.
    OutOfTables,
    /// The page at this offset is outside the region, not aligned at its size, or smaller than the pager's smallest
    /// page.
    NoPage(usize),
    /// The processor does not support pages of this size.
    NoSuchSize(PageSize),
    /// Pages of another size are present.
    Occupied,
    /// A guard page: never filled.
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

static WINDOW: Once<&'static dyn AddressWindow> = Once::new();

/// Registers the platform's region area. Only the first call of a program counts.
pub fn install(window: &'static dyn AddressWindow) {
    WINDOW.call_once(|| window);
}

/// Returns the region area, if the platform has one.
pub(crate) fn window() -> Option<&'static dyn AddressWindow> {
    WINDOW.get().copied()
}
