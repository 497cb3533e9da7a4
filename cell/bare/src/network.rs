//! virtio network devices as the stack's queues, and the buffers that they fill.
//!
//! **Buffers that come back.** A received frame goes up as views of the buffer that it came in, and the last view may be
//! dropped anywhere. The queue keeps a view of each of the last buffers as well: when that is the only one left, the
//! memory is used again, without being allocated or zeroed. Where views are held for long, fresh buffers are taken
//! and the old ones left to their holders.

use crate::AUTHORITY;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering;
use isola_abi::descriptor::{Descriptor, DeviceKind};
use isola_drivers::net::{
    HEADER_LEN, Merging, NetDevice, NetInterrupts, NetOptions, NetQueue, Offered, Offload, ReceiveBuffer,
    Received, ReceivedChecksum as DriverChecksum, SegmentKind,
};
use isola_drivers::transport::{self, Transport};
use isola_drivers::virtqueue::{Pending, Refusal, Refused};
use isola_ebbs::platform;
use isola_events::interrupt::QUEUE_VECTORS;
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_machine::apic::{self, local};
use isola_machine::device::Windows;
use isola_machine::dma::{DmaBuffer, DmaRegion, OneOrTwo};
use isola_platform::network::{
    FlowSpreading, Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, PartialChecksum,
    ReceivedChecksum, ReceivedFrame, SPREADING_KEY_LEN, SPREADING_PARTS, SpreadingRefused,
};
use spin::Mutex;

use crate::console;
use crate::heap;

/// Buffers that a queue of a device can have of each kind, in a cell that has memory for so many.
const LARGEST_QUEUE: usize = 256;

/// The same in the smallest cell: what comes at once waits in front of the device.
const SMALLEST_QUEUE: usize = 16;

/// The part of a cell's memory that receive buffers may take before anything has come.
const BUFFERS_PART: usize = 64;

/// Length of a receive buffer: with its count half a page, enough for a header and a frame of Ethernet. A device that does
/// not merge buffers gets longer ones for longer frames.
const BUFFER_LEN: usize = 2048 - 8;

/// The same of a device that puts segments together and merges buffers: with its count a page. Each costs the same, whatever
/// is in it.
const MERGED_LEN: usize = 4096 - 8;

/// Bytes of such buffers that a queue has at least: three of the longest frames.
const LEAST_MERGED: usize = 192 << 10;

/// Bytes of receive buffers that a queue has at most.
const MOST_BYTES: usize = LARGEST_QUEUE * 2048;

/// Longest IP packet of a network that is taken into use as it is: what long frames of Ethernet usually carry.
const LONGEST_MTU: u16 = 9000;

/// What every Ethernet carries.
const STANDARD_MTU: u16 = 1500;

/// The part of a cell's memory that further queues may take, for cores that may come while it runs.
const FURTHER_PART: usize = 16;

/// Bytes that rings take for each buffer of a queue, both ways, at the most.
const RING_BYTES: usize = 512;

/// Received buffers that are watched for their last view, for each that the device has: as many as can be on their way
/// through the stack.
const WATCHED_PER_BUFFER: usize = 4;

/// How many buffers of a length each queue of a device with so many pairs has.
fn queue_size(pairs: u8, buffer_len: usize) -> u16 {
    let bytes = heap::total_bytes() / BUFFERS_PART / usize::from(pairs.max(1));
    (bytes.min(MOST_BYTES) / buffer_len).clamp(SMALLEST_QUEUE, LARGEST_QUEUE) as u16
}

/// How many pairs a device is to have that begins with so many: more, for cores that may come, where there are vectors and
/// memory for them.
fn further_pairs(vectors: usize, cores: u8, places: u8) -> u8 {
    let each = usize::from(queue_size(cores, BUFFER_LEN)) * (BUFFER_LEN + RING_BYTES);
    let more = u8::try_from(heap::total_bytes() / FURTHER_PART / each).unwrap_or(u8::MAX);
    let pairs = cores.saturating_add(more).min(places).max(cores);
    if usize::from(pairs) <= vectors { pairs } else { cores }
}

/// How long the buffers are that a device may merge: long where there can be enough of them.
fn merged_len(pairs: u8) -> usize {
    let enough = usize::from(queue_size(pairs, MERGED_LEN)) * MERGED_LEN >= LEAST_MERGED;
    if enough { MERGED_LEN } else { BUFFER_LEN }
}

/// The longest packets that a cell has buffers for: a smaller one than 10 MiB a queue none beyond the usual.
fn longest_mtu(pairs: u8) -> u16 {
    let needed = SMALLEST_QUEUE * usize::from(LONGEST_MTU) * usize::from(pairs.max(1));
    if heap::total_bytes() / BUFFERS_PART >= needed { LONGEST_MTU } else { STANDARD_MTU }
}

/// Takes network devices into use.
pub(crate) fn open(descriptor: &Descriptor, devices: Vec<(DeviceKind, Windows)>) -> Vec<NetworkPort> {
    let network = devices.into_iter().filter(|(kind, _)| *kind == DeviceKind::Network);
    let mut vectors = QUEUE_VECTORS;
    network.filter_map(|(_, windows)| open_device(descriptor, &mut vectors, windows)).collect()
}

/// Takes a device into use, whose queues take their vectors from those that are left.
fn open_device(
    descriptor: &Descriptor,
    vectors: &mut RangeInclusive<u8>,
    windows: Windows,
) -> Option<NetworkPort> {
    let cores = descriptor.cores.len() as u8;
    let pairs = further_pairs(vectors.len(), cores, descriptor.core_places as u8);
    if vectors.len() < usize::from(pairs) {
        return complain(&"there are no interrupt vectors left for its queues");
    }
    let first_vector = *vectors.start();
    *vectors = first_vector + pairs..=*vectors.end();
    let here = descriptor.cores.first()?.apic;
    let messages: Option<Vec<_>> =
        (0..pairs).map(|queue| apic::message(AUTHORITY, here, first_vector + queue)).collect();
    let (interrupts, vector) = match (&windows, &messages) {
        (Windows::Mmio { vector, .. }, _) => (NetInterrupts::Line, *vector),
        (_, Some(messages)) => {
            (NetInterrupts::Messages { pairs: messages, configuration: None }, first_vector)
        }
        (_, None) => return complain(&"the first core's id is beyond what device interrupts can name"),
    };
    let transport = match transport::open(windows) {
        Ok(transport) => transport,
        Err(error) => return complain(&error),
    };
    match start(transport, (cores, pairs), interrupts, vector) {
        Ok(port) => Some(port),
        Err(error) => complain(&error),
    }
}

fn complain<T>(error: &dyn core::fmt::Display) -> Option<T> {
    console::print(alloc::format!("network device: {error}\n").as_bytes());
    None
}

/// Starts a device with so many pairs, which shares out its buffers as if it had those that it begins with.
fn start(
    transport: Box<dyn Transport>,
    (begun, pairs): (u8, u8),
    interrupts: NetInterrupts<'_>,
    first_vector: u8,
) -> Result<NetworkPort, isola_drivers::device::DeviceError> {
    let line = matches!(interrupts, NetInterrupts::Line);
    let queue_size = queue_size(begun, BUFFER_LEN);
    let merging = Merging::Buffers { len: merged_len(begun) };
    let max_mtu = longest_mtu(begun);
    let options = NetOptions { pairs: pairs.into(), queue_size, max_mtu, merging, interrupts };
    let (mut device, queues) = NetDevice::start(transport, &options, &mut DmaRegion::new)?;
    let (mac, mtu) = (device.mac(), device.mtu());
    let has_several = queues.len() > 1;
    if has_several {
        // The others have no buffers yet.
        device.use_pairs(1)?;
    }
    let device = Arc::new(Mutex::new(device));
    let queues = (first_vector..)
        .zip(queues)
        .enumerate()
        .map(|(number, (vector, queue))| {
            let line = line.then(|| device.clone());
            let buffer_len = match queue.merges() {
                Offered::Yes => merged_len(begun),
                Offered::No => queue.receive_buffer_len().max(BUFFER_LEN),
            };
            let most_lent = queue_size.min(self::queue_size(begun, buffer_len));
            let mut queue = BareQueue {
                spare: queue.receive_room().saturating_sub(most_lent),
                queue,
                line,
                vector,
                buffer_len,
                watched: Watched {
                    views: Vec::new(),
                    next: 0,
                    most: usize::from(most_lent) * WATCHED_PER_BUFFER,
                },
                shown_together: (most_lent / 8).max(1),
                faulty: false,
                _device: device.clone(),
            };
            if number < usize::from(begun) {
                queue.supply();
            }
            Box::new(queue) as Box<dyn NetworkQueue + Send>
        })
        .collect();
    let spreading = has_several.then(|| Box::new(BareSpreading(device)) as Box<dyn FlowSpreading + Send>);
    Ok(NetworkPort { mac, mtu, headroom: HEADER_LEN, queues, spreading })
}

/// A device with several pairs: one that hashes, or one that hands a flow's frames to the pair by which it was sent last.
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
            Offered::Yes => device.spread(key, queues),
            Offered::No => device.use_pairs(in_use),
        };
        spread.map_err(|_| SpreadingRefused)
    }
}

/// A buffer for the device to fill: all of its memory is data.
struct Filled(IoBufMut);

// SAFETY: the memory is on the heap, owned by the one `IoBufMut`, and stays in place when that is moved.
unsafe impl DmaBuffer for Filled {
    #[inline]
    fn for_each_segment(&self, mut visit: impl FnMut(*const u8, usize)) {
        visit(self.0.as_ptr(), self.0.len());
    }

    #[inline]
    fn one_or_two(&self) -> Option<OneOrTwo> {
        (!self.0.is_empty()).then(|| OneOrTwo { first: (self.0.as_ptr(), self.0.len()), second: None })
    }
}

impl ReceiveBuffer for Filled {
    fn header(&self) -> [u8; HEADER_LEN] {
        self.0.first_chunk().copied().unwrap_or_default()
    }
}

/// A frame for the device to read.
struct Sent {
    /// `None` once the device has sent the frame and the head was recycled.
    head: Option<IoBufMut>,
    payload: Chain,
}

// SAFETY: the head's memory and the views' is on the heap or in the image's constants, owned or kept by reference counts,
// and stays in place and unchanged for as long as they live.
unsafe impl DmaBuffer for Sent {
    #[inline]
    fn for_each_segment(&self, mut visit: impl FnMut(*const u8, usize)) {
        self.head.iter().for_each(|head| visit(head.as_ptr(), head.len()));
        self.payload.parts().for_each(|part| visit(part.as_ptr(), part.len()));
    }

    #[inline(always)]
    fn one_or_two(&self) -> Option<OneOrTwo> {
        let (head, payload) = (self.head.as_ref()?, &self.payload);
        let second = match payload.front() {
            None => None,
            // Parts of a chain are never empty.
            Some(part) if part.len() == payload.len() => Some((part.as_ptr(), part.len())),
            Some(_) => return None,
        };
        (!head.is_empty()).then(|| OneOrTwo { first: (head.as_ptr(), head.len()), second })
    }
}

/// What the device has to do to a frame.
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
    queue: NetQueue<Filled, Sent>,
    /// The device, where it has one interrupt line for all, which has to be acknowledged there.
    line: Option<Arc<Mutex<NetDevice>>>,
    vector: u8,
    buffer_len: usize,
    /// Buffers that the device could have and does not get, as they are long.
    spare: u16,
    watched: Watched,
    /// Receive buffers that are published together: an eighth of the device's. The others hold the longest frame.
    shown_together: u16,
    /// Whether the device broke its rules, and was complained about.
    faulty: bool,
    _device: Arc<Mutex<NetDevice>>,
}

/// A ring of views of the last received buffers. The queue recycles the memory of a buffer once this is its only view.
struct Watched {
    views: Vec<IoBuf>,
    /// Index of the oldest view.
    next: usize,
    /// Upper bound of the number of views.
    most: usize,
}

impl Watched {
    /// Watches a received buffer in the place of the oldest. Returns the memory of that one; `None` if it is still in use.
    #[inline(always)]
    fn exchange(&mut self, received: &IoBuf) -> Option<IoBufMut> {
        let index = if self.next < self.views.len() { self.next } else { 0 };
        self.next = index + 1;
        let view = received.clone();
        let Some(watched) = self.views.get_mut(index) else { return self.watch(index, view) };
        match core::mem::replace(watched, view).try_into_mut() {
            Ok(memory) => Some(memory),
            Err(in_use) => {
                let view = core::mem::replace(watched, in_use);
                self.watch(index, view)
            }
        }
    }

    /// Adds a view to the ring, behind the youngest: before the oldest.
    #[cold]
    #[inline(never)]
    fn watch(&mut self, oldest: usize, view: IoBuf) -> Option<IoBufMut> {
        if self.views.len() < self.most {
            self.views.insert(oldest, view);
        }
        None
    }
}

impl BareQueue {
    /// Lends the device a frame, with its header in the headroom if that is large enough.
    #[inline(always)]
    fn lend(&mut self, mut frame: Frame) -> Result<(), Refused<Frame>> {
        let offload = offload(&frame);
        let Some(header) = self.queue.header(offload) else {
            return Err(Refused { buffer: frame, reason: Refusal::NotOffered });
        };
        let has_headroom = match frame.head.prepend(HEADER_LEN) {
            Some(place) => {
                place.copy_from_slice(&header);
                true
            }
            None => false,
        };
        let Frame { head, payload, checksum, segment_len } = frame;
        let sent = Sent { head: Some(head), payload };
        let lent = match has_headroom {
            true => self.queue.transmit_behind_header(sent),
            false => self.queue.transmit(sent, offload),
        };
        lent.map_err(|Refused { buffer: Sent { head, payload }, reason }| {
            // The queue returns the buffer unchanged.
            let mut head = head.unwrap_or_else(|| IoBufMut::with_room(0, 0));
            if has_headroom {
                head.advance(HEADER_LEN);
            }
            Refused { buffer: Frame { head, payload, checksum, segment_len }, reason }
        })
    }

    /// Returns a new buffer to receive into.
    fn fresh(&self) -> IoBufMut {
        IoBufMut::with_room(0, self.buffer_len)
    }

    /// Gives the device all of a buffer to receive into.
    #[inline(always)]
    fn fill(&mut self, mut buffer: IoBufMut) -> Result<(), Refusal> {
        buffer.extend();
        self.queue.fill(Filled(buffer)).map_err(|Refused { reason, .. }| {
            self.check();
            reason
        })
    }

    /// Gives the device as many buffers as it is to have.
    fn supply(&mut self) {
        while self.queue.receive_room() > self.spare {
            if self.fill(self.fresh()).is_err() {
                return;
            }
        }
        self.queue.flush();
    }

    /// The first `len` bytes of a buffer that the device has filled. It gets another one.
    #[inline(always)]
    fn take(&mut self, mut buffer: IoBufMut, len: usize) -> IoBuf {
        buffer.truncate(len);
        let filled = buffer.freeze();
        let other = self.watched.exchange(&filled).unwrap_or_else(|| self.fresh());
        // `fill` has reported a fault of the device.
        _ = self.fill(other);
        self.queue.flush_buffers(self.shown_together);
        filled
    }

    /// The further buffers of a frame.
    #[cold]
    fn take_more(&mut self, count: u16) -> Option<Chain> {
        let mut rest = Chain::new();
        // And the one that goes before them.
        rest.reserve(usize::from(count) + 1);
        for _ in 0..count {
            match self.queue.receive_more() {
                Ok((Filled(buffer), len)) => rest.push_back(self.take(buffer, len)),
                Err(_) => {
                    self.check();
                    return None;
                }
            }
        }
        Some(rest)
    }

    /// The device did not take a frame: it gets a copy in one piece where that helps.
    #[cold]
    #[inline(never)]
    fn refused(&mut self, refused: Refused<Frame>) -> Result<(), Frame> {
        let refused = match refused {
            // A frame of very many views, or of views that cross from one page of an object in pieces to the next.
            Refused { buffer: mut frame, reason: Refusal::TooManySegments } => {
                frame.payload = IoBuf::copy_from_slice(&frame.payload.to_vec()).into();
                match self.lend(frame) {
                    Ok(()) => return Ok(()),
                    Err(refused) => refused,
                }
            }
            refused => refused,
        };
        match refused {
            Refused { buffer: frame, reason: Refusal::Full } => Err(frame),
            // It will never be taken: others must not wait behind it.
            _ => {
                platform().report().network.dropped_frames.fetch_add(1, Ordering::Relaxed);
                self.check();
                Ok(())
            }
        }
    }

    /// Complains, once, of a device that breaks its rules. It is of no use any more.
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
            checksums: self.queue.transmit_checksums() == Offered::Yes,
            segments_ipv4: self.queue.transmit_segments(SegmentKind::TcpIpv4) == Offered::Yes,
            segments_ipv6: self.queue.transmit_segments(SegmentKind::TcpIpv6) == Offered::Yes,
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
        let received = match self.queue.receive() {
            Ok(received) => received?,
            Err(_) => {
                self.check();
                return None;
            }
        };
        let Received { buffer: Filled(mut buffer), len, more, checksum } = received;
        buffer.advance(HEADER_LEN);
        let frame = self.take(buffer, len);
        let rest = if more == 0 { None } else { Some(Box::new(self.take_more(more)?)) };
        let checksum = match checksum {
            DriverChecksum::Unchecked => ReceivedChecksum::Unchecked,
            // A partial checksum is one that another machine behind the same device left to it.
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
            Err(refused) => self.refused(refused),
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
                // What the device has returned since that look is for the next call.
                Ok(true) if self.queue.has_noticed_sent() => {}
                Ok(_) => return,
                Err(_) => return self.check(),
            }
        }
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        match self.queue.enable_receive_interrupts() {
            // A device that broke its rules has nothing more to give.
            Pending::Yes if self.queue.fault().is_some() => FramesPending::No,
            Pending::Yes => FramesPending::Yes,
            Pending::No => FramesPending::No,
        }
    }

    fn disable_interrupts(&mut self) {
        if let Some(device) = &self.line {
            device.lock().acknowledge();
        }
        // A queue that is armed for one interrupt sends no other, and the caller had that one or has found frames.
        if !self.queue.interrupts_once() {
            self.queue.disable_receive_interrupts();
        }
    }
}
