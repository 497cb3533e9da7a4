//! Interrupts: when they come, and where they lead.
//!
//! They are off while anything runs. They come in one place: between events, when a core calls [`window`], and
//! while it waits, in [`halt`]. So handlers run at known points, on the stack of whoever opened the window,
//! with nothing to save; they share data with everything else on their core without locks.
//!
//! Exceptions come at any time. One kind may be recovered from: a page fault at a page that is not there, in the
//! part of the address space that a cell maps itself ([`window`](crate::window)). Its handler maps the page and
//! returns, and the instruction is executed again. It runs on the stack of the code that faulted, in the middle of
//! it, with interrupts off; all registers are kept.
//!
//! The non-maskable interrupt comes at any time, too, on a stack of its own: by it the supervisor has a core forget page
//! tables, whatever the core does, or set that aside; and by it a core is stopped that does not answer. Its handler says
//! which it was.
//!
//! A local APIC accepts vectors from 16 on, so that any core can interrupt another with a vector that exceptions have, too.
//! Such an interrupt is told from the exception by the local APIC and handled like any other.
//!
//! Nothing goes on after any other exception: Isola's own code raises none that it could recover from. Their handler gets the
//! registers and does not return.

mod frame;

pub use frame::{ExceptionFrame, FIRST_INTERRUPT, vector};

use crate::apic::local;
use crate::authority::Authority;
use crate::{cpu, restart, serial_line};
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use isola_abi::layout::{REGIONS, REGIONS_SIZE};
use isola_abi::management::RestartCause;

global_asm!(include_str!("vectors.s"), options(att_syntax));

/// What a local APIC raises when it had a reason for an interrupt and has lost it. Not to be acknowledged.
pub const SPURIOUS_VECTOR: u8 = 0xff;

/// Gets a parked core to look at its mailbox.
pub const WAKE_VECTOR: u8 = 0xfe;

/// What is done at an interrupt. Given the vector, on the core that was interrupted.
pub type InterruptHandler = fn(u8);

/// What is done at an exception.
pub type ExceptionHandler = fn(&ExceptionFrame) -> !;

/// What is done at a page fault that may be recovered from. Given the registers and the address. Where it returns,
/// the access is tried again.
pub type PageFaultHandler = fn(&ExceptionFrame, u64);

/// What is done at a non-maskable interrupt. Given the registers.
pub type NonMaskableHandler = fn(&ExceptionFrame) -> NonMaskable;

/// What becomes of a core after a non-maskable interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonMaskable {
    /// It goes on as if nothing had been.
    Handled,
    /// That was an exception like any other.
    Fatal,
}

/// In a page fault's error code: the page was there, or what was wanted was an instruction.
const NOT_MISSING: u64 = 1 | 1 << 4;

static PAGE_FAULT_HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static NON_MASKABLE_HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static INTERRUPT_HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static EXCEPTION_HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets what is done at interrupts, on all cores. Until then they are acknowledged and forgotten.
pub fn set_interrupt_handler(_: Authority, handler: InterruptHandler) {
    INTERRUPT_HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Sets what is done at exceptions, on all cores. Until then they are told on the serial line, and the image begins
/// anew, where it is made for that; else the machine is ended.
pub fn set_exception_handler(_: Authority, handler: ExceptionHandler) {
    EXCEPTION_HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Sets what is done at non-maskable interrupts, on all cores. Until then they are exceptions like any other.
pub fn set_non_maskable_handler(_: Authority, handler: NonMaskableHandler) {
    NON_MASKABLE_HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Sets what is done at page faults that may be recovered from, on all cores. Until then they are exceptions like
/// any other.
pub fn set_page_fault_handler(_: Authority, handler: PageFaultHandler) {
    PAGE_FAULT_HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Lets interrupts in for a moment: those that are pending are handled before this returns.
///
/// Safe at any time, as are the functions that halt: only the handlers that the platform has set run, on this core, and these
/// change atomic words alone.
#[inline]
pub fn window() {
    // SAFETY: handlers may change whatever a call may, which is declared; the stack may be used. The
    // instruction after STI runs with interrupts still off: they come behind the NOP.
    unsafe { asm!("sti", "nop", "cli", clobber_abi("C")) };
}

/// Halts this core until an interrupt comes, and handles it.
///
/// An interrupt that is pending already ends it at once, so a core that has found nothing to do, with
/// interrupts off, can halt without missing what came since.
#[inline]
pub fn halt() {
    // SAFETY: as for `window`; between STI and HLT no interrupt is taken.
    unsafe { asm!("sti", "hlt", "cli", clobber_abi("C")) };
}

/// Halts this core until an interrupt comes, and handles it, or until `word` is written, where it is `value` now. May
/// return for no reason. The processor must have MONITOR and MWAIT ([`cpu::Features::monitor`]).
///
/// As with [`halt`], an interrupt that is pending already ends it at once. A word that is written after it was looked at
/// does as well, as it is monitored by then.
#[inline]
pub fn halt_while(word: &AtomicU32, value: u32) {
    // SAFETY: reads the word's cache line, which is ordinary memory. Where the processor does not have the instruction, it
    // raises an exception, which is reported.
    unsafe { asm!("monitor", in("rax") word.as_ptr(), in("ecx") 0, in("edx") 0, options(nostack, readonly)) };
    if word.load(Ordering::Acquire) == value {
        // An interrupt that ends it comes at the latest behind the NOP: QEMU's emulator takes none between the two.
        // SAFETY: as for `halt`. What is in EAX and ECX asks for the lightest sleep, and nothing else.
        unsafe {
            asm!("sti", "mwait", "nop", "cli", inlateout("eax") 0 => _, inlateout("ecx") 0 => _, clobber_abi("C"));
        }
    }
}

/// The address of the image's first vector's entry point; the others follow at 16 bytes' distance.
pub(crate) fn vectors() -> u64 {
    unsafe extern "C" {
        safe static isola_vectors: u8;
    }
    (&raw const isola_vectors) as u64
}

/// Called by `vectors.s`.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_interrupt(vector: u64) {
    let vector = vector as u8;
    if vector != WAKE_VECTOR {
        let handler = INTERRUPT_HANDLER.load(Ordering::Acquire);
        if !handler.is_null() {
            // SAFETY: not null, so it came from `set_interrupt_handler`.
            let handler = unsafe { core::mem::transmute::<*mut (), InterruptHandler>(handler) };
            handler(vector);
        }
    }
    // The local APIC expects no acknowledgement of a spurious interrupt, but it does of one that was sent with that vector.
    if vector != SPURIOUS_VECTOR || local::is_in_service(vector) {
        local::end_of_interrupt();
    }
}

/// Called by `vectors.s`, at a vector from 16 to 31. Returns how many bytes stand between the registers and what the
/// processor has pushed, where that was an interrupt. Does not return from an exception.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_either(frame: &ExceptionFrame) -> u64 {
    let Some(pushed_bytes) = frame.pushed_bytes_of_interrupt() else { isola_exception(frame) };
    // The exception can come while interrupts are on, too: only the local APIC knows which it was.
    if !local::is_in_service(frame.vector as u8) {
        isola_exception(frame);
    }
    isola_interrupt(frame.vector);
    pushed_bytes
}

/// Called by `vectors.s`.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_page_fault(frame: &ExceptionFrame) {
    let address = cpu::fault_address();
    let handler = PAGE_FAULT_HANDLER.load(Ordering::Acquire);
    let in_window = address.wrapping_sub(REGIONS) < REGIONS_SIZE;
    if handler.is_null() || !in_window || frame.error_code & NOT_MISSING != 0 {
        isola_exception(frame);
    }
    // SAFETY: not null, so it came from `set_page_fault_handler`.
    let handler = unsafe { core::mem::transmute::<*mut (), PageFaultHandler>(handler) };
    handler(frame, address);
}

/// Called by `vectors.s`.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_non_maskable(frame: &ExceptionFrame) {
    let handler = NON_MASKABLE_HANDLER.load(Ordering::Acquire);
    if handler.is_null() {
        if restart::is_beginning() {
            // Somebody found that the image stood still. It is on its way up already.
            return;
        }
        isola_exception(frame);
    }
    // SAFETY: not null, so it came from `set_non_maskable_handler`.
    let handler = unsafe { core::mem::transmute::<*mut (), NonMaskableHandler>(handler) };
    if handler(frame) == NonMaskable::Fatal {
        isola_exception(frame);
    }
}

/// Called by `vectors.s`.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_exception(frame: &ExceptionFrame) -> ! {
    let handler = EXCEPTION_HANDLER.load(Ordering::Acquire);
    if handler.is_null() {
        serial_line!("{frame}, address {:#x}", cpu::fault_address());
        restart::restart(Authority::OWN, RestartCause::Exception);
    }
    // SAFETY: not null, so it came from `set_exception_handler`.
    let handler = unsafe { core::mem::transmute::<*mut (), ExceptionHandler>(handler) };
    handler(frame)
}
