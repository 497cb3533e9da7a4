//! virtio network devices as the stack's queues, and their receive buffers.
//!
//! **Buffer recycling.** The stack receives a frame as views of the buffer that the device filled, and may drop the
//! last view on any core. The queue keeps a view of each of the latest buffers. Once that is the only view left, the
//! queue uses the memory again, without allocating or zeroing it. If the stack holds views for long, the queue
//! allocates fresh buffers and leaves the old ones to the holders of their views.

use crate::state::AUTHORITY;
use crate::{console, pool, vectors};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering;
use isola_abi::descriptor::Descriptor;
use isola_drivers::net::{
    FeatureSupport, HEADER_LEN, Merging, NetDevice, NetInterrupts, NetOptions, NetQueue, Offload,
    ReceiveBuffer, ReceivedBuffer, ReceivedChecksum as DriverChecksum, SegmentKind,
};
use isola_drivers::transport::{self, Transport};
use isola_drivers::virtqueue::{Pending, Refusal, RejectedBuffer};
use isola_ebbs::platform;
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_machine::apic::{self, local};
use isola_machine::device::DeviceRegisters;
use isola_machine::dma::{DmaBuffer, DmaRegion, SegmentPair};
use isola_platform::network::{
    FlowSpreading, Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, PartialChecksum,
    ReceivedChecksum, ReceivedFrame, SPREADING_KEY_LEN, SPREADING_PARTS, SpreadingRefused,
};
use spin::Mutex;

/// Most buffers per direction of a device queue, in a cell with enough memory.
const LARGEST_QUEUE: usize = 256;

/// The same in the smallest cell: bursts beyond it wait in front of the device.
const SMALLEST_QUEUE: usize = 16;

/// The divisor of the cell's memory that gives the share for initial receive buffers.
const BUFFERS_PART: usize = 64;

/// Length of a receive buffer in bytes: with its reference count half a page, enough for a header and an Ethernet
/// frame. A device that does not merge buffers gets longer ones for longer frames.
const BUFFER_LEN: usize = 2048 - 8;

/// The same for a device that coalesces received segments and merges buffers: with its reference count a page. The cost
/// per buffer does not depend on the length of its data.
const MERGED_LEN: usize = 4096 - 8;

/// Least bytes of such buffers per queue: three of the longest frames.
const LEAST_MERGED: usize = 192 << 10;

/// Most bytes of receive buffers per queue.
const MOST_BYTES: usize = LARGEST_QUEUE * 2048;

/// The largest MTU that is used as the network offers it: the usual payload of jumbo frames.
const LONGEST_MTU: u16 = 9000;

/// The payload of every Ethernet frame.
const STANDARD_MTU: u16 = 1500;

/// The divisor of the cell's memory that gives the share for queues of cores that may join later.
const LATER_QUEUES_PART: usize = 16;

/// Upper bound of the ring memory in bytes per buffer of a queue, both directions together.
const RING_BYTES: usize = 512;

/// Received buffers of which a view is kept, per buffer of the device: as many as can be in use by the stack.
const RECYCLED_PER_BUFFER: usize = 4;

/// Returns the number of buffers of this length per queue, for a device with `pairs` queue pairs.
fn queue_size(pairs: u8, buffer_len: usize) -> u16 {
    let bytes = pool::total_bytes() / BUFFERS_PART / usize::from(pairs.max(1));
    (bytes.min(MOST_BYTES) / buffer_len).clamp(SMALLEST_QUEUE, LARGEST_QUEUE) as u16
}

/// Returns the number of queue pairs for a device that starts with `cores` pairs: more, for cores that may join, as far
/// as the memory suffices.
fn wanted_pairs(cores: u8, slots: u8) -> u8 {
    let each = usize::from(queue_size(cores, BUFFER_LEN)) * (BUFFER_LEN + RING_BYTES);
    let more = u8::try_from(pool::total_bytes() / LATER_QUEUES_PART / each).unwrap_or(u8::MAX);
    cores.saturating_add(more).min(slots).max(cores)
}

/// Returns how many of `wanted` queue pairs a device gets if `vectors` interrupt vectors are left for it and for
/// `later` devices, each of which needs `cores` of them. `None` if there are fewer than `cores` for this device.
fn pairs_with_vectors(vectors: usize, later: usize, cores: u8, wanted: u8) -> Option<u8> {
    let spare = vectors.saturating_sub(later.saturating_mul(usize::from(cores)));
    let pairs = usize::from(wanted).min(spare).max(usize::from(cores));
    // At most `wanted` or `cores`.
    (pairs <= vectors).then_some(pairs as u8)
}

/// Returns the buffer length for a device that merges buffers: the longer one if the memory suffices for enough of
/// them.
fn merged_len(pairs: u8) -> usize {
    let enough = usize::from(queue_size(pairs, MERGED_LEN)) * MERGED_LEN >= LEAST_MERGED;
    if enough { MERGED_LEN } else { BUFFER_LEN }
}

/// Returns the largest MTU for which the cell has buffers. With less than about 10 MiB per queue that is the standard
/// one.
fn longest_mtu(pairs: u8) -> u16 {
    let needed = SMALLEST_QUEUE * usize::from(LONGEST_MTU) * usize::from(pairs.max(1));
    if pool::total_bytes() / BUFFERS_PART >= needed { LONGEST_MTU } else { STANDARD_MTU }
}

/// Initialises the cell's network devices.
pub(crate) fn open(descriptor: &Descriptor, devices: Vec<DeviceRegisters>) -> Vec<NetworkPort> {
    let mut vectors = vectors::of_network(descriptor);
    let later = (0..devices.len()).rev();
    let opened = devices
        .into_iter()
        .zip(later)
        .map(|(windows, later)| open_device(descriptor, &mut vectors, later, windows));
    opened.flatten().collect()
}

/// Initialises a device, which `later` others follow. Its queues take their vectors from the remaining ones.
fn open_device(
    descriptor: &Descriptor,
    vectors: &mut RangeInclusive<u8>,
    later: usize,
    windows: DeviceRegisters,
) -> Option<NetworkPort> {
    let cores = descriptor.cores.len() as u8;
    let wanted = wanted_pairs(cores, descriptor.core_slot_count as u8);
    let Some(pairs) = pairs_with_vectors(vectors.len(), later, cores, wanted) else {
        return print_error(&"there are no interrupt vectors left for its queues");
    };
    if pairs < wanted {
        print_error::<()>(&format_args!(
            "interrupt vectors suffice for {pairs} of {wanted} queue pairs: {} cores that join will have none",
            wanted - pairs
        ));
    }
    let first_vector = *vectors.start();
    *vectors = first_vector + pairs..=*vectors.end();
    let here = descriptor.cores.first()?.apic;
    let messages: Option<Vec<_>> =
        (0..pairs).map(|queue| apic::message(AUTHORITY, here, first_vector + queue)).collect();
    let (interrupts, vector) = match (&windows, &messages) {
        (DeviceRegisters::Mmio { vector, .. }, _) => (NetInterrupts::Line, *vector),
        (_, Some(messages)) => {
            (NetInterrupts::Messages { pairs: messages, configuration: None }, first_vector)
        }
        (_, None) => return print_error(&"the first core's id is beyond what device interrupts can name"),
    };
    let transport = match transport::open(windows) {
        Ok(transport) => transport,
        Err(error) => return print_error(&error),
    };
    match start(transport, (cores, pairs), interrupts, vector) {
        Ok(port) => Some(port),
        Err(error) => print_error(&error),
    }
}

fn print_error<T>(error: &dyn core::fmt::Display) -> Option<T> {
    console::print(alloc::format!("network device: {error}\n").as_bytes());
    None
}

/// Starts a device with `pairs` queue pairs. Number and length of its buffers follow from the `initial` pairs that are
/// in use from the start.
fn start(
    transport: Box<dyn Transport>,
    (initial, pairs): (u8, u8),
    interrupts: NetInterrupts<'_>,
    first_vector: u8,
) -> Result<NetworkPort, isola_drivers::device::DeviceError> {
    let line = matches!(interrupts, NetInterrupts::Line);
    let queue_size = queue_size(initial, BUFFER_LEN);
    let merging = Merging::Buffers { len: merged_len(initial) };
    let max_mtu = longest_mtu(initial);
    let options = NetOptions { pairs: pairs.into(), queue_size, max_mtu, merging, interrupts };
    let (mut device, queues) = NetDevice::start(transport, &options, &mut DmaRegion::new)?;
    let (mac, mtu) = (device.mac(), device.mtu());
    let has_several = queues.len() > 1;
    if has_several {
        // The other pairs have no buffers yet.
        device.use_pairs(1)?;
    }
    let device = Arc::new(Mutex::new(device));
    let queues = (first_vector..)
        .zip(queues)
        .enumerate()
        .map(|(number, (vector, queue))| {
            let line = line.then(|| device.clone());
            let buffer_len = match queue.merges() {
                FeatureSupport::Yes => merged_len(initial),
                FeatureSupport::No => queue.receive_buffer_len().max(BUFFER_LEN),
            };
            let most_lent = queue_size.min(self::queue_size(initial, buffer_len));
            let mut queue = BareQueue {
                spare: queue.receive_room().saturating_sub(most_lent),
                queue,
                line,
                vector,
                buffer_len,
                recycled: RecycledBuffers {
                    views: Vec::new(),
                    next: 0,
                    most: usize::from(most_lent) * RECYCLED_PER_BUFFER,
                },
                owes_buffer: false,
                published_together: (most_lent / 8).max(1),
                faulty: false,
                _device: device.clone(),
            };
            if number < usize::from(initial) {
                queue.supply();
            }
            Box::new(queue) as Box<dyn NetworkQueue + Send>
        })
        .collect();
    let spreading = has_several.then(|| Box::new(BareSpreading(device)) as Box<dyn FlowSpreading + Send>);
    Ok(NetworkPort { mac, mtu, headroom: HEADER_LEN, queues, spreading })
}

/// A device with several queue pairs, which either hashes flows or delivers a flow's frames to the pair that last sent
/// for that flow.
struct BareSpreading(Arc<Mutex<NetDevice>>);

impl FlowSpreading for BareSpreading {
    fn spread(
        &mut self,
        key: &[u8; SPREADING_KEY_LEN],
        queues: &[u16; SPREADING_PARTS],
        in_use: u16,
    ) -> Result<(), SpreadingRefused> {
        let mut device = self.0.lock();
        let spread = match device.spreads_by_hash() {
            FeatureSupport::Yes => device.spread(key, queues),
            FeatureSupport::No => device.use_pairs(in_use),
        };
        spread.map_err(|_| SpreadingRefused)
    }
}

/// A receive buffer lent to the device: all of its memory counts as data.
struct ReceiveMemory(IoBufMut);

// SAFETY: the memory is on the heap, owned by the one `IoBufMut`, and stays in place when that is moved.
unsafe impl DmaBuffer for ReceiveMemory {
    #[inline]
    fn for_each_segment(&self, mut visit: impl FnMut(*const u8, usize)) {
        visit(self.0.as_ptr(), self.0.len());
    }

    #[inline]
    fn segment_pair(&self) -> Option<SegmentPair> {
        (!self.0.is_empty()).then(|| SegmentPair { first: (self.0.as_ptr(), self.0.len()), second: None })
    }
}

impl ReceiveBuffer for ReceiveMemory {
    fn header(&self) -> [u8; HEADER_LEN] {
        self.0.first_chunk().copied().unwrap_or_default()
    }
}

/// A frame lent to the device for transmission.
struct SentFrame {
    /// `None` once the device has sent the frame and the head was recycled.
    head: Option<IoBufMut>,
    payload: Chain,
}

// SAFETY: the memory of the head and of the views is on the heap or in the image's constants, owned or kept alive by
// reference counts, and stays in place and unchanged for as long as they live.
unsafe impl DmaBuffer for SentFrame {
    #[inline]
    fn for_each_segment(&self, mut visit: impl FnMut(*const u8, usize)) {
        self.head.iter().for_each(|head| visit(head.as_ptr(), head.len()));
        self.payload.parts().for_each(|part| visit(part.as_ptr(), part.len()));
    }

    #[inline(always)]
    fn segment_pair(&self) -> Option<SegmentPair> {
        let (head, payload) = (self.head.as_ref()?, &self.payload);
        let second = match payload.front() {
            None => None,
            // Parts of a chain are never empty.
            Some(part) if part.len() == payload.len() => Some((part.as_ptr(), part.len())),
            Some(_) => return None,
        };
        (!head.is_empty()).then(|| SegmentPair { first: (head.as_ptr(), head.len()), second })
    }
}

/// Returns the offloads that the frame requests from the device.
#[inline]
fn offload(frame: &Frame) -> Offload {
    match (frame.checksum, frame.segment_len) {
        (None, _) => Offload::None,
        (Some(PartialChecksum { start, offset }), None) => Offload::Checksum { start, offset },
        (Some(PartialChecksum { start, offset }), Some(segment_len)) => {
            let kind = if frame.is_ipv6() { SegmentKind::TcpIpv6 } else { SegmentKind::TcpIpv4 };
            Offload::Segment { kind, header_len: frame.head.len() as u16, segment_len, start, offset }
        }
    }
}

struct BareQueue {
    queue: NetQueue<ReceiveMemory, SentFrame>,
    /// The device, if all its queues share one interrupt line, which has to be acknowledged at the device.
    line: Option<Arc<Mutex<NetDevice>>>,
    vector: u8,
    buffer_len: usize,
    /// Entries of the receive ring that stay empty, as the buffers are long.
    spare: u16,
    recycled: RecycledBuffers,
    /// Whether the receive ring lacks a buffer whose memory could not be recycled. It gets a new one when the frame that
    /// keeps that memory has been processed, so that the new one is charged to the frame's activity.
    owes_buffer: bool,
    /// Receive buffers that are published together: an eighth of the device's. The others suffice for the longest
    /// frame.
    published_together: u16,
    /// Whether the device has violated the protocol, and this was reported.
    faulty: bool,
    _device: Arc<Mutex<NetDevice>>,
}

/// A ring of views of the last received buffers. The queue recycles the memory of a buffer once this is its only view.
struct RecycledBuffers {
    views: Vec<IoBuf>,
    /// Index of the oldest view.
    next: usize,
    /// Upper bound of the number of views.
    most: usize,
}

impl RecycledBuffers {
    /// Replaces the oldest view by one of the received buffer. Returns the memory of the oldest; `None` if it is still
    /// in use.
    #[inline(always)]
    fn exchange(&mut self, received: &IoBuf) -> Option<IoBufMut> {
        let index = if self.next < self.views.len() { self.next } else { 0 };
        self.next = index + 1;
        let view = received.clone();
        let Some(oldest) = self.views.get_mut(index) else { return self.insert(index, view) };
        match core::mem::replace(oldest, view).try_into_mut() {
            Ok(memory) => Some(memory),
            Err(in_use) => {
                let view = core::mem::replace(oldest, in_use);
                self.insert(index, view)
            }
        }
    }

    /// Forgets the buffers whose memory is to become free. Those lent to the device follow after their next frame.
    #[cold]
    #[inline(never)]
    fn leave_window(&mut self) {
        self.views.retain(|view| !pool::pages().is_address_in_window(view.as_ptr().addr()));
    }

    /// Inserts a view into the ring behind the youngest, so before the oldest.
    #[cold]
    #[inline(never)]
    fn insert(&mut self, oldest: usize, view: IoBuf) -> Option<IoBufMut> {
        if self.views.len() < self.most {
            self.views.insert(oldest, view);
        }
        None
    }
}

impl BareQueue {
    /// Lends the device a frame, with its header in the headroom if that is large enough.
    #[inline(always)]
    fn lend(&mut self, mut frame: Frame) -> Result<(), RejectedBuffer<Frame>> {
        let offload = offload(&frame);
        let Some(header) = self.queue.header(offload) else {
            return Err(RejectedBuffer { buffer: frame, reason: Refusal::NotOffered });
        };
        let has_headroom = match frame.head.prepend(HEADER_LEN) {
            Some(headroom) => {
                headroom.copy_from_slice(&header);
                true
            }
            None => false,
        };
        let Frame { head, payload, checksum, segment_len } = frame;
        let sent = SentFrame { head: Some(head), payload };
        let lent = match has_headroom {
            true => self.queue.transmit_behind_header(sent),
            false => self.queue.transmit(sent, offload),
        };
        lent.map_err(|RejectedBuffer { buffer: SentFrame { head, payload }, reason }| {
            // The queue returns the buffer unchanged.
            let mut head = head.unwrap_or_else(|| IoBufMut::with_room(0, 0));
            if has_headroom {
                head.advance(HEADER_LEN);
            }
            RejectedBuffer { buffer: Frame { head, payload, checksum, segment_len }, reason }
        })
    }

    /// Returns a new buffer to receive into.
    fn fresh(&self) -> IoBufMut {
        IoBufMut::with_room(0, self.buffer_len)
    }

    /// Lends the device a whole buffer to receive into.
    #[inline(always)]
    fn fill(&mut self, mut buffer: IoBufMut) -> Result<(), Refusal> {
        buffer.extend();
        self.queue.fill(ReceiveMemory(buffer)).map_err(|RejectedBuffer { reason, .. }| {
            self.check();
            reason
        })
    }

    /// Fills the receive ring up to its intended number of buffers.
    fn supply(&mut self) {
        self.owes_buffer = false;
        while self.queue.receive_room() > self.spare {
            if self.fill(self.fresh()).is_err() {
                return;
            }
        }
        self.queue.flush();
    }

    /// Returns the first `len` bytes of a buffer that the device has filled, and lends the device another buffer.
    #[inline(always)]
    fn take(&mut self, mut buffer: IoBufMut, len: usize) -> IoBuf {
        buffer.truncate(len);
        let filled = buffer.freeze();
        match self.recycled.exchange(&filled) {
            Some(other) => {
                // `fill` has reported a fault of the device.
                _ = self.fill(other);
                self.queue.flush_buffers(self.published_together);
            }
            None => self.owe_buffer(),
        }
        filled
    }

    /// Notes that the ring lacks a buffer. It lacks one at most.
    #[cold]
    #[inline(never)]
    fn owe_buffer(&mut self) {
        if core::mem::replace(&mut self.owes_buffer, true) {
            self.fill_owed();
            self.owes_buffer = true;
        }
    }

    /// Lends the device the buffer that the ring lacks.
    #[cold]
    #[inline(never)]
    fn fill_owed(&mut self) {
        self.owes_buffer = false;
        _ = self.fill(self.fresh());
        self.queue.flush_buffers(self.published_together);
    }

    /// Returns the further buffers of a frame.
    #[cold]
    fn take_more(&mut self, count: u16) -> Option<Chain> {
        let mut rest = Chain::new();
        // One entry more, for the first buffer of the frame.
        rest.reserve(usize::from(count) + 1);
        for _ in 0..count {
            match self.queue.receive_more() {
                Ok((ReceiveMemory(buffer), len)) => rest.push_back(self.take(buffer, len)),
                Err(_) => {
                    self.check();
                    return None;
                }
            }
        }
        Some(rest)
    }

    /// Handles a frame that the device did not accept: retries with a contiguous copy if that helps.
    #[cold]
    #[inline(never)]
    fn retry_or_drop(&mut self, refused: RejectedBuffer<Frame>) -> Result<(), Frame> {
        let refused = match refused {
            // The frame has very many views, or views that cross pages of a virtually contiguous allocation.
            RejectedBuffer { buffer: mut frame, reason: Refusal::TooManySegments } => {
                frame.payload = IoBuf::copy_from_slice(&frame.payload.to_vec()).into();
                match self.lend(frame) {
                    Ok(()) => return Ok(()),
                    Err(refused) => refused,
                }
            }
            refused => refused,
        };
        match refused {
            RejectedBuffer { buffer: frame, reason: Refusal::Full } => Err(frame),
            // The device will never accept the frame, which must not block the frames behind it.
            _ => {
                platform().report().network.dropped_frames.fetch_add(1, Ordering::Relaxed);
                self.check();
                Ok(())
            }
        }
    }

    /// Reports, once, that the device has violated the protocol. The device is not used any further.
    fn check(&mut self) {
        if let Some(fault) = self.queue.fault()
            && !core::mem::replace(&mut self.faulty, true)
        {
            console::print(alloc::format!("network device: {fault}\n").as_bytes());
        }
    }
}

impl NetworkQueue for BareQueue {
    fn vector(&self) -> u8 {
        self.vector
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            checksums: self.queue.transmit_checksums() == FeatureSupport::Yes,
            segments_ipv4: self.queue.transmit_segments(SegmentKind::TcpIpv4) == FeatureSupport::Yes,
            segments_ipv6: self.queue.transmit_segments(SegmentKind::TcpIpv6) == FeatureSupport::Yes,
        }
    }

    fn attach(&mut self) {
        self.redirect();
        self.supply();
    }

    fn redirect(&mut self) {
        let message = apic::message(AUTHORITY, local::id(), self.vector);
        message.into_iter().for_each(|message| self.queue.redirect(message));
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        if self.owes_buffer {
            self.fill_owed();
        }
        let received = match self.queue.receive() {
            Ok(Some(received)) => received,
            Ok(None) => {
                if pool::pages().has_window() {
                    self.recycled.leave_window();
                }
                return None;
            }
            Err(_) => {
                self.check();
                return None;
            }
        };
        let ReceivedBuffer { buffer: ReceiveMemory(mut buffer), len, more, checksum } = received;
        buffer.advance(HEADER_LEN);
        let frame = self.take(buffer, len);
        let rest = if more == 0 { None } else { Some(Box::new(self.take_more(more)?)) };
        let checksum = match checksum {
            DriverChecksum::Unchecked => ReceivedChecksum::Unchecked,
            // A partial checksum comes from another machine behind the same device, which leaves its completion to the
            // device.
            DriverChecksum::Valid | DriverChecksum::Partial { .. } => ReceivedChecksum::Valid,
        };
        Some(ReceivedFrame { frame, rest, checksum })
    }

    fn may_have_received(&self) -> bool {
        self.queue.has_noticed_received()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        match self.lend(frame) {
            Ok(()) => Ok(()),
            Err(refused) => self.retry_or_drop(refused),
        }
    }

    fn flush(&mut self) {
        self.queue.flush_frames();
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        loop {
            let sent = self.queue.drop_sent(|sent| {
                if let Some(head) = sent.head.take() {
                    recycle(head);
                }
            });
            match sent {
                // Frames that the device returned after that read of its index are left to the next call.
                Ok(true) if self.queue.has_noticed_sent() => {}
                Ok(_) => return,
                Err(_) => return self.check(),
            }
        }
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        if self.owes_buffer {
            self.fill_owed();
        }
        match self.queue.enable_receive_interrupts() {
            // A device that violated the protocol has no more frames.
            Pending::Yes if self.queue.fault().is_some() => FramesPending::No,
            Pending::Yes => FramesPending::Yes,
            Pending::No => FramesPending::No,
        }
    }

    fn disable_interrupts(&mut self) {
        if let Some(device) = &self.line {
            device.lock().acknowledge();
        }
        // A queue armed for one interrupt sends no other, and the caller has had that one or has found frames.
        if !self.queue.interrupts_once() {
            self.queue.disable_receive_interrupts();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_events::interrupt::QUEUE_VECTORS;

    #[test]
    fn a_device_gets_as_many_queue_pairs_as_there_are_vectors_beyond_those_of_later_devices() {
        let vectors = QUEUE_VECTORS.len();
        assert_eq!(pairs_with_vectors(vectors, 0, 4, 64), Some(64));
        assert_eq!(pairs_with_vectors(50, 0, 4, 64), Some(50), "not only the pairs of the present cores");
        assert_eq!(pairs_with_vectors(50, 3, 4, 64), Some(38));
        assert_eq!(pairs_with_vectors(50, 13, 4, 64), Some(4), "the present cores have queues in any case");
        assert_eq!(pairs_with_vectors(4, 0, 4, 64), Some(4));
        assert_eq!(pairs_with_vectors(3, 0, 4, 64), None);
        // Three devices of a machine with 64 cores, 20 of which are the cell's from the start.
        let mut left = vectors;
        let pairs = [2, 1, 0].map(|later| {
            let pairs = pairs_with_vectors(left, later, 20, 64).unwrap();
            left -= usize::from(pairs);
            pairs
        });
        assert_eq!(pairs, [64, 44, 20]);
    }
}
