//! Ending the machine: off by ACPI, where cells of several owners share it; off with an exit code, by QEMU's debug exit
//! device, where an image boots alone; and reset.

use crate::authority::Authority;
use crate::port;
use crate::registers::Registers;
use core::arch::asm;

/// Where QEMU's `isa-debug-exit,iobase=0xf4,iosize=4` listens.
const DEBUG_EXIT: u16 = 0xf4;

/// The reset control register of PC chipsets (Intel ICH9, 13.7.5).
const RESET_CONTROL: u16 = 0xcf9;

/// What switches the machine off, as firmware describes it.
#[derive(Debug)]
pub struct PowerSwitch(Switch);

#[derive(Debug)]
enum Switch {
    Port { port: u16, value: u16 },
    Register { register: Registers, value: u8 },
    None,
}

impl PowerSwitch {
    /// Of a machine that is switched off by writing `value` to the PM1a control register.
    pub(crate) fn of_port(port: u16, value: u16) -> Self {
        Self(Switch::Port { port, value })
    }

    /// Of a machine that is switched off by writing `value` to the sleep control register.
    pub(crate) fn of_register(register: Registers, value: u8) -> Self {
        Self(Switch::Register { register, value })
    }

    /// Of a machine whose firmware does not say how it is switched off.
    pub(crate) fn none() -> Self {
        Self(Switch::None)
    }

    /// Switches the machine off. Where it stays on, stops this core: the host ends the machine then.
    pub fn off(&self) -> ! {
        match &self.0 {
            // SAFETY: firmware says that the register is there; nothing runs any more after the write.
            Switch::Port { port, value } => unsafe { port::write_u16(*port, *value) },
            Switch::Register { register, value } => register.write_u8(0, *value),
            Switch::None => {}
        }
        stop()
    }
}

/// Ends QEMU with exit status `2 * code + 1`, where it has the debug exit device; else stops this core.
pub fn exit(_: Authority, code: u8) -> ! {
    // SAFETY: without the device the port is nobody's.
    unsafe { port::write_u32(DEBUG_EXIT, u32::from(code)) };
    stop()
}

/// Resets the machine.
pub fn reset(_: Authority) -> ! {
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
