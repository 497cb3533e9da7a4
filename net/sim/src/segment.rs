//! TCP segments in a form that tests can build and compare, and the frames that contain them. A wire-format crate
//! builds and parses the frames.

use crate::host_mac;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use std::net::IpAddr;

/// A TCP segment as a test builds or receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Source port.
    pub from: u16,
    /// Destination port.
    pub to: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, if the ACK flag is set.
    pub ack: Option<u32>,
    /// SYN, FIN, RST, PSH, ECE, CWR as letters in this order: `"S"`, `"FP"`, `"SEW"`, ...
    pub flags: String,
    /// The window field.
    pub window: u16,
    /// The MSS option.
    pub mss: Option<u16>,
    /// The window scale option.
    pub scale: Option<u8>,
    /// Whether it has the SACK-permitted option.
    pub sack_permitted: bool,
    /// The blocks of the SACK option: start and end of each.
    pub sack: Vec<(u32, u32)>,
    /// The timestamps option: value and echo.
    pub timestamps: Option<(u32, u32)>,
    /// The ECN field of the IP header (RFC 3168): 2 for ECN-capable, 3 for congestion experienced.
    pub ecn: u8,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Segment {
    /// Creates a segment without flags and payload, with a window of 60,000.
    pub fn new(from: u16, to: u16, seq: u32, ack: Option<u32>) -> Self {
        Self {
            from,
            to,
            seq,
            ack,
            flags: String::new(),
            window: 60_000,
            mss: None,
            scale: None,
            sack_permitted: false,
            sack: Vec::new(),
            timestamps: None,
            ecn: 0,
            payload: Vec::new(),
        }
    }

    /// Sets the flags (see [`Segment::flags`]).
    pub fn flags(mut self, flags: &str) -> Self {
        self.flags = flags.to_string();
        self
    }

    /// Sets the window field.
    pub fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    /// Sets the payload.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Sets the MSS and window scale options.
    pub fn options(mut self, mss: Option<u16>, scale: Option<u8>) -> Self {
        self.mss = mss;
        self.scale = scale;
        self
    }

    /// Adds the SACK-permitted option.
    pub fn sack_permitted(mut self) -> Self {
        self.sack_permitted = true;
        self
    }

    /// Sets the blocks of the SACK option.
    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Self {
        self.sack = blocks.to_vec();
        self
    }

    /// Sets the timestamps option.
    pub fn timestamps(mut self, value: u32, echo: u32) -> Self {
        self.timestamps = Some((value, echo));
        self
    }

    fn option_elements(&self) -> Vec<TcpOptionElement> {
        let mut options = Vec::new();
        options.extend(self.mss.map(TcpOptionElement::MaximumSegmentSize));
        options.extend(self.sack_permitted.then_some(TcpOptionElement::SelectiveAcknowledgementPermitted));
        if let Some((value, echo)) = self.timestamps {
            // The padding comes first, as in nearly all implementations (RFC 7323 A).
            if !self.flags.contains('S') {
                options.extend([TcpOptionElement::Noop, TcpOptionElement::Noop]);
            }
            options.push(TcpOptionElement::Timestamp(value, echo));
        }
        // Here too the padding comes first, as in Linux.
        options.extend(
            self.scale
                .into_iter()
                .flat_map(|scale| [TcpOptionElement::Noop, TcpOptionElement::WindowScale(scale)]),
        );
        if let Some((&first, more)) = self.sack.split_first() {
            let more = std::array::from_fn(|at| more.get(at).copied());
            options.push(TcpOptionElement::SelectiveAcknowledgement(first, more));
        }
        options
    }

    /// Returns a frame with this segment from one host to another.
    pub fn frame(&self, source: impl Into<IpAddr>, destination: impl Into<IpAddr>) -> Vec<u8> {
        let (source, destination) = (source.into(), destination.into());
        let link = PacketBuilder::ethernet2(mac_of(source), mac_of(destination));
        let network = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                link.ipv4(source.octets(), destination.octets(), 64)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                link.ipv6(source.octets(), destination.octets(), 64)
            }
            _ => panic!("two addresses of one family"),
        };
        let mut builder = network.tcp(self.from, self.to, self.seq, self.window);
        if let Some(ack) = self.ack {
            builder = builder.ack(ack);
        }
        for flag in self.flags.chars() {
            builder = match flag {
                'S' => builder.syn(),
                'F' => builder.fin(),
                'R' => builder.rst(),
                'P' => builder.psh(),
                'E' => builder.ece(),
                'W' => builder.cwr(),
                other => panic!("{other} is no flag"),
            };
        }
        let builder = builder.options(&self.option_elements()).expect("options that fit");
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &self.payload).expect("a segment that fits");
        if self.ecn > 0 {
            mark(&mut bytes, self.ecn);
        }
        bytes
    }

    /// Parses the segment in a frame; `None` if it has none.
    pub fn read(frame: &[u8]) -> Option<(IpAddr, IpAddr, Self)> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let (Some(net), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport) else {
            return None;
        };
        let (source, destination) = match net {
            NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            _ => return None,
        };
        let header = tcp.to_header();
        let letters = [
            (header.syn, 'S'),
            (header.fin, 'F'),
            (header.rst, 'R'),
            (header.psh, 'P'),
            (header.ece, 'E'),
            (header.cwr, 'W'),
        ];
        let mut segment = Self::new(
            header.source_port,
            header.destination_port,
            header.sequence_number,
            header.ack.then_some(header.acknowledgment_number),
        );
        segment.flags = letters.into_iter().filter(|(set, _)| *set).map(|(_, letter)| letter).collect();
        segment.window = header.window_size;
        segment.payload = tcp.payload().to_vec();
        segment.ecn = if frame[14] >> 4 == 6 { frame[15] >> 4 & 3 } else { frame[15] & 3 };
        for option in header.options_iterator().flatten() {
            match option {
                TcpOptionElement::MaximumSegmentSize(mss) => segment.mss = Some(mss),
                TcpOptionElement::WindowScale(scale) => segment.scale = Some(scale),
                TcpOptionElement::SelectiveAcknowledgementPermitted => segment.sack_permitted = true,
                TcpOptionElement::Timestamp(value, echo) => segment.timestamps = Some((value, echo)),
                TcpOptionElement::SelectiveAcknowledgement(first, more) => {
                    segment.sack = [Some(first)].into_iter().chain(more).flatten().collect();
                }
                _ => {}
            }
        }
        Some((source, destination, segment))
    }
}

/// Sets the ECN field of a frame's IP header.
fn mark(frame: &mut [u8], ecn: u8) {
    if frame[14] >> 4 == 6 {
        frame[15] |= ecn << 4;
        return;
    }
    frame[15] |= ecn;
    let mut header = etherparse::Ipv4Header::from_slice(&frame[14..34]).expect("an IPv4 header").0;
    header.header_checksum = header.calc_header_checksum();
    frame[14..34].copy_from_slice(&header.to_bytes());
}

/// Derives a host's hardware address from its IP address: see [`host_mac`].
fn mac_of(ip: IpAddr) -> [u8; 6] {
    let last = match ip {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    };
    host_mac(last).0
}
