//! The decision which frames go over which link, and which frames from links are accepted.
//!
//! ```text
//!                 first frame               task: link open                      full
//!   unknown MAC ───────────────> asked ───────────────────────> linked <──────────────────> frames wait
//!       ^                          │ refused                       │ ended                       │ too many
//!       │  a cell started or ended v                               v                             v
//!       └─────────────────────── refused                     (asked again after a second)     dropped
//! ```

use crate::headers::{Headers, headers_of};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use isola_channels::neighbours::{FrameBuffers, FrameSent, LinkEnded};
use isola_iobuf::{Frame, IoBuf, IoBufMut};
use isola_platform::Instant;

/// The most neighbours with a link.
pub const MOST_NEIGHBOURS: usize = 32;

/// The most bytes of frames that wait for room in the ring of one neighbour.
pub const MOST_WAITING_BYTES: usize = 1 << 20;

/// The most hardware addresses whose answer is stored.
const MOST_ASKED: usize = 64;

/// The shortest time between two requests for one hardware address, in ns: also between a link and the next one.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// The most unacceptable frames that are dropped before the core's other events run.
const MOST_DROPPED: usize = 64;

/// The length from which on the room of a frame is given back at once: a few such frames fill a ring.
const LONG_BYTES: usize = 8 << 10;

/// The most heads of sent frames that wait to be used again.
const MOST_HEADS: usize = 64;

/// The reason why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Too many frames wait for the neighbour.
    Full,
    /// The frame has an address that is not the neighbour's.
    Source,
}

/// A link to a neighbour.
pub trait FrameLink {
    /// Returns the neighbour's hardware address.
    fn mac(&self) -> [u8; 6];

    /// Sends a copy of a frame.
    ///
    /// # Errors
    /// [`LinkEnded`].
    fn send(&self, frame: &Frame) -> Result<FrameSent, LinkEnded>;

    /// Receives the next frame, if there is one, in one of `buffers`.
    ///
    /// # Errors
    /// [`LinkEnded`].
    fn receive(&self, buffers: &mut FrameBuffers) -> Result<Option<IoBuf>, LinkEnded>;

    /// Returns whether there is a frame to receive, or the link has ended.
    fn may_have_frame(&self) -> bool;

    /// Gives the neighbour the room of the received frames.
    fn release(&self);

    /// Announces to the core's poll a frame or the end of the link. Returns whether there is one already.
    fn await_frame(&self) -> bool;

    /// Announces to the core's poll room for a frame. Returns whether there is some already.
    fn await_room(&self, len_bytes: usize) -> bool;
}

/// The state of the cell that the router needs.
pub trait RouterEnvironment {
    /// Returns the hardware address of the host with this address on the cell's network, if it is known.
    fn mac_of(&self, ip: IpAddr) -> Option<[u8; 6]>;

    /// Returns a number that changes whenever a known host's hardware address changes.
    fn epoch(&self) -> u32;

    /// Begins to find out the hardware address of the host with this address.
    fn seek(&self, ip: IpAddr);

    /// Returns the number of changes of the cells that may be neighbours.
    fn changes(&self) -> u32;

    /// Requests a link to a neighbour. [`Router::link`] or [`Router::refuse`] follows.
    fn ask(&self, mac: [u8; 6]);

    /// Publishes the hardware addresses with a link, after a change.
    fn links_changed(&self, macs: Vec<[u8; 6]>);

    /// Counts a dropped frame.
    fn dropped(&self, reason: DropReason);

    /// Returns the time.
    fn now(&self) -> Instant;
}

/// A neighbour with a link.
struct LinkedNeighbour<L> {
    mac: [u8; 6],
    link: L,
    waiting: VecDeque<Frame>,
    waiting_bytes: usize,
    /// The last source address that was found to be the neighbour's, and the epoch of that.
    verified: Option<(IpAddr, u32)>,
}

/// A hardware address for which a link was requested.
struct LinkRequest {
    mac: [u8; 6],
    at: Instant,
    /// The number of changes at the refusal; `None` while the request is open.
    refused_at: Option<u32>,
}

/// The links of a cell.
pub struct Router<L> {
    own: [u8; 6],
    linked: Vec<LinkedNeighbour<L>>,
    /// The latest last.
    asked: VecDeque<LinkRequest>,
    /// The link that is next to be received from.
    turn: usize,
    /// The headers of sent frames, to be used again.
    heads: Vec<IoBufMut>,
    /// The buffers of received frames, to be used again.
    buffers: FrameBuffers,
}

/// The outcome of [`Router::send`].
#[derive(Debug)]
pub enum Routed {
    /// The router has it.
    OverLink,
    /// The frame takes the device.
    ToDevice(Frame),
}

impl<L: FrameLink> Router<L> {
    /// Returns the router of the cell with this hardware address, without links.
    pub fn new(own: [u8; 6]) -> Self {
        Self {
            own,
            linked: Vec::new(),
            asked: VecDeque::new(),
            turn: 0,
            heads: Vec::new(),
            buffers: FrameBuffers::default(),
        }
    }

    /// Sends a frame over the link to its destination, if there is one.
    #[inline]
    pub fn send(&mut self, frame: Frame, around: &impl RouterEnvironment) -> Routed {
        let Some(Headers { to, .. }) = headers_of(&frame.head) else { return Routed::ToDevice(frame) };
        let Some(index) = self.linked.iter().position(|linked| linked.mac == to) else {
            self.meet(to, around);
            return Routed::ToDevice(frame);
        };
        self.send_to(index, frame, around)
    }

    fn send_to(&mut self, index: usize, frame: Frame, around: &impl RouterEnvironment) -> Routed {
        let Some(linked) = self.linked.get_mut(index) else { return Routed::ToDevice(frame) };
        if linked.waiting.is_empty() {
            match linked.link.send(&frame) {
                Ok(FrameSent::Yes) => {
                    self.keep(frame.head);
                    return Routed::OverLink;
                }
                Ok(FrameSent::NoRoom) => {}
                Err(LinkEnded) => {
                    self.unlink(index, around);
                    return Routed::ToDevice(frame);
                }
            }
        }
        let len = frame.len();
        if linked.waiting_bytes + len > MOST_WAITING_BYTES {
            around.dropped(DropReason::Full);
            self.keep(frame.head);
            return Routed::OverLink;
        }
        linked.waiting_bytes += len;
        linked.waiting.push_back(frame);
        self.send_waiting_to(index, around);
        Routed::OverLink
    }

    /// Sends the frames that wait, as far as there is room.
    pub fn send_waiting(&mut self, around: &impl RouterEnvironment) {
        // From the last one on, as a link that has ended is removed.
        for index in (0..self.linked.len()).rev() {
            self.send_waiting_to(index, around);
        }
    }

    fn send_waiting_to(&mut self, index: usize, around: &impl RouterEnvironment) {
        let Some(linked) = self.linked.get_mut(index) else { return };
        while let Some(frame) = linked.waiting.front() {
            let len = frame.len();
            match linked.link.send(frame) {
                Ok(FrameSent::Yes) => {
                    linked.waiting_bytes -= len;
                    linked.waiting.pop_front();
                }
                Ok(FrameSent::NoRoom) => {
                    if !linked.link.await_room(len) {
                        return;
                    }
                }
                Err(LinkEnded) => return self.unlink(index, around),
            }
        }
    }

    /// Keeps the head of a sent frame for [`Self::reclaim`].
    #[inline]
    fn keep(&mut self, head: IoBufMut) {
        if self.heads.len() < MOST_HEADS {
            self.heads.push(head);
        }
    }

    /// Passes the heads of sent frames to `recycle`.
    pub fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        self.heads.drain(..).for_each(recycle);
    }

    /// Returns the next frame of any neighbour. The links take turns.
    pub fn receive(&mut self, around: &impl RouterEnvironment) -> Option<IoBuf> {
        let mut dropped = 0;
        let mut idle = 0;
        while idle < self.linked.len() && dropped < MOST_DROPPED {
            if self.turn >= self.linked.len() {
                self.turn = 0;
            }
            let index = self.turn;
            match self.linked.get(index)?.link.receive(&mut self.buffers) {
                Ok(Some(frame)) => {
                    self.turn += 1;
                    if frame.len() >= LONG_BYTES {
                        self.release();
                    }
                    if self.is_acceptable(index, &frame, around) {
                        return Some(frame);
                    }
                    dropped += 1;
                    around.dropped(DropReason::Source);
                }
                Ok(None) => {
                    self.turn += 1;
                    idle += 1;
                }
                Err(LinkEnded) => self.unlink(index, around),
            }
        }
        self.release();
        None
    }

    /// Returns whether [`Self::receive`] may return a frame.
    #[inline]
    pub fn may_have_received(&self) -> bool {
        self.linked.iter().any(|linked| linked.link.may_have_frame())
    }

    /// Requests that the core polls when there is something to receive, or room for a frame that waits. Returns whether
    /// there is already.
    pub fn await_frames(&mut self, around: &impl RouterEnvironment) -> bool {
        self.send_waiting(around);
        let ready = self.linked.iter().map(|linked| linked.link.await_frame());
        ready.fold(false, |any, ready| any | ready)
    }

    /// Gives all neighbours the room of the received frames.
    fn release(&self) {
        self.linked.iter().for_each(|linked| linked.link.release());
    }

    /// Adds a link that was opened by either side. One too many is dropped, which closes it.
    pub fn link(&mut self, link: L, around: &impl RouterEnvironment) {
        let mac = link.mac();
        self.asked.retain(|asked| asked.mac != mac);
        if self.linked.len() >= MOST_NEIGHBOURS || self.linked.iter().any(|linked| linked.mac == mac) {
            return;
        }
        let waiting = VecDeque::new();
        self.linked.push(LinkedNeighbour { mac, link, waiting, waiting_bytes: 0, verified: None });
        self.publish(around);
    }

    /// Records that there is no link to a hardware address.
    pub fn refuse(&mut self, mac: [u8; 6], around: &impl RouterEnvironment) {
        let asked = self.asked.iter_mut().find(|asked| asked.mac == mac);
        asked.into_iter().for_each(|asked| asked.refused_at = Some(around.changes()));
    }

    /// Returns whether there is a link to the hardware address.
    pub fn is_linked(&self, mac: [u8; 6]) -> bool {
        self.linked.iter().any(|linked| linked.mac == mac)
    }

    /// Requests a link to a hardware address, unless it was refused since the last change of the neighbours.
    fn meet(&mut self, mac: [u8; 6], around: &impl RouterEnvironment) {
        if let Some(asked) = self.asked.iter_mut().find(|asked| asked.mac == mac) {
            let is_news = asked.refused_at.is_some_and(|changes| changes != around.changes());
            if !is_news || around.now().as_ns().saturating_sub(asked.at.as_ns()) < ASK_AGAIN_NS {
                return;
            }
            (asked.at, asked.refused_at) = (around.now(), None);
        } else {
            if self.linked.len() >= MOST_NEIGHBOURS {
                return;
            }
            if self.asked.len() >= MOST_ASKED {
                self.asked.pop_front();
            }
            self.asked.push_back(LinkRequest { mac, at: around.now(), refused_at: None });
        }
        around.ask(mac);
    }

    /// Removes a link that has ended. Frames that wait are lost, and TCP repeats their data over the device.
    #[cold]
    fn unlink(&mut self, index: usize, around: &impl RouterEnvironment) {
        let LinkedNeighbour { mac, .. } = self.linked.remove(index);
        // A neighbour that closes its links is asked again after a while.
        let refused_at = Some(around.changes().wrapping_sub(1));
        if self.asked.len() >= MOST_ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back(LinkRequest { mac, at: around.now(), refused_at });
        if self.linked.is_empty() {
            self.buffers = FrameBuffers::default();
        }
        self.publish(around);
    }

    fn publish(&self, around: &impl RouterEnvironment) {
        around.links_changed(self.linked.iter().map(|linked| linked.mac).collect());
    }

    /// Returns whether a frame is from the neighbour of that link to this cell.
    #[inline]
    fn is_acceptable(&mut self, index: usize, frame: &IoBuf, around: &impl RouterEnvironment) -> bool {
        let Some(linked) = self.linked.get_mut(index) else { return false };
        let Some(Headers { to, from, source }) = headers_of(frame) else { return false };
        if to != self.own || from != linked.mac {
            return false;
        }
        let epoch = around.epoch();
        if linked.verified == Some((source, epoch)) {
            return true;
        }
        match around.mac_of(source) {
            Some(mac) if mac == linked.mac => {
                linked.verified = Some((source, epoch));
                true
            }
            Some(_) => false,
            None => {
                // The frame is sent again; by then its source has answered over the device.
                around.seek(source);
                false
            }
        }
    }
}
