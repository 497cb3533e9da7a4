//! The work on smoltcp.

use crate::{BUFFER, MESSAGE, MTU, Outcome, PORT, Work};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use std::collections::VecDeque;

/// Data to send, used repeatedly.
static DATA: [u8; 64 << 10] = [7; 64 << 10];

/// Length of a buffer of the link, in bytes.
const FRAME: usize = MTU + 14;

/// One end of the link: received frames, frames to send, and free buffers.
#[derive(Default)]
struct End {
    come: VecDeque<Vec<u8>>,
    go: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
}

struct Received<'a> {
    frame: Vec<u8>,
    free: &'a mut Vec<Vec<u8>>,
}

struct ToSend<'a> {
    go: &'a mut VecDeque<Vec<u8>>,
    buffer: Option<Vec<u8>>,
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, work: F) -> R {
        let result = work(&self.frame);
        self.free.push(self.frame);
        result
    }
}

impl TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, work: F) -> R {
        let mut frame = self.buffer.unwrap_or_else(|| Vec::with_capacity(FRAME));
        frame.resize(len, 0);
        let result = work(&mut frame);
        self.go.push_back(frame);
        result
    }
}

impl Device for End {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = ToSend<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received<'_>, ToSend<'_>)> {
        let frame = self.come.pop_front()?;
        let buffer = self.free.pop();
        Some((Received { frame, free: &mut self.free }, ToSend { go: &mut self.go, buffer }))
    }

    fn transmit(&mut self, _now: Instant) -> Option<ToSend<'_>> {
        let buffer = self.free.pop();
        Some(ToSend { go: &mut self.go, buffer })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        let mut checksum = ChecksumCapabilities::ignored();
        // The device of the other stack leaves this one to software as well.
        checksum.ipv4 = Checksum::Both;
        capabilities.checksum = checksum;
        capabilities
    }
}

struct Host {
    interface: Interface,
    end: End,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl Host {
    fn new(number: u8, now: Instant) -> Self {
        let mut end = End::default();
        let mut config = Config::new(EthernetAddress([2, 0, 0, 0, 0, number + 1]).into());
        config.random_seed = u64::from(number) + 1;
        let mut interface = Interface::new(config, &mut end, now);
        interface.update_ip_addrs(|addresses| {
            // There is always room for the first address.
            let _ = addresses.push(IpCidr::new(address(number), 24));
        });
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Self { interface, end, sockets, socket }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn poll(&mut self, now: Instant) {
        self.interface.poll(now, &mut self.end, &mut self.sockets);
    }
}

fn address(number: u8) -> IpAddress {
    IpAddress::v4(10, 0, 0, number + 1)
}

struct Hosts {
    hosts: [Host; 2],
    now: Instant,
    frames: u64,
    local_port: u16,
}

impl Hosts {
    fn new() -> Self {
        let now = Instant::from_secs(1);
        Self { hosts: [0, 1].map(|number| Host::new(number, now)), now, frames: 0, local_port: 1024 }
    }

    /// Polls a host, and passes its frames to the other.
    fn carry(&mut self, from: usize) {
        self.hosts[from].poll(self.now);
        while let Some(frame) = self.hosts[from].end.go.pop_front() {
            self.frames += 1;
            self.hosts[1 - from].end.come.push_back(frame);
            // Buffers circulate between the hosts.
            if let Some(free) = self.hosts[1 - from].end.free.pop() {
                self.hosts[from].end.free.push(free);
            }
        }
    }

    fn pass(&mut self) {
        self.now += Duration::from_micros(1);
    }

    fn connect(&mut self) {
        self.local_port = self.local_port.checked_add(1).unwrap_or(1024);
        self.hosts[1].socket().listen(PORT).expect("a socket that is closed");
        let Host { interface, sockets, socket, .. } = &mut self.hosts[0];
        let client = sockets.get_mut::<Socket<'_>>(*socket);
        client
            .connect(interface.context(), (address(1), PORT), self.local_port)
            .expect("a socket that is closed");
        while self.hosts[1].socket().state() != State::Established {
            self.carry(0);
            self.carry(1);
            self.pass();
        }
    }

    /// Sends a message and waits until all of it has arrived.
    fn bring(&mut self, from: usize, message: &mut [u8; MESSAGE]) {
        self.hosts[from].socket().send_slice(message).expect("an open connection");
        let mut come = 0;
        while come < MESSAGE {
            self.carry(from);
            let other = &mut self.hosts[1 - from];
            other.poll(self.now);
            come += other.socket().recv_slice(&mut message[come..]).expect("an open connection");
        }
    }
}

/// Does the work.
pub fn run(work: Work) -> Outcome {
    let mut hosts = Hosts::new();
    hosts.connect();
    hosts.frames = 0;
    let began = std::time::Instant::now();
    let units = match work {
        Work::Bulk(mib) => bulk(&mut hosts, mib),
        Work::Echo(count) => {
            let mut message = [7; MESSAGE];
            for _ in 0..count {
                hosts.bring(0, &mut message);
                hosts.bring(1, &mut message);
                hosts.pass();
            }
            count
        }
        Work::Connect(count) => {
            for _ in 0..count {
                close(&mut hosts);
                hosts.connect();
            }
            count
        }
    };
    Outcome { units, frames: hosts.frames, elapsed: began.elapsed() }
}

/// Closes the connection from both sides, without the client's TIME-WAIT.
fn close(hosts: &mut Hosts) {
    hosts.hosts[0].socket().close();
    hosts.carry(0);
    hosts.carry(1);
    hosts.hosts[1].socket().close();
    while hosts.hosts[1].socket().state() != State::Closed {
        hosts.carry(1);
        hosts.carry(0);
        hosts.pass();
    }
    hosts.hosts[0].socket().abort();
}

fn bulk(hosts: &mut Hosts, mib: u32) -> u32 {
    let (mut left, mut come) = (u64::from(mib) << 20, 0);
    let len = left;
    while come < len {
        while left > 0 {
            let chunk = &DATA[..left.min(DATA.len() as u64) as usize];
            match hosts.hosts[0].socket().send_slice(chunk).expect("an open connection") {
                0 => break,
                count => left -= count as u64,
            }
        }
        hosts.carry(0);
        hosts.hosts[1].poll(hosts.now);
        loop {
            // The other stack's reader does not read the bytes, so this one only removes them.
            let count = hosts.hosts[1].socket().recv(|bytes| (bytes.len(), bytes.len())).unwrap_or(0);
            if count == 0 {
                break;
            }
            come += count as u64;
        }
        hosts.carry(1);
        hosts.pass();
    }
    mib
}
