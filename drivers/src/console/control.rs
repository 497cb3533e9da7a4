//! The control queues, by which a console with several ports and its driver agree on ports (virtio 1.2, 5.3.6.2).
//!
//! ```text
//!   driver                      device
//!     | DEVICE_READY ------------> |
//!     | <------------ PORT_ADD(id) |   for each port
//!     | PORT_READY(id) ----------> |
//!     | PORT_OPEN(id) -----------> |   from here on bytes flow
//! ```
//!
//! What else the device tells (names, sizes, whether somebody is at the other end) changes nothing for a stream of
//! bytes, and is passed over.

use crate::device::{Device, DeviceError};
use crate::transport::{EntryIndex, QueueIndex};
use crate::virtqueue::{Access, Fault, Part, Pending, QueueOptions, VirtQueue, WakeWhen};
use alloc::vec::Vec;
use isola_machine::dma::DmaRegion;

const FROM_DEVICE: QueueIndex = QueueIndex(2);
const TO_DEVICE: QueueIndex = QueueIndex(3);

/// Messages that the device can send before it has to wait. It may drop what it has no buffer for; there is one for
/// each of the messages that a port begins with, for several ports.
const INCOMING: u16 = 16;

/// Messages that the driver ever has on their way: the device's readiness, then a port's, and its opening.
const OUTGOING: u16 = 4;

/// Length of a message, in bytes: port, event, value. A name may follow it.
const MESSAGE_LEN: usize = 8;

/// Length of a buffer for a message of the device's, in bytes.
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
    /// Where messages to the device are written.
    spare: Vec<DmaRegion>,
    /// Where the device writes its own, until the device runs.
    unlent: Vec<DmaRegion>,
}

impl Control {
    /// Sets the control queues up.
    pub(super) fn new(
        device: &mut Device,
        options: QueueOptions,
        entry: Option<EntryIndex>,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Result<Self, DeviceError> {
        let mut from_device = device.queue(FROM_DEVICE, INCOMING, options, entry, memory)?;
        let mut to_device = device.queue(TO_DEVICE, OUTGOING, options, entry, memory)?;
        if to_device.size() < OUTGOING {
            // All that there ever is to say must fit: nothing here waits for room.
            return Err(DeviceError::NoQueue { queue: TO_DEVICE });
        }
        from_device.disarm();
        to_device.disarm();
        let spare = (0..OUTGOING).map(|_| memory(MESSAGE_LEN)).collect();
        let unlent = (0..from_device.size()).map(|_| memory(BUFFER_LEN)).collect();
        Ok(Self { from_device, to_device, spare, unlent })
    }

    /// Says that the driver waits for ports. The device must run.
    pub(super) fn begin(&mut self) {
        core::mem::take(&mut self.unlent).into_iter().for_each(|buffer| self.offer(buffer));
        self.from_device.publish();
        self.say(0, event::DEVICE_READY);
    }

    /// Says that a port has buffers, and that somebody listens.
    pub(super) fn open(&mut self, port: u16) {
        self.say(port, event::PORT_READY);
        self.say(port, event::PORT_OPEN);
    }

    fn say(&mut self, port: u16, event: u16) {
        let Some(mut message) = self.spare.pop() else { return };
        // Port and event, little-endian, then the value: 1 is yes.
        message.write_u32(0, u32::from(port));
        message.write_u32(4, u32::from(event) | 1 << 16);
        let whole = Part { offset: 0, len: MESSAGE_LEN as u32, access: Access::DeviceReads };
        _ = self.to_device.lend_parts(message, &[whole]);
        self.to_device.publish();
    }

    /// Gives the device a buffer. There is a descriptor for each, so that only a broken queue refuses.
    fn offer(&mut self, buffer: DmaRegion) {
        let whole = Part { offset: 0, len: BUFFER_LEN as u32, access: Access::DeviceWrites };
        _ = self.from_device.lend_parts(buffer, &[whole]);
    }

    /// The next port that the device says it has.
    ///
    /// # Errors
    /// What the device did wrong.
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

    /// Whether messages wait.
    pub(super) fn has_received(&self) -> bool {
        self.from_device.has_returned()
    }

    /// Asks for an interrupt when the device has a message.
    pub(super) fn enable_interrupts(&mut self) -> Pending {
        self.from_device.arm(WakeWhen::Returned)
    }

    /// Asks for no interrupts on messages.
    pub(super) fn disable_interrupts(&mut self) {
        self.from_device.disarm();
    }
}
