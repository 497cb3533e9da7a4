//! The control queues, by which a console with several ports and its driver open ports (virtio 1.2, 5.3.6.2).
//!
//! ```text
//!   driver                      device
//!     | DEVICE_READY ------------> |
//!     | <------------ PORT_ADD(id) |   for each port
//!     | PORT_READY(id) ----------> |
//!     | PORT_OPEN(id) -----------> |   from here on bytes flow
//! ```
//!
//! The driver ignores all other messages of the device (names, sizes, whether the other end is open): they do not
//! affect a stream of bytes.

use crate::device::{Device, DeviceError};
use crate::transport::{EntryIndex, QueueIndex};
use crate::virtqueue::{Access, Fault, Part, Pending, QueueOptions, VirtQueue, WakeWhen};
use alloc::vec::Vec;
use isola_machine::dma::DmaRegion;

const FROM_DEVICE: QueueIndex = QueueIndex(2);
const TO_DEVICE: QueueIndex = QueueIndex(3);

/// Receive buffers for messages. The device may drop a message without a buffer; there is one for each initial message
/// of a port, for several ports.
const INCOMING: u16 = 16;

/// The most messages that the driver sends: the readiness of the driver, then readiness and opening of a port.
const OUTGOING: u16 = 4;

/// Length of a message, in bytes: port, event, value. A name may follow.
const MESSAGE_LEN: usize = 8;

/// Length of a receive buffer for a message, in bytes.
const BUFFER_LEN: usize = 128;

/// The events of messages.
mod event {
    pub(super) const DEVICE_READY: u16 = 0;
    pub(super) const PORT_ADD: u16 = 1;
    pub(super) const PORT_READY: u16 = 3;
    pub(super) const PORT_OPEN: u16 = 6;
}

/// The driver's end of the control queues.
#[derive(Debug)]
pub(super) struct Control {
    from_device: VirtQueue<DmaRegion>,
    to_device: VirtQueue<DmaRegion>,
    /// Free buffers for messages to the device.
    spare: Vec<DmaRegion>,
    /// Receive buffers, until the device runs.
    unlent: Vec<DmaRegion>,
}

impl Control {
    /// Creates the control queues.
    pub(super) fn new(
        device: &mut Device,
        options: QueueOptions,
        entry: Option<EntryIndex>,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Result<Self, DeviceError> {
        let mut from_device = device.queue(FROM_DEVICE, INCOMING, options, entry, memory)?;
        let mut to_device = device.queue(TO_DEVICE, OUTGOING, options, entry, memory)?;
        if to_device.size() < OUTGOING {
            // All messages that the driver ever sends must fit: this code never waits for room.
            return Err(DeviceError::NoQueue { queue: TO_DEVICE });
        }
        from_device.disarm();
        to_device.disarm();
        let spare = (0..OUTGOING).map(|_| memory(MESSAGE_LEN)).collect();
        let unlent = (0..from_device.size()).map(|_| memory(BUFFER_LEN)).collect();
        Ok(Self { from_device, to_device, spare, unlent })
    }

    /// Announces that the driver accepts ports. The device must be running.
    pub(super) fn begin(&mut self) {
        core::mem::take(&mut self.unlent).into_iter().for_each(|buffer| self.offer(buffer));
        self.from_device.publish();
        self.say(0, event::DEVICE_READY);
    }

    /// Announces that a port has buffers and that its driver's end is open.
    pub(super) fn open(&mut self, port: u16) {
        self.say(port, event::PORT_READY);
        self.say(port, event::PORT_OPEN);
    }

    fn say(&mut self, port: u16, event: u16) {
        let Some(mut message) = self.spare.pop() else { return };
        // Port and event, little-endian, then the value: 1 is true.
        message.write_u32(0, u32::from(port));
        message.write_u32(4, u32::from(event) | 1 << 16);
        let whole = Part { offset: 0, len: MESSAGE_LEN as u32, access: Access::DeviceReads };
        _ = self.to_device.lend_parts(message, &[whole]);
        self.to_device.publish();
    }

    /// Lends the device a buffer. Each buffer has a descriptor, so only a faulty queue rejects it.
    fn offer(&mut self, buffer: DmaRegion) {
        let whole = Part { offset: 0, len: BUFFER_LEN as u32, access: Access::DeviceWrites };
        _ = self.from_device.lend_parts(buffer, &[whole]);
    }

    /// Returns the next port that the device adds.
    ///
    /// # Errors
    /// The device's protocol violation.
    pub(super) fn next_port(&mut self) -> Result<Option<u32>, Fault> {
        let mut added = None;
        while added.is_none()
            && let Some(returned) = self.from_device.take_returned()?
        {
            let message = returned.buffer;
            let (port, event) = (message.read_u32(0), message.read_u32(4) as u16);
            if returned.written as usize >= MESSAGE_LEN && event == event::PORT_ADD {
                added = Some(port);
            }
            self.offer(message);
        }
        self.from_device.publish();
        Ok(added)
    }

    /// Returns whether messages wait.
    pub(super) fn has_received(&self) -> bool {
        self.from_device.has_returned()
    }

    /// Requests an interrupt for the next message.
    pub(super) fn enable_interrupts(&mut self) -> Pending {
        self.from_device.arm(WakeWhen::Returned)
    }

    /// Disables interrupts for messages.
    pub(super) fn disable_interrupts(&mut self) {
        self.from_device.disarm();
    }
}
