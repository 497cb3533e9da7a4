//! The region area in a process: addresses that are reserved once, and pages from Linux.
//!
//! | bare | hosted |
//! |---|---|
//! | a page-table entry | a readable and writable mapping over reserved addresses |
//! | a page fault | SIGSEGV, on a separate signal stack |
//! | heap memory mapped at a second address | memory moved by `mremap`, or discarded here and provided there |
//! | a page with contents, filled before it is visible | a mapping filled elsewhere and moved to its address |
//! | cores flush their TLBs in their loops | the TLB shootdown has completed when `mmap` returns |
//!
//! Linux chooses the pages' physical size (this code only advises 2 MiB) and their colours.

use crate::heap;
use isola_abi::layout::PageSize;
use isola_memory::regions::{
    self, Account, AddressWindow, Contents, Extent, FaultError, FillError, FillOutcome, FrameChoice,
    MapContents, Retirement,
};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::Write;
use std::iter;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// Length of the region area in bytes; if the process cannot have that much address space, half of it, a quarter, and
/// so on.
const LEN: usize = 128 << 30;

/// Its least length: an eighth of it is a multiple of 1 GiB.
const SHORTEST: usize = 8 << 30;

/// The alignment of its start.
const ALIGN: usize = PageSize::OneGib.bytes();

struct HostedWindow {
    extent: Extent,
    /// The filled pages. Page faults take the lock, so no code may touch a region with it held.
    pages: Mutex<BTreeMap<usize, PageSize>>,
    memory: MappedMemory,
}

/// Initialises the region area, once per process.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let lengths = iter::successors(Some(LEN), |len| (len / 2 >= SHORTEST).then_some(len / 2));
        let reserved = lengths.filter_map(|len| Some((reserve(len + ALIGN)?, len))).next();
        let Some((start, len)) = reserved else { return };
        let extent = Extent { start: start.next_multiple_of(ALIGN), len };
        let Some(memory) = MappedMemory::new(extent) else { return };
        regions::install(Box::leak(Box::new(HostedWindow { extent, pages: Mutex::default(), memory })));
        catch_faults();
    });
}

/// Gives the calling thread, a core, a signal stack on which pagers can run. The stack is never freed.
pub(crate) fn enter_core() {
    const LEN: usize = 64 << 10;
    /// An unmapped page below the stack: an overflow by a pager ends the process.
    const GUARD: usize = PageSize::FourKib.bytes();
    let Some(start) = reserve(GUARD + LEN).map(|guard| guard + GUARD) else { return };
    // SAFETY: the memory was reserved here, and has no other users.
    let allowed =
        unsafe { libc::mprotect(start as *mut c_void, LEN, libc::PROT_READ | libc::PROT_WRITE) } == 0;
    let stack = libc::stack_t { ss_sp: start as *mut c_void, ss_flags: 0, ss_size: LEN };
    if allowed {
        // SAFETY: the stack belongs to this thread and is never freed. If Linux refuses it, the previous one stays.
        unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) };
    }
}

/// Reserves addresses without memory.
fn reserve(len: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at an address of Linux's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.addr())
}

impl HostedWindow {
    /// Ignores poisoning: the map is plain data, and a panic of a core ends its test anyway.
    fn pages(&self) -> MutexGuard<'_, BTreeMap<usize, PageSize>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the page that contains `address`.
fn page_in(pages: &BTreeMap<usize, PageSize>, address: usize) -> Option<(usize, PageSize)> {
    let (start, size) = pages.range(..=address).next_back()?;
    (address < start + size.bytes()).then_some((*start, *size))
}

// SAFETY: filled pages are memory that Linux provides to this process at these addresses only, until `retire` takes it
// back; when that returns, no thread has a translation left.
unsafe impl AddressWindow for HostedWindow {
    fn extent(&self) -> Extent {
        self.extent
    }

    /// Linux has no fixed limit.
    fn table_count(&self) -> usize {
        usize::MAX / 2
    }

    fn largest_page(&self) -> PageSize {
        PageSize::OneGib
    }

    unsafe fn fill(
        &self,
        address: usize,
        size: PageSize,
        _: FrameChoice,
        contents: Contents<'_>,
    ) -> Result<FillOutcome, FillError> {
        let written = match contents {
            Contents::Zero => None,
            Contents::Written(write) => {
                let page = PreparedPage::new(size.bytes())?;
                // SAFETY: just created, of that length, and without other users.
                write(unsafe { std::slice::from_raw_parts_mut(page.start as *mut u8, page.len) });
                Some(page)
            }
        };
        let mut pages = self.pages();
        let inside = pages.range(address..address + size.bytes()).next().map(|(start, size)| (*start, *size));
        match page_in(&pages, address).or(inside) {
            Some(found) if found == (address, size) => return Ok(FillOutcome::AlreadyPresent),
            Some(_) => return Err(FillError::Occupied),
            None => {}
        }
        let there = match written {
            // SAFETY: the page is the caller's to fill, and within the reserved range.
            Some(page) => unsafe { page.move_to(address) },
            // SAFETY: as above.
            None => unsafe { provide(address, size.bytes()) },
        };
        if !there {
            return Err(FillError::OutOfMemory(size.bytes()));
        }
        pages.insert(address, size);
        Ok(FillOutcome::Filled)
    }

    fn page_at(&self, address: usize) -> Option<PageSize> {
        page_in(&self.pages(), address).map(|(_, size)| size)
    }

    unsafe fn retire(&self, address: usize, len: usize) -> Retirement {
        let mut pages = self.pages();
        let mut behind = pages.split_off(&address);
        pages.append(&mut behind.split_off(&(address + len)));
        // SAFETY: the caller's promise.
        unsafe { reserve_again(address, len) };
        Retirement(0)
    }

    fn is_over(&self, _: Retirement) -> bool {
        true
    }

    unsafe fn collect(&self, _: usize, _: usize) {}

    unsafe fn map(
        &self,
        address: usize,
        memory: NonNull<u8>,
        len: usize,
        contents: MapContents,
    ) -> Result<(), FillError> {
        // SAFETY: memory and addresses are the caller's.
        let there = unsafe {
            match contents {
                MapContents::Keep => move_contents(memory.addr().get(), len, address),
                MapContents::Discard => allow(address, len) && discard(memory.addr().get(), len),
            }
        };
        if !there {
            return Err(FillError::OutOfMemory(len));
        }
        self.memory.set(address, memory, len);
        Ok(())
    }

    unsafe fn unmap(
        &self,
        address: usize,
        len: usize,
        take: &mut dyn FnMut(NonNull<u8>, usize),
    ) -> Retirement {
        // SAFETY: the caller's promise.
        unsafe { reserve_again(address, len) };
        self.memory.take(address, len).for_each(|(_, memory)| take(memory, FRAME));
        Retirement(0)
    }

    unsafe fn move_pages(&self, from: usize, len: usize, to: usize) -> Retirement {
        for (address, memory) in self.memory.take(from, len) {
            let to = address - from + to;
            // SAFETY: the caller's promise.
            let moved = unsafe { move_contents(address, FRAME, to) };
            assert!(moved, "Linux has memory for a page that is moved");
            self.memory.set(to, memory, FRAME);
        }
        // SAFETY: the caller's promise; the pages that were there have moved.
        unsafe { reserve_again(from, len) };
        Retirement(0)
    }

    unsafe fn free_tables(&self, _: usize, _: usize) {}

    fn account(&self) -> Option<Account> {
        heap::account()
    }

    fn charge(&self, account: Account, len: usize) {
        heap::charge(account, len);
    }

    fn discharge(&self, account: Account, len: usize) {
        heap::discharge(account, len);
    }
}

/// Length of a page, in bytes.
const FRAME: usize = PageSize::FourKib.bytes();

/// The heap page, if any, that each page of the region area represents: one word per page. Linux provides the memory of
/// the words when they are written.
struct MappedMemory {
    window: Extent,
    words: &'static [AtomicUsize],
}

impl MappedMemory {
    fn new(window: Extent) -> Option<Self> {
        let count = window.len / FRAME;
        let len = count * size_of::<AtomicUsize>();
        let start = reserve(len)?;
        // SAFETY: just reserved, and never unmapped.
        if !unsafe { allow(start, len) } {
            return None;
        }
        // SAFETY: the memory is never unmapped, and zero is a value of the type.
        let words = unsafe { std::slice::from_raw_parts(start as *const AtomicUsize, count) };
        Some(Self { window, words })
    }

    fn word(&self, address: usize) -> &AtomicUsize {
        &self.words[(address - self.window.start) / FRAME]
    }

    fn set(&self, address: usize, memory: NonNull<u8>, len: usize) {
        for offset in (0..len).step_by(FRAME) {
            self.word(address + offset).store(memory.addr().get() + offset, Ordering::Relaxed);
        }
    }

    /// Clears the words of a range. Returns the pages that represented heap pages, and these.
    fn take(&self, address: usize, len: usize) -> impl Iterator<Item = (usize, NonNull<u8>)> {
        (address..address + len).step_by(FRAME).filter_map(|page| {
            let memory = self.word(page).swap(0, Ordering::Relaxed);
            Some((page, NonNull::new(ptr::with_exposed_provenance_mut(memory))?))
        })
    }
}

/// Returns addresses to their reserved state. Their contents are lost.
///
/// # Safety
/// The addresses were reserved, belong to the caller, and have no users.
unsafe fn reserve_again(address: usize, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    let reserved = unsafe { libc::mmap(address as *mut c_void, len, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(reserved, libc::MAP_FAILED, "addresses that were reserved can be reserved again");
}

/// Makes Linux provide memory at reserved addresses on first access; false if it refuses.
///
/// # Safety
/// The addresses are the caller's.
unsafe fn allow(address: usize, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::mprotect(address as *mut c_void, len, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// Returns memory to Linux, which provides zeros at the next access.
///
/// # Safety
/// The memory consists of whole pages, belongs to the caller, and its contents are not needed.
unsafe fn discard(address: usize, len: usize) -> bool {
    // SAFETY: the caller's promise. If Linux does not do it, the memory stays, which is harmless.
    unsafe { libc::madvise(address as *mut c_void, len, libc::MADV_DONTNEED) };
    true
}

/// Moves the contents of memory to reserved addresses; false if Linux refuses.
///
/// # Safety
/// Memory and addresses are the caller's.
unsafe fn move_contents(from: usize, len: usize, to: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller's promise. The old addresses stay mapped.
    let moved = unsafe { libc::mremap(from as *mut c_void, len, len, flags, to as *mut c_void) };
    if moved != libc::MAP_FAILED {
        return true;
    }
    // The Linux version lacks this flag, or the process has too many mappings.
    // SAFETY: the caller's promise.
    unsafe {
        if !allow(to, len) {
            return false;
        }
        ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len);
        discard(from, len)
    }
}

/// Makes Linux provide memory at reserved addresses at once; false if it has none.
///
/// # Safety
/// The addresses are the caller's.
unsafe fn provide(address: usize, len: usize) -> bool {
    let start = address as *mut c_void;
    // SAFETY: the caller's promise.
    if unsafe { libc::mprotect(start, len, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return false;
    }
    if len >= PageSize::TwoMib.bytes() {
        // SAFETY: the advice affects only performance.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
    }
    // A Linux version without this advice provides the memory on first access.
    // SAFETY: as above; the memory becomes present, and is zero.
    let populated = unsafe { libc::madvise(start, len, libc::MADV_POPULATE_WRITE) };
    populated == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// A page that is prepared before it moves to its address.
struct PreparedPage {
    start: usize,
    len: usize,
}

impl PreparedPage {
    fn new(len: usize) -> Result<Self, FillError> {
        let page = Self { start: reserve(len).ok_or(FillError::OutOfMemory(len))?, len };
        // SAFETY: just reserved.
        if unsafe { provide(page.start, len) } { Ok(page) } else { Err(FillError::OutOfMemory(len)) }
    }

    /// Moves the page to its address; false if Linux refuses. Concurrent readers of the address see all of it, or none.
    ///
    /// # Safety
    /// The addresses are the caller's.
    unsafe fn move_to(self, address: usize) -> bool {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (self.start as *mut c_void, address as *mut c_void);
        // SAFETY: the source is this value's, and the target the caller's.
        let moved = unsafe { libc::mremap(from, self.len, self.len, flags, to) } != libc::MAP_FAILED;
        if moved {
            std::mem::forget(self);
        }
        moved
    }
}

impl Drop for PreparedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.start as *mut c_void, self.len) };
    }
}

/// Passes page faults in the region area to [`regions::fault`].
fn catch_faults() {
    // SAFETY: all zero is a value of the structure.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the current action.
    unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) };
    let _ = BEFORE.set(before);
    action.sa_sigaction = fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler obeys the rules of a synchronous signal's handler: it interrupts an access to a region, and
    // code that accesses a region holds no resource that fault handling needs.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) };
}

/// The previous action on SIGSEGV: Rust's own report of a stack overflow.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

extern "C" fn fault(_: i32, info: *const libc::siginfo_t, _: *const c_void) {
    let _errno = Errno::saved();
    // SAFETY: Linux passes the information of a SIGSEGV, which has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    match regions::fault(address) {
        Ok(()) => return,
        Err(FaultError::NoRegion) => {}
        Err(error) => print_error(address, error),
    }
    // The access faults again, and the previous action handles it.
    let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: restores the previous action.
    unsafe { libc::sigaction(libc::SIGSEGV, before, ptr::null_mut()) };
}

/// The `errno` of the interrupted code, which system calls during fault handling would overwrite.
struct Errno(libc::c_int);

impl Errno {
    fn saved() -> Self {
        // SAFETY: the location belongs to the calling thread, and lives as long as it.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Prints the error without any lock, as the faulting code may hold any.
fn print_error(address: usize, error: FaultError) {
    let mut text = [0; 256];
    let mut rest = &mut text[..];
    let _ = writeln!(rest, "crashed: access to {address:#x}: {error}");
    let unused = rest.len();
    let message = &text[..text.len() - unused];
    // SAFETY: the bytes are valid; if the file is closed, the message is lost.
    unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
}
