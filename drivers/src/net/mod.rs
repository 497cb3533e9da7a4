//! The network device (virtio 1.2, 5.1).
//!
//! [`NetDevice::start`] takes a device from reset to running. It returns the device, for operations on it as a whole,
//! and its queue pairs, each of which can move to another core.
//!
//! ```text
//!   fill ------> receive queue:   [header | frame...........]     one buffer of the caller's, header in front
//!   receive <---
//!
//!   transmit --> transmit queue:  [header]--[piece]--[piece]      header in the queue's memory, the pieces
//!   reclaim <---                                                  in the caller's memory
//! ```
//!
//! The driver copies no byte of a frame, and allocates nothing in steady state.
//!
//! # Long frames
//! A device with segmentation offload ([`Offload::Segment`]) accepts up to 64 KiB at once. A device that merges receive
//! buffers delivers frames of the same length, in as many buffers as necessary ([`ReceivedBuffer::more`]). The driver
//! negotiates this only if the queue has room for two of the longest frames, because a frame without room would block
//! the queue for ever.
//!
//! # Several pairs
//! A device with several pairs delivers a flow's frames to the pair that last transmitted for the flow or, with a hash
//! (RSS), to the pair that a table assigns ([`NetDevice::spread`]).
//!
//! # Interrupts
//! With message interrupts (PCI), each pair has one, for both received and sent frames; it moves with its pair to
//! another core ([`NetQueue::redirect`]). Otherwise (MMIO) the device has one line: its handler calls
//! [`NetDevice::acknowledge`], then polls every pair. The interrupts of pairs are initially disabled.
//!
//! Not here: segmentation of UDP, filters, and the reaction to a link that is down.

mod control;
mod header;
mod queue;
mod spreading;
#[cfg(test)]
mod tests;

pub use crate::virtqueue::HEADER_LEN;
pub use header::{Offload, ReceivedChecksum, SegmentKind};
pub use queue::{FeatureSupport, MAX_PIECES, NetQueue, ReceiveBuffer, ReceivedBuffer};
pub use spreading::{KEY_LEN, TABLE_LEN};

use crate::device::{Device, DeviceError, DeviceType, feature};
use crate::transport::{EntryIndex, InterruptCause, QueueIndex, Transport};
use crate::virtqueue::{Fault, Headers, Indirection, QueueOptions, Suppression};
use alloc::boxed::Box;
use alloc::vec::Vec;
use control::ControlQueue;
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::{DmaBuffer, DmaRegion};
use queue::PairOptions;

/// The device's features (virtio 1.2, 5.1.3).
mod bits {
    pub const CHECKSUM: u64 = 1 << 0;
    pub const GUEST_CHECKSUM: u64 = 1 << 1;
    pub const MTU: u64 = 1 << 3;
    pub const MAC: u64 = 1 << 5;
    pub const GUEST_SEGMENTS_IPV4: u64 = 1 << 7;
    pub const GUEST_SEGMENTS_IPV6: u64 = 1 << 8;
    pub const SEGMENTS_IPV4: u64 = 1 << 11;
    pub const SEGMENTS_IPV6: u64 = 1 << 12;
    pub const MERGED_BUFFERS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    pub const CONTROL_QUEUE: u64 = 1 << 17;
    pub const CONTROL_RECEIVE: u64 = 1 << 18;
    pub const SEVERAL_PAIRS: u64 = 1 << 22;
    pub const SPREADS_BY_HASH: u64 = 1 << 60;
}

/// The device's configuration (virtio 1.2, 5.1.4).
mod configuration {
    pub const MAC: usize = 0;
    pub const STATUS: usize = 6;
    pub const PAIRS: usize = 8;
    pub const MTU: usize = 10;
    pub const LONGEST_KEY: usize = 17;
    pub const LONGEST_TABLE: usize = 18;
    pub const HASHED: usize = 20;
    pub const STATUS_LINK_UP: u16 = 1;
}

/// The longest IP packet that every Ethernet supports, in bytes.
const STANDARD_MTU: u16 = 1500;

/// The smallest MTU of a network (RFC 791), in bytes.
const LEAST_MTU: u16 = 68;

/// The difference between a frame and its IP packet: Ethernet header and VLAN tag, in bytes.
const FRAME_OVERHEAD: usize = 18;

/// The longest frame that a device delivers in merged buffers, in bytes: the longest IP packet, with Ethernet header
/// and tag.
const LONGEST_FRAME: usize = 65_535 + FRAME_OVERHEAD;

/// The configuration of a device.
#[derive(Clone, Copy, Debug)]
pub struct NetOptions<'a> {
    /// The most queue pairs to use; the device may have fewer.
    pub pairs: u16,
    /// The most descriptors of a queue.
    pub queue_size: u16,
    /// The longest IP packet of the network, in bytes. One receive buffer has room for it or, if frames may take
    /// several, several have.
    pub max_mtu: u16,
    /// Whether a received frame may take several buffers.
    pub merging: Merging,
    /// Which frames of its network the device delivers.
    pub reception: Reception,
    /// How the device interrupts.
    pub interrupts: NetInterrupts<'a>,
}

/// Whether a received frame may take several buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// It takes one buffer.
    Never,
    /// It may, if the device supports that, and the queue has room for two of the longest frames.
    Buffers {
        /// Length of a buffer, header included, in bytes.
        len: usize,
    },
}

/// Which frames of its network a device delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// Those for its own hardware address, and all group frames.
    Own,
    /// All: another host's address may be behind this one.
    All,
}

/// How a network device interrupts.
#[derive(Clone, Copy, Debug)]
pub enum NetInterrupts<'a> {
    /// By its line, or not at all.
    Line,
    /// By messages.
    Messages {
        /// One message a pair. There are no more pairs than these.
        pairs: &'a [InterruptMessage],
        /// The message for link changes.
        configuration: Option<InterruptMessage>,
    },
}

/// Whether a device is connected to its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It is connected, or does not report the link.
    Up,
    /// It is not connected.
    Down,
}

/// A running network device. Dropping it resets it; drop its queues after it.
#[derive(Debug)]
pub struct NetDevice {
    device: Device,
    control: Option<ControlQueue>,
    pairs: u16,
    mac: [u8; 6],
    mtu: u16,
}

impl NetDevice {
    /// Starts the device behind `transport`. `memory` allocates the rings, with lengths in bytes: [`DmaRegion::new`]
    /// suffices.
    ///
    /// # Errors
    /// [`DeviceError`]; the device has been reset.
    pub fn start<Rx: ReceiveBuffer, Tx: DmaBuffer>(
        transport: Box<dyn Transport>,
        options: &NetOptions<'_>,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Result<(Self, Vec<NetQueue<Rx, Tx>>), DeviceError> {
        let entries = transport.message_entries();
        let mut device = Device::negotiate(transport, DeviceType::Network, bits::MAC, |device, offered| {
            let mut wanted = bits::CHECKSUM
                | bits::GUEST_CHECKSUM
                | bits::STATUS
                | feature::EVENT_INDEX
                | feature::INDIRECT_DESCRIPTORS;
            if offered & bits::CHECKSUM != 0 {
                wanted |= bits::SEGMENTS_IPV4 | bits::SEGMENTS_IPV6;
            }
            let buffers = usize::from(options.queue_size.min(device.queue_limit(QueueIndex(0))));
            if let Merging::Buffers { len } = options.merging
                && offered & bits::MERGED_BUFFERS != 0
                && buffers * len >= 2 * LONGEST_FRAME
            {
                wanted |= bits::MERGED_BUFFERS;
                if offered & bits::GUEST_CHECKSUM != 0 {
                    wanted |= bits::GUEST_SEGMENTS_IPV4 | bits::GUEST_SEGMENTS_IPV6;
                }
            }
            if offered & bits::MTU != 0 && (LEAST_MTU..=options.max_mtu).contains(&read_mtu(device)?) {
                wanted |= bits::MTU;
            }
            if device.can_reset_queues() {
                wanted |= feature::QUEUE_RESET;
            }
            if options.pairs > 1 && offered & bits::CONTROL_QUEUE != 0 {
                wanted |= bits::SEVERAL_PAIRS | bits::CONTROL_QUEUE;
            }
            if options.pairs > 1
                && offered & bits::CONTROL_QUEUE != 0
                && offered & bits::SPREADS_BY_HASH != 0
                && spreading::suffices(device)?
            {
                wanted |= bits::SPREADS_BY_HASH | bits::CONTROL_QUEUE;
            }
            if options.reception == Reception::Own
                && offered & bits::CONTROL_QUEUE != 0
                && offered & bits::CONTROL_RECEIVE != 0
            {
                wanted |= bits::CONTROL_RECEIVE | bits::CONTROL_QUEUE;
            }
            Ok(wanted)
        })?;
        let mtu = if device.has(bits::MTU) { read_mtu(&device)? } else { STANDARD_MTU.min(options.max_mtu) };
        let mac = device.configuration(read_mac)?;
        let several = device.has(bits::SEVERAL_PAIRS | bits::CONTROL_QUEUE);
        let device_pairs = if several {
            device.configuration(|transport| transport.configuration_u16(configuration::PAIRS))?.max(1)
        } else {
            1
        };
        let pairs = pair_count(options, device_pairs, entries)?;
        let longest = HEADER_LEN + FRAME_OVERHEAD + usize::from(mtu.max(STANDARD_MTU));
        let offered = |feature| if device.has(feature) { FeatureSupport::Yes } else { FeatureSupport::No };
        let pair_options = PairOptions {
            checksums: offered(bits::CHECKSUM),
            segments_ipv4: offered(bits::SEGMENTS_IPV4),
            segments_ipv6: offered(bits::SEGMENTS_IPV6),
            merges: offered(bits::MERGED_BUFFERS),
            receive_len: match options.merging {
                Merging::Buffers { len } if device.has(bits::MERGED_BUFFERS) => len.min(longest),
                _ => longest,
            },
        };
        let mut queues = Vec::with_capacity(usize::from(pairs));
        for pair in 0..pairs {
            queues.push(make_pair(&mut device, pair, options, pair_options, memory)?);
        }
        if let NetInterrupts::Messages { configuration: Some(message), .. } = options.interrupts
            && pairs < entries
        {
            device.set_message(EntryIndex(pairs), message)?;
            device.set_configuration_entry(EntryIndex(pairs))?;
        }
        let mut control = None;
        let filters = device.has(bits::CONTROL_RECEIVE | bits::CONTROL_QUEUE);
        if several || filters {
            let index = QueueIndex(device_pairs.saturating_mul(2));
            let options = queue_options(&device, Indirection::Never, Headers::None);
            control = Some(ControlQueue::new(device.queue(index, 4, options, None, memory)?, memory));
        }
        device.start();
        let mut net = Self { device, control, pairs, mac, mtu };
        if let Some(control) = &mut net.control {
            let spread = if several { control.set_pairs(pairs) } else { Ok(()) };
            let configured = spread.and_then(|()| if filters { control.filter() } else { Ok(()) });
            if let Err(error) = configured {
                // Before the queues are dropped, so that they need not leak.
                _ = net.device.reset();
                return Err(error);
            }
        }
        Ok((net, queues))
    }

    /// Returns the device's hardware address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the longest IP packet that the network supports, in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns whether the device is connected.
    ///
    /// # Errors
    /// [`DeviceError::ConfigurationTooShort`], [`DeviceError::ConfigurationUnstable`].
    pub fn link(&self) -> Result<Link, DeviceError> {
        if !self.device.has(bits::STATUS) {
            return Ok(Link::Up);
        }
        let status =
            self.device.configuration(|transport| transport.configuration_u16(configuration::STATUS))?;
        Ok(if status & configuration::STATUS_LINK_UP != 0 { Link::Up } else { Link::Down })
    }

    /// Makes the device distribute received frames over the first `pairs` of its started pairs.
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`], also if the device has fewer pairs.
    pub fn use_pairs(&mut self, pairs: u16) -> Result<(), DeviceError> {
        if !(1..=self.pairs).contains(&pairs) {
            return Err(DeviceError::CommandRefused);
        }
        self.control.as_mut().ok_or(DeviceError::CommandRefused)?.set_pairs(pairs)
    }

    /// Returns whether the device supports [`Self::spread`].
    pub fn spreads_by_hash(&self) -> FeatureSupport {
        let offered = self.control.is_some() && self.device.has(bits::SPREADS_BY_HASH);
        if offered { FeatureSupport::Yes } else { FeatureSupport::No }
    }

    /// Makes the device deliver each TCP segment or UDP datagram to the pair in the table entry of the flow's hash (the
    /// lowest bits of the Toeplitz hash with this key), and all other frames to the first pair.
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`], also if the device does not support it, or has fewer pairs.
    pub fn spread(&mut self, key: &[u8; KEY_LEN], pairs: &[u16; TABLE_LEN]) -> Result<(), DeviceError> {
        if self.spreads_by_hash() == FeatureSupport::No || pairs.iter().any(|pair| *pair >= self.pairs) {
            return Err(DeviceError::CommandRefused);
        }
        let control = self.control.as_mut().ok_or(DeviceError::CommandRefused)?;
        control.spread(&spreading::command(key, pairs, self.pairs))
    }

    /// Returns whether the device supports [`Self::stop_reception`].
    pub fn can_stop_reception(&self) -> FeatureSupport {
        if self.device.has(feature::QUEUE_RESET) { FeatureSupport::Yes } else { FeatureSupport::No }
    }

    /// Makes the device stop its use of a pair's receive queue, so that buffers can be taken back. The frames that it has
    /// received before can still be taken. The caller then calls [`Self::begin_reception`]. A device may drop frames that it
    /// is sending (QEMU does, if its network takes none at that moment).
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`] without effect, if the device does not support it; [`DeviceError::ResetHangs`], and
    /// the pair is of no use any more.
    pub fn stop_reception<Rx, Tx>(&mut self, queue: &mut NetQueue<Rx, Tx>) -> Result<(), DeviceError> {
        if self.can_stop_reception() == FeatureSupport::No {
            return Err(DeviceError::CommandRefused);
        }
        let stopped = self.device.disable(receive_index(queue.pair), &mut queue.receive);
        stopped.inspect_err(|_| _ = queue.receive.break_off(Fault::Silent))
    }

    /// Makes the device receive again, after [`Self::stop_reception`], and passes all buffers that were not taken to `keep`.
    /// The queue is empty, and its interrupts are disabled.
    ///
    /// # Errors
    /// [`DeviceError::Transport`], and the pair is of no use any more.
    pub fn begin_reception<Rx: ReceiveBuffer, Tx: DmaBuffer>(
        &mut self,
        queue: &mut NetQueue<Rx, Tx>,
        keep: &mut dyn FnMut(Rx),
    ) -> Result<(), DeviceError> {
        let entry = queue.has_message().then_some(EntryIndex(queue.pair));
        let begun = self.device.enable_again(receive_index(queue.pair), &mut queue.receive, entry, keep);
        begun.inspect_err(|_| _ = queue.receive.break_off(Fault::Silent))
    }

    /// Returns and clears the cause of an interrupt, for devices with an interrupt line.
    pub fn acknowledge(&mut self) -> InterruptCause {
        self.device.acknowledge()
    }

    /// Returns whether the device reports that it cannot continue.
    pub fn needs_reset(&self) -> bool {
        self.device.needs_reset()
    }

    /// Stops the device and drops its queues with all buffers.
    ///
    /// # Errors
    /// [`DeviceError::ResetHangs`]; the buffers are leaked, as the device may still write to them.
    pub fn stop<Rx, Tx>(mut self, queues: Vec<NetQueue<Rx, Tx>>) -> Result<(), DeviceError> {
        let result = self.device.reset();
        drop(queues);
        result
    }
}

fn read_mac(transport: &dyn Transport) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    for (index, byte) in mac.iter_mut().enumerate() {
        *byte = transport.configuration_u8(configuration::MAC + index)?;
    }
    Some(mac)
}

fn read_mtu(device: &Device) -> Result<u16, DeviceError> {
    device.configuration(|transport| transport.configuration_u16(configuration::MTU))
}

/// Returns the number of pairs to use: the minimum of the requested pairs, the device's pairs and the interrupts.
fn pair_count(options: &NetOptions<'_>, device_pairs: u16, entries: u16) -> Result<u16, DeviceError> {
    let interrupts = match options.interrupts {
        NetInterrupts::Line => u16::MAX,
        NetInterrupts::Messages { pairs, .. } => u16::try_from(pairs.len()).unwrap_or(u16::MAX).min(entries),
    };
    match options.pairs.min(device_pairs).min(interrupts) {
        0 => Err(DeviceError::NoQueuesAsked),
        pairs => Ok(pairs),
    }
}

fn queue_options(device: &Device, indirection: Indirection, headers: Headers) -> QueueOptions {
    let by_index = device.has(feature::EVENT_INDEX);
    let tables = device.has(feature::INDIRECT_DESCRIPTORS);
    QueueOptions {
        suppression: if by_index { Suppression::EventIndex } else { Suppression::Flags },
        indirection: if tables { indirection } else { Indirection::Never },
        headers,
    }
}

/// Returns the index of a pair's receive queue.
fn receive_index(pair: u16) -> QueueIndex {
    QueueIndex(pair * 2)
}

/// Creates a pair: queues `2 pair` and `2 pair + 1`, both on message interrupt `pair`.
fn make_pair<Rx: ReceiveBuffer, Tx: DmaBuffer>(
    device: &mut Device,
    pair: u16,
    options: &NetOptions<'_>,
    pair_options: PairOptions,
    memory: &mut dyn FnMut(usize) -> DmaRegion,
) -> Result<NetQueue<Rx, Tx>, DeviceError> {
    let (entry, message) = match options.interrupts {
        NetInterrupts::Line => (None, None),
        NetInterrupts::Messages { pairs, .. } => {
            let entry = EntryIndex(pair);
            let message = pairs.get(usize::from(pair)).ok_or(DeviceError::NoQueuesAsked)?;
            (Some(entry), Some(device.set_message(entry, *message)?))
        }
    };
    let plain = queue_options(device, Indirection::Never, Headers::None);
    let with_headers = queue_options(device, Indirection::LongChains, Headers::Room);
    let size = options.queue_size;
    let receive = device.queue(receive_index(pair), size, plain, entry, memory)?;
    let transmit = device.queue(QueueIndex(pair * 2 + 1), size, with_headers, entry, memory)?;
    Ok(NetQueue::new(pair, receive, transmit, pair_options, message))
}
