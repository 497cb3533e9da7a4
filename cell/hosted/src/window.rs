//! The window of regions in a process: addresses that are reserved once, and pages that Linux gives.
//!
//! | bare | hosted |
//! |---|---|
//! | an entry of a page table | a mapping that may be read and written, which was reserved before |
//! | a page fault | SIGSEGV, on a signal stack of its own |
//! | memory of the heap at two addresses | memory that is given back to Linux at the one, and taken from it at the other |
//! | a page with contents, filled before anybody sees it | a mapping made elsewhere and moved into place |
//! | cores forget what was retired when they pass their loops | `mmap` returns when all have |
//!
//! The pages are Linux's: their size is what it likes (2 MiB are asked for, not ordered), and so are their colours.

use isola_abi::layout::PageSize;
use isola_memory::regions::{
    self, Carry, Contents, Extent, FaultError, FillError, Filled, FrameChoice, Retired, Window,
};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::Write;
use std::iter;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// Length of the window, in bytes, where the process may have so many addresses; else half of it, or of that, and so on.
const LEN: usize = 128 << 30;

/// Its length at least: an eighth of it is a multiple of 1 GiB.
const SHORTEST: usize = 8 << 30;

/// The window starts at a multiple of this.
const ALIGN: usize = PageSize::OneGib.bytes();

struct HostedWindow {
    extent: Extent,
    /// The pages that are filled. The lock is taken in faults: nothing is touched with it held that could fault.
    pages: Mutex<BTreeMap<usize, PageSize>>,
    memory: MappedMemory,
}

/// Takes the window into use, once a process.
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

/// Gives the calling thread, a core, a signal stack that pagers can run on. Never given back.
pub(crate) fn enter_core() {
    const LEN: usize = 64 << 10;
    /// Below it, where nothing is: a pager that runs over the end ends the process.
    const GUARD: usize = PageSize::FourKib.bytes();
    let Some(start) = reserve(GUARD + LEN).map(|guard| guard + GUARD) else { return };
    // SAFETY: the memory was reserved here, and is nobody else's.
    let allowed =
        unsafe { libc::mprotect(start as *mut c_void, LEN, libc::PROT_READ | libc::PROT_WRITE) } == 0;
    let stack = libc::stack_t { ss_sp: start as *mut c_void, ss_flags: 0, ss_size: LEN };
    if allowed {
        // SAFETY: the stack is this thread's, for good. Where Linux refuses it, the one from before stays.
        unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) };
    }
}

/// Reserves addresses, without memory.
fn reserve(len: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever Linux likes.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.addr())
}

impl HostedWindow {
    /// A core that panicked with the lock held ends its test anyway; the map is plain data.
    fn pages(&self) -> MutexGuard<'_, BTreeMap<usize, PageSize>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The page that `address` is in.
fn page_in(pages: &BTreeMap<usize, PageSize>, address: usize) -> Option<(usize, PageSize)> {
    let (start, size) = pages.range(..=address).next_back()?;
    (address < start + size.bytes()).then_some((*start, *size))
}

// SAFETY: what is filled is memory that Linux gives this process for these addresses alone, until it takes it back in
// `retire`; no thread has any translation left when that returns.
unsafe impl Window for HostedWindow {
    fn extent(&self) -> Extent {
        self.extent
    }

    /// Linux has as many as it takes.
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
    ) -> Result<Filled, FillError> {
        let written = match contents {
            Contents::Zero => None,
            Contents::Written(write) => {
                let made = Made::new(size.bytes())?;
                // SAFETY: just made, of that length, and nobody else's.
                write(unsafe { std::slice::from_raw_parts_mut(made.start as *mut u8, made.len) });
                Some(made)
            }
        };
        let mut pages = self.pages();
        let inside = pages.range(address..address + size.bytes()).next().map(|(start, size)| (*start, *size));
        match page_in(&pages, address).or(inside) {
            Some(found) if found == (address, size) => return Ok(Filled::Before),
            Some(_) => return Err(FillError::Occupied),
            None => {}
        }
        let there = match written {
            // SAFETY: the page is the caller's to fill, and within what was reserved.
            Some(made) => unsafe { made.move_to(address) },
            // SAFETY: as above.
            None => unsafe { provide(address, size.bytes()) },
        };
        if !there {
            return Err(FillError::OutOfMemory(size.bytes()));
        }
        pages.insert(address, size);
        Ok(Filled::Now)
    }

    fn page_at(&self, address: usize) -> Option<PageSize> {
        page_in(&self.pages(), address).map(|(_, size)| size)
    }

    unsafe fn retire(&self, address: usize, len: usize) -> Retired {
        let mut pages = self.pages();
        let mut behind = pages.split_off(&address);
        pages.append(&mut behind.split_off(&(address + len)));
        // SAFETY: the caller's promise.
        unsafe { reserve_again(address, len) };
        Retired(0)
    }

    fn is_over(&self, _: Retired) -> bool {
        true
    }

    unsafe fn collect(&self, _: usize, _: usize) {}

    unsafe fn map(
        &self,
        address: usize,
        memory: NonNull<u8>,
        len: usize,
        carry: Carry,
    ) -> Result<(), FillError> {
        // SAFETY: memory and addresses are the caller's.
        let there = unsafe {
            match carry {
                Carry::Contents => take_along(memory.addr().get(), len, address),
                Carry::Nothing => allow(address, len) && discard(memory.addr().get(), len),
            }
        };
        if !there {
            return Err(FillError::OutOfMemory(len));
        }
        self.memory.set(address, memory, len);
        Ok(())
    }

    unsafe fn unmap(&self, address: usize, len: usize, take: &mut dyn FnMut(NonNull<u8>, usize)) -> Retired {
        // SAFETY: the caller's promise.
        unsafe { reserve_again(address, len) };
        self.memory.take(address, len).for_each(|(_, memory)| take(memory, FRAME));
        Retired(0)
    }

    unsafe fn shift(&self, from: usize, len: usize, to: usize) -> Retired {
        for (address, memory) in self.memory.take(from, len) {
            let to = address - from + to;
            // SAFETY: the caller's promise.
            let moved = unsafe { take_along(address, FRAME, to) };
            assert!(moved, "Linux has memory for a page that is moved");
            self.memory.set(to, memory, FRAME);
        }
        // SAFETY: the caller's promise; what was there is gone.
        unsafe { reserve_again(from, len) };
        Retired(0)
    }

    unsafe fn forget(&self, _: usize, _: usize) {}
}

/// Length of a page, in bytes.
const FRAME: usize = PageSize::FourKib.bytes();

/// Which page of the heap's memory each page of the window stands for, if any: a word a page, which Linux provides when
/// it is written.
struct MappedMemory {
    window: Extent,
    words: &'static [AtomicUsize],
}

impl MappedMemory {
    fn new(window: Extent) -> Option<Self> {
        let count = window.len / FRAME;
        let len = count * size_of::<AtomicUsize>();
        let start = reserve(len)?;
        // SAFETY: just reserved, for good.
        if !unsafe { allow(start, len) } {
            return None;
        }
        // SAFETY: the memory is there for good, and zero: values of the type.
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

    /// The pages of a range that stand for some, which they do no longer, with these.
    fn take(&self, address: usize, len: usize) -> impl Iterator<Item = (usize, NonNull<u8>)> {
        (address..address + len).step_by(FRAME).filter_map(|page| {
            let memory = self.word(page).swap(0, Ordering::Relaxed);
            Some((page, NonNull::new(ptr::with_exposed_provenance_mut(memory))?))
        })
    }
}

/// Makes addresses as they were when they were reserved. What was there is gone.
///
/// # Safety
/// They were reserved, are the caller's, and nobody uses them.
unsafe fn reserve_again(address: usize, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    let reserved = unsafe { libc::mmap(address as *mut c_void, len, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(reserved, libc::MAP_FAILED, "what was reserved once can be reserved again");
}

/// Has Linux provide memory for addresses that were reserved when it is touched; false where it refuses.
///
/// # Safety
/// The addresses are the caller's.
unsafe fn allow(address: usize, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::mprotect(address as *mut c_void, len, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// Gives memory back to Linux, which provides zeros when it is touched again.
///
/// # Safety
/// The memory is whole pages and the caller's, and what is in it is of no use.
unsafe fn discard(address: usize, len: usize) -> bool {
    // SAFETY: the caller's promise. Where Linux does not do it, the memory stays, and nothing is wrong.
    unsafe { libc::madvise(address as *mut c_void, len, libc::MADV_DONTNEED) };
    true
}

/// Has what is in memory appear at addresses that were reserved, and no longer where it was; false where Linux refuses.
///
/// # Safety
/// Memory and addresses are the caller's.
unsafe fn take_along(from: usize, len: usize, to: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller's promise. The memory stays mapped where it was.
    let moved = unsafe { libc::mremap(from as *mut c_void, len, len, flags, to as *mut c_void) };
    if moved != libc::MAP_FAILED {
        return true;
    }
    // A Linux that does not know this yet, or a process of too many mappings.
    // SAFETY: the caller's promise.
    unsafe {
        if !allow(to, len) {
            return false;
        }
        ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len);
        discard(from, len)
    }
}

/// Has Linux provide memory for addresses that were reserved; false where it has none.
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
        // SAFETY: advice changes nothing but speed.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
    }
    // A Linux that does not know this yet provides the memory when it is touched.
    // SAFETY: as above; the memory comes to be there, and is zero.
    let populated = unsafe { libc::madvise(start, len, libc::MADV_POPULATE_WRITE) };
    populated == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// A page that is made before it has its place.
struct Made {
    start: usize,
    len: usize,
}

impl Made {
    fn new(len: usize) -> Result<Self, FillError> {
        let made = Self { start: reserve(len).ok_or(FillError::OutOfMemory(len))?, len };
        // SAFETY: just reserved.
        if unsafe { provide(made.start, len) } { Ok(made) } else { Err(FillError::OutOfMemory(len)) }
    }

    /// Moves it to its place; false where Linux refuses. Whoever looks there sees all of it, or none.
    ///
    /// # Safety
    /// The addresses are the caller's.
    unsafe fn move_to(self, address: usize) -> bool {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (self.start as *mut c_void, address as *mut c_void);
        // SAFETY: what is moved is this value's, and where to the caller's.
        let moved = unsafe { libc::mremap(from, self.len, self.len, flags, to) } != libc::MAP_FAILED;
        if moved {
            std::mem::forget(self);
        }
        moved
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.start as *mut c_void, self.len) };
    }
}

/// Has page faults in the window come to [`regions::fault`].
fn catch_faults() {
    // SAFETY: all zero is a value of the structure.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: asks what is done, and changes nothing.
    unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) };
    let _ = BEFORE.set(before);
    action.sa_sigaction = fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler keeps to what one of a synchronous signal may do: what it interrupts is the access to a
    // region, and who accesses a region holds nothing that the way of a fault needs.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) };
}

/// What was done on SIGSEGV before: Rust's own report of an overflow of its stack.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

extern "C" fn fault(_: i32, info: *const libc::siginfo_t, _: *const c_void) {
    let _errno = Errno::kept();
    // SAFETY: Linux passes the information of a SIGSEGV, which has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    match regions::fault(address) {
        Ok(()) => return,
        Err(FaultError::NoRegion) => {}
        Err(error) => say(address, error),
    }
    // The access faults again, and then what was done before is done.
    let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: what was there before is there again.
    unsafe { libc::sigaction(libc::SIGSEGV, before, ptr::null_mut()) };
}

/// The number of the last error, as the code that faulted had it: Linux's calls on the way of a fault leave their own.
struct Errno(libc::c_int);

impl Errno {
    fn kept() -> Self {
        // SAFETY: it is the calling thread's own, and there for as long as that.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Says what is wrong, without any lock: whoever faulted may hold all of them.
fn say(address: usize, error: FaultError) {
    let mut text = [0; 256];
    let mut rest = &mut text[..];
    let _ = writeln!(rest, "crashed: access to {address:#x}: {error}");
    let unused = rest.len();
    let said = &text[..text.len() - unused];
    // SAFETY: the bytes are there; who has closed the file does not want to read them.
    unsafe { libc::write(libc::STDERR_FILENO, said.as_ptr().cast(), said.len()) };
}
