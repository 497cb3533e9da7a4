//! A network device in software. Clients put frames on it for the cell; it counts the cell's frames and drops them. The
//! clients know the cell's answers, so they need only the first sequence number of a connection.

use alloc::collections::VecDeque;
use core::net::Ipv4Addr;
use isola::alloc;
use isola::ebbs::current_core;
use isola::events::yield_now;
use isola::iobuf::{IoBuf, IoBufMut};
use isola::memory::VacatedMemory;
use isola::net::port::{
    Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedChecksum, ReceivedFrame,
};
use isola::net::{Addressing, Ipv4Config, Ipv6Addressing, NetworkManager, NetworkSettings};
use isola::prelude::*;
use isola::sync::Mutex;
use isola_ebbs::platform;

const VECTOR: u8 = 0xa0;

const CELL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const CELL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The bytes of a request, and of its answer.
const MESSAGE_BYTES: u32 = 64;

/// Offsets and constants in the cell's frames.
const ARP: [u8; 2] = [8, 6];
const TCP: usize = 34;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// The most passes of the loop until an answer.
const TIMEOUT: u32 = 1_000;

static WIRE: Mutex<Wire> = Mutex::new(Wire { to_cell: VecDeque::new(), answers: 0, first: 0 });

struct Wire {
    to_cell: VecDeque<IoBuf>,
    /// The number of the cell's frames since the last [`deliver`].
    answers: usize,
    /// The first sequence number of the cell's last connection.
    first: u32,
}

/// The network manager, which opens this device.
pub struct Link;

impl NetworkManager for Link {
    fn open(&self) -> Option<NetworkPort> {
        let queues = vec![Box::new(Queue) as Box<dyn NetworkQueue + Send>];
        Some(NetworkPort { mac: CELL_MAC, mtu: 1500, headroom: 0, queues, spreading: None })
    }

    fn settings(&self) -> NetworkSettings {
        NetworkSettings {
            addressing: Addressing::Static(Ipv4Config::new(CELL, 24, None)),
            ipv6: Ipv6Addressing::Unset,
            ..NetworkSettings::default()
        }
    }
}

struct Queue;

impl NetworkQueue for Queue {
    fn vector(&self) -> Option<u8> {
        Some(VECTOR)
    }

    fn offloads(&self) -> Offloads {
        Offloads { checksums: true, ..Offloads::default() }
    }

    fn attach(&mut self) {}

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let frame = WIRE.lock().to_cell.pop_front()?;
        Some(ReceivedFrame { frame, rest: None, checksum: ReceivedChecksum::Valid })
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let head: &[u8] = &frame.head;
        let mut wire = WIRE.lock();
        if head[12..14] == ARP {
            let reply = arp_reply();
            wire.to_cell.push_back(reply);
            return Ok(());
        }
        wire.answers += 1;
        if head[TCP + 13] & SYN != 0 {
            wire.first = u32::from_be_bytes([head[TCP + 4], head[TCP + 5], head[TCP + 6], head[TCP + 7]]);
        }
        Ok(())
    }

    fn flush(&mut self) {}

    fn reclaim(&mut self, _: &mut dyn FnMut(IoBufMut)) {}

    fn enable_interrupts(&mut self) -> FramesPending {
        if WIRE.lock().to_cell.is_empty() { FramesPending::No } else { FramesPending::Yes }
    }

    fn disable_interrupts(&mut self) {}

    fn redirect(&mut self) {}

    fn vacate(&mut self, _: &VacatedMemory) {}

    fn has_failed(&self) -> bool {
        false
    }
}

/// Makes the cell receive all frames for it in one event, and waits until it has sent `answers` frames.
pub async fn deliver(answers: usize) {
    WIRE.lock().answers = 0;
    platform().interrupt(current_core(), VECTOR);
    for _ in 0..TIMEOUT {
        yield_now().await;
        if WIRE.lock().answers >= answers {
            return;
        }
    }
    println!("{} of {answers} answers", WIRE.lock().answers);
}

/// The client's end of a connection.
pub struct Client {
    from: u16,
    to: u16,
    /// The next sequence number of this end, and of the cell's.
    sent: u32,
    received: u32,
}

impl Client {
    /// Connects to a port of the cell.
    pub async fn connect(to: u16, number: u16) -> Option<Self> {
        let mut client = Self { from: 1000 * to + number, to, sent: 1, received: 0 };
        client.put(SYN, 0);
        deliver(1).await;
        client.sent += 1;
        client.received = core::mem::take(&mut WIRE.lock().first).checked_add(1).filter(|&next| next > 1)?;
        client.put(ACK, 0);
        deliver(0).await;
        Some(client)
    }

    /// Sends a request, which acknowledges the previous answer.
    pub fn ask(&mut self) {
        self.put(ACK, MESSAGE_BYTES);
        self.sent = self.sent.wrapping_add(MESSAGE_BYTES);
        self.received = self.received.wrapping_add(MESSAGE_BYTES);
    }

    /// Puts a segment with `data` bytes of data on the wire.
    fn put(&self, flags: u8, data: u32) {
        let len = 40 + data as u16;
        let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        ip[12..16].copy_from_slice(&CLIENT.octets());
        ip[16..20].copy_from_slice(&CELL.octets());
        let sum: u32 = ip.as_chunks::<2>().0.iter().map(|half| u32::from(u16::from_be_bytes(*half))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        let mut frame = Vec::with_capacity(14 + usize::from(len));
        frame.extend([CELL_MAC, CLIENT_MAC].concat());
        frame.extend([8, 0]);
        frame.extend(ip);
        frame.extend(self.from.to_be_bytes());
        frame.extend(self.to.to_be_bytes());
        frame.extend(self.sent.to_be_bytes());
        frame.extend(self.received.to_be_bytes());
        // Header length, flags and window; the device reports the checksum as valid.
        frame.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        frame.resize(frame.len() + data as usize, b'e');
        WIRE.lock().to_cell.push_back(IoBuf::from(frame));
    }
}

/// Returns the client's answer to the cell's ARP request.
fn arp_reply() -> IoBuf {
    let mut frame = [CELL_MAC, CLIENT_MAC].concat();
    frame.extend(ARP);
    frame.extend([0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(CLIENT_MAC);
    frame.extend(CLIENT.octets());
    frame.extend(CELL_MAC);
    frame.extend(CELL.octets());
    IoBuf::from(frame)
}
