//! What all virtio devices share: the way from reset to running (virtio 1.2, 3.1), and back.
//!
//! ```text
//!   Device::negotiate          Device::queue, for each          Device::start
//!   reset, acknowledged,  -->  queues handed over,         -->  running            --> Device::reset
//!   features agreed            interrupts set up
//! ```
//!
//! Only between start and reset does the device use memory. [`Liveness`] carries that to the queues, which may
//! be anywhere by then.

use crate::transport::{EntryIndex, InterruptCause, MessageControl, QueueIndex, Transport, TransportError};
use crate::virtqueue::{Fault, QueueOptions, VirtQueue};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::DmaRegion;

/// What a device is for (virtio 1.2, 5), as far as there are drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DeviceType {
    /// A network card.
    Network = 1,
    /// A console.
    Console = 3,
}

/// Features that are no device type's own (virtio 1.2, 6).
pub mod feature {
    /// Chains can stand in tables.
    pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    /// Notifications are suppressed by index.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The device has the modern interface.
    pub const VERSION_1: u64 = 1 << 32;
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

/// How often a register or a ring is looked at before the device is given up: seconds, where each look leaves the
/// virtual machine.
pub(crate) const PATIENCE: u32 = 2_000_000;

/// How often the configuration is read anew because it changes all the time.
const CONFIGURATION_RETRIES: u32 = 100;

/// Whether a device may use the memory that it was lent.
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

/// Why a device does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// Its registers are not as they have to be.
    Transport(TransportError),
    /// It is another kind of device.
    OtherType {
        /// Which kind.
        device_type: u32,
    },
    /// It does not come out of its reset.
    ResetHangs,
    /// It does not offer what the driver cannot do without.
    FeaturesMissing {
        /// The bits that are missing.
        features: u64,
    },
    /// It offers features that it then does not want to be used.
    FeaturesRefused {
        /// The bits that the driver accepted.
        features: u64,
    },
    /// It does not have a queue.
    NoQueue {
        /// Which.
        queue: QueueIndex,
    },
    /// Its configuration is shorter than its features promise.
    ConfigurationTooShort,
    /// Its configuration changes faster than it can be read.
    ConfigurationUnstable,
    /// It broke the rules, or does not answer.
    Fault(Fault),
    /// It refused a command.
    CommandRefused,
    /// The caller asked for less than one queue.
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
            Self::Fault(fault) => fault.fmt(f),
            Self::CommandRefused => f.write_str("the device refused a command"),
            Self::NoQueuesAsked => {
                f.write_str("a network device needs at least one pair of queues: ask for one")
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

/// A device, of whatever type. Dropped, it is reset.
#[derive(Debug)]
pub(crate) struct Device {
    transport: Box<dyn Transport>,
    features: u64,
    liveness: Liveness,
}

impl Device {
    /// Resets the device behind `transport` and agrees on features: those `required`, and of those that `choose`
    /// wants, given what is offered, what is offered.
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

    /// Whether all of these features are agreed on.
    pub(crate) fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    fn add_status(&mut self, bits: u8) {
        let status = self.transport.status();
        self.transport.set_status(status | bits);
    }

    /// How many descriptors a queue can have.
    pub(crate) fn queue_limit(&mut self, index: QueueIndex) -> u16 {
        self.transport.queue_limit(index)
    }

    /// Makes a queue, at most `size` long, and hands it to the device.
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
        // A queue of one descriptor can hold no chain of two, which is what a header and its frame take.
        if limit < 2 {
            return Err(DeviceError::NoQueue { queue: index });
        }
        let mut queue = VirtQueue::new(size.min(limit), options, self.liveness.clone(), memory);
        let notifier = self.transport.enable_queue(index, queue.addresses(), entry)?;
        queue.connect(notifier);
        Ok(queue)
    }

    /// Sets a message interrupt up.
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

    /// Says which message interrupt tells that the configuration has changed.
    ///
    /// # Errors
    /// [`DeviceError::Transport`].
    pub(crate) fn set_configuration_entry(&mut self, entry: EntryIndex) -> Result<(), DeviceError> {
        Ok(self.transport.set_configuration_entry(entry)?)
    }

    /// Lets the device run. From here on it may use the memory of its queues.
    pub(crate) fn start(&mut self) {
        self.liveness.set(Running::Yes);
        self.add_status(status::DRIVER_OK);
    }

    /// Whether the device asks to be reset, as it cannot go on.
    pub(crate) fn needs_reset(&self) -> bool {
        self.transport.status() & status::NEEDS_RESET != 0
    }

    /// Why the device interrupted, for devices with one line for everything.
    pub(crate) fn acknowledge(&mut self) -> InterruptCause {
        self.transport.acknowledge()
    }

    /// Stops the device for good: it lets go of all memory.
    ///
    /// # Errors
    /// [`DeviceError::ResetHangs`]: then it has not, and the memory stays lent for ever.
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

    /// Reads something from the configuration that was the same all along.
    ///
    /// # Errors
    /// [`DeviceError::ConfigurationTooShort`], where `read` returns `None`;
    /// [`DeviceError::ConfigurationUnstable`].
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
        // Where the reset hangs the memory stays lent: the queues leak it.
        _ = self.reset();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Says whether a device that does not exist runs.
    pub(crate) fn set_running(liveness: &Liveness, running: bool) {
        liveness.set(if running { Running::Yes } else { Running::No });
    }
}
