//! One stack against a test that sends and checks single segments.

use crate::{Segment, check, device, host_config, host_ip, host_ip6, host_mac};
use isola_iobuf::{Chain, IoBuf};
use isola_net_stack::{Config, ConnId, Duration, Event, Instant, Stack, TxChecksum};

/// One connection between a test and a stack, from the test's side.
#[derive(Clone, Copy, Debug)]
pub struct PeerConnection {
    /// The stack's id of the connection.
    pub conn: ConnId,
    /// The test's port.
    pub from: u16,
    /// The stack's port.
    pub to: u16,
    /// The test's next sequence number.
    pub seq: u32,
    /// The stack's next sequence number, as far as the test has acknowledged.
    pub ack: u32,
    /// The timestamps in the test's segments: its own clock, and the stack's last value.
    pub timestamps: Option<(u32, u32)>,
}

impl PeerConnection {
    /// Returns a segment from the test at this point of the connection.
    pub fn segment(&self) -> Segment {
        let segment = Segment::new(self.from, self.to, self.seq, Some(self.ack));
        Segment { timestamps: self.timestamps, ..segment }
    }
}

/// A stack (host 1) whose network is the test itself (host 2).
pub struct Peer {
    /// The stack under test.
    pub stack: Stack,
    /// The current time.
    pub now: Instant,
    mtu: usize,
    tx_checksum: TxChecksum,
}

impl Peer {
    /// Creates a stack that already knows host 2's hardware address.
    pub fn new(config: Config) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        let (mtu, tx_checksum) = (config.mtu, config.tx_checksum);
        let mut stack = Stack::new(config, now).expect("a configuration that works");
        stack.learn(now, host_ip(2), host_mac(2));
        let mut peer = Self { stack, now, mtu, tx_checksum };
        // The gratuitous ARP announcement.
        peer.frames();
        peer.events();
        peer
    }

    /// Creates a stack with the default configuration.
    pub fn fast() -> Self {
        Self::new(host_config(1))
    }

    /// Creates a stack with the default configuration that listens on port 80.
    pub fn listening() -> Self {
        let mut peer = Self::fast();
        peer.stack.listen(80, 16).expect("a free port");
        peer
    }

    /// Connects to the stack's port 80 from `from`, with these options in the SYN.
    pub fn connect(&mut self, from: u16, mss: Option<u16>, scale: Option<u8>) -> PeerConnection {
        self.connect_with(Segment::new(from, 80, 1_000_000, None).flags("S").options(mss, scale))
    }

    /// Connects to the stack's port 80 with this SYN.
    pub fn connect_with(&mut self, syn: Segment) -> PeerConnection {
        let (from, seq) = (syn.from, syn.seq.wrapping_add(1));
        let clock = syn.timestamps.map(|(value, _)| value);
        self.send(syn);
        let answer = self.segment();
        assert_eq!((answer.flags.get(..1), answer.ack), (Some("S"), Some(seq)));
        let ack = answer.seq.wrapping_add(1);
        let timestamps = clock.zip(answer.timestamps).map(|(value, (theirs, _))| (value, theirs));
        self.send(Segment { timestamps, ..Segment::new(from, 80, seq, Some(ack)) });
        let events = self.events();
        let [Event::Accepted { conn, .. }] = events[..] else { panic!("one new connection: {events:?}") };
        self.silent();
        PeerConnection { conn, from, to: 80, seq, ack, timestamps }
    }

    /// Sends data on a connection.
    pub fn send_data(&mut self, connection: &mut PeerConnection, data: &[u8]) {
        self.send(connection.segment().payload(data));
        connection.seq = connection.seq.wrapping_add(data.len() as u32);
    }

    /// Reads everything that the application can read now.
    pub fn read(&mut self, conn: ConnId) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.stack.read(conn) {
            bytes.extend_from_slice(&piece);
        }
        bytes
    }

    /// Queues a copy of `data` for transmission.
    pub fn write(&mut self, conn: ConnId, data: &[u8]) {
        self.stack.send(conn, &mut Chain::from(IoBuf::copy_from_slice(data))).expect("room for the data");
    }

    /// Sends a frame to the stack.
    pub fn send_frame(&mut self, frame: Vec<u8>) {
        let checksum = device::received(&frame, self.tx_checksum);
        self.stack.receive(self.now, IoBuf::from(frame), checksum);
    }

    /// Sends a segment from host 2 to the stack.
    pub fn send(&mut self, segment: Segment) {
        self.send_frame(segment.frame(host_ip(2), host_ip(1)));
    }

    /// Returns all frames that the stack sends now.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.stack.poll_transmit(self.now) {
            for bytes in device::sent(&frame) {
                check::frame(&bytes, self.mtu);
                frames.push(bytes);
            }
            self.stack.recycle(frame.head);
        }
        frames
    }

    /// Returns all frames that the stack sends now, except ARP requests and neighbour solicitations for host 2, which
    /// are answered.
    pub fn data_frames(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let frames = self.frames();
            if frames.is_empty() {
                return all;
            }
            for frame in frames {
                let asks = frame.get(12..14) == Some(&[8, 6])
                    && frame.get(20..22) == Some(&[0, 1])
                    && frame.get(38..42) == Some(&host_ip(2).octets());
                let solicits = frame.get(12..14) == Some(&[0x86, 0xdd])
                    && (frame.get(20), frame.get(54)) == (Some(&58), Some(&135))
                    && frame.get(62..78) == Some(&host_ip6(2).octets());
                if asks {
                    self.stack.learn(self.now, host_ip(2), host_mac(2));
                } else if solicits {
                    self.stack.learn(self.now, host_ip6(2), host_mac(2));
                } else {
                    all.push(frame);
                }
            }
        }
    }

    /// Returns all TCP segments that the stack sends now.
    pub fn segments(&mut self) -> Vec<Segment> {
        self.data_frames()
            .iter()
            .filter_map(|frame| Segment::read(frame))
            .map(|(_, _, segment)| segment)
            .collect()
    }

    /// Returns the only segment that the stack sends now.
    ///
    /// # Panics
    /// If it sends none or several.
    pub fn segment(&mut self) -> Segment {
        let segments = self.segments();
        assert_eq!(segments.len(), 1, "one segment expected: {segments:#?}");
        segments.into_iter().next().expect("one segment")
    }

    /// Asserts that the stack sends nothing now.
    pub fn silent(&mut self) {
        let frames = self.data_frames();
        let segments: Vec<_> = frames.iter().map(|frame| Segment::read(frame)).collect();
        assert!(frames.is_empty(), "nothing expected: {segments:#?}");
    }

    /// Returns all events that the stack has now.
    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.stack.next_event()).collect()
    }

    /// Advances the time by `span`, and runs each timer at its deadline.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.stack.next_deadline().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.stack.on_timer(self.now);
            let next = self.stack.next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "a timer that stays due");
        }
        self.now = end;
    }

    /// Advances to the next deadline and runs its timer. Returns the time in between.
    pub fn next_timer(&mut self) -> Duration {
        let at = self.stack.next_deadline().expect("a timer that runs");
        let span = at.since(self.now);
        self.now = self.now.max(at);
        self.stack.on_timer(self.now);
        span
    }
}
