//! The end of the machine: power-off by ACPI, for a machine with a supervisor; exit with a code by QEMU's debug exit
//! device, for an image that boots alone; and reset.

use crate::authority::Authority;
use crate::port;
use crate::registers::Registers;
use core::arch::asm;

/// The I/O port of QEMU's `isa-debug-exit,iobase=0xf4,iosize=4`.
const DEBUG_EXIT: u16 = 0xf4;

/// The reset control register of PC chipsets (Intel ICH9, 13.7.5).
const RESET_CONTROL: u16 = 0xcf9;

/// The register that switches the machine off, as firmware describes it.
#[derive(Debug)]
pub struct PowerSwitch(Switch);

#[derive(Debug)]
enum Switch {
    Port { port: u16, value: u16 },
    Register { register: Registers, value: u8 },
    None,
}

impl PowerSwitch {
    /// Creates the switch of a machine that is switched off by writing `value` to the PM1a control register.
    pub(crate) fn of_port(port: u16, value: u16) -> Self {
        Self(Switch::Port { port, value })
    }

    /// Creates the switch of a machine that is switched off by writing `value` to the sleep control register.
    pub(crate) fn of_register(register: Registers, value: u8) -> Self {
        Self(Switch::Register { register, value })
    }

    /// Creates the switch of a machine whose firmware does not describe power-off.
    pub(crate) fn none() -> Self {
        Self(Switch::None)
    }

    /// Switches the machine off. If it stays on, stops this core; the host then ends the machine.
    pub fn off(&self) -> ! {
        match &self.0 {
            // SAFETY: firmware names this register; no code runs after the write.
            Switch::Port { port, value } => unsafe { port::write_u16(*port, *value) },
            Switch::Register { register, value } => register.write_u8(0, *value),
            Switch::None => {}
        }
        stop()
    }
}

/// Ends QEMU with exit status `2 * code + 1`, if it has the debug exit device; otherwise stops this core.
pub fn exit(_: Authority, code: u8) -> ! {
    // SAFETY: without the device, no device uses the port.
    unsafe { port::write_u32(DEBUG_EXIT, u32::from(code)) };
    stop()
}

/// Resets the machine.
pub fn reset(_: Authority) -> ! {
    // SAFETY: no code runs after the reset; without the register, no device uses the port.
    unsafe {
        port::write_u8(RESET_CONTROL, 2);
        port::write_u8(RESET_CONTROL, 6);
    }
    // Fallback: an interrupt without an interrupt table shuts the processor down, and PCs respond with a reset.
    // SAFETY: no code runs after this.
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

/// Stops this core for good: only an INIT revives it.
pub fn stop() -> ! {
    loop {
        // SAFETY: halting with interrupts off changes nothing.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
