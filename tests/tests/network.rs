//! A standalone cell on a network whose other end is the test: the cell forms its IPv6 address from a router
//! advertisement, and echoes packets longer than a receive buffer.

use isola_proves::proves;
use isola_tests::qemu::{Machine, MachineType, RunningMachine};
use std::net::Ipv6Addr;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(100);

const CELL: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER_IP: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const PREFIX: [u16; 4] = [0x2001, 0xdb8, 1, 0];

/// The offset of an ICMPv6 message in a frame without extension headers.
const MESSAGE_AT: usize = 14 + 40;

/// Returns a frame with an ICMPv6 message, after setting the message's checksum.
fn frame(to: [u8; 6], destination: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    let (source, len) = (ROUTER_IP.octets(), message.len() as u32);
    let pseudo = [&source[..], &destination.octets(), &len.to_be_bytes(), &[0, 0, 0, 58]].concat();
    let words = pseudo.chunks(2).chain(message.chunks(2));
    let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    message[2..4].copy_from_slice(&(!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
    let [high, low] = (len as u16).to_be_bytes();
    let link = [&to[..], &ROUTER, &[0x86, 0xdd]].concat();
    [&link[..], &[0x60, 0, 0, 0, high, low, 58, 255], &source, &destination.octets(), &message].concat()
}

/// Returns a router advertisement: a lifetime of half an hour, one prefix for address configuration, the router's
/// hardware address.
fn advertisement() -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    message.extend(ROUTER);
    message.extend([3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0]);
    message.extend(PREFIX.iter().flat_map(|part| part.to_be_bytes()));
    message.extend([0; 8]);
    frame([0x33, 0x33, 0, 0, 0, 1], ALL_NODES, message)
}

/// A cell and its network.
struct Network {
    _machine: RunningMachine,
    wire: UnixDatagram,
    folder: TempDir,
    deadline: Instant,
}

impl Network {
    /// Boots `echo` with a network device that has these further properties.
    fn boot(properties: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name).display().to_string();
        let wire = UnixDatagram::bind(path_of("router")).unwrap();
        let netdev = format!(
            "dgram,id=n0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            path_of("cell"),
            path_of("router")
        );
        let device = format!(",netdev=n0,mac=52:54:00:12:34:56{properties}");
        let machine = Machine::new(MachineType::Q35, "echo")
            .virtio("net", &device)
            .argument("-netdev")
            .argument(netdev);
        let mut machine = machine.start();
        machine.wait_for("echo: TCP port");
        Self { _machine: machine, wire, folder, deadline: Instant::now() + TIMEOUT }
    }

    /// Sends a frame repeatedly, until `read` accepts a frame of the cell.
    fn ask<T>(&self, question: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> T {
        let mut bytes = vec![0; 65_536];
        while Instant::now() < self.deadline {
            self.wire.send_to(question, self.folder.path().join("cell")).unwrap();
            self.wire.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            while let Ok(len) = self.wire.recv(&mut bytes) {
                if let Some(answer) = read(&bytes[..len]) {
                    return answer;
                }
            }
        }
        panic!("no answer");
    }
}

#[proves("RFC 4862 5.5", "an address is formed from a router's prefix, and checked before it is used.")]
#[test]
fn a_cell_forms_its_ipv6_address_and_echoes_long_packets() {
    // Packets in several receive buffers, and packets in a single larger one.
    for properties in [",host_mtu=9000", ",host_mtu=9000,mrg_rxbuf=off"] {
        let network = Network::boot(properties);
        let address = network.ask(&advertisement(), |frame| {
            let message = frame.get(MESSAGE_AT..).filter(|message| message.first() == Some(&135))?;
            let target = Ipv6Addr::from(*message.get(8..)?.first_chunk::<16>()?);
            (target.segments()[..4] == PREFIX).then_some(target)
        });
        let mut ping = vec![128, 0, 0, 0, 0, 1, 0, 1];
        ping.extend((0..8000_u32).map(|at| (at % 251) as u8));
        let answer = network.ask(&frame(CELL, address, ping.clone()), |frame| {
            let message = frame.get(MESSAGE_AT..).filter(|message| message.first() == Some(&129))?;
            Some(message.to_vec())
        });
        assert!(answer[4..] == ping[4..], "{properties}: {} bytes", answer.len());
    }
}
