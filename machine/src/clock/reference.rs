//! Clocks of known rate, as references for the other clocks.

use crate::port;

/// A counter that runs at a known rate, and wraps around.
pub(super) trait Reference {
    /// Returns the rate, in counts per second.
    fn hz(&self) -> u64;

    /// Returns the count, from 0 to [`Self::mask`], ascending.
    fn count(&mut self) -> u32;

    /// Returns the highest count: a power of two minus one.
    fn mask(&self) -> u32;
}

/// Channel 0 of the interval timer (Intel 8254). Its interrupt is not used: the interrupt lines are masked.
pub(super) struct IntervalTimer(());

const CHANNEL_0: u16 = 0x40;
const CONTROL: u16 = 0x43;

impl IntervalTimer {
    /// Starts the channel; `None` if there is no such timer.
    pub(super) fn start() -> Option<Self> {
        let mut timer = Self(());
        timer.program(0x34); // channel 0, both bytes, mode 2: counts 65536 down, and again
        let first = timer.count();
        (0..1000).any(|_| timer.count() != first).then_some(timer)
    }

    fn program(&mut self, mode: u8) {
        // SAFETY: the timer has no access to memory.
        unsafe {
            port::write_u8(CONTROL, mode);
            port::write_u8(CHANNEL_0, 0);
            port::write_u8(CHANNEL_0, 0);
        }
    }
}

impl Reference for IntervalTimer {
    fn hz(&self) -> u64 {
        1_193_182
    }

    fn count(&mut self) -> u32 {
        // SAFETY: the timer has no access to memory.
        let bytes = unsafe {
            port::write_u8(CONTROL, 0); // latch channel 0
            [port::read_u8(CHANNEL_0), port::read_u8(CHANNEL_0)]
        };
        u32::from(0u16.wrapping_sub(u16::from_le_bytes(bytes)))
    }

    fn mask(&self) -> u32 {
        0xffff
    }
}

impl Drop for IntervalTimer {
    /// Stops the timer: a running one would cause 18 useless wake-ups per second in an emulator.
    fn drop(&mut self) {
        self.program(0x30); // mode 0: counts down once
    }
}

/// ACPI's power management timer (ACPI 6.5, 4.8.3.3).
pub(super) struct PowerTimer(u16);

impl PowerTimer {
    /// Returns the timer at a port; `None` if no counter runs there.
    pub(super) fn at(port: u16) -> Option<Self> {
        let mut timer = Self(port);
        let first = timer.count();
        (0..1000).any(|_| timer.count() != first).then_some(timer)
    }
}

impl Reference for PowerTimer {
    fn hz(&self) -> u64 {
        3_579_545
    }

    fn count(&mut self) -> u32 {
        // SAFETY: the timer has no access to memory.
        unsafe { port::read_u32(self.0) & self.mask() }
    }

    fn mask(&self) -> u32 {
        0xff_ffff // some have 32 bits, all have 24
    }
}
