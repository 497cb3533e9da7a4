//! The machine's I/O APICs (Intel 82093AA data sheet), which route interrupt lines, by their global numbers, to cores.

use crate::registers::Registers;
use alloc::vec::Vec;
use core::fmt;
use isola_abi::id::ApicId;

const SELECT: usize = 0x00;
const WINDOW: usize = 0x10;
const VERSION: u32 = 1;
const REDIRECTIONS: u32 = 0x10;

const MASKED: u32 = 1 << 16;
const LEVEL: u32 = 1 << 15;
const ACTIVE_LOW: u32 = 1 << 13;

/// The trigger mode of an interrupt line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A rising edge.
    Edge,
    /// A low level, until the device is served.
    LevelLow,
}

/// A failure to route a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// No I/O APIC has the line.
    NoSuchLine(u32),
    /// The core's APIC id exceeds 254.
    CoreOutOfReach(ApicId),
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchLine(line) => write!(f, "no I/O APIC of this machine has interrupt line {line}"),
            Self::CoreOutOfReach(apic) => {
                write!(
                    f,
                    "interrupt lines reach cores with APIC ids below 255, not {}: choose another",
                    apic.0
                )
            }
        }
    }
}

impl core::error::Error for RouteError {}

/// An I/O APIC.
#[derive(Debug)]
struct IoApic {
    registers: Registers,
    first_line: u32,
    line_count: u32,
}

impl IoApic {
    fn read(&self, register: u32) -> u32 {
        self.registers.write_u32(SELECT, register);
        self.registers.read_u32(WINDOW)
    }

    fn write(&self, register: u32, value: u32) {
        self.registers.write_u32(SELECT, register);
        self.registers.write_u32(WINDOW, value);
    }
}

/// All interrupt lines of the machine.
#[derive(Debug, Default)]
pub struct InterruptLines {
    controllers: Vec<IoApic>,
}

impl InterruptLines {
    /// Adds a controller by its registers, whose first line has the global number `first_line`; masks its lines except
    /// those in `used`.
    pub(crate) fn add(&mut self, registers: Registers, first_line: u32, used: &[u32]) {
        let mut controller = IoApic { registers, first_line, line_count: 0 };
        controller.line_count = (controller.read(VERSION) >> 16 & 0xff) + 1;
        for line in (0..controller.line_count).filter(|line| !used.contains(&(first_line + line))) {
            controller.write(REDIRECTIONS + 2 * line, MASKED);
        }
        self.controllers.push(controller);
    }

    /// Routes a line to a core, with a vector.
    ///
    /// # Errors
    /// A [`RouteError`]; the line is unchanged then.
    pub fn route(&mut self, line: u32, trigger: Trigger, apic: ApicId, vector: u8) -> Result<(), RouteError> {
        let id = super::destination(apic).ok_or(RouteError::CoreOutOfReach(apic))?;
        let (controller, index) = self.find(line)?;
        let bits = match trigger {
            Trigger::Edge => 0,
            Trigger::LevelLow => LEVEL | ACTIVE_LOW,
        };
        controller.write(REDIRECTIONS + 2 * index, MASKED);
        controller.write(REDIRECTIONS + 2 * index + 1, u32::from(id) << 24);
        controller.write(REDIRECTIONS + 2 * index, bits | u32::from(vector));
        Ok(())
    }

    /// Masks a line.
    ///
    /// # Errors
    /// [`RouteError::NoSuchLine`].
    pub fn mask(&mut self, line: u32) -> Result<(), RouteError> {
        let (controller, index) = self.find(line)?;
        controller.write(REDIRECTIONS + 2 * index, MASKED);
        Ok(())
    }

    fn find(&self, line: u32) -> Result<(&IoApic, u32), RouteError> {
        self.controllers
            .iter()
            .find_map(|controller| {
                let index = line.checked_sub(controller.first_line)?;
                (index < controller.line_count).then_some((controller, index))
            })
            .ok_or(RouteError::NoSuchLine(line))
    }
}
