//! A network device of a service cell as a queue of the stack.
//!
//! The device reaches one piece of memory, which holds the rings and buffers of a page. Frames are copied there and back,
//! so neither side can change a frame under the other.

use crate::console;
use crate::links::LinkBell;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::service::{DeviceOffer, DriverSetup};
use isola_drivers::net::{
    HEADER_LEN, Merging, NetDevice, NetInterrupts, NetOptions, NetQueue, Offload, ReceivedBuffer,
    ReceivedChecksum as DriverChecksum, Reception,
};
use isola_drivers::transport::channel::ChannelTransport;
use isola_drivers::virtqueue::{Pending, RejectedBuffer};
use isola_ebbs::platform;
use isola_iobuf::IoBufMut;
use isola_machine::dma::DmaRegion;
use isola_machine::dma_peer::{SharedBuffer, SharedMemory};
use isola_platform::VacatedMemory;
use isola_platform::network::{
    Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedChecksum, ReceivedFrame,
};

/// Descriptors of each of the two queues.
const QUEUE_SIZE: u16 = 64;

/// The length of a buffer.
const BUFFER_LEN: usize = PAGE_SIZE as usize;

/// The longest IP packet.
const MAX_MTU: u16 = 1500;

/// Starts the driver of a device that the peer of a link offers.
///
/// # Safety
/// No other code of the cell accesses `memory` until the port is dropped.
pub(crate) unsafe fn open(
    slot: usize,
    offer: DeviceOffer,
    memory: &'static [AtomicU64],
) -> Result<(NetworkPort, DriverSetup), String> {
    // SAFETY: the queues of the port have the parts of the block, and drop them with the port; those that a driver leaks are not
    // used any more. The caller's promise is for that time.
    let shared =
        unsafe { SharedMemory::over(memory) }.ok_or("the shared memory is not whole pages in a row")?;
    let base = shared.base().ok_or("the shared memory has no device address")?;
    let (transport, settings) = ChannelTransport::new(offer, LinkBell(slot));
    let options = NetOptions {
        pairs: 1,
        queue_size: QUEUE_SIZE,
        max_mtu: MAX_MTU,
        merging: Merging::Never,
        reception: Reception::All,
        interrupts: NetInterrupts::Line,
    };
    // Memory beyond the shared piece is of no use to the device, which then rejects the queue.
    let mut region = |len| shared.region(len).unwrap_or_else(|| DmaRegion::new(len));
    let started = NetDevice::start(Box::new(transport), &options, &mut region);
    let (device, queues) = started.map_err(|error| error.to_string())?;
    let queue = queues.into_iter().next().ok_or("the device has no queue")?;
    let mut free: Vec<_> = core::iter::from_fn(|| shared.buffer(BUFFER_LEN)).collect();
    if free.len() < 2 || queue.receive_buffer_len() > BUFFER_LEN {
        return Err("the shared memory has no room for frames".to_string());
    }
    // Half of the buffers are for each direction.
    let received = free.split_off(free.len() / 2);
    let (mac, mtu) = (device.mac(), device.mtu());
    let mut queue = ChannelNetworkQueue { _device: device, queue, free, is_reported: false };
    received.into_iter().for_each(|buffer| queue.lend(buffer));
    // The device hears of the buffers by the message with the settings.
    let setup = settings.setup(base);
    queue.queue.flush();
    let queues = Vec::from([Box::new(queue) as Box<dyn NetworkQueue + Send>]);
    Ok((NetworkPort { mac, mtu, headroom: HEADER_LEN, queues, spreading: None }, setup))
}

struct ChannelNetworkQueue {
    /// Dropped before the queue: this resets the device, and a queue of a running device leaks its buffers.
    _device: NetDevice,
    queue: NetQueue<SharedBuffer, SharedBuffer>,
    /// Buffers for frames to be sent.
    free: Vec<SharedBuffer>,
    /// Whether a violation of the protocol was printed.
    is_reported: bool,
}

impl ChannelNetworkQueue {
    /// Lends the device a buffer to receive into.
    fn lend(&mut self, mut buffer: SharedBuffer) {
        buffer.set_len(BUFFER_LEN);
        if self.queue.fill(buffer).is_err() {
            self.check();
        }
    }

    /// Takes back the buffers of frames that the device has sent.
    fn take_sent(&mut self) {
        while let Ok(Some(buffer)) = self.queue.reclaim() {
            self.free.push(buffer);
        }
        self.check();
    }

    /// Reports, once, that the service cell has violated the protocol.
    fn check(&mut self) {
        if let Some(fault) = self.queue.fault()
            && !core::mem::replace(&mut self.is_reported, true)
        {
            console::print(alloc::format!("network of a service cell: {fault}\n").as_bytes());
        }
    }
}

impl NetworkQueue for ChannelNetworkQueue {
    fn vector(&self) -> Option<u8> {
        None
    }

    fn offloads(&self) -> Offloads {
        // The driver requests none of a service cell.
        Offloads::default()
    }

    fn attach(&mut self) {}

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let received = self.queue.receive();
        let Ok(Some(ReceivedBuffer { buffer, len, checksum, .. })) = received else {
            self.check();
            return None;
        };
        let len = len.min(BUFFER_LEN - HEADER_LEN);
        let mut frame = IoBufMut::with_room(0, len);
        frame.extend();
        buffer.read_at(HEADER_LEN, frame.data_mut());
        self.lend(buffer);
        self.queue.flush_buffers(1);
        let checksum = match checksum {
            DriverChecksum::Valid => ReceivedChecksum::Valid,
            DriverChecksum::Unchecked | DriverChecksum::Partial { .. } => ReceivedChecksum::Unchecked,
        };
        let mut frame = frame.freeze();
        frame.truncate(len);
        Some(ReceivedFrame { frame, rest: None, checksum })
    }

    fn may_have_received(&self) -> bool {
        self.queue.has_noticed_received()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.free.is_empty() {
            self.take_sent();
        }
        let len = HEADER_LEN + frame.len();
        if len > BUFFER_LEN {
            platform().report().network.dropped_frames.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let Some(mut buffer) = self.free.pop() else { return Err(frame) };
        buffer.set_len(len);
        let header = self.queue.header(Offload::None).unwrap_or_default();
        let mut offset = buffer.write(&header);
        for piece in frame.pieces() {
            offset += buffer.write_at(offset, piece);
        }
        self.queue.transmit_behind_header(buffer).map_err(|RejectedBuffer { buffer, .. }| {
            self.free.push(buffer);
            self.check();
            frame
        })
    }

    fn flush(&mut self) {
        self.queue.flush_frames();
    }

    fn reclaim(&mut self, _: &mut dyn FnMut(IoBufMut)) {
        // The heads of frames were dropped when they were copied.
        if self.queue.has_noticed_sent() || self.free.len() < usize::from(QUEUE_SIZE) / 4 {
            self.take_sent();
        }
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        match self.queue.enable_receive_interrupts() {
            Pending::Yes if self.queue.fault().is_some() => FramesPending::No,
            Pending::Yes => FramesPending::Yes,
            Pending::No => FramesPending::No,
        }
    }

    fn disable_interrupts(&mut self) {
        if !self.queue.interrupts_once() {
            self.queue.disable_receive_interrupts();
        }
    }

    fn has_failed(&self) -> bool {
        self.queue.fault().is_some()
    }

    fn redirect(&mut self) {}

    fn vacate(&mut self, _: &VacatedMemory) {}
}
