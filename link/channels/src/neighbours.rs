//! Links for frames between neighbours: cells of one machine whose specifications agree that their network traffic stays
//! in memory (RainForest 5.4: RFloop). `isola-neighbours` routes the frames.
//!
//! The supervisor finds a neighbour by the hardware address of its device, and names the address of each side to the
//! other ([`NeighbourLink::mac`]). A packet of the link is a frame behind 1 to 8 bytes of padding, the first of which is
//! their number; so the data of a frame begins at a word of the ring, which aligns both copies.

use crate::ChannelError;
use crate::channel::{Listener, listen_for, open_link};
use crate::runtime::{OpenLink, RingSizes, runtime};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::iter;
use core::task::Waker;
use isola_abi::layout::PAGE_SIZE;
use isola_abi::links::{LinkDemand, NEIGHBOUR_SERVICE};
use isola_ebbs::platform;
use isola_iobuf::{Frame, IoBuf, IoBufMut};
use isola_link_rings::{HEADER_LINES, LINE_BYTES, Ring, SendError};

/// The pages of a half: 2,048 lines, which have room for the longest frame at any time if half of them are free.
const HALF_PAGES: usize = (2048 + HEADER_LINES).div_ceil(PAGE_SIZE as usize / LINE_BYTES);

/// The words of a half.
pub const HALF_WORDS: usize = HALF_PAGES * PAGE_SIZE as usize / size_of::<u64>();

const SIZES: RingSizes = RingSizes { pages: HALF_PAGES, most_peer_pages: HALF_PAGES };

/// The longest frame: the longest IP packet with its Ethernet header.
pub const MOST_BYTES: usize = 14 + 65_535;

/// The neighbour has closed the link, has ended, or has violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEnded;

/// Whether a ring had room for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum FrameSent {
    /// The frame is on its way.
    Yes,
    /// There is no room at present.
    NoRoom,
}

/// The shortest frame, in bytes, whose buffer is used again.
const LONG_BYTES: usize = 4096;

/// The most buffers that are stored to be used again: as many of the longest frames as a receive window has.
const MOST_BUFFERS: usize = 4;

/// The buffers of the latest long frames. One without other views is used again: new memory is zeroed, which takes half as
/// long as to copy the frame.
#[derive(Debug, Default)]
pub struct FrameBuffers {
    /// The oldest first.
    latest: VecDeque<IoBuf>,
}

impl FrameBuffers {
    /// Returns an empty buffer for a frame of `len` bytes.
    fn take(&mut self, len: usize) -> IoBufMut {
        let oldest = if len >= LONG_BYTES { self.latest.pop_front() } else { None };
        match oldest.map(IoBuf::try_into_mut) {
            Some(Ok(mut buffer)) if buffer.storage_len() >= len => {
                buffer.reset(0);
                buffer
            }
            Some(Err(used)) if self.latest.len() + 1 < MOST_BUFFERS => {
                self.latest.push_front(used);
                IoBufMut::with_room(0, len)
            }
            _ => IoBufMut::with_room(0, len),
        }
    }

    /// Stores a view of the buffer of a frame.
    fn store(&mut self, frame: &IoBuf) {
        if frame.storage_len() >= LONG_BYTES {
            self.latest.push_back(frame.clone());
        }
    }
}

/// A link to a neighbour. It is closed when it is dropped.
pub struct NeighbourLink {
    link: Rc<OpenLink>,
    mac: [u8; 6],
}

/// Returns the hardware address of the cell's device, if the cell may have neighbours.
pub fn own_mac() -> Option<[u8; 6]> {
    let mac = platform().links()?.table().own_mac()?;
    runtime().is_ok().then_some(mac)
}

/// Returns how often a cell that may be a neighbour has started or ended, modulo 2^32.
pub fn changes() -> u32 {
    runtime().ok().and_then(|runtime| runtime.port()).map_or(0, |port| port.table().neighbour_changes())
}

/// Opens a link to the neighbour with that hardware address.
///
/// # Errors
/// A [`ChannelError`]; [`ChannelError::Refused`] if no neighbour has the address, or there is such a link already.
pub async fn open(mac: [u8; 6]) -> Result<NeighbourLink, ChannelError> {
    let link = open_link(SIZES, move |memory| LinkDemand::OpenNeighbour { mac, memory }).await?;
    NeighbourLink::new(link)
}

/// The links that neighbours open.
pub struct NeighbourListener(Listener);

/// Listens for the links of neighbours.
///
/// # Errors
/// A [`ChannelError`].
pub fn listen() -> Result<NeighbourListener, ChannelError> {
    listen_for(runtime()?, NEIGHBOUR_SERVICE, SIZES).map(NeighbourListener)
}

impl NeighbourListener {
    /// Accepts the next link.
    ///
    /// # Errors
    /// A [`ChannelError`]; the listener can accept others.
    pub async fn accept(&self) -> Result<NeighbourLink, ChannelError> {
        NeighbourLink::new(self.0.accept_link().await?)
    }
}

impl NeighbourLink {
    fn new(link: Rc<OpenLink>) -> Result<Self, ChannelError> {
        let mac = link.peer_mac().ok_or(ChannelError::Closed)?;
        Ok(Self { link, mac })
    }

    /// Returns the neighbour's hardware address, according to the supervisor.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Sends a copy of a frame.
    ///
    /// # Errors
    /// [`LinkEnded`]; also for a frame that is too long for any room.
    pub fn send(&self, frame: &Frame) -> Result<FrameSent, LinkEnded> {
        self.check_open()?;
        let sent = send_frame(&mut self.link.rings.borrow_mut(), frame);
        match sent {
            Ok(must) => {
                self.link.notify(must);
                Ok(FrameSent::Yes)
            }
            Err(SendError::Full) => Ok(FrameSent::NoRoom),
            Err(SendError::TooLong { .. } | SendError::Broken) => Err(LinkEnded),
        }
    }

    /// Receives the next frame, if there is one, in one of `buffers`.
    ///
    /// # Errors
    /// [`LinkEnded`].
    pub fn receive(&self, buffers: &mut FrameBuffers) -> Result<Option<IoBuf>, LinkEnded> {
        self.check_open()?;
        receive_frame(&mut self.link.rings.borrow_mut(), buffers)
    }

    /// Returns whether there is a frame to receive, or the link has ended.
    #[inline]
    pub fn may_have_frame(&self) -> bool {
        self.check_open().is_err() || self.link.rings.borrow_mut().has_packet() != Ok(false)
    }

    /// Gives the neighbour the room of the received frames. Wakes `waker` when there is a frame or the link has ended,
    /// unless that is so already. Returns whether it is.
    pub fn await_frame(&self, waker: &Waker) -> bool {
        self.check_open().is_err() || self.link.await_packet(waker).unwrap_or(true)
    }

    /// Wakes `waker` when there is room for a frame of `len_bytes`, unless there is. Returns whether there is, or the
    /// link has ended.
    pub fn await_room(&self, len_bytes: usize, waker: &Waker) -> bool {
        self.check_open().is_err() || self.link.await_room(len_bytes + MOST_PADDING, waker).unwrap_or(true)
    }

    /// Gives the neighbour the room of the received frames.
    pub fn release(&self) {
        let must = self.link.rings.borrow_mut().release();
        self.link.notify(must);
    }

    fn check_open(&self) -> Result<(), LinkEnded> {
        if self.link.is_open() { Ok(()) } else { Err(LinkEnded) }
    }
}

/// The most bytes before a frame.
const MOST_PADDING: usize = 8;

/// Sends a frame over a ring.
///
/// # Errors
/// A [`SendError`]; nothing was sent.
pub fn send_frame<O, P>(
    ring: &mut Ring<O, P>,
    frame: &Frame,
) -> Result<isola_link_rings::MustNotify, SendError>
where
    O: core::ops::Deref<Target = [core::sync::atomic::AtomicU64]>,
    P: core::ops::Deref<Target = [core::sync::atomic::AtomicU64]>,
{
    let count = MOST_PADDING - frame.head.len() % MOST_PADDING;
    let mut padding = [0; MOST_PADDING];
    padding[0] = count as u8;
    let padding = padding.get(..count).unwrap_or_default();
    ring.send_parts(count + frame.len(), iter::once(padding).chain(frame.pieces()))
}

/// Receives a frame from a ring, in one of `buffers`.
///
/// # Errors
/// [`LinkEnded`] if the peer violates the protocol.
pub fn receive_frame<O, P>(
    ring: &mut Ring<O, P>,
    buffers: &mut FrameBuffers,
) -> Result<Option<IoBuf>, LinkEnded>
where
    O: core::ops::Deref<Target = [core::sync::atomic::AtomicU64]>,
    P: core::ops::Deref<Target = [core::sync::atomic::AtomicU64]>,
{
    let Some(packet) = ring.incoming().map_err(|_| LinkEnded)? else { return Ok(None) };
    let len = packet.len_bytes();
    if len > MOST_PADDING + MOST_BYTES {
        return Err(LinkEnded);
    }
    let mut buffer = buffers.take(len);
    if let Some(bytes) = buffer.append(len) {
        ring.take(packet, bytes);
    }
    let padding = usize::from(buffer.first().copied().unwrap_or_default());
    if !(1..=MOST_PADDING).contains(&padding) || padding > len {
        return Err(LinkEnded);
    }
    buffer.advance(padding);
    let frame = buffer.freeze();
    buffers.store(&frame);
    Ok(Some(frame))
}
