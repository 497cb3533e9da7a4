//! The answer to segments that belong to no connection: a reset. All programs contain this code, also those that do not
//! use TCP.

use super::options::Options;
use super::segment::{CHECKSUM_OFFSET, Flags, HEADER_LEN, Header, Segment, validate};
use super::seq::Seq;
use super::stack_parts::StackParts;
use crate::base::{Counter, Flow, Instant, Owner, Permit, RateLimit, RxChecksum};
use crate::ip::{IpPacket, Packet};
use etherparse::IpNumber;
use isola_iobuf::Chain;

/// The fields of a segment that determine its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    ack: Seq,
    flags: Flags,
    /// The sequence number behind the segment.
    end: Seq,
}

impl Refused {
    /// Returns the fields of a segment.
    #[inline]
    pub fn of(segment: &Segment) -> Self {
        Self { ack: segment.ack, flags: segment.flags, end: segment.end() }
    }
}

/// The sender of resets.
pub(crate) struct Resets(RateLimit);

impl Resets {
    /// Returns a sender of at most `per_second` resets.
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self(RateLimit::new(per_second, now))
    }

    /// Answers a segment with a reset that its sender accepts (RFC 9293 3.10.7.1), within the rate limit.
    pub fn answer(&mut self, flow: &Flow, refused: Refused, stack: &mut StackParts<'_>) {
        if self.0.allow(stack.now) == Permit::No {
            stack.counters.bump(Counter::ResetRate);
            return;
        }
        stack.counters.bump(Counter::TcpResetsOut);
        let (seq, ack, flags) = match refused.flags.has(Flags::ACK) {
            true => (refused.ack, Seq(0), Flags::RST),
            false => (Seq(0), refused.end, Flags::RST | Flags::ACK),
        };
        let header = Header {
            source_port: flow.local.port(),
            destination_port: flow.remote.port(),
            seq,
            ack,
            flags,
            window: 0,
            options: Options::default(),
        };
        if let Some(packet) = packet(flow, header, stack) {
            stack.interface.send(stack.now, packet, stack.counters);
        }
    }

    /// Processes a segment while TCP is not in use, as if it belonged to no connection and no listener.
    ///
    /// # Errors
    ///
    /// The counter of the reason for which the segment must be dropped.
    pub fn refuse(
        &mut self,
        packet: IpPacket,
        checksum: RxChecksum,
        stack: &mut StackParts<'_>,
    ) -> Result<(), Counter> {
        let (remote, local, segment) = (packet.source, packet.destination, packet.into_payload());
        let (header, flags) = validate(&segment, remote, local, checksum)?;
        let control = u32::from(flags.has(Flags::SYN) || flags.has(Flags::FIN));
        let len = (segment.len() - header.slice().len()) as u32 + control;
        let refused = Refused {
            ack: Seq(header.acknowledgment_number()),
            flags,
            end: Seq(header.sequence_number()) + len,
        };
        let flow = Flow::new(local, header.destination_port(), remote, header.source_port());
        stack.interface.owner = Owner::UNKNOWN;
        stack.counters.bump(Counter::DropTcpPort);
        if !flags.has(Flags::RST) {
            self.answer(&flow, refused, stack);
        }
        Ok(())
    }
}

/// Returns the packet of a segment without data and options.
fn packet(flow: &Flow, header: Header, stack: &mut StackParts<'_>) -> Option<Packet> {
    let mut head = stack.interface.pool.take();
    header.write(head.prepend(HEADER_LEN)?.first_chunk_mut()?, 0);
    let (source, destination, payload) = (flow.local.ip(), flow.remote.ip(), Chain::new());
    let ends = (source, destination);
    let checksum_offset = stack.interface.seal(&mut head, &payload, ends, IpNumber::TCP, CHECKSUM_OFFSET);
    Some(Packet { source, destination, protocol: IpNumber::TCP, head, payload, checksum_offset })
}
