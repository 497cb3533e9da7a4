//! The interface of a network device to the stack: queue pairs that receive and send Ethernet frames without copies.

use crate::VacatedMemory;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use isola_iobuf::{Chain, IoBuf, IoBufMut};

pub use isola_iobuf::{Frame, PartialChecksum};

/// A network device.
pub struct NetworkPort {
    /// The device's hardware address.
    pub mac: [u8; 6],
    /// The maximum length of an IP packet, in bytes.
    pub mtu: u16,
    /// The free bytes that the device prefers in front of each frame to send, for its own header. With fewer, it puts
    /// the header into separate memory, at a higher cost.
    pub headroom: usize,
    /// The queue pairs, of which the first is in use. Each can serve another core; the last ones may stay unused if the
    /// cell never gets as many cores.
    pub queues: Vec<Box<dyn NetworkQueue + Send>>,
    /// The control of the distribution of received flows over queues, if the device supports it.
    pub spreading: Option<Box<dyn FlowSpreading + Send>>,
}

/// The length of the hash key for receive-side scaling, in bytes.
pub const SPREADING_KEY_LEN: usize = 40;

/// The number of entries of the indirection table, by which flows are distributed over queues.
pub const SPREADING_PARTS: usize = 128;

/// The distribution of received frames over the queues of a device (receive-side scaling, RSS): the lowest bits of the
/// Toeplitz hash of a flow's addresses and ports select one of [`SPREADING_PARTS`] entries of the indirection table.
/// Frames other than TCP and UDP arrive at the first queue. A device without the hash gets only the number of queues,
/// and distributes frames over them in its own way.
pub trait FlowSpreading {
    /// Sets the queue of each entry of the indirection table. The change takes effect now or shortly after. From then
    /// on the first `in_use` queues can send; a device without the hash distributes frames over these queues.
    ///
    /// # Errors
    /// [`SpreadingRefused`]; then a frame may arrive at any queue.
    fn spread(
        &mut self,
        key: &[u8; SPREADING_KEY_LEN],
        queues: &[u16; SPREADING_PARTS],
        in_use: u16,
    ) -> Result<(), SpreadingRefused>;
}

/// The error for a device that does not distribute frames as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadingRefused;

impl fmt::Display for SpreadingRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the network device refuses this distribution of frames: the cores distribute them")
    }
}

impl core::error::Error for SpreadingRefused {}

/// A received frame.
#[derive(Debug)]
pub struct ReceivedFrame {
    /// The frame from its Ethernet header on: all of it, or a first part with all headers.
    pub frame: IoBuf,
    /// The rest of a frame that the device has merged from several segments, if there is any.
    pub rest: Option<Box<Chain>>,
    /// The device's result for the TCP or UDP checksum.
    pub checksum: ReceivedChecksum,
}

impl ReceivedFrame {
    /// Returns the length of the frame, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.frame.len() + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// Returns whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A device's result for the checksum of a received TCP segment or UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedChecksum {
    /// The device has not verified the checksum; the stack must.
    Unchecked,
    /// The device has verified the checksum, or the frame never left the machine.
    Valid,
}

/// The transmit offloads of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The device completes TCP and UDP checksums.
    pub checksums: bool,
    /// The device segments TCP over IPv4, and completes the checksums of the segments.
    pub segments_ipv4: bool,
    /// The device does the same over IPv6.
    pub segments_ipv6: bool,
}

impl Offloads {
    /// Returns the offloads that both devices support.
    pub const fn and(self, other: Self) -> Self {
        Self {
            checksums: self.checksums && other.checksums,
            segments_ipv4: self.segments_ipv4 && other.segments_ipv4,
            segments_ipv6: self.segments_ipv6 && other.segments_ipv6,
        }
    }
}

/// A queue pair of a network device, used by one core at a time.
pub trait NetworkQueue {
    /// Returns the vector of the queue's interrupt, on the core that called [`Self::attach`] last; `None` if the queue
    /// causes the core's polls by other means.
    fn vector(&self) -> Option<u8>;

    /// Returns the transmit offloads that the device supports.
    fn offloads(&self) -> Offloads;

    /// Routes the queue's interrupt to the calling core.
    fn attach(&mut self);

    /// Routes the queue's interrupt to the core that now runs the calling vcore, after the vcore was passed on.
    fn redirect(&mut self);

    /// Returns the next received frame, if there is one, and gives the device a new buffer in its place.
    fn receive(&mut self) -> Option<ReceivedFrame>;

    /// Returns whether [`Self::receive`] may return another frame, without a new check of the device. Frames that
    /// arrived since the last check do not count; [`Self::enable_interrupts`] reports those.
    fn may_have_received(&self) -> bool {
        true
    }

    /// Queues a frame. The device begins to send it at the latest at the next [`Self::flush`].
    ///
    /// # Errors
    /// Returns the frame if the queue is full. It must be the next frame to send.
    fn send(&mut self, frame: Frame) -> Result<(), Frame>;

    /// Notifies the device of all queued frames.
    fn flush(&mut self);

    /// Passes the heads of frames that the device has sent to `recycle`, so that their memory can be reused. The queue
    /// drops the heads that are not reclaimed when it needs their entries.
    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut));

    /// Enables interrupts for received frames. Returns whether frames have already arrived: these cause no interrupt,
    /// so the caller has to receive again.
    fn enable_interrupts(&mut self) -> FramesPending;

    /// Disables interrupts: the caller polls.
    fn disable_interrupts(&mut self);

    /// Frees what the queue keeps in this memory for frames to come or of sent ones, as it is to become free, as far as the
    /// device gives it back. Disables interrupts if need be: the caller polls.
    fn vacate(&mut self, memory: &VacatedMemory);

    /// Returns whether the device has violated the protocol: it receives and sends no further frame.
    fn has_failed(&self) -> bool;
}

/// Whether received frames wait in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum FramesPending {
    /// Frames wait.
    Yes,
    /// No frame waits.
    No,
}
