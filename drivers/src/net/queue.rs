//! A pair of queues of a network device: frames in, frames out. It belongs to one core at a time.

use super::header::{Header, Offload, ReceivedChecksum, SegmentKind};
use crate::transport::MessageControl;
use crate::virtqueue::{
    Access, Fault, HEADER_LEN, Pending, Refusal, RejectedBuffer, Suppression, VirtQueue, WakeWhen,
};
use alloc::boxed::Box;
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::{DmaBuffer, SegmentPair};
use isola_machine::dma_peer::SharedBuffer;

/// A buffer that the device fills with a header and a frame.
pub trait ReceiveBuffer: DmaBuffer {
    /// Returns the first [`HEADER_LEN`] bytes. [`NetQueue::fill`] guarantees that the buffer is longer.
    fn header(&self) -> [u8; HEADER_LEN];
}

impl ReceiveBuffer for SharedBuffer {
    fn header(&self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        self.read(&mut header);
        header
    }
}

/// A received frame.
#[derive(Debug)]
pub struct ReceivedBuffer<Rx> {
    /// The buffer. The frame begins [`HEADER_LEN`] bytes from its beginning.
    pub buffer: Rx,
    /// Bytes of the frame in this buffer.
    pub len: usize,
    /// The number of further buffers of the frame. The caller takes them with [`NetQueue::receive_more`], before any
    /// other call.
    pub more: u16,
    /// The device's statement about the checksum.
    pub checksum: ReceivedChecksum,
}

/// The negotiated abilities of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairOptions {
    /// Whether the device completes checksums, and whether it cuts TCP segments over IPv4 and over IPv6.
    pub checksums: FeatureSupport,
    pub segments_ipv4: FeatureSupport,
    pub segments_ipv6: FeatureSupport,
    /// Whether a frame may take several buffers.
    pub merges: FeatureSupport,
    /// Shortest buffer for receiving, in bytes.
    pub receive_len: usize,
}

/// Whether a device offers a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSupport {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// A pair of queues: `Rx` are the receive buffers, `Tx` the transmitted frames.
///
/// Each `Tx` is a frame in any number of pieces up to [`MAX_PIECES`]; the device reads them in place.
#[derive(Debug)]
pub struct NetQueue<Rx, Tx> {
    /// The number of the pair.
    pub(super) pair: u16,
    pub(super) receive: VirtQueue<Rx>,
    transmit: VirtQueue<Tx>,
    options: PairOptions,
    message: Option<Box<dyn MessageControl>>,
}

/// The most pieces of a transmitted frame: a chain less its header.
pub const MAX_PIECES: usize = crate::virtqueue::MAX_CHAIN as usize - 1;

impl<Rx: ReceiveBuffer, Tx: DmaBuffer> NetQueue<Rx, Tx> {
    pub(super) fn new(
        pair: u16,
        receive: VirtQueue<Rx>,
        transmit: VirtQueue<Tx>,
        options: PairOptions,
        message: Option<Box<dyn MessageControl>>,
    ) -> Self {
        let mut pair = Self { pair, receive, transmit, options, message };
        pair.disable_receive_interrupts();
        pair.disable_transmit_interrupts();
        pair
    }

    /// Returns whether the device completes checksums, so that [`Offload::Checksum`] is allowed.
    pub fn transmit_checksums(&self) -> FeatureSupport {
        self.options.checksums
    }

    /// Returns whether the device cuts segments of a kind, so that [`Offload::Segment`] is allowed.
    pub fn transmit_segments(&self, kind: SegmentKind) -> FeatureSupport {
        match kind {
            SegmentKind::TcpIpv4 => self.options.segments_ipv4,
            SegmentKind::TcpIpv6 => self.options.segments_ipv6,
        }
    }

    /// Returns whether a received frame may take several buffers.
    pub fn merges(&self) -> FeatureSupport {
        self.options.merges
    }

    /// Returns the shortest buffer that [`Self::fill`] accepts, in bytes.
    pub fn receive_buffer_len(&self) -> usize {
        self.options.receive_len
    }

    /// Returns the number of further receive buffers that the queue has room for.
    pub fn receive_room(&self) -> u16 {
        self.receive.room()
    }

    /// Returns the lent receive buffers.
    pub fn receive_buffers(&self) -> impl Iterator<Item = &Rx> {
        self.receive.lent_buffers()
    }

    /// Returns whether the pair has a message interrupt.
    pub(super) fn has_message(&self) -> bool {
        self.message.is_some()
    }

    /// Lends the device a receive buffer: one contiguous piece for the header and the frame. The next [`Self::flush`]
    /// publishes it.
    ///
    /// # Errors
    /// Returns the buffer with the reason.
    #[inline(always)]
    pub fn fill(&mut self, buffer: Rx) -> Result<(), RejectedBuffer<Rx>> {
        let len = match buffer.segment_pair() {
            Some(SegmentPair { first, second: None }) => first.1,
            _ => {
                let mut len = 0;
                buffer.for_each_segment(|_, segment| len += segment);
                len
            }
        };
        if len < self.options.receive_len {
            return Err(RejectedBuffer { buffer, reason: Refusal::TooShort });
        }
        self.receive.lend(buffer, Access::DeviceWrites)
    }

    /// Returns the next received frame.
    ///
    /// # Errors
    /// The device's protocol violation.
    #[inline(always)]
    pub fn receive(&mut self) -> Result<Option<ReceivedBuffer<Rx>>, Fault> {
        let Some(returned) = self.receive.take_returned()? else { return Ok(None) };
        let Some(len) = (returned.written as usize).checked_sub(HEADER_LEN).filter(|&len| len > 0) else {
            return Err(self.receive.break_off(Fault::TooShort { written: returned.written }));
        };
        let buffer = returned.buffer;
        let header = Header::from_bytes(buffer.header());
        let more = match self.options.merges {
            FeatureSupport::Yes => header.buffers.saturating_sub(1),
            FeatureSupport::No => 0,
        };
        Ok(Some(ReceivedBuffer { buffer, len, more, checksum: header.received_checksum(len) }))
    }

    /// Returns the next buffer of a frame, and the number of the frame's bytes in it. A device returns all buffers of a
    /// frame at once.
    ///
    /// # Errors
    /// The device's protocol violation: [`Fault::TooFew`], if it announced more buffers than it has returned.
    pub fn receive_more(&mut self) -> Result<(Rx, usize), Fault> {
        match self.receive.take_returned()? {
            Some(returned) => Ok((returned.buffer, returned.written as usize)),
            None => Err(self.receive.break_off(Fault::TooFew)),
        }
    }

    /// Lends the device a frame to send. The next [`Self::flush`] publishes it, and [`Self::reclaim`] returns it.
    ///
    /// # Errors
    /// Returns the frame with the reason. [`Refusal::Full`] is temporary: it ends when frames are reclaimed.
    #[inline]
    pub fn transmit(&mut self, frame: Tx, offload: Offload) -> Result<(), RejectedBuffer<Tx>> {
        match self.header(offload) {
            Some(header) => self.transmit.lend_with_header(header, frame),
            None => Err(RejectedBuffer { buffer: frame, reason: Refusal::NotOffered }),
        }
    }

    /// Returns the header of a frame with this offload, `None` if the device does not offer it.
    #[inline]
    pub fn header(&self, offload: Offload) -> Option<[u8; HEADER_LEN]> {
        let offered = match offload {
            Offload::None => FeatureSupport::Yes,
            Offload::Checksum { .. } => self.options.checksums,
            Offload::Segment { kind, .. } => self.transmit_segments(kind),
        };
        (offered == FeatureSupport::Yes).then(|| Header::to_send(offload))
    }

    /// Transmits like [`Self::transmit`] a frame that follows its [header](Self::header) in the same memory: the device
    /// reads one piece fewer.
    ///
    /// # Errors
    /// Returns the frame with the reason.
    #[inline]
    pub fn transmit_behind_header(&mut self, frame: Tx) -> Result<(), RejectedBuffer<Tx>> {
        self.transmit.lend(frame, Access::DeviceReads)
    }

    /// Returns the next frame that the device has sent.
    ///
    /// # Errors
    /// The device's protocol violation.
    #[inline]
    pub fn reclaim(&mut self) -> Result<Option<Tx>, Fault> {
        Ok(self.transmit.take_returned()?.map(|returned| returned.buffer))
    }

    /// Calls `take` with the next frame that the device has sent, so that it can take parts, and drops the frame in
    /// place. Returns whether there was one.
    ///
    /// # Errors
    /// The device's protocol violation.
    #[inline(always)]
    pub fn drop_sent(&mut self, take: impl FnOnce(&mut Tx)) -> Result<bool, Fault> {
        self.transmit.drop_returned(take)
    }

    /// Returns the number of frames that the device has and has not returned.
    pub fn in_flight(&self) -> u16 {
        self.transmit.outstanding()
    }

    /// Publishes lent buffers and frames, and notifies the device if it requested that.
    #[inline]
    pub fn flush(&mut self) {
        self.receive.publish();
        self.transmit.publish();
    }

    /// Publishes staged frames, as [`Self::flush`] does.
    #[inline]
    pub fn flush_frames(&mut self) {
        self.transmit.publish();
    }

    /// Publishes staged receive buffers if there are at least `least`, for a caller that returns them one at a time.
    #[inline]
    pub fn flush_buffers(&mut self, least: u16) {
        if self.receive.unpublished() >= least {
            self.receive.publish();
        }
    }

    /// Returns whether received frames wait.
    #[inline]
    pub fn has_received(&self) -> bool {
        self.receive.has_returned()
    }

    /// Returns whether received frames wait that were present at the last read of the device's ring.
    #[inline]
    pub fn has_noticed_received(&self) -> bool {
        self.receive.has_noticed()
    }

    /// Returns whether sent frames that were present at the last read of the device's ring wait for [`Self::reclaim`].
    #[inline]
    pub fn has_noticed_sent(&self) -> bool {
        self.transmit.has_noticed()
    }

    /// Returns whether sent frames wait for [`Self::reclaim`].
    #[inline]
    pub fn has_sent(&self) -> bool {
        self.transmit.has_returned()
    }

    /// Enables one interrupt for the next received frame: the handler polls, then enables it again. Returns
    /// [`Pending::Yes`] if frames are present already: an interrupt may not come for them.
    pub fn enable_receive_interrupts(&mut self) -> Pending {
        self.receive.arm(WakeWhen::Returned)
    }

    /// Returns whether [`Self::enable_receive_interrupts`] arms the queue for one interrupt only.
    #[inline]
    pub fn interrupts_once(&self) -> bool {
        self.receive.suppression() == Suppression::EventIndex
    }

    /// Disables receive interrupts.
    pub fn disable_receive_interrupts(&mut self) {
        self.receive.disarm();
    }

    /// Enables an interrupt for sent frames. Returns [`Pending::Yes`] if there are some already: an interrupt may not
    /// come.
    pub fn enable_transmit_interrupts(&mut self, when: WakeWhen) -> Pending {
        self.transmit.arm(when)
    }

    /// Disables transmit interrupts.
    pub fn disable_transmit_interrupts(&mut self) {
        self.transmit.disarm();
    }

    /// Returns the pair's message interrupt, if it has one, to redirect or mask it.
    pub fn message(&mut self) -> Option<&mut dyn MessageControl> {
        Some(&mut **self.message.as_mut()?)
    }

    /// Redirects the pair's interrupts. Does nothing if the device has one line.
    pub fn redirect(&mut self, message: InterruptMessage) {
        if let Some(control) = self.message() {
            control.redirect(message);
        }
    }

    /// Returns the device's protocol violation, if there was one.
    pub fn fault(&self) -> Option<Fault> {
        self.receive.fault().or(self.transmit.fault())
    }
}
