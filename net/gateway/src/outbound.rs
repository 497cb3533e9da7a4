//! Connections and datagrams from the cell to its host.
//!
//! To the cell, each port of the gateway's address is the same port of the host's `127.0.0.1`.
//! The gateway's own stack has no listener for an arbitrary port, so frames from the cell are inspected before the
//! stack gets them:
//!
//! - The first segment of a connection is held while Linux connects to that port. If that succeeds, the gateway listens
//!   at the port as well and passes the segment to its stack. If not, the stack resets the connection, as for any port
//!   without a listener. So the cell's connection is refused before it is established if the host would refuse it.
//! - The first datagram for a port opens that port.

use crate::gateway::GATEWAY;
use crate::linux;
use crate::relay::relay;
use isola_ebbs::{Ebb, Representative, current_core, platform};
use isola_events::{sleep, spawn_task, timeout};
use isola_iobuf::{IoBuf, IoBufMut};
use isola_net::tcp::PortListener;
use isola_net::{TcpStream, UdpSocket, listen};
use isola_platform::VacatedMemory;
use isola_platform::network::{Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedFrame};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

static OUTBOUND: Ebb<Outbound> = Ebb::new();

/// The maximum number of connections in progress; further first segments are dropped and later retransmitted by the
/// cell.
const MAX_PENDING: usize = 1024;

/// The time limit of Linux's connect, and after it of the cell's handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// The maximum number of the host's UDP ports that the cell can use at one time.
const MAX_UDP_PORTS: usize = 256;

/// The maximum number of the cell's sockets that can use one of these ports.
const MAX_SOCKETS: usize = 256;

/// The time from the host's last answer after which a socket of the cell is forgotten.
const SOCKET_LIMIT: Duration = Duration::from_secs(60);

/// The cell's port and the host's port.
type Key = (u16, u16);

/// The connections in progress and the open UDP ports, on the gateway's only core.
#[derive(Default)]
struct Outbound {
    /// The connection to the host for each, once it is established.
    pending: RefCell<BTreeMap<Key, Option<linux::TcpStream>>>,
    /// Listeners for connections in progress, each with their number.
    listening: RefCell<BTreeMap<u16, (PortListener, usize)>>,
    /// First segments to pass to the stack.
    first_segments: RefCell<VecDeque<ReceivedFrame>>,
    /// Open UDP ports.
    ports: RefCell<BTreeSet<u16>>,
}

impl Representative for Outbound {
    fn create() -> Self {
        Self::default()
    }
}

/// Wraps the queues of `port` so that received frames are inspected.
pub(crate) fn inspect_received(port: NetworkPort) -> NetworkPort {
    let queues = port.queues.into_iter();
    let inspected = queues.map(|queue| Box::new(InspectedQueue { queue }) as Box<dyn NetworkQueue + Send>);
    NetworkPort { queues: inspected.collect(), ..port }
}

struct InspectedQueue {
    queue: Box<dyn NetworkQueue + Send>,
}

impl NetworkQueue for InspectedQueue {
    fn vector(&self) -> Option<u8> {
        self.queue.vector()
    }

    fn offloads(&self) -> Offloads {
        self.queue.offloads()
    }

    fn attach(&mut self) {
        self.queue.attach();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        if let Some(segment) = OUTBOUND.first_segments.borrow_mut().pop_front() {
            return Some(segment);
        }
        loop {
            let received = self.queue.receive()?;
            match OutboundFrame::of(&received.frame) {
                Some(OutboundFrame::Connection(key)) => {
                    // The queues of a process have interrupts.
                    let vector = self.queue.vector()?;
                    OUTBOUND.connection(key, received, vector);
                }
                Some(OutboundFrame::Datagram(port)) => {
                    OUTBOUND.datagram(port);
                    return Some(received);
                }
                None => return Some(received),
            }
        }
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        self.queue.send(frame)
    }

    fn flush(&mut self) {
        self.queue.flush();
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        self.queue.reclaim(recycle);
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        match self.queue.enable_interrupts() {
            FramesPending::No if OUTBOUND.first_segments.borrow().is_empty() => FramesPending::No,
            _ => FramesPending::Yes,
        }
    }

    fn disable_interrupts(&mut self) {
        self.queue.disable_interrupts();
    }

    fn redirect(&mut self) {
        self.queue.redirect();
    }

    fn vacate(&mut self, memory: &VacatedMemory) {
        self.queue.vacate(memory);
    }

    fn has_failed(&self) -> bool {
        self.queue.has_failed()
    }
}

/// The effect of a frame on the gateway.
#[derive(Debug, PartialEq, Eq)]
enum OutboundFrame {
    /// It begins a connection.
    Connection(Key),
    /// It is a datagram to this port.
    Datagram(u16),
}

impl OutboundFrame {
    /// Classifies a frame; `None` for frames without effect.
    fn of(frame: &[u8]) -> Option<Self> {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        let (ethernet, packet) = frame.split_first_chunk::<14>()?;
        let header = packet.first_chunk::<20>()?;
        let first = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
        if ethernet[12..] != [8, 0] || header[0] >> 4 != 4 || header[16..] != GATEWAY.octets() || !first {
            return None;
        }
        let payload = packet.get(usize::from(header[0] & 15) * 4..)?;
        let ports = payload.first_chunk::<4>()?;
        let (from, to) = (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]]));
        match header[9] {
            6 if payload.get(13)? & (SYN | ACK) == SYN => Some(Self::Connection((from, to))),
            17 => Some(Self::Datagram(to)),
            _ => None,
        }
    }
}

impl Outbound {
    /// Holds a first segment while Linux connects.
    fn connection(&self, key: Key, segment: ReceivedFrame, vector: u8) {
        let mut pending = self.pending.borrow_mut();
        // A retransmitted segment has no effect.
        if pending.len() < MAX_PENDING && !pending.contains_key(&key) {
            pending.insert(key, None);
            spawn_task(connect_to_host(key, segment, vector)).detach();
        }
    }

    /// Opens a UDP port, unless it is open.
    fn datagram(&self, port: u16) {
        let mut ports = self.ports.borrow_mut();
        if ports.len() < MAX_UDP_PORTS
            && !ports.contains(&port)
            // A port that is already bound is in use for the published ports.
            && let Ok(socket) = UdpSocket::bind(port)
        {
            ports.insert(port);
            spawn_task(forward_datagrams(socket, port)).detach();
        }
    }

    /// Listens at a port for one more connection.
    fn expect(&self, port: u16) {
        let mut listening = self.listening.borrow_mut();
        match listening.get_mut(&port) {
            Some((_, count)) => *count += 1,
            None => {
                if let Ok(listener) = listen(port, MAX_PENDING, move |stream| accept(stream, port)) {
                    listening.insert(port, (listener, 1));
                }
            }
        }
    }

    /// Removes a connection in progress; returns its connection to the host.
    fn take(&self, key: Key) -> Option<linux::TcpStream> {
        let host = self.pending.borrow_mut().remove(&key)??;
        let mut listening = self.listening.borrow_mut();
        let was_last = listening.get_mut(&key.1).is_some_and(|(_, count)| {
            *count -= 1;
            *count == 0
        });
        let listener = if was_last { listening.remove(&key.1) } else { None };
        drop(listening);
        drop(listener);
        Some(host)
    }
}

/// Connects to the host, then passes the first segment to the stack.
async fn connect_to_host(key: Key, segment: ReceivedFrame, vector: u8) {
    let host = timeout(CONNECT_LIMIT, linux::TcpStream::connect((Ipv4Addr::LOCALHOST, key.1).into())).await;
    let connected = match host {
        Ok(Ok(host)) => {
            OUTBOUND.pending.borrow_mut().insert(key, Some(host));
            OUTBOUND.expect(key.1);
            true
        }
        _ => {
            OUTBOUND.pending.borrow_mut().remove(&key);
            false
        }
    };
    OUTBOUND.first_segments.borrow_mut().push_back(segment);
    platform().interrupt(current_core(), vector);
    if connected {
        sleep(CONNECT_LIMIT).await;
        // Still present only if the cell has not completed the handshake.
        drop(OUTBOUND.take(key));
    }
}

/// Serves a connection of the cell to a port of the host.
async fn accept(stream: TcpStream, port: u16) {
    let from = stream.peer().map_or(0, |peer| peer.port());
    match OUTBOUND.take((from, port)) {
        Some(host) => relay(stream, host).await,
        None => stream.abort(),
    }
}

/// Forwards datagrams of the cell to a port of the host, and the answers back.
async fn forward_datagrams(socket: UdpSocket, port: u16) {
    let cell_side = Rc::new(socket);
    let mut sockets: BTreeMap<SocketAddr, Rc<linux::UdpSocket>> = BTreeMap::new();
    loop {
        let datagram = cell_side.receive().await;
        let from = datagram.remote;
        if !sockets.contains_key(&from) {
            sockets.retain(|_, socket| Rc::strong_count(socket) > 1);
            if sockets.len() >= MAX_SOCKETS {
                continue;
            }
            let host = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
            let Ok(socket) = linux::UdpSocket::connect(host).map(Rc::new) else { continue };
            spawn_task(forward_answers(socket.clone(), cell_side.clone(), from)).detach();
            sockets.insert(from, socket);
        }
        if let Some(socket) = sockets.get(&from) {
            socket.send(&datagram.payload);
        }
    }
}

/// Forwards the host's answers to a socket of the cell, until there are none for `SOCKET_LIMIT`.
async fn forward_answers(host: Rc<linux::UdpSocket>, cell: Rc<UdpSocket>, to: SocketAddr) {
    while let Ok(received) = timeout(SOCKET_LIMIT, host.receive()).await {
        // An error concerns an earlier datagram, whose port has no socket.
        if let Ok((data, _)) = received {
            let _ = cell.send_to(to, IoBuf::from(data).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a frame to the gateway with this protocol and these bytes behind the IP header.
    fn frame(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 2, 15]);
        frame.extend(GATEWAY.octets());
        frame.extend(payload);
        frame
    }

    #[test]
    fn only_first_segments_and_datagrams_have_an_effect() {
        let segment = |flags| {
            let mut segment = vec![0x9c, 0x40, 0, 80];
            segment.extend([0; 9]);
            segment.push(flags);
            segment.extend([0; 6]);
            segment
        };
        assert_eq!(
            OutboundFrame::of(&frame(6, &segment(0x02))),
            Some(OutboundFrame::Connection((40_000, 80)))
        );
        assert_eq!(OutboundFrame::of(&frame(6, &segment(0x12))), None);
        assert_eq!(OutboundFrame::of(&frame(6, &segment(0x10))), None);
        assert_eq!(
            OutboundFrame::of(&frame(17, &[0, 1, 0, 53, 0, 8, 0, 0])),
            Some(OutboundFrame::Datagram(53))
        );
        assert_eq!(OutboundFrame::of(&frame(1, &[0; 20])), None);
        let whole = frame(6, &segment(0x02));
        (0..whole.len() - 7).for_each(|len| assert_eq!(OutboundFrame::of(&whole[..len]), None, "{len}"));
        for (index, byte) in [(12, 9), (14, 0x65), (33, 3), (21, 1)] {
            let mut other = whole.clone();
            other[index] = byte;
            assert_eq!(OutboundFrame::of(&other), None, "{index}");
        }
    }
}
