//! What the fuzz targets run, and the property tests with them (`tests/properties.rs`): bytes from outside
//! become a story, and the stack has to survive it within its bounds.

use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, Segment, Talk, host_config, host_ip, host_mac};
use isola_net_stack::{Addressing, Duration, Event, Instant, RxChecksum, Stack, core_of_frame, flow_hash};

/// Reads the story's bytes; zeros after their end.
struct Story<'a>(&'a [u8]);

impl<'a> Story<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// A stack with small tables, a listener, a socket, and a connection that has sent and received.
fn busy() -> (Peer, Talk) {
    let mut config = host_config(1);
    config.tcp.max_half_open = 8;
    config.tcp.max_time_wait = 8;
    config.tcp.max_connections = 8;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 4).expect("a free port");
    peer.stack.udp_bind(53).expect("a free port");
    let mut talk = peer.connect(4000, Some(1000), Some(2));
    peer.write(talk.conn, &[7; 5000]);
    peer.segments();
    peer.say(&mut talk, b"hello");
    (peer, talk)
}

/// What an application does with every event, and the bounds that always hold.
fn live(peer: &mut Peer) {
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

/// Frames of any bytes; the first byte of each says whether its Ethernet header is made to fit and whether
/// its checksum counts as verified.
pub fn frames(data: &[u8]) {
    let mut story = Story(data);
    let (mut peer, _) = busy();
    while !story.is_over() {
        let (kind, len) = (story.byte(), story.byte());
        let mut frame = Vec::new();
        if kind & 1 == 0 {
            frame.extend_from_slice(&host_mac(1).0);
            frame.extend_from_slice(&host_mac(2).0);
            frame.extend_from_slice(if kind & 2 == 0 { &[8, 0] } else { &[8, 6] });
        }
        frame.extend_from_slice(story.bytes(usize::from(len)));
        let _ = (flow_hash(&frame), core_of_frame(&frame, 3));
        let checksum = if kind & 4 == 0 { RxChecksum::Verified } else { RxChecksum::Unverified };
        peer.stack.receive(peer.now, IoBuf::from(frame), checksum);
        live(&mut peer);
    }
}

/// Segments of any kind near what the connection expects, mixed with an application's calls and with time.
pub fn segments(data: &[u8]) {
    let mut story = Story(data);
    let (mut peer, mut talk) = busy();
    let mut read = 0u64;
    while !story.is_over() {
        match story.byte() % 16 {
            0 => peer.pass(Duration::from_millis(u64::from(story.word()))),
            1 => {
                let data = vec![1; usize::from(story.byte()) * 8];
                let _ = peer.stack.send(talk.conn, &mut Chain::from(IoBuf::from(data)));
            }
            2 => read += peer.read(talk.conn).len() as u64,
            3 => peer.stack.set_window(talk.conn, u32::from(story.word()) * 16),
            4 => peer.stack.set_send_limit(talk.conn, usize::from(story.word())),
            5 => peer.stack.shutdown(talk.conn),
            6 => talk.seq = talk.seq.wrapping_add(u32::from(story.byte())),
            7 => talk.ack = talk.ack.wrapping_add(u32::from(story.word())),
            _ => peer.send(segment(&mut story, &talk)),
        }
        peer.frames();
        if let Some(stats) = peer.stack.connection_stats(talk.conn) {
            // Nothing is delivered twice, and no more is held than was offered.
            assert!(read + stats.unread as u64 <= stats.bytes_received + 5);
            assert!(stats.unread <= 4 << 20);
        }
    }
    for _ in 0..80 {
        live(&mut peer);
        peer.pass(Duration::from_secs(60));
    }
    let occupancy = peer.stack.occupancy();
    assert!(occupancy.half_open == 0 && occupancy.time_wait == 0, "only what has an owner stays");
}

fn segment(story: &mut Story<'_>, talk: &Talk) -> Segment {
    let shape = story.byte();
    let flags = ["", "P", "F", "S", "R", "FP", "", ""][usize::from(shape & 7)];
    let far = |near: u8, wide: u16| match near & 3 {
        0 => 0u32,
        1 => (near >> 2).into(),
        2 => u32::from(near >> 2).wrapping_neg(),
        _ => u32::from(wide) << 4,
    };
    let (seq_near, ack_near, wide) = (story.byte(), story.byte(), story.word());
    let mut segment = talk.segment().flags(flags).window(story.word());
    segment.seq = segment.seq.wrapping_add(far(seq_near, wide));
    segment.ack = segment.ack.map(|ack| ack.wrapping_add(far(ack_near, wide)));
    if shape & 8 != 0 {
        segment.ack = None;
    }
    if shape & 16 != 0 {
        segment.from += 1;
    }
    segment.payload(&vec![2; usize::from(story.byte()) * usize::from(1 + (shape >> 6))])
}

/// Messages from a server to a stack that asks for an address: any options behind a good beginning.
pub fn dhcp(data: &[u8]) {
    let mut config = host_config(1);
    config.addressing = Addressing::Dhcp;
    let mut now = Instant::ZERO;
    let mut stack = Stack::new(config, now).expect("a configuration that works");
    let mut story = Story(data);
    let mut transaction = [0; 4];
    for _ in 0..64 {
        while let Some(frame) = stack.poll_transmit(now) {
            let bytes = frame.to_vec();
            if let Some(&[a, b, c, d]) = bytes.get(46..50) {
                transaction = [a, b, c, d];
            }
        }
        while stack.next_event().is_some() {}
        let (kind, len) = (story.byte(), story.byte());
        let mut message = vec![0; 236];
        message[..3].copy_from_slice(&[2, 1, 6]);
        message[4..8].copy_from_slice(&transaction);
        message[16..20].copy_from_slice(&[10, 0, 0, story.byte()]);
        message[28..34].copy_from_slice(&host_mac(1).0);
        message.extend_from_slice(&[99, 130, 83, 99, 53, 1, kind % 8, 54, 4, 10, 0, 0, 2]);
        if kind & 0x40 == 0 {
            message.extend_from_slice(&[1, 4, 255, 255, 255, 0, 51, 4, 0, 0, 1, 0]);
        }
        message.extend_from_slice(story.bytes(usize::from(len)));
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
        if story.is_over() {
            return;
        }
        now = stack.next_deadline().unwrap_or(now).max(now) + Duration::from_millis(1);
        stack.on_timer(now);
    }
}
