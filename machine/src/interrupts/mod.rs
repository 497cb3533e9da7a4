//! Interrupts and exceptions: their entry points, and the points in time at which a core takes interrupts.
//!
//! Interrupts are off while code runs. A core takes them when it calls [`window`], between events and where a long event
//! asks whether it should end, and while it waits, in [`halt`]. So handlers run at known points, on the stack of the caller, with no registers to save; they share data
//! with all other code of their core without locks.
//!
//! Exceptions occur at any time. Only one kind is recoverable: a page fault at a page that is not present, in the part
//! of the address space that a cell maps itself ([`region_area`](crate::region_area)). Its handler maps the page and
//! returns, and the processor executes the instruction again. The handler runs on the stack of the faulting code, with
//! interrupts off; all registers are restored.
//!
//! Non-maskable interrupts also occur at any time, and have a stack of their own. With them the supervisor makes a core
//! flush its TLB or suspend its current context, and stops a core that hangs. The handler's result says whether the
//! core continues.
//!
//! A local APIC accepts vectors from 16 on, so any core can interrupt another with a vector of an exception. The local
//! APIC's in-service bit distinguishes such an interrupt from the exception; it is handled like any other interrupt.
//!
//! All other exceptions are fatal: Isola's own code raises none that it could recover from. Their handler gets the
//! registers and does not return.

mod frame;

pub use frame::{ExceptionFrame, FIRST_INTERRUPT, vector};

use crate::apic::local;
use crate::authority::Authority;
use crate::user::InterruptedBase;
use crate::{cpu, restart, serial_line};
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use isola_abi::layout::{REGIONS, REGIONS_SIZE};
use isola_abi::management::RestartCause;

global_asm!(include_str!("vectors.s"), options(att_syntax));

/// The vector that a local APIC raises if the reason for an interrupt has disappeared. Not to be acknowledged.
pub const SPURIOUS_VECTOR: u8 = 0xff;

/// The vector that makes a parked core check its mailbox.
pub const WAKE_VECTOR: u8 = 0xfe;

/// A function that handles interrupts. It gets the vector, and runs on the interrupted core.
pub type InterruptHandler = fn(u8);

/// A function that handles fatal exceptions.
pub type ExceptionHandler = fn(&ExceptionFrame) -> !;

/// A function that handles recoverable page faults. It gets the registers and the address. If it returns, the access is
/// repeated.
pub type PageFaultHandler = fn(&ExceptionFrame, u64);

/// A function that handles non-maskable interrupts. It gets the registers.
pub type NonMaskableHandler = fn(&ExceptionFrame) -> NonMaskable;

/// The result of a handler of non-maskable interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonMaskable {
    /// The interrupted code continues.
    Handled,
    /// The interrupt is a fatal exception.
    Fatal,
}

/// Bits of a page fault's error code: the page was present, or the access was an instruction fetch.
const NOT_MISSING: u64 = 1 | 1 << 4;

static PAGE_FAULT_HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static NON_MASKABLE_HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static INTERRUPT_HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static EXCEPTION_HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the handler of interrupts for all cores. Without a handler, interrupts are only acknowledged.
pub fn set_interrupt_handler(_: Authority, handler: InterruptHandler) {
    INTERRUPT_HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Sets the handler of exceptions for all cores. Without a handler, an exception is printed on the serial line, and the
/// image restarts if it supports restarts; otherwise the machine ends.
pub fn set_exception_handler(_: Authority, handler: ExceptionHandler) {
    EXCEPTION_HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Sets the handler of non-maskable interrupts for all cores. Without a handler, they are fatal exceptions.
pub fn set_non_maskable_handler(_: Authority, handler: NonMaskableHandler) {
    NON_MASKABLE_HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Sets the handler of recoverable page faults for all cores. Without a handler, they are fatal exceptions.
pub fn set_page_fault_handler(_: Authority, handler: PageFaultHandler) {
    PAGE_FAULT_HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Opens the interrupt window: pending interrupts are handled before this returns.
///
/// Safe at any time, as are the functions that halt: only the handlers that the platform has set run, on this core, and
/// these change only atomic words.
#[inline]
pub fn window() {
    // SAFETY: handlers may change all caller-saved registers, which is declared, and use the stack. The instruction
    // after STI still runs with interrupts off: they are taken after the NOP.
    unsafe { asm!("sti", "nop", "cli", clobber_abi("C")) };
}

/// Halts this core until an interrupt arrives, and handles it.
///
/// An interrupt that is already pending ends the halt at once, so a core that has found no work, with interrupts off,
/// can halt without missing later work.
#[inline]
pub fn halt() {
    // SAFETY: as for `window`; the processor takes no interrupt between STI and HLT.
    unsafe { asm!("sti", "hlt", "cli", clobber_abi("C")) };
}

/// Halts this core until an interrupt arrives, and handles it, or until `word` is written, if it is `value` now. Can
/// return spuriously. The processor must have MONITOR and MWAIT ([`cpu::Features::monitor`]).
///
/// As with [`halt`], an interrupt that is already pending ends the wait at once. So does a write after the check of the
/// word, as the processor monitors it by then.
#[inline]
pub fn halt_while(word: &AtomicU32, value: u32) {
    // SAFETY: the instruction reads the word's cache line, which is ordinary memory. On a processor without the
    // instruction it raises an exception, which is reported.
    unsafe { asm!("monitor", in("rax") word.as_ptr(), in("ecx") 0, in("edx") 0, options(nostack, readonly)) };
    if word.load(Ordering::Acquire) == value {
        // An interrupt that ends the wait is taken at the latest after the NOP: QEMU's emulator takes none between STI
        // and MWAIT.
        // SAFETY: as for `halt`. The zeros in EAX and ECX request the lightest sleep state without extensions.
        unsafe {
            asm!("sti", "mwait", "nop", "cli", inlateout("eax") 0 => _, inlateout("ecx") 0 => _, clobber_abi("C"));
        }
    }
}

/// Returns the address of the entry point of vector 0; the others follow, 16 bytes apart.
pub(crate) fn vectors() -> u64 {
    unsafe extern "C" {
        safe static isola_vectors: u8;
    }
    (&raw const isola_vectors) as u64
}

/// Handles an interrupt that has arrived in user mode.
pub(crate) fn handle_interrupt(vector: u64) {
    isola_interrupt(vector);
}

/// Handles an interrupt; called by `vectors.s`.
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
    // The local APIC expects no acknowledgement of a spurious interrupt, but of one that another core sent with that
    // vector.
    if vector != SPURIOUS_VECTOR || local::is_in_service(vector) {
        local::end_of_interrupt();
    }
}

/// Handles vectors 16 to 31; called by `vectors.s`. For an interrupt, returns the number of bytes between the registers
/// and the processor's frame. Does not return from an exception.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_ambiguous_vector(frame: &ExceptionFrame) -> u64 {
    let Some(pushed_bytes) = frame.pushed_bytes_of_interrupt() else { isola_exception(frame) };
    // The exception can also occur while interrupts are on: only the local APIC knows which it was.
    if !local::is_in_service(frame.vector as u8) {
        isola_exception(frame);
    }
    isola_interrupt(frame.vector);
    pushed_bytes
}

/// Handles a page fault; called by `vectors.s`.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_page_fault(frame: &ExceptionFrame) {
    let address = cpu::fault_address();
    let handler = PAGE_FAULT_HANDLER.load(Ordering::Acquire);
    let in_region_area = address.wrapping_sub(REGIONS) < REGIONS_SIZE;
    if handler.is_null() || !in_region_area || frame.error_code & NOT_MISSING != 0 {
        isola_exception(frame);
    }
    // SAFETY: not null, so it came from `set_page_fault_handler`.
    let handler = unsafe { core::mem::transmute::<*mut (), PageFaultHandler>(handler) };
    handler(frame, address);
}

/// Handles a non-maskable interrupt; called by `vectors.s`.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_non_maskable(frame: &ExceptionFrame) {
    let handler = NON_MASKABLE_HANDLER.load(Ordering::Acquire);
    let base = InterruptedBase::replace(frame);
    if handler.is_null() {
        if restart::is_beginning() {
            // A second NMI for the hang of the previous incarnation: this one is already starting.
            return;
        }
        isola_exception(frame);
    }
    // SAFETY: not null, so it came from `set_non_maskable_handler`.
    let handler = unsafe { core::mem::transmute::<*mut (), NonMaskableHandler>(handler) };
    if handler(frame) == NonMaskable::Fatal {
        isola_exception(frame);
    }
    base.restore();
}

/// Handles a fatal exception; called by `vectors.s`.
#[unsafe(no_mangle)]
extern "sysv64" fn isola_exception(frame: &ExceptionFrame) -> ! {
    let handler = EXCEPTION_HANDLER.load(Ordering::Acquire);
    // Not restored: the interrupted code does not continue.
    let _ = InterruptedBase::replace(frame);
    if handler.is_null() {
        serial_line!("{frame}, address {:#x}", cpu::fault_address());
        restart::restart(Authority::OWN, RestartCause::Exception);
    }
    // SAFETY: not null, so it came from `set_exception_handler`.
    let handler = unsafe { core::mem::transmute::<*mut (), ExceptionHandler>(handler) };
    handler(frame)
}
