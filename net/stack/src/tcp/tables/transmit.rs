//! Frames of connections, made when the device asks for them, and single segments that belong to none.

use super::{Around, Tcp};
use crate::address::{Flow, MacAddr};
use crate::checksum::Sum;
use crate::config::TxChecksum;
use crate::interface::{Interface, Packet, Path};
use crate::neighbour::Known;
use crate::tcp::connection::{Fresh, More, Outgoing, Place, UsualOutgoing};
use crate::tcp::options::Options;
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::{CHECKSUM_OFFSET, Header};
use crate::tcp::template::Template;
use crate::time::{Duration, Instant};
use crate::{ethernet, ip};
use etherparse::IpNumber;
use isola_iobuf::{Chain, Frame, IoBuf, IoBufMut, PartialChecksum};

/// How long after the end of what is known of a neighbour a connection's progress still confirms it.
const RECENT: Duration = Duration::from_secs(5);

/// How a connection's peer is reached, and when that was looked up.
#[derive(Debug)]
pub(crate) struct Way {
    known: Known,
    /// The neighbour cache's epoch at the look.
    epoch: u32,
    /// What the connection had done by then.
    progress: u64,
    /// The headers of what goes this way; `None` before so many segments that it is worth making.
    template: Option<Template>,
    /// How many segments went this way without it.
    without: u8,
}

/// Segments that a connection sends the general way before its template is made: short ones have no more.
const WITHOUT_TEMPLATE: u8 = 3;

/// The parts of a frame that carries a usual segment.
///
/// The caller builds the frame from them where it returns it. A move through memory would load 16 bytes at a time that were
/// just stored as two words: such a load waits until the stores have left the processor's store buffer.
pub(crate) struct UsualFrame {
    head: IoBufMut,
    payload: Option<IoBuf>,
    checksum: Option<PartialChecksum>,
}

impl UsualFrame {
    /// Bytes of the frame.
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

impl Way {
    /// Whether what is known of it still holds.
    #[inline(always)]
    fn holds(&self, now: Instant, interface: &Interface) -> bool {
        self.epoch == interface.neighbours.epoch && now < self.known.valid_until
    }

    /// Another segment is about to go this way without a template; says whether it should be the last.
    fn is_worth_a_template(&mut self) -> bool {
        self.without = self.without.saturating_add(1);
        self.without > WITHOUT_TEMPLATE
    }
}

impl Tcp {
    /// Makes the next segment of the connection whose turn it is, if it is a usual one and its headers come from a template.
    /// `None` changes nothing, and leaves the decision to [`Self::transmit`].
    #[inline(always)]
    pub fn next_usual(&mut self, now: Instant, interface: &mut Interface) -> Option<UsualFrame> {
        let index = self.ready.first()?;
        let connection = self.connections.at_mut(index)?.as_mut();
        let way = connection.path.as_ref()?;
        if way.template.is_none() || !way.holds(now, interface) {
            return None;
        }
        let UsualOutgoing { header, payload, more } = connection.next_usual(now)?;
        let len = payload.as_ref().map_or(0, IoBuf::len);
        let mut head = interface.pool.take();
        // The pool's heads have room for all headers. If one had not, the segment would be lost, as on the wire.
        let template = connection.path.as_ref()?.template.as_ref()?;
        let left = template.fill(&mut head, &header, len)?;
        let checksum = match interface.tx_checksum {
            TxChecksum::Device => Some(left),
            TxChecksum::Software => {
                // Of a copy, so that the view itself stays in registers.
                let data = payload.clone();
                complete(&mut head, data.as_deref().into_iter(), left);
                None
            }
        };
        interface.owner = connection.owner;
        match more {
            More::Maybe => self.ready.turn(),
            More::No => {
                self.ready.remove(index);
                if len > 0 {
                    self.timers.no_later_than(index, connection.deadline_under_way(now));
                } else if let Some(at) = connection.deadline(now) {
                    self.timers.no_later_than(index, at);
                }
            }
        }
        Some(UsualFrame { head, payload, checksum })
    }

    /// Makes the next frame. Connections with something to send take turns, a segment each; one that has nothing leaves,
    /// and its timer is set.
    pub fn transmit(&mut self, around: &mut Around<'_>) -> Option<Frame> {
        while let Some(index) = self.ready.first() {
            if let Some(mac) = self.known_path(index, around).or_else(|| self.find_path(index, around))
                && let Some((frame, more)) = self.next_frame(index, mac, around)
            {
                match more {
                    More::Maybe => self.ready.turn(),
                    More::No => self.rest(index, around.now),
                }
                return Some(frame);
            }
            self.rest(index, around.now);
            if let Some(request) = around.interface.pop() {
                return Some(request);
            }
        }
        None
    }

    /// Whether a connection may have something to send.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.ready.first().is_some()
    }

    /// The connection at `index` has nothing more to send.
    #[inline]
    fn rest(&mut self, index: u32, now: Instant) {
        self.ready.remove(index);
        self.arm(index, now);
    }

    /// The neighbour by whom the peer was reached last, while that holds.
    #[inline]
    fn known_path(&self, index: u32, around: &Around<'_>) -> Option<MacAddr> {
        let way = self.connections.at(index)?.path.as_ref()?;
        way.holds(around.now, around.interface).then_some(way.known.mac)
    }

    /// Looks up the neighbour by whom the peer of a connection with something to send is reached. Where that takes a
    /// search, the connection waits for it.
    #[cold]
    fn find_path(&mut self, index: u32, around: &mut Around<'_>) -> Option<MacAddr> {
        let connection = self.connections.at(index).filter(|connection| connection.has_output())?;
        around.interface.owner = connection.owner;
        match self.path(index, around)? {
            Path::Known(known) => return Some(known.mac),
            Path::Sought(ip) => {
                around.interface.neighbours.wait_connection(ip, index);
                self.connections.at_mut(index)?.searching = Place::In;
            }
            Path::Lost => self.lose_output(index, around),
        }
        None
    }

    fn path(&mut self, index: u32, around: &mut Around<'_>) -> Option<Path> {
        let connection = self.connections.at_mut(index)?;
        let (remote, progress) = (connection.flow.remote.ip(), connection.progress());
        if let Some(way) = &connection.path
            && way.progress != progress
            && around.now < way.known.valid_until + RECENT
        {
            // What got through since the last look got through by this neighbour (RFC 4861 7.3.1).
            around.interface.confirm(around.now, remote);
        }
        let path = around.interface.path(around.now, remote, around.counters);
        connection.path = match path {
            Path::Known(known) => {
                let epoch = around.interface.neighbours.epoch;
                Some(Way { known, epoch, progress, template: None, without: 0 })
            }
            Path::Sought(_) | Path::Lost => None,
        };
        Some(path)
    }

    fn next_frame(&mut self, index: u32, mac: MacAddr, around: &mut Around<'_>) -> Option<(Frame, More)> {
        let connection = self.connections.at_mut(index)?;
        around.interface.owner = connection.owner;
        let mut payload = Chain::new();
        let Outgoing { header, sack, markable, more } =
            connection.next_segment(around.now, &self.config, &mut payload)?;
        let segment_len = connection.cut(payload.len());
        if let Some(Way { template: Some(template), .. }) = &connection.path
            && sack.is_empty()
            && let Some((mut head, checksum)) = from_template(template, &header, payload.len(), around)
        {
            let checksum = match around.interface.tx_checksum {
                TxChecksum::Device => Some(checksum),
                TxChecksum::Software => {
                    complete(&mut head, payload.parts().map(|part| &**part), checksum);
                    None
                }
            };
            let frame = Frame { head, payload, checksum, segment_len };
            return Some((marked(frame, markable), more));
        }
        let flow = connection.flow;
        if let Some(way) = &mut connection.path
            && way.template.is_none()
            && way.is_worth_a_template()
        {
            let empty = Header { options: Options::default(), ..header };
            let packet = packet(&flow, empty, &SackBlocks::NONE, Chain::new(), around)?;
            let made = around.interface.encapsulate(packet, mac)?;
            way.template = Template::of(&made.head, &flow);
            around.interface.recycle(made.head);
        }
        let packet = packet(&flow, header, &sack, payload, around)?;
        let frame = around.interface.encapsulate(packet, mac)?;
        Some((marked(Frame { segment_len, ..frame }, markable), more))
    }

    /// Lets a connection send into nowhere, so that its timers see to the rest.
    pub(super) fn lose_output(&mut self, index: u32, around: &Around<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        while connection.next_segment(around.now, &self.config, &mut Chain::new()).is_some() {}
    }

    /// Sends a segment without data.
    pub(super) fn send_bare(&mut self, flow: &Flow, header: Header, around: &mut Around<'_>) {
        if let Some(packet) = packet(flow, header, &SackBlocks::NONE, Chain::new(), around) {
            around.interface.send(around.now, packet, around.counters);
        }
    }
}

/// The frame as routers may mark it, where the segment may be (RFC 3168 5).
#[inline]
fn marked(mut frame: Frame, markable: Fresh) -> Frame {
    if markable == Fresh::Yes {
        ip::mark_capable(frame.head.data_mut(), ethernet::HEADER_LEN);
    }
    frame
}

/// The headers of a usual segment, and what the device has left to sum.
#[inline]
fn from_template(
    template: &Template,
    header: &Header,
    payload_len: usize,
    around: &mut Around<'_>,
) -> Option<(IoBufMut, PartialChecksum)> {
    let mut head = around.interface.pool.take();
    match template.fill(&mut head, header, payload_len) {
        Some(checksum) => Some((head, checksum)),
        None => {
            around.interface.recycle(head);
            None
        }
    }
}

/// Completes a checksum as a device would: the field holds the pseudo-header's sum.
fn complete<'a>(head: &mut IoBufMut, payload: impl Iterator<Item = &'a [u8]>, checksum: PartialChecksum) {
    let PartialChecksum { start, offset } = checksum;
    let Some(segment) = head.data_mut().get_mut(usize::from(start)..) else { return };
    let mut sum = Sum::default();
    sum.add(segment);
    payload.for_each(|part| sum.add(part));
    if let Some(field) = segment.get_mut(usize::from(offset)..).and_then(|field| field.first_chunk_mut()) {
        *field = sum.checksum().to_be_bytes();
    }
}

fn packet(
    flow: &Flow,
    header: Header,
    sack: &SackBlocks,
    payload: Chain,
    around: &mut Around<'_>,
) -> Option<Packet> {
    let mut head = around.interface.pool.take();
    header.prepend(&mut head, sack)?;
    let (source, destination) = (flow.local.ip(), flow.remote.ip());
    let ends = (source, destination);
    let checksum_offset = around.interface.seal(&mut head, &payload, ends, IpNumber::TCP, CHECKSUM_OFFSET);
    Some(Packet { source, destination, protocol: IpNumber::TCP, head, payload, checksum_offset })
}
