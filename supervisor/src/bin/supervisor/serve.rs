//! The supervisor's loop. A pass handles one request from the console; then a slice of work, if a request waits for it
//! or there is no request; then, if no memory is dirty, the core sleeps. Between any two of these the loop serves
//! notifications and deadlines, so each should take less than a million instructions
//! (docs/decisions/0052-no-scrubbing-in-requests.md).
//!
//! Interrupts arrive during a halt and in the interrupt window after a slice. The handler only records them; the loop
//! acts on them afterwards.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use isola_abi::management::JournalEvent;
use isola_drivers::console::Console;
use isola_drivers::virtqueue::{Fault, Pending};
use isola_machine::interrupts::{self, SPURIOUS_VECTOR};
use isola_supervisor::journal::Journal;
use isola_supervisor::server::Server;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::Scrub;
use isola_supervisor_machine::{MachineHardware, heartbeat};

/// The interrupt vectors of the supervisor's core.
pub mod vector {
    /// The management console has received or sent data.
    pub const CONSOLE: u8 = 0x40;
    /// A notification from a cell.
    pub const NOTIFICATION: u8 = 0x41;
    /// The timer.
    pub const TIMER: u8 = 0x42;
}

/// Whether a notification has arrived since the loop last checked. Initially true, as one may have arrived before a
/// restart of the supervisor.
static NOTIFIED: AtomicBool = AtomicBool::new(true);

/// The number of interrupts with unused vectors: a cell can send any vector to any core.
static STRAY: AtomicU32 = AtomicU32::new(0);

/// The time for which the last answers before a power-off may wait for their reader, in ns.
const FINISH_NS: u64 = 1_000_000_000;

/// Records an interrupt.
pub fn on_interrupt(vector: u8) {
    match vector {
        vector::NOTIFICATION => NOTIFIED.store(true, Ordering::Relaxed),
        vector::CONSOLE | vector::TIMER | SPURIOUS_VECTOR => {}
        _ => _ = STRAY.fetch_add(1, Ordering::Relaxed),
    }
}

/// Enters the number of interrupts with unused vectors in the journal, each time that it has doubled.
fn note_stray_interrupts(server: &mut Server<MachineHardware>) {
    static NOTED: AtomicU32 = AtomicU32::new(0);
    let count = STRAY.load(Ordering::Relaxed);
    if count > 0 && count / 2 >= NOTED.load(Ordering::Relaxed) {
        NOTED.store(count, Ordering::Relaxed);
        let now = server.cells().core().now_ns();
        server.cells().record(now, None, JournalEvent::StrayInterrupts { count });
    }
}

/// Serves until a power-off is requested.
///
/// # Errors
/// Returns the console's fault, after which the console does not work.
pub fn serve(
    server: &mut Server<MachineHardware>,
    console: &mut Console,
    log: &mut Log,
) -> Result<(), Fault> {
    let mut wire = Wire::default();
    loop {
        heartbeat::beat();
        wire.receive(console, server)?;
        serve_events(server, log);
        if wire.unsent.is_empty() {
            wire.unsent = server.take_unsent();
        }
        wire.send(console)?;
        if server.wants_power_off() {
            return wire.finish(console, server);
        }
        if server.is_waited_for() || wire.is_idle(console) {
            rest(server, log);
            serve_events(server, log);
        }
    }
}

/// Serves cells on a machine without a working management console.
pub fn serve_cells(server: &mut Server<MachineHardware>, log: &mut Log) -> ! {
    loop {
        heartbeat::beat();
        serve_events(server, log);
        drop(server.take_unsent());
        rest(server, log);
    }
}

/// Does a slice of work, or sleeps until an interrupt if there is none.
fn rest(server: &mut Server<MachineHardware>, log: &mut Log) {
    match server.work() {
        Scrub::Unfinished => {
            // Lets the sibling core, or the next core that the emulator's thread runs, continue. The turn of that one is no
            // work of the supervisor.
            let paused_ns = server.cells().core().now_ns();
            core::hint::spin_loop();
            interrupts::window();
            let turn_ns = server.cells().core().now_ns().saturating_sub(paused_ns);
            log.polled_ns = log.polled_ns.map(|polled_ns| polled_ns + turn_ns);
        }
        Scrub::Finished => {
            arm(server);
            heartbeat::pause();
            interrupts::halt();
            log.polled_ns = Some(server.cells().core().now_ns());
        }
    }
}

/// Serves notifications and deadlines.
fn serve_events(server: &mut Server<MachineHardware>, log: &mut Log) {
    let began = server.cells().core().now_ns();
    if NOTIFIED.swap(false, Ordering::Relaxed) {
        server.on_notification();
    }
    note_stray_interrupts(server);
    let now = server.cells().core().now_ns();
    if server.next_deadline_ns().is_some_and(|deadline| deadline <= now) {
        server.tick();
    }
    log.write(server.cells().journal());
    log.count(began, server.cells().core().hardware());
}

/// The longest delay of a notification, in ns, that is not logged.
const LATE_NS: u64 = 1_000_000;

/// The writer of the journal to the log, and the measurement of the notifications' delays.
#[derive(Debug)]
pub struct Log {
    /// The number of the first entry that is not written yet.
    next: u64,
    /// When the loop last checked for notifications, or woke; `None` at the start.
    polled_ns: Option<u64>,
    /// The total time spent waiting for reclaimed cores at that check, in ns.
    waited_ns: u64,
    /// The longest delay logged so far, in ns.
    longest_ns: u64,
}

impl Log {
    /// Returns a log that begins with this supervisor's entries of `journal`.
    pub fn of(journal: &Journal) -> Self {
        Self { next: journal.begin(), polled_ns: None, waited_ns: 0, longest_ns: 0 }
    }

    fn write(&mut self, journal: &Journal) {
        for entry in journal.since(self.next) {
            let cell = entry.cell.as_deref().unwrap_or("-");
            log::info!("{cell}: {:?}, {} us", entry.event, entry.duration_ns / 1000);
            self.next = entry.number + 1;
        }
    }

    /// Measures the longest possible delay of a notification: from the previous check, right after which it may have
    /// arrived, or from the wake-up, to the end of this check. The time that cores of an ended cell take to come back
    /// is not counted, as it is not the supervisor's work.
    fn count(&mut self, began: u64, hardware: &MachineHardware) {
        let waited_ns = hardware.waited_ns() - core::mem::replace(&mut self.waited_ns, hardware.waited_ns());
        let since_ns = self.polled_ns.replace(began + waited_ns).unwrap_or(began) + waited_ns;
        let late_ns = hardware.now_ns().saturating_sub(since_ns);
        // Only a delay twice as long as the last one logged, which bounds the number of lines.
        if late_ns > LATE_NS.max(2 * self.longest_ns) {
            self.longest_ns = late_ns;
            log::warn!("notifications of cells waited for up to {} us", late_ns / 1000);
        }
    }
}

/// Bytes in transit between console and server.
#[derive(Default)]
struct Wire {
    /// Bytes received, for the server, which takes them once its answers have been sent.
    received: Vec<u8>,
    /// Bytes for the console, which has no room for them yet. The server's next answers wait until these are sent.
    unsent: Vec<u8>,
}

impl Wire {
    fn receive(&mut self, console: &mut Console, server: &mut Server<MachineHardware>) -> Result<(), Fault> {
        if self.received.is_empty() {
            let mut buffer = [0; 4096];
            let len = console.receive(&mut buffer)?;
            self.received.extend(buffer.iter().take(len));
        }
        let mut rest = self.received.as_slice();
        server.receive(&mut rest);
        let taken = self.received.len() - rest.len();
        self.received.drain(..taken);
        Ok(())
    }

    fn send(&mut self, console: &mut Console) -> Result<(), Fault> {
        let sent = console.transmit(&self.unsent)?;
        self.unsent.drain(..sent);
        Ok(())
    }

    /// Sends the rest and waits until the device has read it, at most [`FINISH_NS`]: the device holds bytes back while
    /// the other end does not read.
    fn finish(&mut self, console: &mut Console, server: &mut Server<MachineHardware>) -> Result<(), Fault> {
        let mut now_ns = || server.cells().core().now_ns();
        let deadline_ns = now_ns() + FINISH_NS;
        while (!self.unsent.is_empty() || !console.is_drained()?) && now_ns() < deadline_ns {
            self.send(console)?;
            core::hint::spin_loop();
        }
        Ok(())
    }

    /// Returns whether the console needs nothing before the next interrupt, which this call enables. Received bytes
    /// that the server has not taken wait for answers to be sent; while there are such bytes, no more are received.
    fn is_idle(&self, console: &mut Console) -> bool {
        let can_send = !self.unsent.is_empty() && console.enable_transmit_interrupts() == Pending::Yes;
        let can_receive = match self.received.is_empty() {
            true => console.enable_receive_interrupts() == Pending::Yes,
            false => self.unsent.is_empty(),
        };
        !can_send && !can_receive
    }
}

/// Arms the timer for the next deadline, or disarms it if there is none.
fn arm(server: &mut Server<MachineHardware>) {
    let deadline = server.next_deadline_ns();
    server.cells().core().hardware().arm_timer(vector::TIMER, deadline);
}
