//! The block device (virtio 1.2, 5.2).
//!
//! [`BlockDevice::start`] takes a device from reset to running. It returns the device, for operations on it as a whole,
//! and its queues, each of which can move to another core.
//!
//! ```text
//!   submit ----------> [header]--[segment]...[segment]--[status]    header and status in the queue's memory,
//!   take_completed <--                                              the segments in the caller's buffer
//! ```
//!
//! The driver copies no byte of the data, and allocates nothing after the start. It reorders nothing: the device may
//! execute the requests of its queues in any order, so a caller that needs an order waits for completions.
//!
//! # Limits
//! | limit | value | beyond it |
//! |---|---|---|
//! | segments of a request | the device's, at most 30 | [`Refusal::TooManySegments`](crate::virtqueue::Refusal) |
//! | data of a request | [`MAX_DATA_LEN`] | [`RequestRefusal::TooLong`] |
//! | ranges of a discard, or of a write of zeros | 1, with the device's number of sectors | [`RequestRefusal::TooLong`] |
//! | logical block | 512 bytes to [`MAX_BLOCK_LEN`] | [`DeviceError::InvalidBlockLen`] |
//! | descriptors of a queue | [`MIN_QUEUE_SIZE`] to [`MAX_QUEUE_SIZE`] | [`DeviceError::NoQueue`]; fewer are used |
//! | requests in a queue | its descriptors | [`Refusal::Full`](crate::virtqueue::Refusal) |
//!
//! # Trust in the device
//! The driver checks statuses and reported lengths. After a violation every request of the queue completes as
//! [`Outcome::DeviceFailed`], and the queue keeps the buffers until the device has been reset. If the capacity changes,
//! [`BlockDevice::update_capacity`] makes the queues reject requests beyond it. A device can still return wrong data:
//! integrity needs checksums above the driver.
//!
//! # Interrupts
//! As for [network devices](crate::net): with message interrupts (PCI) one a queue, which moves with it; otherwise (MMIO)
//! the device has one line, whose handler calls [`BlockDevice::acknowledge`] and then polls every queue. Interrupts are
//! initially disabled.
//!
//! Not here: order and merging of requests, time limits, and the device's serial number, life time, zones and secure
//! erase.

mod capacity;
mod configuration;
mod queue;
mod request;
#[cfg(test)]
mod tests;

pub use crate::virtqueue::MAX_QUEUE_SIZE;
pub use configuration::{BlockLimits, MAX_BLOCK_LEN, MAX_DATA_LEN, Unmap, Writability, WriteCache};
pub use queue::{BlockQueue, Completed, Outcome, RejectedRequest};
pub use request::{Request, RequestRefusal};

use crate::device::{Device, DeviceError, DeviceType, feature};
use crate::transport::{EntryIndex, InterruptCause, QueueIndex, Transport};
use crate::virtqueue::{Headers, Indirection, OWN_DESCRIPTORS, QueueOptions, Suppression};
use alloc::boxed::Box;
use alloc::vec::Vec;
use capacity::Capacity;
use configuration::bits;
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::{DmaBuffer, DmaRegion};

/// Length of a sector, the unit of positions and of the capacity, in bytes.
pub const SECTOR_LEN: u32 = 1 << SECTOR_SHIFT;

const SECTOR_SHIFT: u32 = 9;

/// The fewest descriptors of a queue: the next power of two after a request with one segment.
pub const MIN_QUEUE_SIZE: u16 = 4;

/// The configuration of a device.
#[derive(Clone, Copy, Debug)]
pub struct BlockOptions<'a> {
    /// The most queues to use; the device may have fewer.
    pub queues: u16,
    /// The most descriptors of a queue.
    pub queue_size: u16,
    /// How the device interrupts.
    pub interrupts: BlockInterrupts<'a>,
}

/// How a block device interrupts.
#[derive(Clone, Copy, Debug)]
pub enum BlockInterrupts<'a> {
    /// By its line, or not at all.
    Line,
    /// By messages.
    Messages {
        /// One message a queue. There are no more queues than these.
        queues: &'a [InterruptMessage],
        /// The message for changes of the capacity.
        configuration: Option<InterruptMessage>,
    },
}

/// A running block device. Dropping it resets it; drop its queues after it.
#[derive(Debug)]
pub struct BlockDevice {
    device: Device,
    limits: BlockLimits,
    capacity: Capacity,
}

impl BlockDevice {
    /// Starts the device behind `transport`. `memory` allocates the rings, with lengths in bytes: [`DmaRegion::new`]
    /// suffices.
    ///
    /// # Errors
    /// [`DeviceError`]; the device has been reset.
    pub fn start<B: DmaBuffer, T: Copy>(
        transport: Box<dyn Transport>,
        options: &BlockOptions<'_>,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Result<(Self, Vec<BlockQueue<B, T>>), DeviceError> {
        let entries = transport.message_entries();
        let wanted = bits::ALL | feature::EVENT_INDEX | feature::INDIRECT_DESCRIPTORS;
        let mut device = Device::negotiate(transport, DeviceType::Block, 0, |_, _| Ok(wanted))?;
        let capacity = Capacity::new(configuration::read_capacity(&device)?);
        let mut limits = configuration::read_limits(&device)?;
        let count = queue_count(options, configuration::read_queues(&device)?, entries)?;
        let size = options.queue_size.max(MIN_QUEUE_SIZE);
        let mut made = Vec::with_capacity(usize::from(count));
        for index in 0..count {
            let (entry, message) = match options.interrupts {
                BlockInterrupts::Line => (None, None),
                BlockInterrupts::Messages { queues, .. } => {
                    let message = queues.get(usize::from(index)).ok_or(DeviceError::NoQueuesAsked)?;
                    (Some(EntryIndex(index)), Some(device.set_message(EntryIndex(index), *message)?))
                }
            };
            let index = QueueIndex(index);
            if device.queue_limit(index) < MIN_QUEUE_SIZE {
                return Err(DeviceError::NoQueue { queue: index });
            }
            let queue = device.queue(index, size, queue_options(&device), entry, memory)?;
            // A chain must not be longer than its queue, in a table either.
            limits.segments = limits.segments.min(queue.size() - OWN_DESCRIPTORS);
            made.push((queue, message));
        }
        if let BlockInterrupts::Messages { configuration: Some(message), .. } = options.interrupts
            && count < entries
        {
            device.set_message(EntryIndex(count), message)?;
            device.set_configuration_entry(EntryIndex(count))?;
        }
        let queues = made
            .into_iter()
            .map(|(queue, message)| BlockQueue::new(queue, limits, capacity.clone(), message))
            .collect();
        device.start();
        Ok((Self { device, limits, capacity }, queues))
    }

    /// Returns the capacity as last read, in sectors.
    pub fn capacity(&self) -> u64 {
        self.capacity.sectors()
    }

    /// Returns the limits of requests.
    pub fn limits(&self) -> &BlockLimits {
        &self.limits
    }

    /// Reads the capacity again after an interrupt for a change of the configuration, and returns it in sectors. From
    /// then on the queues reject requests beyond it; the device fails those in flight.
    ///
    /// # Errors
    /// [`DeviceError::ConfigurationUnstable`]; the capacity stays as last read.
    pub fn update_capacity(&mut self) -> Result<u64, DeviceError> {
        let sectors = configuration::read_capacity(&self.device)?;
        self.capacity.set(sectors);
        Ok(sectors)
    }

    /// Returns and clears the cause of an interrupt, for devices with an interrupt line.
    pub fn acknowledge(&mut self) -> InterruptCause {
        self.device.acknowledge()
    }

    /// Returns whether the device reports that it cannot continue.
    pub fn needs_reset(&self) -> bool {
        self.device.needs_reset()
    }

    /// Stops the device and drops its queues with all requests.
    ///
    /// # Errors
    /// [`DeviceError::ResetHangs`]; the buffers are leaked, as the device may still access them.
    pub fn stop<B, T>(mut self, queues: Vec<BlockQueue<B, T>>) -> Result<(), DeviceError> {
        let result = self.device.reset();
        drop(queues);
        result
    }
}

/// Returns the number of queues to use: the minimum of the requested queues, the device's queues and the interrupts.
fn queue_count(options: &BlockOptions<'_>, device_queues: u16, entries: u16) -> Result<u16, DeviceError> {
    let interrupts = match options.interrupts {
        BlockInterrupts::Line => u16::MAX,
        BlockInterrupts::Messages { queues, .. } => {
            u16::try_from(queues.len()).unwrap_or(u16::MAX).min(entries)
        }
    };
    match options.queues.min(device_queues).min(interrupts) {
        0 => Err(DeviceError::NoQueuesAsked),
        queues => Ok(queues),
    }
}

fn queue_options(device: &Device) -> QueueOptions {
    let by_index = device.has(feature::EVENT_INDEX);
    let tables = device.has(feature::INDIRECT_DESCRIPTORS);
    QueueOptions {
        suppression: if by_index { Suppression::EventIndex } else { Suppression::Flags },
        indirection: if tables { Indirection::LongChains } else { Indirection::Never },
        headers: Headers::Requests,
    }
}
