//! Ending the machine: off, by way of QEMU's debug exit device, and reset.

use crate::port;
use core::arch::asm;

/// Where QEMU's `isa-debug-exit,iobase=0xf4,iosize=4` listens.
const DEBUG_EXIT: u16 = 0xf4;

/// The reset control register of PC chipsets (Intel ICH9, 13.7.5).
const RESET_CONTROL: u16 = 0xcf9;

/// Ends QEMU with exit status `2 * code + 1`, where it has the debug exit device; else stops this core.
pub fn exit(code: u8) -> ! {
    // SAFETY: without the device the port is nobody's.
    unsafe { port::write_u32(DEBUG_EXIT, u32::from(code)) };
    stop()
}

/// Resets the machine.
pub fn reset() -> ! {
    // SAFETY: nothing runs any more after the reset; without the register the port is nobody's.
    unsafe {
        port::write_u8(RESET_CONTROL, 2);
        port::write_u8(RESET_CONTROL, 6);
    }
    // What every x86 does with an interrupt and no interrupt table: shut down, which PCs answer by a reset.
    // SAFETY: there is no going on from here.
    unsafe {
        asm!(
            "sub rsp, 16",
            "mov qword ptr [rsp], 0",
            "mov qword ptr [rsp + 8], 0",
            "lidt [rsp]",
            "int3",
            "2: hlt",
            "jmp 2b",
            options(noreturn)
        )
    }
}

/// Stops this core for good: only an INIT gets it back.
pub fn stop() -> ! {
    loop {
        // SAFETY: halting with interrupts off changes nothing.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
