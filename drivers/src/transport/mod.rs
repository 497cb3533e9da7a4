//! How a device is reached: one trait, whatever the bus.
//!
//! A transport is used by whoever sets a device up, and by the one who asks it for its configuration or whether
//! its interrupt was meant. The paths of packets and bytes go past it: a queue has a [`Notify`] of its own.

mod capabilities;
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
use isola_machine::device::Windows;
use mmio::MmioTransport;
use msix::MessageEntry;
use pci::PciTransport;

/// The virtio device behind a device's registers.
///
/// # Errors
/// [`TransportError`], where there is none that the drivers know.
pub fn open(windows: Windows) -> Result<Box<dyn Transport>, TransportError> {
    Ok(match windows {
        Windows::Pci { config, bars } => Box::new(PciTransport::new(config, &bars)?),
        Windows::Mmio { registers, .. } => Box::new(MmioTransport::new(registers)?),
    })
}

/// Where a queue is in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueAddresses {
    /// How many descriptors it has.
    pub size: u16,
    /// Device address of the descriptors.
    pub descriptors: u64,
    /// Device address of the available ring (the driver's area).
    pub available: u64,
    /// Device address of the used ring (the device's area).
    pub used: u64,
}

/// Which queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueIndex(pub u16);

/// Which of a device's message interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryIndex(pub u16);

/// Tells a device of new buffers in one queue.
pub trait Notify: Send + fmt::Debug {
    /// Tells it.
    fn notify(&self);
}

/// Why a device interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptCause {
    /// A queue may have returned buffers.
    pub queue: Cause,
    /// The configuration, or the status, may have changed.
    pub configuration: Cause,
}

/// Whether something can have been the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It can.
    Possible,
    /// It was not.
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

/// A bus that a virtio device is on.
pub trait Transport: Send + fmt::Debug {
    /// What the device is (virtio 1.2, 5).
    fn device_type(&self) -> u32;

    /// The device status.
    fn status(&self) -> u8;

    /// Writes the device status; 0 resets.
    fn set_status(&mut self, status: u8);

    /// What the device offers.
    fn device_features(&mut self) -> u64;

    /// Says what the driver accepts of it.
    fn accept_features(&mut self, features: u64);

    /// How long a queue can be: 0 where the device does not have it.
    fn queue_limit(&mut self, queue: QueueIndex) -> u16;

    /// Hands a queue to the device. `entry` is the interrupt that it uses.
    ///
    /// # Errors
    /// Where the device does not take it.
    fn enable_queue(
        &mut self,
        queue: QueueIndex,
        addresses: QueueAddresses,
        entry: Option<EntryIndex>,
    ) -> Result<Box<dyn Notify>, TransportError>;

    /// Changes whenever the configuration does.
    fn generation(&self) -> u32;

    /// Reads from the device's configuration; `None` behind its end.
    fn configuration_u8(&self, offset: usize) -> Option<u8>;

    /// Reads from the device's configuration.
    fn configuration_u16(&self, offset: usize) -> Option<u16>;

    /// Asks why the device interrupted and takes the interrupt off it. Not for message interrupts, which are
    /// told apart by their vectors.
    fn acknowledge(&mut self) -> InterruptCause;

    /// How many message interrupts the device has: 0 where it has one line for everything.
    fn message_entries(&self) -> u16;

    /// Sets a message interrupt up and unmasks it.
    ///
    /// # Errors
    /// [`TransportError::NoSuchEntry`] where the device has fewer.
    fn set_message(
        &mut self,
        entry: EntryIndex,
        message: InterruptMessage,
    ) -> Result<Box<dyn MessageControl>, TransportError>;

    /// Says which message interrupt tells that the configuration has changed.
    ///
    /// # Errors
    /// [`TransportError::NoSuchEntry`] where the device does not take it.
    fn set_configuration_entry(&mut self, entry: EntryIndex) -> Result<(), TransportError>;
}

/// Control of a message interrupt. It stays with the queue that uses it, on whatever core that is.
pub trait MessageControl: Send + fmt::Debug {
    /// Holds the interrupt back, until it is unmasked.
    fn mask(&mut self);

    /// Lets the interrupt through; at once, where it was held back.
    fn unmask(&mut self);

    /// Sends the interrupt elsewhere from now on, and unmasks it.
    fn redirect(&mut self, message: InterruptMessage);
}

/// What is wrong with a device's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// There is no virtio device.
    NotVirtio,
    /// There is a place for a device, and none in it.
    Vacant,
    /// The device speaks the legacy interface alone.
    Legacy,
    /// The device speaks a version of the interface that this driver does not know.
    Version(u32),
    /// A window of registers is shorter than the interface.
    WindowTooShort {
        /// Bytes there are.
        len: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// The PCI function describes its registers in a way that makes no sense.
    Capability(CapabilityError),
    /// The device's notification register of a queue is not within the registers.
    NotifyOutside {
        /// The queue.
        queue: QueueIndex,
    },
    /// The device already uses the queue.
    QueueInUse {
        /// The queue.
        queue: QueueIndex,
    },
    /// The device did not take the queue's length, or did not enable it.
    QueueRefused {
        /// The queue.
        queue: QueueIndex,
    },
    /// The device has no such message interrupt, or has no room for another.
    NoSuchEntry {
        /// The one asked for.
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

/// Notifies by writing a queue's index, 16 bits wide as PCI wants it.
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
