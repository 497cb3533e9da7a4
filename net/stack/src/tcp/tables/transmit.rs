//! Frames of connections, built when the device requests them, and single segments without a connection.

use super::{Around, Tcp};
use crate::address::{Flow, MacAddr};
use crate::checksum::Sum;
use crate::config::TxChecksum;
use crate::interface::{Interface, Packet, Path};
use crate::neighbour::Known;
use crate::tcp::connection::{FastOutgoing, Fresh, More, Outgoing, Place};
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::{CHECKSUM_OFFSET, Header};
use crate::tcp::template::Template;
use crate::time::{Duration, Instant};
use crate::{ethernet, ip};
use etherparse::IpNumber;
use isola_iobuf::{Chain, Frame, IoBuf, IoBufMut, PartialChecksum};

/// Time after the expiry of a neighbour's entry for which progress of a connection still confirms it.
const RECENT: Duration = Duration::from_secs(5);

/// The path to a connection's peer, as it was last looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    known: Known,
    /// The neighbour cache's epoch at the look-up.
    epoch: u32,
    /// The connection's progress (see [`Connection::progress`](crate::tcp::connection::Connection::progress)) at the
    /// look-up.
    progress: u64,
    /// The template of headers for this path.
    template: Option<Template>,
}

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

impl Way {
    fn new(flow: &Flow, known: Known, progress: u64, interface: &Interface) -> Self {
        let template = Template::new(flow, interface.mac, known.mac, interface.ipv6.hop_limit);
        Self { known, epoch: interface.neighbours.epoch, progress, template }
    }

    /// Returns whether the look-up is still valid.
    #[inline(always)]
    fn holds(&self, now: Instant, interface: &Interface) -> bool {
        self.epoch == interface.neighbours.epoch && now < self.known.valid_until
    }

    /// Builds the headers of a segment without SACK blocks from the template. Returns them with the part of the
    /// checksum that is left to the device.
    #[inline]
    fn headers(
        &self,
        header: &Header,
        payload: &Chain,
        interface: &mut Interface,
    ) -> Option<(IoBufMut, Option<PartialChecksum>)> {
        let template = self.template.as_ref()?;
        let mut head = interface.pool.take();
        let Some(checksum) = template.fill(&mut head, header, payload.len()) else {
            interface.recycle(head);
            return None;
        };
        match interface.tx_checksum {
            TxChecksum::Device => Some((head, Some(checksum))),
            TxChecksum::Software => {
                complete(&mut head, payload.parts().map(|part| &**part), checksum);
                Some((head, None))
            }
        }
    }
}

impl Tcp {
    /// Builds the next segment of the first queued connection if it is a fast-path segment with a template. Otherwise
    /// returns `None` without any change; the caller then calls [`Self::transmit`].
    #[inline(always)]
    pub fn next_fast(&mut self, now: Instant, interface: &mut Interface) -> Option<FastFrame> {
        let index = self.ready.first()?;
        let connection = self.connections.at_mut(index)?.as_mut();
        let way = connection.path.as_ref()?;
        if way.template.is_none() || !way.holds(now, interface) {
            return None;
        }
        let FastOutgoing { header, payload, more } = connection.next_fast(now)?;
        let len = payload.as_ref().map_or(0, IoBuf::len);
        let mut head = interface.pool.take();
        // The pool's buffers have headroom for all headers. If one had not, the segment would be lost, as on the wire.
        let template = connection.path.as_ref()?.template.as_ref()?;
        let left = template.fill(&mut head, &header, len)?;
        let checksum = match interface.tx_checksum {
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
        Some(FastFrame { head, payload, checksum })
    }

    /// Builds the next frame. The queued connections take turns, one segment each. A connection with nothing left to
    /// send leaves the queue, and its timer is set.
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
    fn known_path(&self, index: u32, around: &Around<'_>) -> Option<MacAddr> {
        let way = self.connections.at(index)?.path.as_ref()?;
        way.holds(around.now, around.interface).then_some(way.known.mac)
    }

    /// Looks up the next hop for a connection with something to send. If the neighbour must be resolved first, the
    /// connection waits for it.
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
            // Data acknowledged since the last look-up passed this neighbour (RFC 4861 7.3.1).
            around.interface.confirm(around.now, remote);
        }
        let path = around.interface.path(around.now, remote, around.counters);
        connection.path = match path {
            Path::Known(known) => Some(Way::new(&connection.flow, known, progress, around.interface)),
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
        if sack.is_empty()
            && let Some(way) = &connection.path
            && let Some((head, checksum)) = way.headers(&header, &payload, around.interface)
        {
            let frame = Frame { head, payload, checksum, segment_len };
            return Some((marked(frame, markable), more));
        }
        let flow = connection.flow;
        let packet = packet(&flow, header, &sack, payload, around)?;
        let frame = around.interface.encapsulate(packet, mac)?;
        Some((marked(Frame { segment_len, ..frame }, markable), more))
    }

    /// Discards all output of a connection as if it had been lost, so that its timers retransmit it.
    pub(super) fn lose_output(&mut self, index: u32, around: &Around<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        while connection.next_segment(around.now, &self.config, &mut Chain::new()).is_some() {}
    }

    /// Sends the answer to a SYN. Returns its path if the neighbour is known.
    pub(super) fn send_answer(
        &mut self,
        flow: &Flow,
        header: Header,
        around: &mut Around<'_>,
    ) -> Option<Way> {
        match around.interface.path(around.now, flow.remote.ip(), around.counters) {
            Path::Known(known) => {
                let way = Way::new(flow, known, 0, around.interface);
                self.send_by(&way, flow, header, around);
                return Some(way);
            }
            Path::Sought(ip) => {
                if let Some(packet) = packet(flow, header, &SackBlocks::NONE, Chain::new(), around) {
                    around.interface.neighbours.wait_packet(ip, packet, around.counters);
                }
            }
            Path::Lost => {}
        }
        None
    }

    /// Sends a segment without data on a known path.
    fn send_by(&mut self, way: &Way, flow: &Flow, header: Header, around: &mut Around<'_>) {
        match way.headers(&header, &Chain::new(), around.interface) {
            Some((head, checksum)) => {
                let frame = Frame { head, payload: Chain::new(), checksum, segment_len: None };
                around.interface.push(frame, around.counters);
            }
            None => self.send_bare(flow, header, around),
        }
    }

    /// Sends a segment without data for a connection that has just ended.
    pub(super) fn send_last(&mut self, index: u32, header: Header, around: &mut Around<'_>) {
        let Some(connection) = self.connections.at(index) else { return };
        let flow = connection.flow;
        match connection.path.filter(|way| way.holds(around.now, around.interface)) {
            Some(way) => self.send_by(&way, &flow, header, around),
            None => self.send_bare(&flow, header, around),
        }
    }

    /// Sends a segment without data.
    pub(super) fn send_bare(&mut self, flow: &Flow, header: Header, around: &mut Around<'_>) {
        if let Some(packet) = packet(flow, header, &SackBlocks::NONE, Chain::new(), around) {
            around.interface.send(around.now, packet, around.counters);
        }
    }
}

/// Sets ECT in the frame if the segment may be marked (RFC 3168 5).
#[inline]
fn marked(mut frame: Frame, markable: Fresh) -> Frame {
    if markable == Fresh::Yes {
        ip::mark_capable(frame.head.data_mut(), ethernet::HEADER_LEN);
    }
    frame
}

/// Completes a checksum as a device would; the field contains the sum of the pseudo-header.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Secret};
    use crate::counters::Counters;
    use crate::event::EventQueue;
    use crate::tcp::options::{Options, Sack, Timestamps};
    use crate::tcp::segment::Flags;
    use crate::tcp::seq::Seq;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use isola_iobuf::IoBuf;
    use proptest::prelude::*;

    const FROM: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const TO: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn header() -> impl Strategy<Value = Header> {
        let flags = prop_oneof![
            Just(Flags::SYN | Flags::ACK),
            Just(Flags::SYN),
            Just(Flags::ACK),
            Just(Flags::ACK | Flags::FIN | Flags::PSH),
        ];
        let options = (any::<Option<u16>>(), prop::option::of(0..15u8), any::<bool>());
        let numbers = (any::<u32>(), any::<u32>(), any::<u16>());
        (flags, options, any::<Option<(u32, u32)>>(), numbers).prop_map(
            |(flags, (mss, window_scale, permitted), timestamps, (seq, ack, window))| {
                let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
                let sack = if permitted { Sack::Permitted } else { Sack::Refused };
                let options = match flags.has(Flags::SYN) {
                    true => Options { mss, window_scale, sack, timestamps },
                    false => Options::with_timestamps(timestamps),
                };
                let (seq, ack) = (Seq(seq), Seq(ack));
                Header { source_port: 80, destination_port: 4000, seq, ack, flags, window, options }
            },
        )
    }

    proptest! {
        #[test]
        fn a_template_writes_the_same_headers_as_the_general_path(
            header in header(),
            v6: bool,
            sums: bool,
            len in prop_oneof![Just(0usize), 1..1400usize],
        ) {
            let ends: [IpAddr; 2] = match v6 {
                true => [1, 2].map(|host| Ipv6Addr::new(0xfd00, 0, 0, 0xffff, 0, 0, 0, host).into()),
                false => [1, 2].map(|host| Ipv4Addr::new(10, 255, 0, host).into()),
            };
            let flow = Flow::new(ends[0], 80, ends[1], 4000);
            let mut config = Config::new(FROM, Secret([7; 32]));
            config.tx_checksum = if sums { TxChecksum::Device } else { TxChecksum::Software };
            let (mut interface, mut counters) = (Interface::new(&config), Counters::new());
            let payload = match len {
                0 => Chain::new(),
                _ => Chain::from(IoBuf::copy_from_slice(&alloc::vec![7; len])),
            };
            let known = Known { mac: TO, valid_until: Instant::NEVER };
            let way = Way::new(&flow, known, 0, &interface);
            let made = way.headers(&header, &payload, &mut interface);
            let mut events = EventQueue::new(1);
            let mut around = Around {
                now: Instant::ZERO,
                interface: &mut interface,
                counters: &mut counters,
                events: &mut events,
            };
            let packet = packet(&flow, header, &SackBlocks::NONE, payload, &mut around).expect("room");
            let frame = around.interface.encapsulate(packet, TO).expect("room");
            let (head, checksum) = made.expect("room");
            prop_assert_eq!(&*head, &*frame.head);
            prop_assert_eq!(checksum, frame.checksum);
        }
    }
}
