//! A pair of queues of a network device: frames in, frames out. It belongs to one core at a time.

use super::header::{Header, Offload, ReceivedChecksum, SegmentKind};
use crate::transport::MessageControl;
use crate::virtqueue::{
    Access, Fault, HEADER_LEN, Pending, Refusal, Refused, Suppression, VirtQueue, WakeWhen,
};
use alloc::boxed::Box;
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::{DmaBuffer, OneOrTwo};
use isola_machine::dma_peer::SharedBuffer;

/// A buffer that the device fills with a header and a frame.
pub trait ReceiveBuffer: DmaBuffer {
    /// Its first [`HEADER_LEN`] bytes. It has more: [`NetQueue::fill`] sees to that.
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
pub struct Received<Rx> {
    /// The buffer. The frame begins [`HEADER_LEN`] bytes from its beginning.
    pub buffer: Rx,
    /// Bytes of the frame in it.
    pub len: usize,
    /// How many further buffers the frame goes on in: to be taken with [`NetQueue::receive_more`], before anything else.
    pub more: u16,
    /// What the device says of its checksum.
    pub checksum: ReceivedChecksum,
}

/// What a queue pair can do, as agreed with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairOptions {
    /// Whether the device fills checksums in, and whether it cuts TCP segments over IPv4 and over IPv6.
    pub checksums: Offered,
    pub segments_ipv4: Offered,
    pub segments_ipv6: Offered,
    /// Whether a frame may take several buffers.
    pub merges: Offered,
    /// Shortest buffer for receiving, in bytes.
    pub receive_len: usize,
}

/// Whether a device does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// A pair of queues: `Rx` are the buffers to receive into, `Tx` the frames to send.
///
/// Each `Tx` is a frame in any number of pieces up to [`MAX_PIECES`]; the device reads them where they are.
#[derive(Debug)]
pub struct NetQueue<Rx, Tx> {
    receive: VirtQueue<Rx>,
    transmit: VirtQueue<Tx>,
    options: PairOptions,
    message: Option<Box<dyn MessageControl>>,
}

/// Most pieces of a frame that is sent: a chain less its header.
pub const MAX_PIECES: usize = crate::virtqueue::MAX_CHAIN as usize - 1;

impl<Rx: ReceiveBuffer, Tx: DmaBuffer> NetQueue<Rx, Tx> {
    pub(super) fn new(
        receive: VirtQueue<Rx>,
        transmit: VirtQueue<Tx>,
        options: PairOptions,
        message: Option<Box<dyn MessageControl>>,
    ) -> Self {
        let mut pair = Self { receive, transmit, options, message };
        pair.disable_receive_interrupts();
        pair.disable_transmit_interrupts();
        pair
    }

    /// Whether the device fills checksums in: whether [`Offload::Checksum`] is taken.
    pub fn transmit_checksums(&self) -> Offered {
        self.options.checksums
    }

    /// Whether the device cuts segments of a kind: whether [`Offload::Segment`] is taken.
    pub fn transmit_segments(&self, kind: SegmentKind) -> Offered {
        match kind {
            SegmentKind::TcpIpv4 => self.options.segments_ipv4,
            SegmentKind::TcpIpv6 => self.options.segments_ipv6,
        }
    }

    /// Whether a frame may take several buffers.
    pub fn merges(&self) -> Offered {
        self.options.merges
    }

    /// Shortest buffer that [`Self::fill`] takes, in bytes.
    pub fn receive_buffer_len(&self) -> usize {
        self.options.receive_len
    }

    /// How many more buffers to receive into the device can have.
    pub fn receive_room(&self) -> u16 {
        self.receive.room()
    }

    /// Gives the device a buffer to receive into: one contiguous piece for the header and the frame. The device
    /// learns of it with the next [`Self::flush`].
    ///
    /// # Errors
    /// Gives the buffer back with the reason.
    #[inline(always)]
    pub fn fill(&mut self, buffer: Rx) -> Result<(), Refused<Rx>> {
        let len = match buffer.one_or_two() {
            Some(OneOrTwo { first, second: None }) => first.1,
            _ => {
                let mut len = 0;
                buffer.for_each_segment(|_, segment| len += segment);
                len
            }
        };
        if len < self.options.receive_len {
            return Err(Refused { buffer, reason: Refusal::TooShort });
        }
        self.receive.lend(buffer, Access::DeviceWrites)
    }

    /// The next received frame.
    ///
    /// # Errors
    /// What the device did wrong.
    #[inline(always)]
    pub fn receive(&mut self) -> Result<Option<Received<Rx>>, Fault> {
        let Some(returned) = self.receive.take_returned()? else { return Ok(None) };
        let Some(len) = (returned.written as usize).checked_sub(HEADER_LEN).filter(|&len| len > 0) else {
            return Err(self.receive.break_off(Fault::TooShort { written: returned.written }));
        };
        let buffer = returned.buffer;
        let header = Header::from_bytes(buffer.header());
        let more = match self.options.merges {
            Offered::Yes => header.buffers.saturating_sub(1),
            Offered::No => 0,
        };
        Ok(Some(Received { buffer, len, more, checksum: header.received_checksum(len) }))
    }

    /// The next buffer of a frame, and how many bytes of it are in that. A device returns all of a frame's at once.
    ///
    /// # Errors
    /// What the device did wrong: [`Fault::TooFew`], where it announced more than it has returned.
    pub fn receive_more(&mut self) -> Result<(Rx, usize), Fault> {
        match self.receive.take_returned()? {
            Some(returned) => Ok((returned.buffer, returned.written as usize)),
            None => Err(self.receive.break_off(Fault::TooFew)),
        }
    }

    /// Gives the device a frame to send. The device learns of it with the next [`Self::flush`], and the frame
    /// comes back by [`Self::reclaim`].
    ///
    /// # Errors
    /// Gives the frame back with the reason: [`Refusal::Full`] passes when frames are reclaimed.
    #[inline]
    pub fn transmit(&mut self, frame: Tx, offload: Offload) -> Result<(), Refused<Tx>> {
        match self.header(offload) {
            Some(header) => self.transmit.lend_with_header(header, frame),
            None => Err(Refused { buffer: frame, reason: Refusal::NotOffered }),
        }
    }

    /// The header of a frame that is sent with this offload; `None` where the device does not offer that.
    #[inline]
    pub fn header(&self, offload: Offload) -> Option<[u8; HEADER_LEN]> {
        let offered = match offload {
            Offload::None => Offered::Yes,
            Offload::Checksum { .. } => self.options.checksums,
            Offload::Segment { kind, .. } => self.transmit_segments(kind),
        };
        (offered == Offered::Yes).then(|| Header::to_send(offload))
    }

    /// As [`Self::transmit`], for a frame behind its [header](Self::header) in the same memory: a piece fewer for the
    /// device to look at.
    ///
    /// # Errors
    /// Gives the frame back with the reason.
    #[inline]
    pub fn transmit_behind_header(&mut self, frame: Tx) -> Result<(), Refused<Tx>> {
        self.transmit.lend(frame, Access::DeviceReads)
    }

    /// The next frame that the device has sent and needs no more.
    ///
    /// # Errors
    /// What the device did wrong.
    #[inline]
    pub fn reclaim(&mut self) -> Result<Option<Tx>, Fault> {
        Ok(self.transmit.take_returned()?.map(|returned| returned.buffer))
    }

    /// Lets `take` take parts of the next frame that the device has sent, and drops the frame in place. Returns whether there
    /// was one.
    ///
    /// # Errors
    /// What the device did wrong.
    #[inline(always)]
    pub fn drop_sent(&mut self, take: impl FnOnce(&mut Tx)) -> Result<bool, Fault> {
        self.transmit.drop_returned(take)
    }

    /// How many frames the device has been given and not returned.
    pub fn in_flight(&self) -> u16 {
        self.transmit.outstanding()
    }

    /// Shows the device what was given to it, both buffers and frames, and tells it where it wants to be told.
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

    /// Publishes staged receive buffers if there are at least `least`: for a caller that returns them one at a time.
    #[inline]
    pub fn flush_buffers(&mut self, least: u16) {
        if self.receive.unpublished() >= least {
            self.receive.publish();
        }
    }

    /// Whether received frames wait.
    #[inline]
    pub fn has_received(&self) -> bool {
        self.receive.has_returned()
    }

    /// Whether received frames wait that were there at the last look at the device's ring.
    #[inline]
    pub fn has_noticed_received(&self) -> bool {
        self.receive.has_noticed()
    }

    /// Whether sent frames wait to be reclaimed that were there at the last look at the device's ring.
    #[inline]
    pub fn has_noticed_sent(&self) -> bool {
        self.transmit.has_noticed()
    }

    /// Whether sent frames wait to be reclaimed.
    #[inline]
    pub fn has_sent(&self) -> bool {
        self.transmit.has_returned()
    }

    /// Asks for an interrupt at the next received frame. It is for one: the handler polls, then asks again.
    /// [`Pending::Yes`]: frames are there already, and no interrupt may come for them.
    pub fn enable_receive_interrupts(&mut self) -> Pending {
        self.receive.arm(WakeWhen::Returned)
    }

    /// Returns whether [`Self::enable_receive_interrupts`] arms the queue for one interrupt only.
    #[inline]
    pub fn interrupts_once(&self) -> bool {
        self.receive.suppression() == Suppression::EventIndex
    }

    /// Asks for no interrupts on received frames.
    pub fn disable_receive_interrupts(&mut self) {
        self.receive.disarm();
    }

    /// Asks for an interrupt when frames have been sent. [`Pending::Yes`]: they have been, and no interrupt may
    /// come.
    pub fn enable_transmit_interrupts(&mut self, when: WakeWhen) -> Pending {
        self.transmit.arm(when)
    }

    /// Asks for no interrupts on sent frames.
    pub fn disable_transmit_interrupts(&mut self) {
        self.transmit.disarm();
    }

    /// The pair's message interrupt, where it has one: to send it to another core, or to hold it back.
    pub fn message(&mut self) -> Option<&mut dyn MessageControl> {
        Some(&mut **self.message.as_mut()?)
    }

    /// Sends the pair's interrupts elsewhere from now on. Does nothing where the device has one line for all.
    pub fn redirect(&mut self, message: InterruptMessage) {
        if let Some(control) = self.message() {
            control.redirect(message);
        }
    }

    /// What the device did wrong, where it did.
    pub fn fault(&self) -> Option<Fault> {
        self.receive.fault().or(self.transmit.fault())
    }
}
