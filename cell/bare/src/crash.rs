//! Crashes: the core records the cause and location in the report, notifies the supervisor, and stops.
//!
//! The first core that crashes fills the report; later ones only print to the console. This code neither allocates nor
//! takes a lock, as the core may hold any.

use crate::hot_plug::Shortage;
use crate::state::{AUTHORITY, end_machine_if_alone, is_alone};
use crate::{console, heap, sampler, supervisor};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::Ordering;
use isola_abi::layout::{PAGE_SIZE, STACK_SLOT, STACKS};
use isola_abi::report::{BACKTRACE_LEN, CRASH_MESSAGE_LEN, CellPhase, CrashKind, CrashReport};
use isola_ebbs::current_core;
use isola_machine::cell::suspended::{self, NmiAction};
use isola_machine::interrupts::{self, ExceptionFrame, NonMaskable, vector};
use isola_machine::{backtrace, cell, cpu, power};
use isola_memory::regions::{self, FaultError, FillError};

/// The exit code of a standalone image that crashes.
const CRASH_CODE: i32 = 101;

/// Installs the exception handlers, on all cores.
pub(crate) fn start() {
    interrupts::set_exception_handler(AUTHORITY, exception);
    interrupts::set_non_maskable_handler(AUTHORITY, non_maskable);
}

/// The interrupted instruction and its stack, the start of a backtrace.
struct CrashSite {
    instruction: u64,
    stack_pointer: u64,
    frame_pointer: u64,
}

impl CrashSite {
    /// Returns the interrupted instruction and stack of an exception.
    fn of(frame: &ExceptionFrame) -> Self {
        Self { instruction: frame.rip, stack_pointer: frame.rsp, frame_pointer: frame.rbp }
    }
}

/// The panic handler of every cell image.
pub fn panicked(info: &PanicInfo<'_>) -> ! {
    let site = current_site();
    let len = heap::refused_len();
    // After a failed allocation `alloc` panics with this message, unless the caller handles the failure.
    let mut rest = ExpectedText(ALLOCATION_FAILED);
    if len > 0 && write!(rest, "{}", info.message()).is_ok() && rest.0.is_empty() {
        let message = format_args!("memory ran out: {len} bytes were asked for; {Shortage}");
        crash(CrashKind::OutOfMemory, &site, None, message)
    }
    crash(CrashKind::Panic, &site, None, format_args!("{info}"))
}

/// The panic message of a failed allocation. `#` represents a run of digits.
const ALLOCATION_FAILED: &str = "memory allocation of # bytes failed";

/// The remaining part of an expected text.
struct ExpectedText(&'static str);

impl Write for ExpectedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            let rest = match (letter.is_ascii_digit(), self.0.strip_prefix('#')) {
                (true, Some(_)) => self.0,
                (_, after) => after.unwrap_or(self.0).strip_prefix(letter).ok_or(fmt::Error)?,
            };
            self.0 = rest;
        }
        Ok(())
    }
}

/// Ends the cell after an access to a region's page that its pager cannot fill.
pub(crate) fn fill_failed(frame: &ExceptionFrame, address: u64, error: FaultError) -> ! {
    let site = CrashSite::of(frame);
    match error {
        FaultError::Pager(_, FillError::OutOfMemory(_)) => {
            let message = format_args!("access to {address:#x}: {error}; {Shortage}");
            crash(CrashKind::OutOfMemory, &site, Some(frame), message)
        }
        FaultError::Pager(_, FillError::OutOfTables) => {
            let message = format_args!("access to {address:#x}: {error}");
            crash(CrashKind::OutOfMemory, &site, Some(frame), message)
        }
        _ => crash(CrashKind::Exception, &site, Some(frame), format_args!("access to {address:#x}: {error}")),
    }
}

/// Ends the cell after a pager has touched a region.
pub(crate) fn fault_in_pager(frame: &ExceptionFrame, address: u64) -> ! {
    let message = format_args!("access to {address:#x}: a pager has touched a region, which it must not");
    crash(CrashKind::Exception, &CrashSite::of(frame), Some(frame), message)
}

/// Handles an NMI of the supervisor, which can interrupt the core at any instruction.
fn non_maskable(frame: &ExceptionFrame) -> NonMaskable {
    match suspended::non_maskable(AUTHORITY, frame, isola_events::give_notice, &sampler::SOURCE) {
        NmiAction::Done => NonMaskable::Handled,
        NmiAction::Stop => NonMaskable::Fatal,
        // The supervisor may have cancelled an order meanwhile. A standalone image has no supervisor, so there the NMI
        // is fatal.
        NmiAction::Unknown if is_alone() => NonMaskable::Fatal,
        NmiAction::Unknown => NonMaskable::Handled,
        NmiAction::Yield(yielded) => {
            isola_events::wake_all();
            yielded.report();
            supervisor::notify();
            yielded.wait()
        }
    }
}

fn exception(frame: &ExceptionFrame) -> ! {
    let site = CrashSite::of(frame);
    let address = cpu::fault_address();
    match frame.vector {
        vector::NON_MASKABLE => crash(
            CrashKind::Hang,
            &site,
            Some(frame),
            format_args!("stopped by the supervisor: no event ended in time"),
        ),
        vector::DOUBLE_FAULT if in_guard(address) => {
            crash(CrashKind::DoubleFault, &site, Some(frame), format_args!("stack overflow"))
        }
        vector::DOUBLE_FAULT => match regions::region_at(address as usize) {
            Some(name) => {
                let message = format_args!("overflow of the stack {name:?}");
                crash(CrashKind::DoubleFault, &site, Some(frame), message)
            }
            None => crash(CrashKind::DoubleFault, &site, Some(frame), format_args!("{frame}")),
        },
        vector::PAGE_FAULT => {
            crash(CrashKind::Exception, &site, Some(frame), format_args!("{frame}: access to {address:#x}"))
        }
        _ => crash(CrashKind::Exception, &site, Some(frame), format_args!("{frame}")),
    }
}

/// Returns whether an address is in the guard page below this core's stack.
fn in_guard(address: u64) -> bool {
    let slot = STACKS + STACK_SLOT * u64::from(current_core().0);
    (slot..slot + PAGE_SIZE).contains(&address)
}

#[inline(always)]
fn current_site() -> CrashSite {
    CrashSite { instruction: 0, stack_pointer: 0, frame_pointer: backtrace::frame_pointer() }
}

fn crash(
    kind: CrashKind,
    site: &CrashSite,
    frame: Option<&ExceptionFrame>,
    message: fmt::Arguments<'_>,
) -> ! {
    let core = current_core().0;
    let report = &cell::report().crash;
    let claim = report.claimed_by.compare_exchange(0, core + 1, Ordering::AcqRel, Ordering::Relaxed);
    // A hang stops all cores of the cell: only the first has something to report.
    if claim.is_ok() || kind != CrashKind::Hang {
        let _ = writeln!(ConsoleWriter, "core {core} crashed: {message}");
    }
    if claim.is_ok() {
        report.kind.store(kind as u32, Ordering::Relaxed);
        report.core_index.store(core, Ordering::Relaxed);
        if let Some(frame) = frame {
            report.vector.store(frame.vector as u32, Ordering::Relaxed);
            report.error_code.store(frame.error_code, Ordering::Relaxed);
            report.fault_address.store(cpu::fault_address(), Ordering::Relaxed);
        }
        report.instruction.store(site.instruction, Ordering::Relaxed);
        report.stack_pointer.store(site.stack_pointer, Ordering::Relaxed);
        let mut addresses = [0; BACKTRACE_LEN];
        let count = backtrace::walk(site.frame_pointer, &mut addresses);
        let entries = report.backtrace.iter().zip(&addresses[..count]);
        entries.for_each(|(entry, address)| entry.store(*address, Ordering::Relaxed));
        let _ = write!(MessageWriter { report, len: 0 }, "{message}");
        supervisor::report_phase(CellPhase::Crashed);
    }
    end_machine_if_alone(CRASH_CODE);
    power::stop()
}

struct ConsoleWriter;

impl Write for ConsoleWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        console::print_regardless(text.as_bytes());
        Ok(())
    }
}

/// Writes the report's message, and truncates it to fit.
struct MessageWriter<'a> {
    report: &'a CrashReport,
    len: usize,
}

impl Write for MessageWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = text.floor_char_boundary(CRASH_MESSAGE_LEN - self.len);
        let bytes = self.report.message[self.len..].iter();
        bytes.zip(text[..room].bytes()).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
        self.len += room;
        if room < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}
