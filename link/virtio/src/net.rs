//! Frames of a network device (virtio 1.2, 5.1.6), and its configuration (5.1.4).
//!
//! The device offers no transmit offloads, so a driver sends complete frames of at most the MTU. A received frame is in one
//! chain.

use crate::memory::DriverMemory;
use crate::queue::{Chain, DeviceQueue, DriverFault, EVENT_INDEX, INDIRECT_DESCRIPTORS, Segment, VERSION_1};
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::AtomicU64;

/// The number of the device type.
pub const DEVICE_TYPE: u32 = 1;

/// The length of the header in front of each frame, in bytes.
pub const HEADER_LEN: usize = 12;

/// The difference between the longest frame and the MTU: Ethernet header and VLAN tag, in bytes.
pub const FRAME_OVERHEAD: usize = 18;

/// The length of an Ethernet header in bytes: no frame is shorter.
pub const LEAST_FRAME: usize = 14;

/// Features.
const GUEST_CHECKSUM: u64 = 1 << 1;
const MTU: u64 = 1 << 3;
const MAC: u64 = 1 << 5;
const STATUS: u64 = 1 << 16;

/// The bit of the status: the link is up.
const LINK_UP: u16 = 1;

/// Flag of a header: the device has verified the checksum.
const DATA_VALID: u8 = 2;

/// The properties of a served network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetSettings {
    /// The hardware address.
    pub mac: [u8; 6],
    /// The longest IP packet, in bytes.
    pub mtu: u16,
}

impl NetSettings {
    /// Returns the features that the device offers.
    pub fn features(&self) -> u64 {
        VERSION_1 | EVENT_INDEX | INDIRECT_DESCRIPTORS | GUEST_CHECKSUM | MTU | MAC | STATUS
    }

    /// Returns the device's configuration: address, status, queue pairs, MTU.
    pub fn configuration(&self) -> Vec<u8> {
        let mut bytes = self.mac.to_vec();
        for word in [LINK_UP, 1, self.mtu] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the length of the longest frame, in bytes.
    pub fn longest_frame(&self) -> usize {
        usize::from(self.mtu) + FRAME_OVERHEAD
    }
}

/// A frame in a chain of the driver's transmit queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    head: u16,
    /// The frame, without the header.
    segments: Vec<Segment>,
    len: usize,
}

impl SentFrame {
    /// Checks a chain of the transmit queue.
    ///
    /// # Errors
    /// [`DriverFault::NoRequest`] if the device may write to the chain, if it has no header, or if the header requests an
    /// offload, as none is offered.
    pub fn parse<M: Deref<Target = [AtomicU64]>>(
        memory: &DriverMemory<M>,
        chain: Chain,
    ) -> Result<Self, DriverFault> {
        let Chain { head, mut segments } = chain;
        if segments.iter().any(|segment| segment.is_writable) {
            return Err(DriverFault::NoRequest);
        }
        let mut header = [0; HEADER_LEN];
        let mut rest = &mut header[..];
        for segment in &mut segments {
            let count = segment.len.min(rest.len());
            let (part, later) = rest.split_at_mut(count);
            memory.read(segment.offset, part);
            (segment.offset, segment.len) = (segment.offset + count, segment.len - count);
            rest = later;
        }
        let is_complete = rest.is_empty();
        // Flags, and the kind of segmentation.
        if !is_complete || header[..2] != [0; 2] {
            return Err(DriverFault::NoRequest);
        }
        segments.retain(|segment| segment.len > 0);
        let len = segments.iter().map(|segment| segment.len).fold(0, usize::saturating_add);
        Ok(Self { head, segments, len })
    }

    /// Returns the index by which [`DeviceQueue::give_back`] returns the chain.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Returns the length of the frame in bytes, which may be any: a device forwards frames of [`LEAST_FRAME`] to
    /// [`NetSettings::longest_frame`] bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the frame from the shared memory, up to the length of `into`.
    pub fn copy_to<M: Deref<Target = [AtomicU64]>>(&self, memory: &DriverMemory<M>, into: &mut [u8]) {
        let mut rest = into;
        for segment in &self.segments {
            let (part, later) = rest.split_at_mut(segment.len.min(rest.len()));
            memory.read(segment.offset, part);
            rest = later;
        }
    }
}

/// Writes a received frame, which is in the parts that `parts` returns, to the next chain of the receive queue, and returns the chain to the driver.
/// `has_valid_checksum`: the driver need not verify the checksum of its TCP segment or UDP datagram. Returns whether there
/// was a chain.
///
/// # Errors
/// [`DriverFault::NoRequest`], which breaks the queue, if the chain has parts that the device may not write, or no room for
/// the frame: a driver supplies buffers for the longest frame, so the parts must not be longer than
/// [`NetSettings::longest_frame`]. Faults of the queue.
pub fn deliver<'a, M: Deref<Target = [AtomicU64]>, I: Iterator<Item = &'a [u8]>>(
    queue: &mut DeviceQueue<M>,
    parts: impl Fn() -> I,
    has_valid_checksum: bool,
) -> Result<bool, DriverFault> {
    let Some(Chain { head, segments }) = queue.take()? else { return Ok(false) };
    let len = HEADER_LEN + parts().map(<[u8]>::len).sum::<usize>();
    let room = segments.iter().map(|segment| segment.len).fold(0, usize::saturating_add);
    if room < len || segments.iter().any(|segment| !segment.is_writable) {
        return Err(queue.break_off(DriverFault::NoRequest));
    }
    let mut header = [0; HEADER_LEN];
    header[0] = if has_valid_checksum { DATA_VALID } else { 0 };
    // The number of buffers.
    header[10] = 1;
    let mut segments = segments.into_iter();
    let mut segment = segments.next();
    let mut put = |part: &[u8]| {
        let mut rest = part;
        while let Some(room) = segment.as_mut().filter(|_| !rest.is_empty()) {
            let (now, later) = rest.split_at(room.len.min(rest.len()));
            queue.memory().write(room.offset, now);
            (room.offset, room.len, rest) = (room.offset + now.len(), room.len - now.len(), later);
            if room.len == 0 {
                segment = segments.next();
            }
        }
    };
    put(&header);
    parts().for_each(put);
    queue.give_back(head, len as u32);
    Ok(true)
}
