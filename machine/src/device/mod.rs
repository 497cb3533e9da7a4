//! The machine's devices, each a token: its owner may use the device, or lend it to a cell.

pub mod pci;
pub mod virtio_mmio;

use crate::registers::Registers;
use crate::restart::{DeviceAddress, KnownFunction};
use crate::space::Share;
use alloc::vec::Vec;
use core::fmt;
use core::mem::ManuallyDrop;
use isola_abi::descriptor::DeviceKind;
use isola_abi::management::DeviceLocation;
use pci::PciAddress;
pub use pci::PciFunction;
pub use virtio_mmio::MmioDevice;

/// A device function.
#[derive(Debug)]
#[must_use = "a device that is dropped is lost"]
pub struct Device {
    function: Function,
    /// The space of the cell for which the device works. Not dropped with the device, which still works then.
    user: Option<ManuallyDrop<Share>>,
}

/// The transport of a device.
#[derive(Debug)]
pub(crate) enum Function {
    /// PCI.
    Pci(PciFunction),
    /// A virtio device with its registers in memory.
    Mmio(MmioDevice),
}

/// The device does not stop. No memory that it may write to must be used for anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceResetError;

impl fmt::Display for DeviceResetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the device does not stop: restart the machine to get it, and its memory, back")
    }
}

impl core::error::Error for DeviceResetError {}

/// A device's registers, mapped.
#[derive(Debug)]
pub enum DeviceRegisters {
    /// The registers of a PCI function.
    Pci {
        /// Its 4 KiB of configuration space.
        config: Registers,
        /// Its memory BARs, by index.
        bars: Vec<(u8, Registers)>,
    },
    /// The registers of a virtio device with memory-mapped registers.
    Mmio {
        /// All registers: 512 bytes.
        registers: Registers,
        /// The vector of its interrupt; 0 until it is routed.
        vector: u8,
    },
}

/// Returns the kind of a virtio device, by its number (Virtual I/O Device specification 1.2, 5).
const fn virtio_kind(id: u32) -> Option<DeviceKind> {
    match id {
        1 => Some(DeviceKind::Network),
        2 => Some(DeviceKind::Block),
        3 => Some(DeviceKind::Console),
        _ => None,
    }
}

/// The length of a hardware address, at the start of a network device's own registers.
const MAC_LEN: usize = 6;

/// Polls of a register before the wait for zero fails.
const PATIENCE: u32 = 100_000;

/// Waits, for a bounded time, until a register reads zero.
fn wait_for_zero(read: impl Fn() -> u32) -> Result<(), DeviceResetError> {
    let zero = (0..PATIENCE).any(|_| {
        core::hint::spin_loop();
        read() == 0
    });
    if zero { Ok(()) } else { Err(DeviceResetError) }
}

impl Device {
    pub(crate) fn new(function: Function) -> Self {
        Self { function, user: None }
    }

    pub(crate) fn function(&self) -> &Function {
        &self.function
    }

    /// Returns whether the device works for a cell.
    pub fn is_lent(&self) -> bool {
        self.user.is_some()
    }

    /// Lends the device to a cell.
    pub(crate) fn lend(&mut self, user: Share) {
        self.user = Some(ManuallyDrop::new(user));
    }

    /// Returns the device's kind; `None` if Isola has no driver for it.
    pub fn kind(&self) -> Option<DeviceKind> {
        match &self.function {
            Function::Pci(function) => function.kind(),
            Function::Mmio(device) => device.kind(),
        }
    }

    /// Returns the device's interrupt line; `None` if it sends messages.
    pub fn interrupt_line(&self) -> Option<u32> {
        match &self.function {
            Function::Pci(_) => None,
            Function::Mmio(device) => Some(device.interrupt_line()),
        }
    }

    /// Returns the data that a later incarnation of the image needs; `None` if it can read them itself, or Isola has no
    /// driver.
    pub(crate) fn survey(&self) -> Option<KnownFunction> {
        match &self.function {
            Function::Pci(function) => function.kind().map(|_| function.survey()),
            Function::Mmio(_) => None,
        }
    }

    /// Returns the device's location.
    pub fn location(&self) -> DeviceLocation {
        match self.address() {
            DeviceAddress::Pci(bus, device, function) => DeviceLocation::Pci { bus, device, function },
            DeviceAddress::Mmio(registers) => DeviceLocation::Mmio { address: registers.0 },
        }
    }

    /// Returns the device's identity, for an ownership record.
    pub(crate) fn address(&self) -> DeviceAddress {
        match &self.function {
            Function::Pci(function) => {
                let PciAddress { bus, device, function } = function.address();
                DeviceAddress::Pci(bus, device, function)
            }
            Function::Mmio(device) => DeviceAddress::Mmio(device.register_range().start),
        }
    }

    /// Returns the address and length in bytes of the register that stops the device if 0 is written to it.
    pub(crate) fn status_register(&self) -> Option<(u64, u32)> {
        match &self.function {
            Function::Pci(function) => function.status_register().map(|register| (register.address(), 1)),
            Function::Mmio(device) => Some((device.status_register().address(), 4)),
        }
    }

    /// Returns the hardware address of a network device (Virtual I/O Device specification 1.2, 5.1.4). A driver can change
    /// it until the next reset.
    pub fn mac(&self) -> Option<[u8; 6]> {
        let registers = match &self.function {
            _ if self.kind() != Some(DeviceKind::Network) => None,
            Function::Pci(function) => function.device_registers(MAC_LEN),
            Function::Mmio(device) => device.device_registers(MAC_LEN),
        }?;
        Some(core::array::from_fn(|index| registers.read_u8(index)))
    }

    /// Returns the registers, for the image's own use.
    pub fn registers(&self) -> DeviceRegisters {
        match &self.function {
            Function::Pci(function) => function.registers(),
            Function::Mmio(device) => DeviceRegisters::Mmio { registers: device.registers(), vector: 0 },
        }
    }

    /// Stops the device: it accesses no memory from here on, and is as it was at boot. Its interrupt line, if it has
    /// one, has to be masked separately: [`InterruptLines::mask`](crate::apic::io::InterruptLines::mask).
    ///
    /// # Errors
    /// [`DeviceResetError`]; the device then still works for its present user.
    pub fn reset(&mut self) -> Result<(), DeviceResetError> {
        match &mut self.function {
            Function::Pci(function) => function.reset()?,
            Function::Mmio(device) => device.reset()?,
        }
        if let Some(user) = self.user.take() {
            drop(ManuallyDrop::into_inner(user));
        }
        Ok(())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Function::Pci(function) => function.fmt(f),
            Function::Mmio(device) => device.fmt(f),
        }
    }
}
