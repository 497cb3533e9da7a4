//! The management console: a virtio console and its interrupt.

use crate::serve::vector;
use alloc::vec::Vec;
use core::fmt;
use isola_abi::descriptor::DeviceKind;
use isola_abi::id::ApicId;
use isola_drivers::console::Console;
use isola_drivers::device::DeviceError;
use isola_drivers::transport::{self, TransportError};
use isola_machine::apic::io::{InterruptLines, RouteError, Trigger};
use isola_machine::apic::{InterruptMessage, message};
use isola_machine::authority::Authority;
use isola_machine::device::Device;
use isola_machine::dma::DmaRegion;

/// The reason why there is no management console.
#[derive(Debug)]
pub enum ConsoleError {
    /// The machine has no such device.
    None,
    /// The device does not work.
    Device(DeviceError),
    /// The device's interrupt cannot be routed to the supervisor's core.
    Interrupt(RouteError),
}

impl fmt::Display for ConsoleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("the machine has no virtio console: start it with one to manage it"),
            Self::Device(error) => write!(f, "the management console does not work: {error}"),
            Self::Interrupt(error) => write!(f, "the management console cannot interrupt: {error}"),
        }
    }
}

impl core::error::Error for ConsoleError {}

impl From<DeviceError> for ConsoleError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<TransportError> for ConsoleError {
    fn from(error: TransportError) -> Self {
        Self::Device(error.into())
    }
}

impl From<RouteError> for ConsoleError {
    fn from(error: RouteError) -> Self {
        Self::Interrupt(error)
    }
}

/// The device of the management console.
#[derive(Debug)]
pub struct Port {
    device: Device,
    interrupt: Option<InterruptMessage>,
}

impl Port {
    /// Removes the machine's first console from `devices`, and routes its interrupt to the core `apic`: by messages on
    /// PCI, by an interrupt line otherwise.
    ///
    /// # Errors
    /// Returns an error if there is no console, or its interrupt cannot be routed to the core.
    pub fn find(
        devices: &mut Vec<Device>,
        lines: &mut InterruptLines,
        apic: ApicId,
        authority: Authority,
    ) -> Result<Self, ConsoleError> {
        let is_console = |device: &Device| device.kind() == Some(DeviceKind::Console);
        let index = devices.iter().position(is_console).ok_or(ConsoleError::None)?;
        let device = devices.swap_remove(index);
        let interrupt = match device.interrupt_line() {
            Some(line) => {
                lines.route(line, Trigger::Edge, apic, vector::CONSOLE)?;
                None
            }
            None => Some(message(authority, apic, vector::CONSOLE).ok_or(RouteError::CoreOutOfReach(apic))?),
        };
        Ok(Self { device, interrupt })
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Resets the console and starts it.
    ///
    /// # Errors
    /// Returns an error if the device does not work.
    pub fn open(&self) -> Result<Console, ConsoleError> {
        let transport = transport::open(self.device.registers())?;
        Ok(Console::start(transport, self.interrupt, &mut DmaRegion::new)?)
    }
}
