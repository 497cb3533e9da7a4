//! A conversation of two stacks whose frames are mutated on the line: lost, duplicated, delayed, truncated, and
//! rewritten field by field with valid checksums. A mutation starts from a valid frame of a valid conversation, so it
//! gets far beyond the parsers.

use crate::input::InputReader;
use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{host_config6, host_ip, host_ip6, host_mac};
use isola_net_stack::{Duration, Event, Instant, RxChecksum, Stack};
use std::collections::VecDeque;
use std::net::IpAddr;

/// The number of connections that the client opens.
const CONNECTIONS: usize = 3;
/// Bytes that each side sends on each connection.
const AMOUNT: usize = 20_000;
/// The maximum number of frames that the input can mutate.
const FRAMES: usize = 2_000;
/// Lengths of headers, in bytes.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// A server (host 1) and a client (host 2).
struct Conversation {
    stacks: [Stack; 2],
    now: Instant,
    /// Frames on the line, each with the index of its receiver.
    line: VecDeque<(usize, Vec<u8>)>,
}

/// Runs the conversation with the mutations in `data`.
pub fn conversation(data: &[u8]) {
    let mut input = InputReader::new(data);
    let mut conversation = if input.byte().is_multiple_of(2) {
        Conversation::new(host_ip(1))
    } else {
        Conversation::new(host_ip6(1))
    };
    for _ in 0..FRAMES {
        conversation.run_applications();
        let Some((to, frame)) = conversation.line.pop_front() else {
            if input.is_over() || !conversation.next_timer() {
                break;
            }
            continue;
        };
        conversation.mutate(to, frame, &mut input);
    }
    conversation.line.clear();
    // The remaining connections end without further frames, by timeouts.
    for _ in 0..80 {
        conversation.run_applications();
        conversation.line.clear();
        conversation.pass(Duration::from_secs(60));
    }
    for stack in &conversation.stacks {
        let occupancy = stack.occupancy();
        assert!(occupancy.half_open == 0 && occupancy.time_wait == 0, "{occupancy:?}");
    }
}

impl Conversation {
    /// Sets up the conversation with a server at this address.
    fn new(server_ip: impl Into<IpAddr> + Copy) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        let stacks = [1, 2].map(|number| {
            let mut config = host_config6(number);
            config.tcp.max_connections = 8;
            config.tcp.max_half_open = 2;
            config.tcp.max_time_wait = 4;
            Stack::new(config, now).expect("a configuration that works")
        });
        let mut conversation = Self { stacks, now, line: VecDeque::new() };
        // The interfaces complete duplicate address detection.
        conversation.pass(Duration::from_secs(60));
        conversation.run_applications();
        conversation.line.clear();
        for (number, stack) in (1..).zip(&mut conversation.stacks) {
            let other = 3 - number;
            stack.learn(conversation.now, host_ip(other), host_mac(other));
            stack.learn(conversation.now, host_ip6(other), host_mac(other));
        }
        let [server, client] = &mut conversation.stacks;
        server.listen(80, 4).expect("a free port");
        for _ in 0..CONNECTIONS {
            let conn = client
                .connect(conversation.now, (server_ip.into(), 80).into())
                .expect("room for a connection");
            let _ = client.send_some(conn, &mut Chain::from(IoBuf::from(vec![7; AMOUNT])));
        }
        conversation
    }

    /// Runs both applications, and puts their frames on the line.
    fn run_applications(&mut self) {
        for (number, stack) in self.stacks.iter_mut().enumerate() {
            while let Some(event) = stack.next_event() {
                match event {
                    Event::Accepted { conn, .. } => {
                        let _ = stack.send_some(conn, &mut Chain::from(IoBuf::from(vec![8; AMOUNT])));
                    }
                    Event::Readable(conn) => while stack.read(conn).is_some() {},
                    Event::Connected(conn) => stack.shutdown(conn),
                    Event::PeerClosed(conn) => stack.close(self.now, conn),
                    _ => {}
                }
            }
            while let Some(frame) = stack.poll_transmit(self.now) {
                self.line.push_back((1 - number, frame.to_vec()));
                stack.recycle(frame.head);
            }
            let occupancy = stack.occupancy();
            assert!(occupancy.connections <= 8 && occupancy.half_open <= 2 && occupancy.time_wait <= 4);
        }
        // A stack answers a frame with only a few, so the line does not fill by itself.
        assert!(self.line.len() < 1_000, "{} frames on the line", self.line.len());
    }

    /// Mutates a frame as the input says, and delivers it.
    fn mutate(&mut self, to: usize, mut frame: Vec<u8>, input: &mut InputReader<'_>) {
        let tcp = ETHERNET + if frame.get(12) == Some(&8) { IPV4 } else { IPV6 };
        match input.byte() % 16 {
            8 => return,
            9 => self.line.push_back((to, frame.clone())),
            10 if self.line.len() > 1 => {
                self.line.push_back((to, frame));
                return;
            }
            11 => set(&mut frame, ETHERNET + usize::from(input.word()) % 80, &[input.byte()]),
            12 => {
                let len = usize::from(input.word()) % (frame.len() + 1);
                frame.truncate(len);
            }
            13 => self.pass(Duration::from_millis(u64::from(input.word()))),
            14 => {
                // Sequence and acknowledgement number, flags, window, and the position of options.
                let at = [4, 4, 8, 8, 13, 14, 20, 24][usize::from(input.byte() % 8)];
                let value = [input.byte(), input.byte(), input.byte(), input.byte()];
                let count = if at == 13 {
                    1
                } else if at == 14 {
                    2
                } else {
                    4
                };
                set(&mut frame, tcp + at, &value[..count]);
            }
            15 => {
                // Small offsets: most errors are near the valid values.
                let at = tcp + if input.byte().is_multiple_of(2) { 4 } else { 8 };
                if let Some(bytes) = frame.get_mut(at..at + 4).and_then(|bytes| bytes.first_chunk_mut::<4>())
                {
                    let off = i32::from(input.word() as i16);
                    *bytes = u32::from_be_bytes(*bytes).wrapping_add_signed(off).to_be_bytes();
                }
            }
            _ => {}
        }
        fit(&mut frame);
        self.stacks[to].receive(self.now, IoBuf::from(frame), RxChecksum::Verified);
    }

    fn deadline(&mut self) -> Option<Instant> {
        self.stacks.iter_mut().filter_map(Stack::next_deadline).min()
    }

    /// Advances to the next deadline; false if there is none.
    fn next_timer(&mut self) -> bool {
        let Some(at) = self.deadline() else { return false };
        self.now = self.now.max(at);
        self.stacks.iter_mut().for_each(|stack| stack.on_timer(self.now));
        true
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.deadline().is_some_and(|at| at <= end) {
            self.next_timer();
        }
        self.now = end;
    }
}

fn set(frame: &mut [u8], at: usize, value: &[u8]) {
    if let Some(bytes) = frame.get_mut(at..at + value.len()) {
        bytes.copy_from_slice(value);
    }
}

/// Makes the length and checksum of the IP header valid, so that changes behind it reach the upper layers.
fn fit(frame: &mut [u8]) {
    let Some((_, packet)) = frame.split_at_mut_checked(ETHERNET) else { return };
    let len = packet.len() as u16;
    match packet.first() {
        Some(0x45) => {
            set(packet, 2, &len.to_be_bytes());
            set(packet, 10, &[0; 2]);
            let Some(header) = packet.get(..IPV4) else { return };
            let sum: u32 =
                header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            set(packet, 10, &(!((sum >> 16) + (sum & 0xffff)) as u16).to_be_bytes());
        }
        Some(0x60..=0x6f) => set(packet, 4, &len.saturating_sub(IPV6 as u16).to_be_bytes()),
        _ => {}
    }
}
