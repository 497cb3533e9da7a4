//! A pair of a device's queues as a queue of the stack.

use super::recycled::RecycledBuffers;
use crate::console;
use crate::state::AUTHORITY;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_drivers::device::DeviceError;
use isola_drivers::net::{
    FeatureSupport, HEADER_LEN, NetDevice, NetQueue, Offload, ReceiveBuffer, ReceivedBuffer,
    ReceivedChecksum as DriverChecksum, SegmentKind,
};
use isola_drivers::virtqueue::{Pending, Refusal, RejectedBuffer};
use isola_ebbs::platform;
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_machine::apic::{self, local};
use isola_machine::dma::{DmaBuffer, SegmentPair};
use isola_platform::VacatedMemory;
use isola_platform::network::{
    Frame, FramesPending, NetworkQueue, Offloads, PartialChecksum, ReceivedChecksum, ReceivedFrame,
};
use spin::Mutex;

/// A receive buffer lent to the device: all of its memory counts as data.
pub(super) struct ReceiveMemory(IoBufMut);

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
pub(super) struct SentFrame {
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

/// The bytes of the receive buffers that devices have. A received buffer is replaced by another one.
static RECEIVE_BUFFER_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes of the buffers that devices receive into.
pub(crate) fn receive_buffer_bytes() -> usize {
    RECEIVE_BUFFER_BYTES.load(Ordering::Relaxed)
}

pub(super) struct BareQueue {
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
    /// Whether the ring lacks a buffer, or `early` has frames, so that a load suffices where there is neither.
    is_behind: bool,
    /// Whether the device has got its buffers.
    is_supplied: bool,
    /// Frames that the device had received when its buffers were replaced.
    early: VecDeque<ReceivedFrame>,
    /// Receive buffers that are published together: an eighth of the device's. The others suffice for the longest
    /// frame.
    published_together: u16,
    /// Whether the device has violated the protocol, and this was reported.
    faulty: bool,
    device: Arc<Mutex<NetDevice>>,
}

impl BareQueue {
    /// Returns a queue with at most `most_lent` receive buffers of this length, none of them lent so far. `line` is the
    /// device, if all its queues share one interrupt line.
    pub(super) fn new(
        queue: NetQueue<ReceiveMemory, SentFrame>,
        device: Arc<Mutex<NetDevice>>,
        line: Option<Arc<Mutex<NetDevice>>>,
        vector: u8,
        (most_lent, buffer_len): (u16, usize),
    ) -> Self {
        Self {
            spare: queue.receive_room().saturating_sub(most_lent),
            queue,
            line,
            vector,
            buffer_len,
            recycled: RecycledBuffers::new(most_lent),
            owes_buffer: false,
            is_behind: false,
            is_supplied: false,
            early: VecDeque::new(),
            published_together: (most_lent / 8).max(1),
            faulty: false,
            device,
        }
    }

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
    pub(super) fn supply(&mut self) {
        self.owes_buffer = false;
        let mut new = 0;
        while self.queue.receive_room() > self.spare {
            if self.fill(self.fresh()).is_err() {
                break;
            }
            new += 1;
        }
        if !core::mem::replace(&mut self.is_supplied, true) {
            let bytes = new * (self.buffer_len + size_of::<usize>());
            RECEIVE_BUFFER_BYTES.fetch_add(bytes, Ordering::Relaxed);
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
        self.is_behind = true;
    }

    /// Lends the device the buffer that the ring lacks.
    #[cold]
    #[inline(never)]
    fn fill_owed(&mut self) {
        self.owes_buffer = false;
        _ = self.fill(self.fresh());
        self.queue.flush_buffers(self.published_together);
    }

    /// Lends the device the buffer that the ring lacks, and returns the next early frame.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self) -> Option<ReceivedFrame> {
        if self.owes_buffer {
            self.fill_owed();
        }
        let early = self.early.pop_front();
        self.is_behind = !self.early.is_empty();
        early
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

    /// Takes the device's buffers back, and lends it others in place of those that are to be replaced. Does nothing if the
    /// device cannot stop to receive: a buffer is then replaced after its next frame, if that is before a later round.
    #[cold]
    #[inline(never)]
    fn replace_buffers(&mut self, is_replaced: impl Fn(&ReceiveMemory) -> bool) {
        let device = self.device.clone();
        let stopped = device.lock().stop_reception(&mut self.queue);
        match stopped {
            Ok(()) => {}
            Err(DeviceError::CommandRefused) => return,
            Err(_) => return self.check(),
        }
        let mut early = core::mem::take(&mut self.early);
        while self.queue.has_received()
            && let Some(frame) = self.receive()
        {
            early.push_back(frame);
        }
        self.is_behind |= !early.is_empty();
        self.early = early;
        let (mut kept, mut replaced) = (Vec::new(), Vec::new());
        let begun = device.lock().begin_reception(&mut self.queue, &mut |memory: ReceiveMemory| {
            if is_replaced(&memory) { replaced.push(memory) } else { kept.push(memory) }
        });
        if begun.is_err() {
            return self.check();
        }
        for ReceiveMemory(buffer) in kept {
            _ = self.fill(buffer);
        }
        // `replaced` is dropped behind this: a new buffer must not have the same memory.
        self.supply();
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
    fn vector(&self) -> Option<u8> {
        Some(self.vector)
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
        if self.is_behind
            && let Some(early) = self.catch_up()
        {
            return Some(early);
        }
        let received = match self.queue.receive() {
            Ok(Some(received)) => received,
            Ok(None) => return None,
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
        self.queue.has_noticed_received() || !self.early.is_empty()
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
            Pending::No if !self.early.is_empty() => FramesPending::Yes,
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

    fn vacate(&mut self, vacated: &VacatedMemory) {
        let is_inside = |buffer: &ReceiveMemory| vacated.has_some_of(buffer.0.as_ptr(), buffer.0.len());
        // First, as it allocates.
        if self.queue.fault().is_none() && self.queue.receive_buffers().any(is_inside) {
            self.replace_buffers(is_inside);
        }
        self.recycled.vacate(vacated);
        // Sent frames keep contents of the application.
        self.reclaim(&mut drop);
    }

    fn has_failed(&self) -> bool {
        self.queue.fault().is_some()
    }
}
