//! Writes the cell's report: phase, console, crash.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use isola_abi::descriptor::Descriptor;
use isola_abi::id::{ApicId, MAX_CORES};
use isola_abi::report::{BACKTRACE_LEN, CONSOLE_LEN, CellPhase, CorePhase, CrashKind};
use isola_machine::apic::local;
use isola_machine::authority::Authority;
use isola_machine::cell::report;
use isola_machine::interrupts::{ExceptionFrame, vector};
use isola_machine::{backtrace, cpu, power};
use spin::Once;

/// The cores' APIC ids, by index, and their number.
static CORES: [AtomicU32; MAX_CORES] = [const { AtomicU32::new(0) }; MAX_CORES];
static CORE_COUNT: AtomicU32 = AtomicU32::new(0);
/// The destination of notifications to the supervisor; vector 0 if there is none.
static NOTIFICATION_CORE: AtomicU32 = AtomicU32::new(0);
static NOTIFICATION_VECTOR: AtomicU8 = AtomicU8::new(0);

/// The authority for all cores and handlers. Empty until the first core has opened the cell.
static AUTHORITY: Once<Authority> = Once::new();

/// Stores the cell's authority for all cores.
pub fn open(authority: Authority) -> Authority {
    *AUTHORITY.call_once(|| authority)
}

/// Returns the cell's authority. Waits until the first core has opened the cell.
pub fn authority() -> Authority {
    *AUTHORITY.wait()
}

/// Records the destination of notifications.
pub fn begin(descriptor: &Descriptor) {
    for (place, core) in CORES.iter().zip(&descriptor.cores) {
        place.store(core.apic.0, Ordering::Relaxed);
    }
    CORE_COUNT.store(descriptor.cores.len() as u32, Ordering::Relaxed);
    if let Some(target) = descriptor.supervisor {
        NOTIFICATION_CORE.store(target.apic.0, Ordering::Relaxed);
        NOTIFICATION_VECTOR.store(target.vector, Ordering::Relaxed);
    }
    report().version.store(isola_abi::VERSION, Ordering::Relaxed);
}

/// Returns the core that starts the cell.
pub fn first_core() -> ApicId {
    ApicId(CORES[0].load(Ordering::Relaxed))
}

/// Reports the cell's phase, and notifies the supervisor.
pub fn say(phase: CellPhase) {
    report().phase.store(phase as u32, Ordering::Release);
    ring();
}

fn ring() {
    let vector = NOTIFICATION_VECTOR.load(Ordering::Relaxed);
    if vector != 0 {
        local::send(authority(), ApicId(NOTIFICATION_CORE.load(Ordering::Relaxed)), vector);
    }
}

/// Reports a core's phase.
pub fn core_phase(index: usize, phase: CorePhase) {
    if let Some(core) = report().cores.get(index) {
        core.phase.store(phase as u32, Ordering::Relaxed);
    }
}

/// Counts a pass of the first core's loop in the report.
pub fn pass() {
    report().cores[0].passes.fetch_add(1, Ordering::Relaxed);
}

/// Ends the cell.
pub fn exit(code: i32) -> ! {
    report().exit_code.store(code, Ordering::Relaxed);
    say(CellPhase::Exited);
    power::stop()
}

/// Prints to the console. Notifies the supervisor if it has not read half of the ring.
pub fn print(text: fmt::Arguments<'_>) {
    let _ = Console.write_fmt(text);
    let ring_state = &report().console;
    let unread = ring_state.written.load(Ordering::Relaxed) - ring_state.read.load(Ordering::Relaxed);
    if unread > CONSOLE_LEN as u64 / 2 {
        ring();
    }
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let console = &report().console;
        let mut written = console.written.load(Ordering::Relaxed);
        console.begun.store(written + text.len() as u64, Ordering::Relaxed);
        fence(Ordering::Release);
        for byte in text.bytes() {
            console.bytes[written as usize % CONSOLE_LEN].store(byte, Ordering::Relaxed);
            written += 1;
        }
        console.written.store(written, Ordering::Release);
        Ok(())
    }
}

/// The context of a crash.
#[derive(Default)]
pub struct Place {
    vector: u32,
    error_code: u64,
    fault_address: u64,
    instruction: u64,
    stack_pointer: u64,
    frame_pointer: u64,
}

impl Place {
    /// Returns the context of the caller.
    pub fn here() -> Self {
        Self { frame_pointer: backtrace::frame_pointer(), ..Self::default() }
    }
}

/// The exception handler.
pub fn exception(frame: &ExceptionFrame) -> ! {
    let kind = match frame.vector {
        vector::NON_MASKABLE => CrashKind::Hang,
        vector::DOUBLE_FAULT => CrashKind::DoubleFault,
        _ => CrashKind::Exception,
    };
    let place = Place {
        vector: frame.vector as u32,
        error_code: frame.error_code,
        fault_address: cpu::fault_address(),
        instruction: frame.rip,
        stack_pointer: frame.rsp,
        frame_pointer: frame.rbp,
    };
    crash(kind, &place, format_args!("{}", frame.name()))
}

/// Reports a crash, if no other core has, and stops this core.
pub fn crash(kind: CrashKind, place: &Place, message: fmt::Arguments<'_>) -> ! {
    let record = &report().crash;
    let here = local::id();
    let count = CORE_COUNT.load(Ordering::Relaxed) as usize;
    let index = CORES.iter().take(count).position(|apic| apic.load(Ordering::Relaxed) == here.0).unwrap_or(0);
    let claim = index as u32 + 1;
    if record.claimed_by.compare_exchange(0, claim, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        power::stop();
    }
    record.kind.store(kind as u32, Ordering::Relaxed);
    record.core_index.store(index as u32, Ordering::Relaxed);
    record.vector.store(place.vector, Ordering::Relaxed);
    record.error_code.store(place.error_code, Ordering::Relaxed);
    record.fault_address.store(place.fault_address, Ordering::Relaxed);
    record.instruction.store(place.instruction, Ordering::Relaxed);
    record.stack_pointer.store(place.stack_pointer, Ordering::Relaxed);
    let mut addresses = [0; BACKTRACE_LEN];
    let len = backtrace::walk(place.frame_pointer, &mut addresses);
    for (to, address) in record.backtrace.iter().zip(&addresses[..len]) {
        to.store(*address, Ordering::Relaxed);
    }
    let _ = fmt::write(&mut Message { place: &record.message, len: 0 }, message);
    say(CellPhase::Crashed);
    power::stop()
}

struct Message<'a> {
    place: &'a [AtomicU8],
    len: usize,
}

impl Write for Message<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (to, byte) in self.place[self.len..].iter().zip(text.bytes()) {
            to.store(byte, Ordering::Relaxed);
            self.len += 1;
        }
        Ok(())
    }
}
