//! Access to a device: one trait for all buses.
//!
//! A transport is used to initialise a device, to read its configuration and to acknowledge interrupts. The data path
//! does not use it: each queue has its own [`Notify`].

mod capabilities;
pub mod channel;
pub mod mmio;
mod msix;
pub mod pci;
#[cfg(test)]
mod tests;
mod window;

pub use capabilities::CapabilityError;
pub use window::RegisterWindow;

use alloc::boxed::Box;
use core::fmt;
use isola_machine::apic::InterruptMessage;
use isola_machine::device::DeviceRegisters;
use mmio::MmioTransport;
use msix::MessageEntry;
use pci::PciTransport;

/// Opens the virtio device behind a device's registers.
///
/// # Errors
/// [`TransportError`], if there is no device that the drivers support.
pub fn open(registers: DeviceRegisters) -> Result<Box<dyn Transport>, TransportError> {
    Ok(match registers {
        DeviceRegisters::Pci { config, bars } => Box::new(PciTransport::new(config, &bars)?),
        DeviceRegisters::Mmio { registers, .. } => Box::new(MmioTransport::new(registers)?),
    })
}

/// The position of a queue in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueAddresses {
    /// The number of descriptors.
    pub size: u16,
    /// Device address of the descriptors.
    pub descriptors: u64,
    /// Device address of the available ring (the driver's area).
    pub available: u64,
    /// Device address of the used ring (the device's area).
    pub used: u64,
}

/// The index of a device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueIndex(pub u16);

/// The index of a device's message interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryIndex(pub u16);

/// Notifies a device of new buffers in one queue.
pub trait Notify: Send + fmt::Debug {
    /// Notifies the device.
    fn notify(&self);
}

/// The cause of a device's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptCause {
    /// A queue may have returned buffers.
    pub queue: Cause,
    /// The configuration, or the status, may have changed.
    pub configuration: Cause,
}

/// Whether an event can have caused an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It may have.
    Possible,
    /// It did not.
    No,
}

impl InterruptCause {
    /// Reads the interrupt status register (virtio 1.2, 4.1.4.5, 4.2.2).
    const fn from_status(status: u8) -> Self {
        Self {
            queue: if status & 1 != 0 { Cause::Possible } else { Cause::No },
            configuration: if status & 2 != 0 { Cause::Possible } else { Cause::No },
        }
    }
}

/// A bus that a virtio device is on. Without the functions for message interrupts, its devices have one interrupt line.
pub trait Transport: Send + fmt::Debug {
    /// Returns the device type (virtio 1.2, 5).
    fn device_type(&self) -> u32;

    /// Returns the device status.
    fn status(&self) -> u8;

    /// Writes the device status; 0 resets.
    fn set_status(&mut self, status: u8);

    /// Returns the offered features.
    fn device_features(&mut self) -> u64;

    /// Writes the accepted features.
    fn accept_features(&mut self, features: u64);

    /// Returns the most descriptors of a queue: 0 if the device does not have it.
    fn queue_limit(&mut self, queue: QueueIndex) -> u16;

    /// Enables a queue on the device. `entry` is the queue's interrupt.
    ///
    /// # Errors
    /// [`TransportError`], if the device does not accept the queue.
    fn enable_queue(
        &mut self,
        queue: QueueIndex,
        addresses: QueueAddresses,
        entry: Option<EntryIndex>,
    ) -> Result<Box<dyn Notify>, TransportError>;

    /// Returns whether the bus has registers for the reset of a single queue.
    fn can_reset_queues(&self) -> bool {
        false
    }

    /// Begins the reset of a queue (virtio 1.2, 2.6.1), on a bus that [can](Self::can_reset_queues).
    fn begin_queue_reset(&mut self, _queue: QueueIndex) {}

    /// Returns whether the device has reset the queue: it accesses none of the queue's memory any more, and the queue can
    /// be enabled again.
    fn is_queue_reset(&mut self, _queue: QueueIndex) -> bool {
        false
    }

    /// Returns a value that changes whenever the configuration does.
    fn generation(&self) -> u32;

    /// Reads a byte of the device's configuration; `None` beyond its end.
    fn configuration_u8(&self, offset: usize) -> Option<u8>;

    /// Reads two bytes of the device's configuration; `None` beyond its end, or if `offset` is odd.
    fn configuration_u16(&self, offset: usize) -> Option<u16>;

    /// Reads four bytes of the device's configuration; `None` beyond its end, or if `offset` is no multiple of 4.
    fn configuration_u32(&self, offset: usize) -> Option<u32>;

    /// Returns and clears the cause of an interrupt. Not for message interrupts, whose vectors identify the cause.
    fn acknowledge(&mut self) -> InterruptCause;

    /// Returns the number of message interrupts: 0 if the device has one line.
    fn message_entries(&self) -> u16 {
        0
    }

    /// Configures a message interrupt and unmasks it.
    ///
    /// # Errors
    /// [`TransportError::NoSuchEntry`], if the device has fewer.
    fn set_message(
        &mut self,
        entry: EntryIndex,
        _message: InterruptMessage,
    ) -> Result<Box<dyn MessageControl>, TransportError> {
        Err(TransportError::NoSuchEntry { entry })
    }

    /// Selects the message interrupt for changes of the configuration.
    ///
    /// # Errors
    /// [`TransportError::NoSuchEntry`], if the device does not accept it.
    fn set_configuration_entry(&mut self, entry: EntryIndex) -> Result<(), TransportError> {
        Err(TransportError::NoSuchEntry { entry })
    }
}

/// Control of a message interrupt. It belongs to the queue that uses the interrupt, on any core.
pub trait MessageControl: Send + fmt::Debug {
    /// Masks the interrupt: it stays pending until it is unmasked.
    fn mask(&mut self);

    /// Unmasks the interrupt. A pending interrupt comes at once.
    fn unmask(&mut self);

    /// Changes the interrupt's destination from now on, and unmasks it.
    fn redirect(&mut self, message: InterruptMessage);
}

/// The defect of a device's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// There is no virtio device.
    NotVirtio,
    /// The slot has no device.
    Vacant,
    /// The device has only the legacy interface.
    Legacy,
    /// The device has a version of the interface that this driver does not support.
    Version(u32),
    /// A window of registers is shorter than the interface.
    WindowTooShort {
        /// The length, in bytes.
        len: usize,
        /// The needed length, in bytes.
        needed: usize,
    },
    /// The PCI function's description of its registers is invalid.
    Capability(CapabilityError),
    /// The notification register of a queue is outside of the notification registers.
    NotifyOutside {
        /// The queue.
        queue: QueueIndex,
    },
    /// The queue is already enabled.
    QueueInUse {
        /// The queue.
        queue: QueueIndex,
    },
    /// The device did not accept the queue's size, or did not enable it.
    QueueRefused {
        /// The queue.
        queue: QueueIndex,
    },
    /// The device has no such message interrupt, or no resources for another.
    NoSuchEntry {
        /// The requested entry.
        entry: EntryIndex,
    },
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotVirtio => f.write_str("this is not a virtio device"),
            Self::Vacant => f.write_str("no device is connected here"),
            Self::Legacy => f.write_str(
                "the device has the legacy virtio interface only: give it the modern one (QEMU: \
                 disable-legacy=on, or -global virtio-mmio.force-legacy=false)",
            ),
            Self::Version(version) => {
                write!(
                    f,
                    "the device has version {version} of the virtio interface; this driver knows version 2"
                )
            }
            Self::WindowTooShort { len, needed } => {
                write!(f, "the device's registers take {len} bytes where {needed} are needed")
            }
            Self::Capability(error) => error.fmt(f),
            Self::NotifyOutside { queue } => {
                write!(f, "the device wants queue {} to be notified outside of its registers", queue.0)
            }
            Self::QueueInUse { queue } => write!(f, "queue {} is in use: reset the device first", queue.0),
            Self::QueueRefused { queue } => write!(f, "the device refused queue {}", queue.0),
            Self::NoSuchEntry { entry } => {
                write!(f, "the device has no message interrupt {}: use fewer queues", entry.0)
            }
        }
    }
}

impl core::error::Error for TransportError {}

impl From<CapabilityError> for TransportError {
    fn from(error: CapabilityError) -> Self {
        Self::Capability(error)
    }
}

/// Notifies by a write of a queue's index, 16 bits wide as PCI requires.
#[derive(Debug)]
struct IndexNotifier<W> {
    register: W,
    queue: QueueIndex,
}

impl<W: RegisterWindow> Notify for IndexNotifier<W> {
    #[inline]
    fn notify(&self) {
        self.register.write_u16(0, self.queue.0);
    }
}
