//! The work on Isola's stack.

use crate::{BUFFER, MESSAGE, MTU, Outcome, PORT, Work};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_net_stack::{
    Addressing, Config, ConnId, Duration, Event, Frame, Instant, Ipv4Config, MacAddr, RxChecksum, Secret,
    Stack, TxChecksum,
};
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// Data to send, used repeatedly.
static DATA: [u8; 64 << 10] = [7; 64 << 10];

/// Buffers that the link fills like a device. Each is reused when it has no other reference.
#[derive(Default)]
struct Buffers(VecDeque<IoBuf>);

impl Buffers {
    fn fill(&mut self, frame: &Frame) -> IoBuf {
        let free = match self.0.pop_front().map(IoBuf::try_into_mut) {
            Some(Ok(free)) => Some(free),
            Some(Err(used)) => {
                // It is still referenced: it goes behind the others.
                self.0.push_back(used);
                None
            }
            None => None,
        };
        let mut buffer = free.unwrap_or_else(|| IoBufMut::with_room(0, 2048));
        buffer.reset(0);
        let fits = buffer.append_slice(&frame.head);
        let fit = frame.payload.parts().fold(fits, |all, part| all.and(buffer.append_slice(part)));
        assert!(fit.is_some(), "a frame is longer than the link's");
        let filled = buffer.freeze();
        self.0.push_back(filled.clone());
        filled
    }
}

/// Two hosts and the link between them.
struct Hosts {
    stacks: [Stack; 2],
    buffers: Buffers,
    now: Instant,
    frames: u64,
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number + 1)
}

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number + 1])
}

impl Hosts {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let stacks = [0, 1].map(|number| {
            let mut config = Config::new(mac(number), Secret([number; 32]));
            config.addressing = Addressing::Static(Ipv4Config::new(address(number), 24, None));
            config.mtu = MTU;
            config.tx_checksum = TxChecksum::Device;
            config.tcp.receive_window = BUFFER as u32;
            config.tcp.send_limit = BUFFER;
            config.tcp.time_wait = Duration::from_millis(1);
            let mut stack = Stack::new(config, now).expect("a configuration that works");
            stack.learn(now, address(1 - number), mac(1 - number));
            stack
        });
        let mut hosts = Self { stacks, buffers: Buffers::default(), now, frames: 0 };
        hosts.stacks[1].listen(PORT, 16).expect("a free port");
        hosts
    }

    /// Passes one host's frames to the other; returns whether there were any.
    fn carry(&mut self, from: usize) -> bool {
        let before = self.frames;
        while let Some(frame) = self.stacks[from].poll_transmit(self.now) {
            self.frames += 1;
            let received = self.buffers.fill(&frame);
            self.stacks[from].recycle(frame.head);
            self.stacks[1 - from].receive(self.now, received, RxChecksum::Verified);
        }
        self.frames > before
    }

    /// Advances the time by the transmission time of a frame on a fast link.
    fn pass(&mut self) {
        self.now += Duration::from_nanos(1_000);
        for stack in &mut self.stacks {
            if stack.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                stack.on_timer(self.now);
            }
        }
    }

    /// Returns the next event of a host, if there is one.
    fn event(&mut self, host: usize) -> Option<Event> {
        self.stacks[host].next_event()
    }

    /// Connects the first host to the second; returns both sides' connection ids.
    fn connect(&mut self) -> (ConnId, ConnId) {
        let client = self.stacks[0].connect(self.now, (address(1), PORT).into()).expect("a free port");
        loop {
            self.carry(0);
            self.carry(1);
            self.pass();
            while let Some(event) = self.event(1) {
                if let Event::Accepted { conn, .. } = event {
                    while self.event(0).is_some() {}
                    return (client, conn);
                }
            }
        }
    }

    /// Sends a message and waits until all of it has arrived. Returns it.
    fn bring(&mut self, from: usize, sender: ConnId, receiver: ConnId, message: Chain) -> Chain {
        let (mut message, len) = (message.clone(), message.len());
        self.stacks[from].send(sender, &mut message).expect("room for a message");
        let mut come = Chain::new();
        while come.len() < len {
            self.carry(from);
            while self.event(1 - from).is_some() {}
            while let Some(piece) = self.stacks[1 - from].read(receiver) {
                come.push_back(piece);
            }
        }
        come
    }
}

/// Does the work.
pub fn run(work: Work) -> Outcome {
    let mut hosts = Hosts::new();
    let (client, server) = hosts.connect();
    hosts.frames = 0;
    let began = std::time::Instant::now();
    let units = match work {
        Work::Bulk(mib) => bulk(&mut hosts, (client, server), mib),
        Work::Echo(count) => {
            for _ in 0..count {
                let message = Chain::from(IoBuf::from_static(&DATA[..MESSAGE]));
                let come = hosts.bring(0, client, server, message);
                hosts.bring(1, server, client, come);
                hosts.pass();
            }
            count
        }
        Work::Connect(count) => {
            for _ in 0..count {
                let (client, server) = hosts.connect();
                hosts.stacks[0].close(hosts.now, client);
                hosts.carry(0);
                while hosts.event(1).is_some() {}
                hosts.stacks[1].close(hosts.now, server);
                hosts.carry(1);
                hosts.carry(0);
                hosts.pass();
            }
            count
        }
    };
    Outcome { units, frames: hosts.frames, elapsed: began.elapsed() }
}

fn bulk(hosts: &mut Hosts, (client, server): (ConnId, ConnId), mib: u32) -> u32 {
    let (mut left, mut come) = (u64::from(mib) << 20, 0);
    let len = left;
    let mut chunk = Chain::new();
    while come < len {
        while left > 0 {
            if chunk.is_empty() {
                chunk.push_back(IoBuf::from_static(&DATA[..left.min(DATA.len() as u64) as usize]));
            }
            match hosts.stacks[0].send_some(client, &mut chunk) {
                Ok(count) if count > 0 => left -= count as u64,
                _ => break,
            }
        }
        hosts.carry(0);
        while hosts.event(1).is_some() {}
        while let Some(piece) = hosts.stacks[1].read(server) {
            come += piece.len() as u64;
        }
        hosts.carry(1);
        while hosts.event(0).is_some() {}
        hosts.pass();
    }
    mib
}
