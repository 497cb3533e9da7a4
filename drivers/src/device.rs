//! State common to all virtio devices: initialisation from reset to running (virtio 1.2, 3.1), and reset.
//!
//! ```text
//!   Device::negotiate          Device::queue, for each          Device::start
//!   reset, acknowledged,  -->  queues enabled,            -->  running            --> Device::reset
//!   features negotiated        interrupts set up
//! ```
//!
//! The device uses memory only between start and reset. [`Liveness`] informs the queues, which may belong to other
//! cores by then.

use crate::transport::{EntryIndex, InterruptCause, MessageControl, QueueIndex, Transport, TransportError};
use crate::virtqueue::{Fault, QueueOptions, VirtQueue};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::DmaRegion;

/// The device types (virtio 1.2, 5) for which there is a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DeviceType {
    /// A network card.
    Network = 1,
    /// A block device.
    Block = 2,
    /// A console.
    Console = 3,
}

/// Features common to all device types (virtio 1.2, 6).
pub mod feature {
    /// Chains can use indirect descriptor tables.
    pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    /// Both sides suppress notifications by index.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The device has the modern interface.
    pub const VERSION_1: u64 = 1 << 32;
    /// A single queue can be reset.
    pub const QUEUE_RESET: u64 = 1 << 40;
}

/// The bits of the device status (virtio 1.2, 2.1).
mod status {
    pub const ACKNOWLEDGE: u8 = 1;
    pub const DRIVER: u8 = 2;
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
    pub const NEEDS_RESET: u8 = 64;
    pub const FAILED: u8 = 128;
}

/// How often a driver reads a register or a ring before it gives the device up. This takes seconds where each read
/// exits the virtual machine.
pub(crate) const PATIENCE: u32 = 2_000_000;

/// How often the configuration is read again because it changed during the read.
const CONFIGURATION_RETRIES: u32 = 100;

/// Whether a device may use the memory that was lent to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Liveness(Arc<AtomicBool>);

impl Liveness {
    pub(crate) fn is_running(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, running: Running) {
        self.0.store(running == Running::Yes, Ordering::Release);
    }
}

/// Whether a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    Yes,
    No,
}

/// The reason for which a device does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// Its registers are invalid.
    Transport(TransportError),
    /// It has another device type.
    OtherType {
        /// The device's type.
        device_type: u32,
    },
    /// It does not finish its reset.
    ResetHangs,
    /// It does not offer features that the driver requires.
    FeaturesMissing {
        /// The missing bits.
        features: u64,
    },
    /// It offers features, and rejects them after the driver accepted them.
    FeaturesRefused {
        /// The bits that the driver accepted.
        features: u64,
    },
    /// It does not have this queue.
    NoQueue {
        /// The queue's index.
        queue: QueueIndex,
    },
    /// Its configuration space is shorter than its features imply.
    ConfigurationTooShort,
    /// Its configuration changes faster than the driver can read it.
    ConfigurationUnstable,
    /// Its logical blocks have a length that no device has.
    InvalidBlockLen {
        /// The length, in bytes.
        len: u32,
    },
    /// It accepts segments of less than a sector only.
    InvalidSegmentLen {
        /// The length, in bytes.
        len: u32,
    },
    /// It violated the protocol, or does not answer.
    Fault(Fault),
    /// It rejected a command.
    CommandRefused,
    /// The caller requested no queue.
    NoQueuesAsked,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(error) => error.fmt(f),
            Self::OtherType { device_type } => {
                write!(f, "the device is of type {device_type}: use the driver for that type")
            }
            Self::ResetHangs => {
                f.write_str("the device does not finish its reset: it must not be used any more")
            }
            Self::FeaturesMissing { features } => {
                write!(f, "the device lacks features that the driver needs: {features:#x}")
            }
            Self::FeaturesRefused { features } => {
                write!(f, "the device refuses the features {features:#x}, all of which it offers")
            }
            Self::NoQueue { queue } => write!(f, "the device has no queue {}", queue.0),
            Self::ConfigurationTooShort => {
                f.write_str("the device's configuration is shorter than its features promise")
            }
            Self::ConfigurationUnstable => {
                f.write_str("the device's configuration changes faster than it can be read")
            }
            Self::InvalidBlockLen { len } => {
                write!(
                    f,
                    "the device has blocks of {len} bytes: use one with a power of two from 512 to 65536"
                )
            }
            Self::InvalidSegmentLen { len } => {
                write!(f, "the device accepts segments of {len} bytes only, less than a sector")
            }
            Self::Fault(fault) => fault.fmt(f),
            Self::CommandRefused => f.write_str("the device refused a command"),
            Self::NoQueuesAsked => {
                f.write_str("the device needs at least one queue, or pair of queues: ask for one")
            }
        }
    }
}

impl core::error::Error for DeviceError {}

impl From<TransportError> for DeviceError {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

impl From<Fault> for DeviceError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A device of any type. Dropping it resets it.
#[derive(Debug)]
pub(crate) struct Device {
    transport: Box<dyn Transport>,
    features: u64,
    liveness: Liveness,
}

impl Device {
    /// Resets the device behind `transport` and negotiates features: all of `required`, and those of `choose` that the
    /// device offers. `choose` receives the offered features.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(crate) fn negotiate(
        transport: Box<dyn Transport>,
        device_type: DeviceType,
        required: u64,
        choose: impl FnOnce(&mut Self, u64) -> Result<u64, DeviceError>,
    ) -> Result<Self, DeviceError> {
        if transport.device_type() != device_type as u32 {
            return Err(DeviceError::OtherType { device_type: transport.device_type() });
        }
        let mut device = Self { transport, features: 0, liveness: Liveness::default() };
        device.reset()?;
        device.add_status(status::ACKNOWLEDGE);
        device.add_status(status::DRIVER);
        let required = required | feature::VERSION_1;
        let offered = device.transport.device_features();
        if offered & required != required {
            device.add_status(status::FAILED);
            return Err(DeviceError::FeaturesMissing { features: required & !offered });
        }
        let features = offered & (required | choose(&mut device, offered)?);
        device.transport.accept_features(features);
        device.add_status(status::FEATURES_OK);
        if device.transport.status() & status::FEATURES_OK == 0 {
            device.add_status(status::FAILED);
            return Err(DeviceError::FeaturesRefused { features });
        }
        device.features = features;
        Ok(device)
    }

    /// Returns whether all of these features were negotiated.
    pub(crate) fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    fn add_status(&mut self, bits: u8) {
        let status = self.transport.status();
        self.transport.set_status(status | bits);
    }

    /// Returns the most descriptors that a queue can have.
    pub(crate) fn queue_limit(&mut self, index: QueueIndex) -> u16 {
        self.transport.queue_limit(index)
    }

    /// Creates a queue of at most `size` descriptors and enables it on the device.
    ///
    /// # Errors
    /// [`DeviceError::NoQueue`], [`DeviceError::Transport`].
    pub(crate) fn queue<B>(
        &mut self,
        index: QueueIndex,
        size: u16,
        options: QueueOptions,
        entry: Option<EntryIndex>,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Result<VirtQueue<B>, DeviceError> {
        let limit = self.transport.queue_limit(index);
        // A header and its frame take a chain of two descriptors.
        if limit < 2 {
            return Err(DeviceError::NoQueue { queue: index });
        }
        let mut queue = VirtQueue::new(size.min(limit), options, self.liveness.clone(), memory);
        let notifier = self.transport.enable_queue(index, queue.addresses(), entry)?;
        queue.connect(notifier);
        Ok(queue)
    }

    /// Returns whether the device's bus has registers for the reset of a single queue.
    pub(crate) fn can_reset_queues(&self) -> bool {
        self.transport.can_reset_queues()
    }

    /// Makes the device stop its use of a queue: it accesses none of the queue's memory until [`Self::enable_again`]. The
    /// buffers that it has returned before can still be taken.
    ///
    /// # Errors
    /// [`DeviceError::ResetHangs`]: the device may still access the memory.
    pub(crate) fn disable<B>(
        &mut self,
        index: QueueIndex,
        queue: &mut VirtQueue<B>,
    ) -> Result<(), DeviceError> {
        queue.disconnect();
        self.transport.begin_queue_reset(index);
        for _ in 0..PATIENCE {
            if self.transport.is_queue_reset(index) {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        Err(DeviceError::ResetHangs)
    }

    /// Enables a queue that [`Self::disable`] has disabled, without buffers: passes those that were not taken to `keep`.
    ///
    /// # Errors
    /// [`DeviceError::Transport`].
    pub(crate) fn enable_again<B>(
        &mut self,
        index: QueueIndex,
        queue: &mut VirtQueue<B>,
        entry: Option<EntryIndex>,
        keep: &mut dyn FnMut(B),
    ) -> Result<(), DeviceError> {
        queue.begin_again(keep);
        let notifier = self.transport.enable_queue(index, queue.addresses(), entry)?;
        queue.connect(notifier);
        Ok(())
    }

    /// Configures a message interrupt.
    ///
    /// # Errors
    /// [`DeviceError::Transport`].
    pub(crate) fn set_message(
        &mut self,
        entry: EntryIndex,
        message: InterruptMessage,
    ) -> Result<Box<dyn MessageControl>, DeviceError> {
        Ok(self.transport.set_message(entry, message)?)
    }

    /// Selects the message interrupt for changes of the configuration.
    ///
    /// # Errors
    /// [`DeviceError::Transport`].
    pub(crate) fn set_configuration_entry(&mut self, entry: EntryIndex) -> Result<(), DeviceError> {
        Ok(self.transport.set_configuration_entry(entry)?)
    }

    /// Starts the device. From here on it may use the memory of its queues.
    pub(crate) fn start(&mut self) {
        self.liveness.set(Running::Yes);
        self.add_status(status::DRIVER_OK);
    }

    /// Returns whether the device requests a reset because it cannot continue.
    pub(crate) fn needs_reset(&self) -> bool {
        self.transport.status() & status::NEEDS_RESET != 0
    }

    /// Returns and clears the cause of an interrupt, for devices with one interrupt line.
    pub(crate) fn acknowledge(&mut self) -> InterruptCause {
        self.transport.acknowledge()
    }

    /// Stops the device: it no longer accesses any memory.
    ///
    /// # Errors
    /// [`DeviceError::ResetHangs`]: the device may still access its memory, which stays lent for ever.
    pub(crate) fn reset(&mut self) -> Result<(), DeviceError> {
        self.transport.set_status(0);
        for _ in 0..PATIENCE {
            if self.transport.status() == 0 {
                self.liveness.set(Running::No);
                return Ok(());
            }
            core::hint::spin_loop();
        }
        Err(DeviceError::ResetHangs)
    }

    /// Reads a value from the configuration, and repeats the read if the configuration changed meanwhile.
    ///
    /// # Errors
    /// [`DeviceError::ConfigurationTooShort`], if `read` returns `None`; [`DeviceError::ConfigurationUnstable`].
    pub(crate) fn configuration<T>(
        &self,
        read: impl Fn(&dyn Transport) -> Option<T>,
    ) -> Result<T, DeviceError> {
        for _ in 0..CONFIGURATION_RETRIES {
            let before = self.transport.generation();
            let value = read(&*self.transport).ok_or(DeviceError::ConfigurationTooShort)?;
            if self.transport.generation() == before {
                return Ok(value);
            }
        }
        Err(DeviceError::ConfigurationUnstable)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // If the reset hangs, the queues leak the lent memory.
        _ = self.reset();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Sets whether a fake device runs.
    pub(crate) fn set_running(liveness: &Liveness, running: bool) {
        liveness.set(if running { Running::Yes } else { Running::No });
    }
}
