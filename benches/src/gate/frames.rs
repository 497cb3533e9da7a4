//! A client with one connection that exchanges Ethernet frames with a machine over a Unix socket, without the host's
//! network. Each request is one frame, and acknowledges the answer before it.

use crate::error::BenchError;
use crate::interrupt;
use crate::machine::Machine;
use crate::network::GUEST;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as Moment;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, Ipv4Address};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

/// The sockets of both ends, in QEMU's working folder.
const GUEST_END: &str = "guest";
const CLIENT_END: &str = "client";

/// The client's IP and MAC addresses.
const CLIENT: Ipv4Address = Ipv4Address::new(10, 77, 0, 1);
const CLIENT_MAC: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0x77, 0, 1]);

/// The client's first port.
const FIRST_PORT: u16 = 50_000;

/// The length of the longest frame, in bytes.
const FRAME_BYTES: usize = 1514;

/// The size of a connection's buffers, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// The longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(20);

/// The longest wait for a frame in one call.
const WAIT: Duration = Duration::from_millis(20);

/// The client's end of the link to a machine's network device.
#[derive(Debug)]
struct Link {
    socket: UnixDatagram,
    peer: std::path::PathBuf,
}

struct ReceivedFrame(Vec<u8>);

struct TransmitToken<'a>(&'a Link);

impl RxToken for ReceivedFrame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, work: F) -> R {
        work(&self.0)
    }
}

impl TxToken for TransmitToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, work: F) -> R {
        let mut frame = vec![0; len];
        let result = work(&mut frame);
        // TCP retransmits a lost frame.
        let _ = self.0.socket.send_to(&frame, &self.0.peer);
        result
    }
}

impl Device for Link {
    type RxToken<'a> = ReceivedFrame;
    type TxToken<'a> = TransmitToken<'a>;

    fn receive(&mut self, _now: Moment) -> Option<(ReceivedFrame, TransmitToken<'_>)> {
        let mut frame = vec![0; FRAME_BYTES];
        let len = self.socket.recv(&mut frame).ok()?;
        frame.truncate(len);
        Some((ReceivedFrame(frame), TransmitToken(self)))
    }

    fn transmit(&mut self, _now: Moment) -> Option<TransmitToken<'_>> {
        Some(TransmitToken(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_BYTES;
        capabilities
    }
}

/// A client of a machine's service.
pub struct Client {
    link: Link,
    interface: Interface,
    sockets: SocketSet<'static>,
    connection: SocketHandle,
    began: Instant,
}

impl Client {
    /// Connects to the service at `port` of `machine`, whose network is [`crate::machine::Network::Frames`].
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::Ended`], [`BenchError::Interrupted`].
    pub fn connect(machine: &mut Machine, port: u16) -> Result<Self, BenchError> {
        let folder = machine.folder().to_owned();
        let socket = UnixDatagram::bind(folder.join(CLIENT_END)).map_err(BenchError::file(&folder))?;
        socket.set_nonblocking(true).map_err(BenchError::file(&folder))?;
        let mut link = Link { socket, peer: folder.join(GUEST_END) };
        let began = Instant::now();
        let mut interface = Interface::new(Config::new(CLIENT_MAC.into()), &mut link, Moment::ZERO);
        interface.update_ip_addrs(|addresses| {
            // The list has room for one address.
            let _ = addresses.push(IpCidr::new(IpAddress::Ipv4(CLIENT), 24));
        });
        let mut sockets = SocketSet::new(Vec::new());
        let buffer = || SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let connection = sockets.add(Socket::new(buffer(), buffer()));
        let mut this = Self { link, interface, sockets, connection, began };
        for attempt in 0.. {
            this.dial(port, FIRST_PORT + attempt)?;
            let since = Instant::now();
            while since.elapsed() < Duration::from_secs(1) && this.socket().state() == State::SynSent {
                this.turn()?;
            }
            if this.socket().state() == State::Established {
                return Ok(this);
            }
            if !machine.is_running() {
                return Err(machine.ended("a connection"));
            }
            if began.elapsed() > LIMIT {
                return Err(machine.late("a connection"));
            }
        }
        Err(machine.late("a connection"))
    }

    fn dial(&mut self, port: u16, from: u16) -> Result<(), BenchError> {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.connection);
        socket.abort();
        // The next request carries the acknowledgement of an answer.
        socket.set_ack_delay(Some(smoltcp::time::Duration::from_secs(1)));
        socket.set_nagle_enabled(false);
        let peer = (IpAddress::Ipv4(GUEST), port);
        let dialled = socket.connect(self.interface.context(), peer, from);
        dialled.map_err(|error| lost(io::Error::other(error.to_string())))
    }

    /// Sends `request`, and returns the answer once `is_whole` accepts the received bytes.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::Interrupted`].
    pub fn ask(&mut self, request: &[u8], is_whole: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, BenchError> {
        let (mut sent, mut answer, began) = (0, Vec::new(), Instant::now());
        loop {
            let socket = self.socket();
            if sent < request.len() {
                sent +=
                    socket.send_slice(&request[sent..]).map_err(|_| lost(ErrorKind::NotConnected.into()))?;
            }
            while socket.can_recv() {
                let taken = socket.recv(|bytes| {
                    answer.extend_from_slice(bytes);
                    (bytes.len(), bytes.len())
                });
                taken.map_err(|_| lost(ErrorKind::NotConnected.into()))?;
            }
            if sent == request.len() && is_whole(&answer) {
                return Ok(answer);
            }
            if began.elapsed() > LIMIT {
                return Err(lost(ErrorKind::TimedOut.into()));
            }
            self.turn()?;
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.connection)
    }

    /// Sends pending frames, and waits for a frame if none is available.
    fn turn(&mut self) -> Result<(), BenchError> {
        interrupt::check()?;
        let now = Moment::from_micros(self.began.elapsed().as_micros() as i64);
        self.interface.poll(now, &mut self.link, &mut self.sockets);
        if !self.socket().can_recv() {
            let mut interest = [rustix::event::PollFd::new(&self.link.socket, rustix::event::PollFlags::IN)];
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: WAIT.subsec_nanos().into() };
            // A signal may end the wait early; the next turn waits again.
            let _ = rustix::event::poll(&mut interest, Some(&timeout));
        }
        Ok(())
    }
}

fn lost(error: io::Error) -> BenchError {
    BenchError::connection("the gate's machine")(error)
}

/// Returns QEMU's `-netdev` argument for the machine's network device.
pub fn netdev(id: &str) -> String {
    format!("dgram,id={id},local.type=unix,local.path={GUEST_END},remote.type=unix,remote.path={CLIENT_END}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_in_one_network_with_different_addresses() {
        assert_eq!(crate::network::GUEST_NETWORK, format!("{GUEST}/24"));
        assert_eq!(CLIENT.octets()[..3], GUEST.octets()[..3]);
        assert_ne!(CLIENT.octets()[3], GUEST.octets()[3]);
        assert_ne!(CLIENT_MAC.to_string().replace('-', ":"), crate::network::GUEST_MAC);
    }
}
