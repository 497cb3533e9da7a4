//! The supervisor's loop: one request from the console; then a slice of work, where somebody waits for that or there is no
//! request; then, where nothing is dirty, sleep. Notifications of cells, and what is due, are looked at between each two of
//! these: each is to take less than a million instructions (docs/decisions/0052-no-scrubbing-in-requests.md).
//!
//! Interrupts come in the halt, and in the window behind a slice. Their handler only notes that they came:
//! which is looked at behind it.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use isola_abi::management::JournalEvent;
use isola_drivers::console::Console;
use isola_drivers::virtqueue::{Fault, Pending};
use isola_machine::apic::local;
use isola_machine::interrupts::{self, SPURIOUS_VECTOR};
use isola_supervisor::effects::Effects;
use isola_supervisor::inventory::Scrub;
use isola_supervisor::journal::Journal;
use isola_supervisor::server::Server;

use crate::effects::Hardware;
use crate::life;

/// The interrupts of the supervisor's core.
pub mod vector {
    /// The management console has received or sent something.
    pub const CONSOLE: u8 = 0x40;
    /// A cell rings.
    pub const DOORBELL: u8 = 0x41;
    /// The timer.
    pub const TIMER: u8 = 0x42;
}

/// Whether a cell has rung since the bell was last looked at, or may have rung before this supervisor was there.
static BELL: AtomicBool = AtomicBool::new(true);

/// How many interrupts came that the supervisor has no use for: a cell can send any to any core.
static STRAY: AtomicU32 = AtomicU32::new(0);

/// How long the last answers of a machine that is to end may wait for their reader, in ns.
const FINISH_NS: u64 = 1_000_000_000;

/// Notes what came.
pub fn on_interrupt(vector: u8) {
    match vector {
        vector::DOORBELL => BELL.store(true, Ordering::Relaxed),
        vector::CONSOLE | vector::TIMER | SPURIOUS_VECTOR => {}
        _ => _ = STRAY.fetch_add(1, Ordering::Relaxed),
    }
}

/// Enters interrupts with vectors that the supervisor does not use in the journal, each time that there are twice as many.
fn note_stray_interrupts(server: &mut Server<Hardware>) {
    static NOTED: AtomicU32 = AtomicU32::new(0);
    let count = STRAY.load(Ordering::Relaxed);
    if count > 0 && count / 2 >= NOTED.load(Ordering::Relaxed) {
        NOTED.store(count, Ordering::Relaxed);
        let now = server.cells().effects().now_ns();
        server.cells().record(now, None, JournalEvent::StrayInterrupts { count });
    }
}

/// Serves until the end of the machine is asked for.
///
/// # Errors
/// What the console did wrong: it does not work any more.
pub fn serve(server: &mut Server<Hardware>, console: &mut Console, log: &mut Log) -> Result<(), Fault> {
    let mut wire = Wire::default();
    loop {
        life::sign();
        wire.receive(console, server)?;
        look_at_cells(server, log);
        if wire.unsent.is_empty() {
            wire.unsent = server.take_unsent();
        }
        wire.send(console)?;
        if server.wants_power_off() {
            return wire.finish(console, server);
        }
        if server.is_waited_for() || wire.is_quiet(console) {
            rest(server, log);
            look_at_cells(server, log);
        }
    }
}

/// Looks after the cells, of a machine that nobody can manage any more.
pub fn serve_cells(server: &mut Server<Hardware>, log: &mut Log) -> ! {
    loop {
        life::sign();
        look_at_cells(server, log);
        drop(server.take_unsent());
        rest(server, log);
    }
}

/// Nothing is to be done at once: works a little, or sleeps until something comes.
fn rest(server: &mut Server<Hardware>, log: &mut Log) {
    match server.work() {
        Scrub::Unfinished => {
            // The other core of this physical one, or the next one that an emulator's thread runs, may go on.
            core::hint::spin_loop();
            interrupts::window();
        }
        Scrub::Finished => {
            arm(server);
            life::rest();
            interrupts::halt();
            log.looked_ns = Some(server.cells().effects().now_ns());
        }
    }
}

/// Does what cells have rung for, and what is due.
fn look_at_cells(server: &mut Server<Hardware>, log: &mut Log) {
    let began = server.cells().effects().now_ns();
    if BELL.swap(false, Ordering::Relaxed) {
        server.doorbell();
    }
    note_stray_interrupts(server);
    let now = server.cells().effects().now_ns();
    if server.next_deadline_ns().is_some_and(|deadline| deadline <= now) {
        server.tick();
    }
    log.write(server.cells().journal());
    log.count(began, server.cells().effects());
}

/// How long a notification may wait until it is served, in ns. Said in the log where it was longer.
const LATE_NS: u64 = 1_000_000;

/// Writes the journal to the log, and how long notifications wait.
#[derive(Debug)]
pub struct Log {
    /// Number of the first entry that was not written yet.
    next: u64,
    /// When notifications were last looked for, if the supervisor has not slept since.
    looked_ns: Option<u64>,
    /// How long cores had been waited for by then, ever.
    waited_ns: u64,
    /// The longest that one can have waited, of those that were said.
    longest_ns: u64,
}

impl Log {
    /// For what this supervisor enters in its journal.
    pub fn of(journal: &Journal) -> Self {
        Self { next: journal.begin(), looked_ns: None, waited_ns: 0, longest_ns: 0 }
    }

    fn write(&mut self, journal: &Journal) {
        for entry in journal.since(self.next) {
            let cell = entry.cell.as_deref().unwrap_or("-");
            log::info!("{cell}: {:?}, {} us", entry.event, entry.duration_ns / 1000);
            self.next = entry.number + 1;
        }
    }

    /// Counts a look for notifications. One that came right after the look before is served when this one has ended.
    /// What cores take to come back from a cell that ends is not counted: it is no work of the supervisor's.
    fn count(&mut self, began: u64, hardware: &Hardware) {
        let waited_ns = hardware.waited_ns() - core::mem::replace(&mut self.waited_ns, hardware.waited_ns());
        let since_ns = self.looked_ns.replace(began + waited_ns).unwrap_or(began) + waited_ns;
        let late_ns = hardware.now_ns().saturating_sub(since_ns);
        // Twice as long as before, so that there are few lines however often.
        if late_ns > LATE_NS.max(2 * self.longest_ns) {
            self.longest_ns = late_ns;
            log::warn!("notifications of cells waited for up to {} us", late_ns / 1000);
        }
    }
}

/// Bytes on their way.
#[derive(Default)]
struct Wire {
    /// Received; the server takes them when its answers have been taken.
    received: Vec<u8>,
    /// For the console, which has no room for them yet. The server's next answers wait until these are gone.
    unsent: Vec<u8>,
}

impl Wire {
    fn receive(&mut self, console: &mut Console, server: &mut Server<Hardware>) -> Result<(), Fault> {
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

    /// Sends the rest, and waits until the device has read it: not for ever, as the device holds bytes back while
    /// nobody reads at its other end.
    fn finish(&mut self, console: &mut Console, server: &mut Server<Hardware>) -> Result<(), Fault> {
        let mut now_ns = || server.cells().effects().now_ns();
        let deadline_ns = now_ns() + FINISH_NS;
        while (!self.unsent.is_empty() || !console.is_drained()?) && now_ns() < deadline_ns {
            self.send(console)?;
            core::hint::spin_loop();
        }
        Ok(())
    }

    /// Whether there is nothing to do before the next interrupt, for which it asks. What was received and not
    /// taken waits for answers to be sent; while there is such, there is no room for more.
    fn is_quiet(&self, console: &mut Console) -> bool {
        let can_send = !self.unsent.is_empty() && console.enable_transmit_interrupts() == Pending::Yes;
        let can_receive = match self.received.is_empty() {
            true => console.enable_receive_interrupts() == Pending::Yes,
            false => self.unsent.is_empty(),
        };
        !can_send && !can_receive
    }
}

/// Has the timer interrupt when something is due, and not otherwise.
fn arm(server: &mut Server<Hardware>) {
    match server.next_deadline_ns() {
        Some(deadline) => {
            let hardware = server.cells().effects();
            let delay = deadline.saturating_sub(hardware.now_ns());
            local::arm_timer(hardware.authority(), vector::TIMER, hardware.timer_ticks(delay));
        }
        None => local::disarm_timer(server.cells().effects().authority()),
    }
}
