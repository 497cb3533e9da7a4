//! The first serial port (COM1, a 16550): the supervisor's log, and the console of an image that boots alone.
//!
//! Output only, by polling, so that messages appear even if nothing else in the machine works. If the port is not ready
//! for too long, bytes may be lost. The functions are safe without an [`Authority`](crate::authority::Authority): the
//! port has no access to memory and raises no interrupt, so a caller can only garble a log.

use crate::port;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

const BASE: u16 = 0x3f8;
const LINE_CONTROL: u16 = BASE + 3;
const LINE_STATUS: u16 = BASE + 5;

/// "Transmitter holding register empty", of the line status.
const TRANSMIT_READY: u8 = 0x20;

/// Polls of the status before a byte is written regardless.
const PATIENCE: u32 = 100_000;

/// Initialises the port: 115200 baud, 8 data bits, no parity, no interrupts.
pub fn init() {
    // SAFETY: COM1 has no access to memory.
    unsafe {
        port::write_u8(BASE + 1, 0);
        port::write_u8(LINE_CONTROL, 0x80);
        port::write_u8(BASE, 1);
        port::write_u8(BASE + 1, 0);
        port::write_u8(LINE_CONTROL, 3);
        port::write_u8(BASE + 2, 1);
        port::write_u8(BASE + 4, 3);
    }
}

/// Writes bytes unchanged.
pub fn write_bytes(bytes: &[u8]) {
    for byte in bytes {
        for _ in 0..PATIENCE {
            // SAFETY: COM1 has no access to memory.
            if unsafe { port::read_u8(LINE_STATUS) } & TRANSMIT_READY != 0 {
                break;
            }
            core::hint::spin_loop();
        }
        // SAFETY: as above.
        unsafe { port::write_u8(BASE, *byte) };
    }
}

/// Writes a formatted text without interruption by other cores, which wait meanwhile; the wait is bounded, as the
/// printing core may have stopped for good.
pub fn print(arguments: fmt::Arguments<'_>) {
    static BUSY: AtomicBool = AtomicBool::new(false);
    locked(&BUSY, PATIENCE, || {
        let _ = fmt::write(&mut Port, arguments);
    });
}

/// Calls `action` with the lock `busy`, or without it after that many attempts. A lock that another core holds stays
/// locked: a third core would otherwise print into both texts.
fn locked(busy: &AtomicBool, attempts: u32, action: impl FnOnce()) {
    let is_ours = (0..attempts).any(|_| {
        let is_free = busy.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !is_free {
            core::hint::spin_loop();
        }
        is_free
    });
    action();
    if is_ours {
        busy.store(false, Ordering::Release);
    }
}

/// Writes a line to the serial port, formatted as `format!` does.
#[macro_export]
macro_rules! serial_line {
    ($($argument:tt)*) => {
        $crate::serial::print(format_args!("{}\n", format_args!($($argument)*)))
    };
}

struct Port;

impl fmt::Write for Port {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for line in text.as_bytes().split_inclusive(|byte| *byte == b'\n') {
            match line.strip_suffix(b"\n") {
                Some(line) => {
                    write_bytes(line);
                    write_bytes(b"\r\n");
                }
                None => write_bytes(line),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_gave_up_waiting_leaves_the_lock_to_the_core_that_has_it() {
        let (busy, mut printed) = (AtomicBool::new(true), false);
        locked(&busy, 10, || printed = true);
        assert!(printed && busy.load(Ordering::Relaxed));
    }

    #[test]
    fn the_lock_is_held_during_a_print_and_free_after_it() {
        let busy = AtomicBool::new(false);
        locked(&busy, 10, || assert!(busy.load(Ordering::Relaxed)));
        assert!(!busy.load(Ordering::Relaxed));
    }
}
