//! The path to a peer, as it was last looked up, with a template of the headers for it.

use super::segment::Header;
use super::template::Template;
use crate::base::{Flow, Instant, Sum, TxChecksum};
use crate::ip::{Interface, KnownNeighbour};
use isola_iobuf::{Chain, IoBufMut, PartialChecksum};

/// The path to a connection's peer, as it was last looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedPath {
    pub known: KnownNeighbour,
    /// The neighbour cache's epoch at the look-up.
    epoch: u32,
    /// The connection's progress (see [`Connection::progress`](super::connection::Connection::progress)) at the
    /// look-up.
    pub progress: u64,
    /// The template of headers for this path.
    pub template: Option<Template>,
    /// Whether frames on this path go over a link in memory.
    pub over_link: bool,
    /// The component that completes checksums on this path.
    pub tx_checksum: TxChecksum,
}

impl CachedPath {
    pub fn new(flow: &Flow, known: KnownNeighbour, progress: u64, interface: &Interface) -> Self {
        let template = Template::new(flow, interface.mac, known.mac, interface.ipv6.hop_limit);
        let over_link = interface.is_linked(known.mac);
        // Nothing on a link changes a frame.
        let tx_checksum = if over_link { TxChecksum::Device } else { interface.tx_checksum };
        Self { known, epoch: interface.neighbours.epoch, progress, template, over_link, tx_checksum }
    }

    /// Returns whether the look-up is still valid.
    #[inline(always)]
    pub fn holds(&self, now: Instant, interface: &Interface) -> bool {
        self.epoch == interface.neighbours.epoch && now < self.known.valid_until
    }

    /// Builds the headers of a segment without SACK blocks from the template. Returns them with the part of the
    /// checksum that is left to the device.
    #[inline]
    pub fn headers(
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
        match self.tx_checksum {
            TxChecksum::Device => Some((head, Some(checksum))),
            TxChecksum::Software => {
                complete(&mut head, payload.parts().map(|part| &**part), checksum);
                Some((head, None))
            }
        }
    }
}

/// Completes a checksum as a device would; the field contains the sum of the pseudo-header.
pub(crate) fn complete<'a>(
    head: &mut IoBufMut,
    payload: impl Iterator<Item = &'a [u8]>,
    checksum: PartialChecksum,
) {
    let PartialChecksum { start, offset } = checksum;
    let Some(segment) = head.data_mut().get_mut(usize::from(start)..) else { return };
    let mut sum = Sum::default();
    sum.add(segment);
    payload.for_each(|part| sum.add(part));
    if let Some(field) = segment.get_mut(usize::from(offset)..).and_then(|field| field.first_chunk_mut()) {
        *field = sum.checksum().to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Counters, EventQueue, Limits, MacAddr, TxSegments};
    use crate::ip::InterfaceConfig;
    use crate::tcp::options::{Options, Sack, Timestamps};
    use crate::tcp::sack::SackBlocks;
    use crate::tcp::segment::Flags;
    use crate::tcp::seq::Seq;
    use crate::tcp::stack_parts::StackParts;
    use crate::tcp::tables::packet;
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
            let config = InterfaceConfig {
                mac: FROM,
                mtu: 1500,
                headroom: 0,
                tx_checksum: if sums { TxChecksum::Device } else { TxChecksum::Software },
                tx_segments: TxSegments::default(),
                limits: Limits::default(),
                announces: true,
            };
            let (mut interface, mut counters) = (Interface::new(&config), Counters::new());
            let payload = match len {
                0 => Chain::new(),
                _ => Chain::from(IoBuf::copy_from_slice(&alloc::vec![7; len])),
            };
            let known = KnownNeighbour { mac: TO, valid_until: Instant::NEVER };
            let way = CachedPath::new(&flow, known, 0, &interface);
            let made = way.headers(&header, &payload, &mut interface);
            let mut events = EventQueue::new(1);
            let mut stack = StackParts {
                now: Instant::ZERO,
                interface: &mut interface,
                counters: &mut counters,
                events: &mut events,
            };
            let packet = packet(&flow, header, &SackBlocks::NONE, payload, &mut stack).expect("room");
            let frame = stack.interface.encapsulate(packet, TO).expect("room");
            let (head, checksum) = made.expect("room");
            prop_assert_eq!(&*head, &*frame.head);
            prop_assert_eq!(checksum, frame.checksum);
        }
    }
}
