//! Console output: into the ring of the report, and, in a standalone image, to the serial line.
//!
//! Any core can print at any time. A spin lock keeps lines whole; it is held for the time of copying one line, by code
//! that neither prints nor panics. A crashing core bypasses the lock, so that its message is never blocked.

use crate::supervisor;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use isola_abi::report::{CONSOLE_LEN, ConsoleRing};
use isola_machine::{cell, serial};
use spin::Mutex;

static PRINTING: Mutex<()> = Mutex::new(());
static TO_SERIAL: AtomicBool = AtomicBool::new(false);

/// Initialises the serial line if the image is standalone.
pub(crate) fn start(alone: bool) {
    TO_SERIAL.store(alone, Ordering::Relaxed);
    if alone {
        serial::init();
    }
}

/// Prints `text`.
pub(crate) fn print(text: &[u8]) {
    let printing = PRINTING.lock();
    put(text);
    drop(printing);
}

/// Prints without the lock, even if another core is printing: for a crash.
pub(crate) fn print_regardless(text: &[u8]) {
    put(text);
}

fn put(text: &[u8]) {
    if TO_SERIAL.load(Ordering::Relaxed) {
        serial::write_bytes(text);
    }
    let ring_buffer = &cell::report().console;
    let before = ring_buffer.written.load(Ordering::Relaxed);
    let after = before + text.len() as u64;
    ring_buffer.begun.store(after, Ordering::Relaxed);
    fence(Ordering::Release);
    for (number, byte) in (before..).zip(text) {
        ring_buffer.bytes[number as usize % CONSOLE_LEN].store(*byte, Ordering::Relaxed);
    }
    ring_buffer.written.store(after, Ordering::Release);
    if crosses_half(ring_buffer, before, after) {
        supervisor::notify();
    }
}

/// Returns whether this output makes the unread bytes exceed half of the ring.
fn crosses_half(ring: &ConsoleRing, before: u64, after: u64) -> bool {
    let read = ring.read.load(Ordering::Relaxed);
    let half = CONSOLE_LEN as u64 / 2;
    before.saturating_sub(read) <= half && after.saturating_sub(read) > half
}
