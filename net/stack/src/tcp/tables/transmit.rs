//! Frames of connections, built when the device requests them, and single segments without a connection.

use super::Tcp;
use crate::base::{Duration, Flow, Instant, MacAddr, TxChecksum};
use crate::ip::{ETHERNET_HEADER_LEN, Interface, Packet, Path, mark_capable};
use crate::tcp::cached_path::{CachedPath, complete};
use crate::tcp::connection::{FastOutgoing, Membership, MoreToSend, NewDataOnly, Outgoing};
use crate::tcp::in_use::is_in_use;
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::{CHECKSUM_OFFSET, Header};
use crate::tcp::stack_parts::StackParts;
use etherparse::IpNumber;
use isola_iobuf::{Chain, Frame, IoBuf, IoBufMut, PartialChecksum};

/// Time after the expiry of a neighbour's entry for which progress of a connection still confirms it.
const RECENT: Duration = Duration::from_secs(5);

/// The parts of a frame with a fast-path segment.
///
/// The caller builds the frame from these parts in its return slot. A move through memory would load 16 bytes at a time
/// that have just been stored as two words; such a load stalls until the stores leave the processor's store buffer.
pub(crate) struct FastFrame {
    head: IoBufMut,
    payload: Option<IoBuf>,
    checksum: Option<PartialChecksum>,
}

impl FastFrame {
    /// Returns the length of the frame, in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.as_ref().map_or(0, IoBuf::len)
    }

    #[inline(always)]
    pub fn into_frame(self) -> Frame {
        let Self { head, payload, checksum } = self;
        let mut chain = Chain::new();
        if let Some(data) = payload {
            chain.push_back(data);
        }
        Frame { head, payload: chain, checksum, segment_len: None }
    }
}

impl Tcp {
    /// Builds the next segment of the first queued connection if it is a fast-path segment with a template. Otherwise
    /// returns `None` without any change; the caller then calls [`Self::transmit`].
    #[inline(always)]
    pub fn next_fast(&mut self, now: Instant, interface: &mut Interface) -> Option<FastFrame> {
        let index = self.ready.first()?;
        if !is_in_use() {
            return None;
        }
        let connection = self.connections.at_mut(index)?.as_mut();
        let way = connection.path.as_ref()?;
        if way.template.is_none() || !way.holds(now, interface) {
            return None;
        }
        let FastOutgoing { header, payload, more } = connection.next_fast(now)?;
        let len = payload.as_ref().map_or(0, IoBuf::len);
        let mut head = interface.pool.take();
        // The pool's buffers have headroom for all headers. If one had not, the segment would be lost, as on the wire.
        let way = connection.path.as_ref()?;
        let left = way.template.as_ref()?.fill(&mut head, &header, len)?;
        let checksum = match way.tx_checksum {
            TxChecksum::Device => Some(left),
            TxChecksum::Software => {
                // The data is cloned so that the original view stays in registers.
                let data = payload.clone();
                complete(&mut head, data.as_deref().into_iter(), left);
                None
            }
        };
        interface.owner = connection.owner;
        match more {
            MoreToSend::Maybe => self.ready.turn(),
            MoreToSend::No => {
                self.ready.remove(index);
                if len > 0 {
                    self.timers.no_later_than(index, connection.deadline_under_way(now));
                } else if let Some(at) = connection.deadline(now) {
                    self.timers.no_later_than(index, at);
                }
            }
        }
        Some(FastFrame { head, payload, checksum })
    }

    /// Builds the next frame. The queued connections take turns, one segment each. A connection with nothing left to
    /// send leaves the queue, and its timer is set.
    pub fn transmit(&mut self, stack: &mut StackParts<'_>) -> Option<Frame> {
        while let Some(index) = self.ready.first()
            && is_in_use()
        {
            if let Some(mac) = self.known_path(index, stack).or_else(|| self.find_path(index, stack))
                && let Some((frame, more)) = self.next_frame(index, mac, stack)
            {
                match more {
                    MoreToSend::Maybe => self.ready.turn(),
                    MoreToSend::No => self.rest(index, stack.now),
                }
                return Some(frame);
            }
            self.rest(index, stack.now);
            if let Some(request) = stack.interface.pop() {
                return Some(request);
            }
        }
        None
    }

    /// Returns whether a connection may have something to send.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.ready.first().is_some()
    }

    /// Removes the connection at `index`, which has nothing left to send, from the queue, and sets its timer.
    #[inline]
    fn rest(&mut self, index: u32, now: Instant) {
        self.ready.remove(index);
        self.arm(index, now);
    }

    /// Returns the peer's next hop of the last look-up, while it is valid.
    #[inline]
    fn known_path(&self, index: u32, stack: &StackParts<'_>) -> Option<MacAddr> {
        let way = self.connections.at(index)?.path.as_ref()?;
        way.holds(stack.now, stack.interface).then_some(way.known.mac)
    }

    /// Looks up the next hop for a connection with something to send. If the neighbour must be resolved first, the
    /// connection waits for it.
    #[cold]
    fn find_path(&mut self, index: u32, stack: &mut StackParts<'_>) -> Option<MacAddr> {
        let connection = self.connections.at(index).filter(|connection| connection.has_output())?;
        stack.interface.owner = connection.owner;
        match self.path(index, stack)? {
            Path::Known(known) => return Some(known.mac),
            Path::Sought(ip) => {
                stack.interface.neighbours.wait_connection(ip, index);
                self.connections.at_mut(index)?.searching = Membership::In;
            }
            Path::Lost => self.lose_output(index, stack),
        }
        None
    }

    fn path(&mut self, index: u32, stack: &mut StackParts<'_>) -> Option<Path> {
        let connection = self.connections.at_mut(index)?;
        let (remote, progress) = (connection.flow.remote.ip(), connection.progress());
        if let Some(way) = &connection.path
            && way.progress != progress
            && stack.now < way.known.valid_until + RECENT
        {
            // Data acknowledged since the last look-up passed this neighbour (RFC 4861 7.3.1).
            stack.interface.confirm(stack.now, remote);
        }
        let path = stack.interface.path(stack.now, remote, stack.counters);
        connection.path = match path {
            Path::Known(known) => {
                let over_link = stack.interface.is_linked(known.mac);
                connection.set_path_limits(stack.interface.burst_to(remote, known.mac), over_link);
                Some(CachedPath::new(&connection.flow, known, progress, stack.interface))
            }
            Path::Sought(_) | Path::Lost => None,
        };
        Some(path)
    }

    fn next_frame(
        &mut self,
        index: u32,
        mac: MacAddr,
        stack: &mut StackParts<'_>,
    ) -> Option<(Frame, MoreToSend)> {
        let connection = self.connections.at_mut(index)?;
        stack.interface.owner = connection.owner;
        let mut payload = Chain::new();
        let Outgoing { header, sack, markable, more } =
            connection.next_segment(stack.now, &self.config, &mut payload)?;
        let segment_len = connection.cut(payload.len());
        if sack.is_empty()
            && let Some(way) = &connection.path
            && let Some((head, checksum)) = way.headers(&header, &payload, stack.interface)
        {
            let frame = Frame { head, payload, checksum, segment_len };
            return Some((marked(frame, markable), more));
        }
        let flow = connection.flow;
        let packet = packet(&flow, header, &sack, payload, stack)?;
        let frame = stack.interface.encapsulate(packet, mac)?;
        Some((marked(Frame { segment_len, ..frame }, markable), more))
    }

    /// Discards all output of a connection as if it had been lost, so that its timers retransmit it.
    pub(super) fn lose_output(&mut self, index: u32, stack: &StackParts<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        while connection.next_segment(stack.now, &self.config, &mut Chain::new()).is_some() {}
    }

    /// Sends the answer to a SYN. Returns its path if the neighbour is known.
    pub(super) fn send_answer(
        &mut self,
        flow: &Flow,
        header: Header,
        stack: &mut StackParts<'_>,
    ) -> Option<CachedPath> {
        match stack.interface.path(stack.now, flow.remote.ip(), stack.counters) {
            Path::Known(known) => {
                let way = CachedPath::new(flow, known, 0, stack.interface);
                self.send_by(&way, flow, header, stack);
                return Some(way);
            }
            Path::Sought(ip) => {
                if let Some(packet) = packet(flow, header, &SackBlocks::NONE, Chain::new(), stack) {
                    stack.interface.neighbours.wait_packet(ip, packet, stack.counters);
                }
            }
            Path::Lost => {}
        }
        None
    }

    /// Sends a segment without data on a known path.
    fn send_by(&mut self, way: &CachedPath, flow: &Flow, header: Header, stack: &mut StackParts<'_>) {
        match way.headers(&header, &Chain::new(), stack.interface) {
            Some((head, checksum)) => {
                let frame = Frame { head, payload: Chain::new(), checksum, segment_len: None };
                stack.interface.push(frame, stack.counters);
            }
            None => self.send_bare(flow, header, stack),
        }
    }

    /// Sends a segment without data for a connection that has just ended.
    pub(super) fn send_last(&mut self, index: u32, header: Header, stack: &mut StackParts<'_>) {
        let Some(connection) = self.connections.at(index) else { return };
        let flow = connection.flow;
        match connection.path.filter(|way| way.holds(stack.now, stack.interface)) {
            Some(way) => self.send_by(&way, &flow, header, stack),
            None => self.send_bare(&flow, header, stack),
        }
    }

    /// Sends a segment without data.
    pub(super) fn send_bare(&mut self, flow: &Flow, header: Header, stack: &mut StackParts<'_>) {
        if let Some(packet) = packet(flow, header, &SackBlocks::NONE, Chain::new(), stack) {
            stack.interface.send(stack.now, packet, stack.counters);
        }
    }
}

/// Sets ECT in the frame if the segment may be marked (RFC 3168 5).
#[inline]
fn marked(mut frame: Frame, markable: NewDataOnly) -> Frame {
    if markable == NewDataOnly::Yes {
        mark_capable(frame.head.data_mut(), ETHERNET_HEADER_LEN);
    }
    frame
}

pub(crate) fn packet(
    flow: &Flow,
    header: Header,
    sack: &SackBlocks,
    payload: Chain,
    stack: &mut StackParts<'_>,
) -> Option<Packet> {
    let mut head = stack.interface.pool.take();
    header.prepend(&mut head, sack)?;
    let (source, destination) = (flow.local.ip(), flow.remote.ip());
    let ends = (source, destination);
    let checksum_offset = stack.interface.seal(&mut head, &payload, ends, IpNumber::TCP, CHECKSUM_OFFSET);
    Some(Packet { source, destination, protocol: IpNumber::TCP, head, payload, checksum_offset })
}
