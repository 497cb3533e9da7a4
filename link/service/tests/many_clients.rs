//! 200 clients of one service cell's network, with addresses of their own behind one device: real links, queues, switch and
//! gateway; each client has a small driver.

use isola_abi::links::LinkAccess;
use isola_abi::network_service::NetworkHello;
use isola_abi::service::{DeviceOffer, DriverSetup, QueueSetup, Reply, ServiceRefusal, decode, encode};
use isola_channels::{Channel, SharedMemory, open};
use isola_events::{sleep, spawn_task, timeout};
use isola_hosted::{Loss, switch};
use isola_link_sim::Machine;
use isola_net::NETWORK_MANAGER;
use isola_switch::port_mac;
use isola_test_cells::{TestCell, address, run_cells};
use isola_virtio_device::DriverMemory;
use isola_virtio_device::net::HEADER_LEN;
use isola_virtio_device::queue::VERSION_1;
use isola_volume_service::client::ConnectError;
use isola_volume_service::network::server::{NatOptions, SwitchedNetwork, serve};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

type Mac = [u8; 6];

const CLIENTS: usize = 200;

/// The first device of a switch in memory, of which the service cell is the owner.
const SERVER_MAC: Mac = [2, 0, 0, 0, 0, 1];
const BROADCAST: Mac = [0xff; 6];

const ARP: [u8; 2] = [8, 6];
const IPV4: [u8; 2] = [8, 0];
const ICMP: u8 = 1;
const UDP: u8 = 17;

/// The offset of the IPv4 header in a frame, and of the packet's data.
const IP: usize = 14;
const DATA: usize = IP + 20;

#[test]
fn two_hundred_clients_reach_a_host_outside_and_each_other() {
    with_service_cell("10.77.0.0/16", use_all);
}

#[test]
fn a_client_for_which_no_address_is_left_is_refused() {
    // The router and 13 clients.
    with_service_cell("10.77.0.0/28", || async {
        let mut clients = Vec::new();
        let refusal = loop {
            match introduce(&name(clients.len())).await {
                Ok(client) => clients.push(client),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!((clients.len(), refusal), (13, ServiceRefusal::NoAddress));
        assert!(!ConnectError::Refused(refusal).is_temporary(), "a client does not wait in vain");
        // The refused client has left neither its link nor its port.
        assert_eq!(introduce(&name(13)).await.err(), Some(ServiceRefusal::NoAddress));
        clients.pop();
        while let Err(refusal) = introduce(&name(13)).await {
            assert_eq!(refusal, ServiceRefusal::NoAddress);
            sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Runs a service cell whose clients have addresses of `network`, a host outside, and a cell with the drivers of all
/// clients.
fn with_service_cell<F: Future<Output = ()> + 'static>(network: &'static str, clients: fn() -> F) {
    let machine = Machine::new();
    let [server, outside, devices] = switch::<3>(Loss::Never);
    let components = || NETWORK_MANAGER.replace(|| Box::new(SwitchedNetwork));
    let serve_all = move || async move {
        serve(Some(NatOptions::parse([network].into_iter()).unwrap())).unwrap();
        pending().await
    };
    run_cells([
        TestCell::new(1, 1, server, serve_all)
            .with_components(components)
            .on_machine(machine)
            .serving_network()
            .until_others_end(),
        TestCell::new(2, 1, outside, pending::<()>).until_others_end(),
        TestCell::new(3, 1, devices, clients).on_machine(machine),
    ]);
}

fn name(client: usize) -> String {
    format!("client-{client}")
}

/// The clients that have come to a step.
#[derive(Default)]
struct Steps {
    connected: Cell<usize>,
    answered: Cell<usize>,
    exchanged: Cell<usize>,
}

impl Steps {
    async fn all(&self, step: impl Fn(&Self) -> &Cell<usize>) {
        step(self).set(step(self).get() + 1);
        while step(self).get() < CLIENTS {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn use_all() {
    let steps = Rc::new(Steps::default());
    let all: Vec<_> = (0..CLIENTS).map(|number| spawn_task(use_network(number, steps.clone()))).collect();
    let mut addresses = BTreeSet::new();
    for client in all {
        addresses.insert(client.await);
    }
    assert_eq!(addresses.len(), CLIENTS, "each has an address of its own");
}

/// Runs a client; returns its address.
async fn use_network(number: usize, steps: Rc<Steps>) -> Ipv4Addr {
    let mut driver = Driver::connect(&name(number)).await;
    let ip = driver.ask_for_address().await;
    assert_eq!(ip.octets()[..2], [10, 77], "client {number}");
    steps.all(|steps| &steps.connected).await;

    // To a host outside, and back.
    let echo = [&[8, 0, 0, 0][..], &(number as u16).to_be_bytes(), &[0, 1], b"a ping"].concat();
    let echo = packet(ip, address(2), ICMP, &with_checksum(echo, 2));
    let answer = loop {
        driver.send(SERVER_MAC, IPV4, &echo);
        // Two frames of all clients wait for the host's hardware address; further ones are lost.
        let answer = driver.receive(|frame| frame[12..14] == IPV4 && frame[IP + 9] == ICMP);
        if let Ok(answer) = timeout(Duration::from_millis(200), answer).await {
            break answer;
        }
    };
    assert_eq!(answer[IP + 12..DATA], [address(2).octets(), ip.octets()].concat());
    assert_eq!((answer[DATA], &answer[DATA + 4..DATA + 6]), (0, &(number as u16).to_be_bytes()[..]));
    assert!(answer.ends_with(b"a ping"));

    steps.all(|steps| &steps.answered).await;

    // To the next client, by way of the switch.
    let next = port_mac(SERVER_MAC, &name((number + 1) % CLIENTS));
    let text = format!("from {number}");
    driver.send(next, IPV4, &packet(ip, ip, UDP, &[&[0; 8], text.as_bytes()].concat()));
    let received = driver.receive(|frame| frame[12..14] == IPV4 && frame[IP + 9] == UDP).await;
    let before = (number + CLIENTS - 1) % CLIENTS;
    assert!(received.ends_with(format!("from {before}").as_bytes()), "client {number}");

    // One broadcast reaches all others, once.
    steps.all(|steps| &steps.exchanged).await;
    let announcement =
        [&[0, 1, 8, 0, 6, 4, 0, 1][..], &driver.mac, &ip.octets(), &[0; 6], &ip.octets()].concat();
    if number == 0 {
        driver.send(BROADCAST, ARP, &announcement);
    } else {
        let received = driver.receive(|frame| frame[12..14] == ARP).await;
        assert_eq!(received[6..12], port_mac(SERVER_MAC, &name(0)));
    }
    sleep(Duration::from_millis(50)).await;
    assert_eq!(driver.take().filter(|frame| frame[12..14] == ARP), None, "client {number}");
    ip
}

fn sum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(sum as u16)).to_be_bytes()
}

fn with_checksum(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let sum = sum(&bytes);
    bytes[at..at + 2].copy_from_slice(&sum);
    bytes
}

fn packet(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, data: &[u8]) -> Vec<u8> {
    let [high, low] = (20 + data.len() as u16).to_be_bytes();
    let header = [0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    let header = [&header[..], &from.octets(), &to.octets()].concat();
    [&with_checksum(header, 10), data].concat()
}

/// The descriptors of a queue, of which there are two; the positions of their parts, and of the buffers.
const SIZE: usize = 8;
const QUEUES: [usize; 2] = [0, 512];
const AVAILABLE: usize = 16 * SIZE;
const USED: usize = 256;
const BUFFERS: usize = 1024;
const BUFFER_LEN: usize = 1600;

/// Opens the channel of a client; returns it with the device that the service offers.
async fn introduce(name: &str) -> Result<(Channel, DeviceOffer), ServiceRefusal> {
    let channel = open(&format!("cell-1/{name}")).await.unwrap();
    channel.write(&encode(&NetworkHello { version: isola_abi::VERSION })).await.unwrap();
    match decode(&channel.read().await.unwrap()) {
        Some(Reply::Offer(offer)) => Ok((channel, offer)),
        Some(Reply::Refused(refusal)) => Err(refusal),
        None => panic!("{name}"),
    }
}

/// A driver that polls, with one frame to send at a time.
struct Driver {
    channel: Channel,
    memory: DriverMemory<&'static [AtomicU64]>,
    _shared: SharedMemory,
    mac: Mac,
    /// The frames that were received, and sent.
    received: u16,
    sent: u16,
}

impl Driver {
    async fn connect(name: &str) -> Self {
        let (channel, offer) = introduce(name).await.unwrap();
        let mac = *offer.configuration.first_chunk().unwrap();
        assert_eq!(mac, port_mac(SERVER_MAC, name));
        let shared = SharedMemory::new((BUFFERS + (SIZE + 1) * BUFFER_LEN).div_ceil(4096)).unwrap();
        let memory = DriverMemory::new(shared.words(), 0);
        channel.map(&shared, LinkAccess::ReadWrite).await.unwrap();
        let driver = Self { channel, memory, _shared: shared, mac, received: 0, sent: 0 };
        for index in 0..SIZE {
            driver.describe(QUEUES[0], index, index, BUFFER_LEN, 2);
            driver.put_u16(QUEUES[0] + AVAILABLE + 4 + 2 * index, index as u16);
        }
        driver.put_u16(QUEUES[0] + AVAILABLE + 2, SIZE as u16);
        let queues = QUEUES.map(|at| QueueSetup {
            size: SIZE as u16,
            descriptors: at as u64,
            available: (at + AVAILABLE) as u64,
            used: (at + USED) as u64,
        });
        let setup = DriverSetup { features: VERSION_1, base: 0, queues: queues.to_vec() };
        driver.channel.write(&encode(&setup)).await.unwrap();
        driver
    }

    fn describe(&self, queue: usize, index: usize, buffer: usize, len: usize, flags: u64) {
        let at = queue + 16 * index;
        self.memory.write(at, &((BUFFERS + buffer * BUFFER_LEN) as u64).to_le_bytes());
        self.memory.write(at + 8, &(len as u64 | flags << 32).to_le_bytes());
    }

    fn put_u16(&self, at: usize, value: u16) {
        self.memory.write(at, &value.to_le_bytes());
    }

    fn get_u16(&self, at: usize) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    fn send(&mut self, to: Mac, kind: [u8; 2], payload: &[u8]) {
        assert_eq!(self.get_u16(QUEUES[1] + USED + 2), self.sent, "the device has taken the frame before");
        let frame = [&[0; HEADER_LEN][..], &to, &self.mac, &kind, payload].concat();
        self.memory.write(BUFFERS + SIZE * BUFFER_LEN, &frame);
        self.describe(QUEUES[1], 0, SIZE, frame.len(), 0);
        self.sent += 1;
        self.put_u16(QUEUES[1] + AVAILABLE + 2, self.sent);
        self.channel.bell().ring();
    }

    /// Returns the next frame, if there is one, and lends the device its buffer again.
    fn take(&mut self) -> Option<Vec<u8>> {
        if self.get_u16(QUEUES[0] + USED + 2) == self.received {
            return None;
        }
        let mut entry = [0; 8];
        self.memory.read(QUEUES[0] + USED + 4 + 8 * (usize::from(self.received) % SIZE), &mut entry);
        let [id, len] = [0, 4].map(|at| u32::from_le_bytes(*entry[at..].first_chunk().unwrap()) as usize);
        let mut frame = vec![0; len - HEADER_LEN];
        self.memory.read(BUFFERS + id * BUFFER_LEN + HEADER_LEN, &mut frame);
        let slot = usize::from(self.received) % SIZE;
        self.put_u16(QUEUES[0] + AVAILABLE + 4 + 2 * slot, id as u16);
        self.received += 1;
        self.put_u16(QUEUES[0] + AVAILABLE + 2, self.received + SIZE as u16);
        self.channel.bell().ring();
        Some(frame)
    }

    /// Waits for the next frame that `is_right` accepts.
    async fn receive(&mut self, is_right: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let next = async {
            loop {
                match self.take() {
                    Some(frame) if is_right(&frame) => return frame,
                    Some(_) => {}
                    None => sleep(Duration::from_millis(1)).await,
                }
            }
        };
        next.await
    }

    /// Asks the gateway for an address by DHCP.
    async fn ask_for_address(&mut self) -> Ipv4Addr {
        let mut message = [&[1, 1, 6, 0, 1, 2, 3, 4][..], &[0; 20], &self.mac, &[0; 202]].concat();
        message.extend([99, 130, 83, 99, 53, 1, 1, 255]);
        let [high, low] = (8 + message.len() as u16).to_be_bytes();
        let datagram = [&[0, 68, 0, 67, high, low, 0, 0][..], &message].concat();
        let request = packet(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, UDP, &datagram);
        self.send(BROADCAST, IPV4, &request);
        let offer = self.receive(|frame| frame.get(DATA..DATA + 4) == Some(&[0, 67, 0, 68])).await;
        let at = DATA + 8 + 16;
        Ipv4Addr::from(*offer[at..].first_chunk().unwrap())
    }
}
