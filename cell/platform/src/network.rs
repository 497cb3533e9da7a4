//! A network device as the stack above sees it: queue pairs that take and give Ethernet frames, without copies.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use isola_iobuf::{Chain, IoBuf, IoBufMut};

pub use isola_iobuf::{Frame, PartialChecksum};

/// A network device.
pub struct NetworkPort {
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Longest IP packet that it carries, in bytes.
    pub mtu: u16,
    /// Bytes that it wants free before each frame that is sent, for a header of its own. Where there are fewer it puts
    /// that elsewhere, which costs more.
    pub headroom: usize,
    /// Its queue pairs, of which the first is in use. Each can serve another core; the last may be for cores that never come.
    pub queues: Vec<Box<dyn NetworkQueue + Send>>,
    /// What says which frames go to which queue, where that can be said.
    pub spreading: Option<Box<dyn FlowSpreading + Send>>,
}

/// Length of the key of the hash that spreads, in bytes.
pub const SPREADING_KEY_LEN: usize = 40;

/// Parts that flows are spread over queues in.
pub const SPREADING_PARTS: usize = 128;

/// How a device spreads received frames over its queues: by the Toeplitz hash of a flow's addresses and ports, whose lowest
/// bits choose one of [`SPREADING_PARTS`] (RSS). What belongs to no flow of TCP or UDP comes to the first queue. A device that
/// does not hash is told how many queues there are, and spreads frames over them by itself.
pub trait FlowSpreading {
    /// Has the parts come to these queues from now on, or soon. The first `in_use` queues can be sent by from then on; a device
    /// that does not hash spreads over all of these.
    ///
    /// # Errors
    /// [`SpreadingRefused`]: then frames come to any queue.
    fn spread(
        &mut self,
        key: &[u8; SPREADING_KEY_LEN],
        queues: &[u16; SPREADING_PARTS],
        in_use: u16,
    ) -> Result<(), SpreadingRefused>;
}

/// A device does not spread frames as it was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadingRefused;

impl fmt::Display for SpreadingRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the network device does not spread frames over cores as it was told to: the cores do it themselves")
    }
}

impl core::error::Error for SpreadingRefused {}

/// A frame that was received.
#[derive(Debug)]
pub struct ReceivedFrame {
    /// The frame, from its Ethernet header on: all of it, or its beginning, with all headers.
    pub frame: IoBuf,
    /// What follows, where anything does: of a frame that a device has put together of several segments.
    pub rest: Option<Box<Chain>>,
    /// What the device says of its TCP or UDP checksum.
    pub checksum: ReceivedChecksum,
}

impl ReceivedFrame {
    /// Length of the frame, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.frame.len() + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// Whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a device says of the checksum of a received TCP segment or UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedChecksum {
    /// Nothing: it must be checked.
    Unchecked,
    /// That it is right, or that the frame never left the machine.
    Valid,
}

/// What a device does to frames that are sent, where it is asked to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// It fills in TCP and UDP checksums.
    pub checksums: bool,
    /// It cuts TCP segments over IPv4, and fills in their checksums.
    pub segments_ipv4: bool,
    /// The same over IPv6.
    pub segments_ipv6: bool,
}

impl Offloads {
    /// What two devices both do.
    pub const fn and(self, other: Self) -> Self {
        Self {
            checksums: self.checksums && other.checksums,
            segments_ipv4: self.segments_ipv4 && other.segments_ipv4,
            segments_ipv6: self.segments_ipv6 && other.segments_ipv6,
        }
    }
}

/// A queue pair of a network device. Used by one core at a time.
pub trait NetworkQueue {
    /// The interrupt vector by which it calls for attention, on the core that [`Self::attach`] named last.
    fn vector(&self) -> u8;

    /// What the device can do to frames that are sent.
    fn offloads(&self) -> Offloads;

    /// Makes the calling core the one that is interrupted.
    fn attach(&mut self);

    /// The core that serves the queue is run by another processor core than before: its interrupts go there from here on.
    /// Called on the core.
    fn redirect(&mut self) {}

    /// The next received frame, where there is one. Gives the device a fresh buffer for it.
    fn receive(&mut self) -> Option<ReceivedFrame>;

    /// Whether [`Self::receive`] may return another frame, as far as is known without another look at the device: what has
    /// come since the last look, [`Self::enable_interrupts`] tells.
    fn may_have_received(&self) -> bool {
        true
    }

    /// Hands a frame to the device, which starts on it at the latest at the next [`Self::flush`].
    ///
    /// # Errors
    /// Gives the frame back where the queue is full: it is the next to be handed over.
    fn send(&mut self, frame: Frame) -> Result<(), Frame>;

    /// Tells the device of all frames handed over.
    fn flush(&mut self);

    /// Gives the heads of frames that the device is done with back to `recycle`, so that their memory can be used again.
    /// Those that nobody takes back are let go of as their place in the queue is needed.
    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut));

    /// Asks for interrupts on received frames. Returns whether frames had arrived meanwhile: then the
    /// caller has to look again, as no interrupt will tell.
    fn enable_interrupts(&mut self) -> FramesPending;

    /// Asks for no interrupts: the caller polls.
    fn disable_interrupts(&mut self);
}

/// Whether received frames wait in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum FramesPending {
    /// Some do.
    Yes,
    /// None do.
    No,
}
