//! The network stack. The property tests (`tests/properties.rs` of that crate) run the same targets: bytes from outside
//! become a sequence of steps, within which the stack must keep its bounds.

use crate::input::InputReader;
use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, PeerConnection, Segment, host_config, host_config6, host_ip, host_ip6, host_mac};
use isola_net_stack::{
    Addressing, Duration, Event, Instant, Ipv6Addressing, RxChecksum, Stack, datagram_port,
    fast_path_flow_of, flow_of,
};

/// Parses a frame as the flow steering does: the fast lookup must agree with the full one.
fn flows(frame: &[u8]) {
    let _ = datagram_port(frame);
    if let Some(flow) = fast_path_flow_of(frame) {
        assert_eq!(flow_of(frame), Some(flow));
    }
}

/// Returns a stack with small tables, a listener, a socket, and a connection that has sent and received.
fn busy() -> (Peer, PeerConnection) {
    let mut config = host_config(1);
    config.tcp.max_half_open = 8;
    config.tcp.max_time_wait = 8;
    config.tcp.max_connections = 8;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 4).expect("a free port");
    peer.stack.udp_bind(53).expect("a free port");
    let mut connection = peer.connect(4000, Some(1000), Some(2));
    peer.write(connection.conn, &[7; 5000]);
    peer.segments();
    peer.send_data(&mut connection, b"hello");
    (peer, connection)
}

/// Handles every event as an application does, and checks the bounds that always hold.
fn drain_events(peer: &mut Peer) {
    for event in peer.events() {
        match event {
            Event::Readable(conn) => drop(peer.read(conn)),
            Event::Datagram(socket) => while peer.stack.udp_receive(socket).is_some() {},
            Event::PeerClosed(conn) => peer.stack.close(peer.now, conn),
            _ => {}
        }
    }
    peer.frames();
    let occupancy = peer.stack.occupancy();
    assert!(occupancy.connections <= 8 && occupancy.half_open <= 8 && occupancy.time_wait <= 8);
}

/// Frames of any bytes. The first byte of each determines whether its Ethernet header is valid and whether its checksum
/// counts as verified.
pub fn frames(data: &[u8]) {
    let mut input = InputReader::new(data);
    let (mut peer, _) = busy();
    while !input.is_over() {
        let (kind, len) = (input.byte(), input.byte());
        let mut frame = Vec::new();
        if kind & 1 == 0 {
            frame.extend_from_slice(&host_mac(1).0);
            frame.extend_from_slice(&host_mac(2).0);
            frame.extend_from_slice([&[8, 0], &[8, 6], &[8, 0], &[0x86, 0xdd]][usize::from(kind >> 1 & 3)]);
        }
        frame.extend_from_slice(input.bytes(usize::from(len)));
        flows(&frame);
        let checksum = if kind & 8 == 0 { RxChecksum::Verified } else { RxChecksum::Unverified };
        peer.stack.receive(peer.now, IoBuf::from(frame), checksum);
        drain_events(&mut peer);
    }
}

/// IPv6 packets with valid headers to a stack that configures itself: neighbours, routers, errors, extension headers,
/// fragments; also IPv4 fragments. Time passes in between.
pub fn packets(data: &[u8]) {
    let mut input = InputReader::new(data);
    let mut config = host_config6(1);
    if input.byte() & 1 == 0 {
        config.ipv6 = Ipv6Addressing::Auto;
    }
    let mut peer = Peer::new(config);
    peer.stack.udp_bind(53).expect("a free port");
    peer.stack.listen(80, 4).expect("a free port");
    peer.pass(Duration::from_secs(u64::from(input.byte() & 3)));
    while !input.is_over() {
        let (kind, len) = (input.byte(), input.byte());
        if kind == 0 {
            peer.pass(Duration::from_secs(u64::from(input.word())));
        }
        let own = peer.stack.ipv6().addresses[usize::from(kind >> 6 & 1)].map_or(host_ip6(1), |own| own.ip);
        let group = (0xff02_0000_0000_0000_0000_0001_ff00_0000 | (own.to_bits() & 0xff_ffff)).to_be_bytes();
        let all = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let destination = [own.octets(), all, group, own.octets()][usize::from(kind >> 3 & 3)];
        let router = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        let source = [router, host_ip6(2).octets(), [0; 16], router][usize::from(kind >> 1 & 3)];
        let next = [58, 44, 58, 60, 0, 43, 17, 6][usize::from(kind & 7)];
        let mut payload = input.bytes(usize::from(len)).to_vec();
        let mut frame = [host_mac(1).0, host_mac(2).0].concat();
        if kind & 0x80 != 0 && next == 44 {
            let (a, b) = (host_ip(2).octets(), host_ip(1).octets());
            let mut header =
                etherparse::Ipv4Header::new(payload.len() as u16, 64, 17.into(), a, b).expect("short");
            (header.identification, header.dont_fragment) = (input.byte().into(), false);
            header.more_fragments = len & 1 == 0;
            header.fragment_offset = u16::from(input.byte() >> 2).try_into().expect("in range");
            header.header_checksum = header.calc_header_checksum();
            frame.extend_from_slice(&[8, 0]);
            frame.extend_from_slice(&header.to_bytes());
        } else {
            if source == router || kind & 0x10 != 0 {
                frame[..6].copy_from_slice(&host_mac(1).0);
            }
            if destination[0] == 0xff {
                frame[..2].copy_from_slice(&[0x33, 0x33]);
            }
            if next == 58 && payload.len() >= 4 {
                let kinds = [134, 135, 136, 130, 128, 1, 2, 137];
                payload[0] = if kind & 0x20 == 0 { kinds[usize::from(payload[0] & 7)] } else { payload[0] };
                payload[1] &= 1;
                seal(&source, &destination, &mut payload);
            }
            let hops = if payload.first() == Some(&130) { 1 } else { 255 };
            if next == 44 && kind & 0x20 != 0 && payload.len() > 16 {
                // The end of a packet that is itself a fragment, as if the packet had arrived in two.
                let whole = payload.split_off(8);
                payload.copy_from_slice(&[44, 0, 0, 1, 0, 0, 0, len]);
                let before = [&payload[..], &whole[..8]].concat();
                let mut begin = frame.clone();
                begin.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, before.len() as u8, next, hops]);
                begin.extend_from_slice(&[&source[..], &destination, &before].concat());
                peer.stack.receive(peer.now, IoBuf::from(begin), RxChecksum::Verified);
                payload[3] = 8;
                payload.extend_from_slice(&whole[8..]);
            }
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, payload.len() as u8, next, hops]);
            frame.extend_from_slice(&source);
            frame.extend_from_slice(&destination);
        }
        frame.extend_from_slice(&payload);
        flows(&frame);
        peer.stack.receive(peer.now, IoBuf::from(frame), RxChecksum::Verified);
        for event in peer.events() {
            if let Event::Datagram(socket) = event {
                while peer.stack.udp_receive(socket).is_some() {}
            }
        }
        peer.frames();
        let settings = peer.stack.ipv6();
        assert!(settings.mtu.is_none_or(|mtu| mtu >= 1280) && settings.hop_limit > 0);
        assert!(settings.addresses.iter().flatten().all(|own| !own.ip.is_multicast()));
    }
}

/// Fills in an ICMPv6 message's checksum.
fn seal(source: &[u8; 16], destination: &[u8; 16], message: &mut [u8]) {
    message[2..4].fill(0);
    let mut sum = 58 + message.len() as u32;
    for pair in [&source[..], &destination[..], message].concat().chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Segments of any kind near those that the connection expects, mixed with an application's calls and with time.
pub fn segments(data: &[u8]) {
    let mut input = InputReader::new(data);
    let (mut peer, mut connection) = busy();
    let mut read = 0u64;
    while !input.is_over() {
        match input.byte() % 16 {
            0 => peer.pass(Duration::from_millis(u64::from(input.word()))),
            1 => {
                let data = vec![1; usize::from(input.byte()) * 8];
                let _ = peer.stack.send(connection.conn, &mut Chain::from(IoBuf::from(data)));
            }
            2 => read += peer.read(connection.conn).len() as u64,
            3 => peer.stack.set_window(connection.conn, u32::from(input.word()) * 16),
            4 => peer.stack.set_send_limit(connection.conn, usize::from(input.word())),
            5 => peer.stack.shutdown(connection.conn),
            6 => connection.seq = connection.seq.wrapping_add(u32::from(input.byte())),
            7 => connection.ack = connection.ack.wrapping_add(u32::from(input.word())),
            _ => peer.send(segment(&mut input, &connection)),
        }
        peer.frames();
        if let Some(stats) = peer.stack.connection_stats(connection.conn) {
            // No byte is delivered twice, and no more is buffered than was offered.
            assert!(read + stats.unread as u64 <= stats.bytes_received + 5);
            assert!(stats.unread <= 4 << 20);
        }
    }
    for _ in 0..80 {
        drain_events(&mut peer);
        peer.pass(Duration::from_secs(60));
    }
    let occupancy = peer.stack.occupancy();
    assert!(occupancy.half_open == 0 && occupancy.time_wait == 0, "only what has an owner stays");
}

fn segment(input: &mut InputReader<'_>, connection: &PeerConnection) -> Segment {
    let shape = input.byte();
    let flags = ["", "P", "F", "S", "R", "FP", "", ""][usize::from(shape & 7)];
    let far = |near: u8, wide: u16| match near & 3 {
        0 => 0u32,
        1 => (near >> 2).into(),
        2 => u32::from(near >> 2).wrapping_neg(),
        _ => u32::from(wide) << 4,
    };
    let (seq_near, ack_near, wide) = (input.byte(), input.byte(), input.word());
    let mut segment = connection.segment().flags(flags).window(input.word());
    segment.seq = segment.seq.wrapping_add(far(seq_near, wide));
    segment.ack = segment.ack.map(|ack| ack.wrapping_add(far(ack_near, wide)));
    if shape & 8 != 0 {
        segment.ack = None;
    }
    if shape & 16 != 0 {
        segment.from += 1;
    }
    segment.payload(&vec![2; usize::from(input.byte()) * usize::from(1 + (shape >> 6))])
}

/// Messages from a DHCP server to a stack that requests an address: any options behind a valid header.
pub fn dhcp(data: &[u8]) {
    let mut config = host_config(1);
    config.addressing = Addressing::Dhcp;
    let mut now = Instant::ZERO;
    let mut stack = Stack::new(config, now).expect("a configuration that works");
    let mut input = InputReader::new(data);
    let mut transaction = [0; 4];
    for _ in 0..64 {
        while let Some(frame) = stack.poll_transmit(now) {
            let bytes = frame.to_vec();
            if let Some(&[a, b, c, d]) = bytes.get(46..50) {
                transaction = [a, b, c, d];
            }
        }
        while stack.next_event().is_some() {}
        let (kind, len) = (input.byte(), input.byte());
        let mut message = vec![0; 236];
        message[..3].copy_from_slice(&[2, 1, 6]);
        message[4..8].copy_from_slice(&transaction);
        message[16..20].copy_from_slice(&[10, 0, 0, input.byte()]);
        message[28..34].copy_from_slice(&host_mac(1).0);
        message.extend_from_slice(&[99, 130, 83, 99, 53, 1, kind % 8, 54, 4, 10, 0, 0, 2]);
        if kind & 0x40 == 0 {
            message.extend_from_slice(&[1, 4, 255, 255, 255, 0, 51, 4, 0, 0, 1, 0]);
        }
        message.extend_from_slice(input.bytes(usize::from(len)));
        let mut frame = Vec::new();
        etherparse::PacketBuilder::ethernet2(host_mac(2).0, [0xff; 6])
            .ipv4(host_ip(2).octets(), [255; 4], 64)
            .udp(67, 68)
            .write(&mut frame, &message)
            .expect("a message that fits");
        stack.receive(now, IoBuf::from(frame), RxChecksum::Unverified);
        if let Some(ipv4) = stack.ipv4() {
            assert!(ipv4.is_valid());
        }
        if input.is_over() {
            return;
        }
        now = stack.next_deadline().unwrap_or(now).max(now) + Duration::from_millis(1);
        stack.on_timer(now);
    }
}

/// Messages from a DHCPv6 server to a stack whose router announces managed addresses: any options behind a valid
/// header.
pub fn dhcp6(data: &[u8]) {
    let mut input = InputReader::new(data);
    let mut config = host_config(1);
    config.ipv6 = Ipv6Addressing::Auto;
    let mut peer = Peer::new(config);
    peer.pass(Duration::from_secs(2));
    peer.frames();
    let own = peer.stack.ipv6().addresses[0].expect("a link-local address").ip.octets();
    let router = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let flags = if input.byte() & 1 == 0 { 0x80 } else { 0x40 };
    let mut advert = vec![134, 0, 0, 0, 64, flags, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    seal(&router, &own, &mut advert);
    let frame = |next: u8, hops: u8, payload: &[u8]| {
        let mut frame = [host_mac(1).0, host_mac(2).0].concat();
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[next, hops]);
        [&frame[..], &router, &own, payload].concat()
    };
    peer.send_frame(frame(58, 255, &advert));
    let mut transaction = [0; 3];
    for _ in 0..64 {
        for sent in peer.frames() {
            if sent.get(54..58) == Some(&[2, 34, 2, 35]) {
                transaction.copy_from_slice(&sent[63..66]);
            }
        }
        let (kind, len) = (input.byte(), input.byte());
        let mut message = vec![if kind & 1 == 0 { 2 } else { 7 }];
        message.extend_from_slice(&transaction);
        message.extend_from_slice(&[&[0, 1, 0, 10, 0, 3, 0, 1][..], &host_mac(1).0].concat());
        message.extend_from_slice(&[0, 2, 0, 3, 9, 9, kind >> 6]);
        if kind & 2 == 0 {
            message.extend_from_slice(&[0, 7, 0, 1, 255, 0, 3, 0, 40, 0, 0, 0, 1, 0, 0, 0, input.byte()]);
            message.extend_from_slice(&[0, 0, 0, input.byte(), 0, 5, 0, 24, 0x20, 1, 0xd, 0xb8]);
            message.extend_from_slice(&[&[0; 11][..], &[input.byte(), 0, 0, 0, 60, 0, 0, 0, 120]].concat());
        }
        message.extend_from_slice(input.bytes(usize::from(len)));
        let mut datagram = vec![2, 35, 2, 34];
        datagram.extend_from_slice(&(message.len() as u16 + 8).to_be_bytes());
        datagram.extend_from_slice(&[0, 0]);
        datagram.extend_from_slice(&message);
        peer.stack.receive(peer.now, IoBuf::from(frame(17, 64, &datagram)), RxChecksum::Verified);
        peer.pass(Duration::from_secs(u64::from(kind >> 2 & 15)));
        let usable = peer.stack.ipv6().addresses;
        assert!(usable.iter().flatten().all(|own| !own.ip.is_multicast() && !own.ip.is_unspecified()));
        if input.is_over() {
            return;
        }
    }
}
