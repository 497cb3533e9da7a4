//! The first serial port (COM1, a 16550): the supervisor's log, and the console of an image that boots alone.
//!
//! Output only, by polling: nothing else in the machine has to work for a message to come out. Bytes are lost
//! rather than waited for when the port does not take them. Its functions are safe without an
//! [`Authority`](crate::authority::Authority): the port has no access to memory and raises no interrupt, so a caller can do
//! no more than garble a log.

use crate::port;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

const BASE: u16 = 0x3f8;
const LINE_CONTROL: u16 = BASE + 3;
const LINE_STATUS: u16 = BASE + 5;

/// "Transmitter holding register empty", of the line status.
const TRANSMIT_READY: u8 = 0x20;

/// How often the status is looked at before a byte is given up.
const PATIENCE: u32 = 100_000;

/// Sets the port up: 115200 baud, 8 data bits, no parity, no interrupts.
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

/// Writes bytes as they are.
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

/// Writes a formatted text, whole: other cores that print meanwhile wait, though not for ever, as the core
/// that prints may have stopped for good.
pub fn print(arguments: fmt::Arguments<'_>) {
    static BUSY: AtomicBool = AtomicBool::new(false);
    for _ in 0..PATIENCE {
        if BUSY.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            break;
        }
        core::hint::spin_loop();
    }
    let _ = fmt::write(&mut Port, arguments);
    BUSY.store(false, Ordering::Release);
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
