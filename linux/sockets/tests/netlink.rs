//! Netlink, and requests of `ioctl` about interfaces.

mod common;

use common::{System, now, of, receive_message, send, send_message};
use isola_linux_abi::net::AF_NETLINK;
use isola_linux_abi::requests;
use isola_linux_files::OpenFile;
use isola_linux_memory::UserBuffer;
use isola_linux_sockets::{
    Errno, InterfaceAddress, InterfaceCounters, InterfaceKind, MessageFlags, NetworkInterface,
    NetworkInterfaces, Route, SentMessage, SocketAddress, SocketKind, interface_flags, interface_list,
};
use proptest::prelude::*;
use std::sync::Arc;

const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;
const DUMP: u16 = 0x301;
const REQUEST: u16 = 1;

struct Cell;

impl NetworkInterfaces for Cell {
    fn interfaces(&self) -> Vec<NetworkInterface> {
        let address =
            |text: &str, prefix_len| InterfaceAddress { address: text.parse().unwrap(), prefix_len };
        let ethernet = NetworkInterface {
            index: 2,
            name: "eth0".into(),
            kind: InterfaceKind::Ethernet,
            hardware_address: [2, 0, 0, 1, 2, 3],
            mtu: 1500,
            flags: interface_flags::UP | interface_flags::RUNNING | interface_flags::BROADCAST,
            addresses: vec![address("10.1.2.3", 24), address("fe80::1", 64)],
            counters: InterfaceCounters { received_bytes: 77, ..InterfaceCounters::default() },
        };
        vec![NetworkInterface::loopback(), ethernet]
    }

    fn routes(&self) -> Vec<Route> {
        let route = |network: &str, prefix_len, gateway: Option<&str>| Route {
            destination: network.parse().unwrap(),
            prefix_len,
            gateway: gateway.map(|text| text.parse().unwrap()),
            interface: 2,
            source: Some("10.1.2.3".parse().unwrap()),
        };
        vec![route("0.0.0.0", 0, Some("10.1.2.1")), route("10.1.2.0", 24, None)]
    }
}

fn open(system: &System) -> Arc<OpenFile> {
    let family = system.families.family(AF_NETLINK).unwrap();
    let socket = system.with(|caller| family.create(SocketKind::Raw, 0, caller)).unwrap();
    system.families.open(socket, 0)
}

fn request(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(5_u32.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}

/// Returns type, flags and payload of all messages that wait.
fn answers(file: &OpenFile) -> Vec<(u16, u16, Vec<u8>)> {
    let mut answers = Vec::new();
    while let Ok((bytes, message)) = receive_message(file, 8192, MessageFlags::NONE) {
        assert_eq!(message.address, Some(SocketAddress::Netlink { port: 0, groups: 0 }));
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let len = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            let half = |at: usize| u16::from_ne_bytes([rest[at], rest[at + 1]]);
            assert_eq!(rest[8..12], 5_u32.to_ne_bytes());
            assert_eq!(rest[12..16], 7_u32.to_ne_bytes(), "the port is the process's number");
            answers.push((half(4), half(6), rest[16..len].to_vec()));
            rest = &rest[len.next_multiple_of(4)..];
        }
    }
    answers
}

/// Returns the data of an attribute behind a header of `start` bytes.
fn attribute(payload: &[u8], start: usize, kind: u16) -> Option<Vec<u8>> {
    let mut rest = &payload[start..];
    while rest.len() >= 4 {
        let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        if u16::from_ne_bytes([rest[2], rest[3]]) == kind {
            return Some(rest[4..len].to_vec());
        }
        rest = &rest[len.next_multiple_of(4)..];
    }
    None
}

fn ask(system: &System, bytes: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
    let file = open(system);
    assert_eq!(send(&file, bytes), Ok(bytes.len()));
    answers(&file)
}

#[test]
fn interfaces_addresses_and_routes_are_listed() {
    let system = System::new();
    system.families.set_interfaces(Arc::new(Cell));
    let links = ask(&system, &request(RTM_GETLINK, DUMP, &[0; 16]));
    let kinds: Vec<_> = links.iter().map(|(kind, flags, _)| (*kind, *flags)).collect();
    assert_eq!(kinds, [(16, 2), (16, 2), (3, 2)]);
    assert_eq!(attribute(&links[1].2, 16, 3).unwrap(), b"eth0\0");
    assert_eq!(attribute(&links[1].2, 16, 1).unwrap(), [2, 0, 0, 1, 2, 3]);
    assert_eq!(attribute(&links[1].2, 16, 23).unwrap()[16..24], 77_u64.to_ne_bytes());
    assert_eq!(links[1].2[2..8], [1, 0, 2, 0, 0, 0]);

    let addresses = ask(&system, &request(RTM_GETADDR, DUMP, &[2, 0, 0, 0]));
    assert_eq!(addresses.len(), 3);
    assert_eq!(addresses[1].2[..8], [2, 24, 0x80, 0, 2, 0, 0, 0]);
    assert_eq!(attribute(&addresses[1].2, 8, 2).unwrap(), [10, 1, 2, 3]);
    assert_eq!(attribute(&addresses[1].2, 8, 4).unwrap(), [10, 1, 2, 255]);
    assert_eq!(ask(&system, &request(RTM_GETADDR, DUMP, &[10])).len(), 3);
    assert_eq!(ask(&system, &request(RTM_GETADDR, DUMP, &[])).len(), 5);
    assert_eq!(ask(&system, &request(RTM_GETADDR, DUMP, &[99])).len(), 1);

    let routes = ask(&system, &request(RTM_GETROUTE, DUMP, &[2]));
    assert_eq!(routes.len(), 3);
    assert_eq!((routes[0].2[1], attribute(&routes[0].2, 12, 5).unwrap()), (0, vec![10, 1, 2, 1]));
    assert_eq!(attribute(&routes[1].2, 12, 1).unwrap(), [10, 1, 2, 0]);
    // `ip route get`: the longest prefix.
    let target = |last: u8, third: u8| {
        let payload =
            [&[2, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0][..], &[10, 1, third, last]].concat();
        ask(&system, &request(RTM_GETROUTE, REQUEST, &payload)).remove(0)
    };
    assert_eq!(attribute(&target(9, 2).2, 12, 5), None);
    assert_eq!(attribute(&target(9, 3).2, 12, 5).unwrap(), [10, 1, 2, 1]);
}

#[test]
fn other_requests_are_errors() {
    let system = System::new();
    let error = |bytes: &[u8]| {
        let (kind, _, payload) = ask(&system, bytes).remove(0);
        assert_eq!(kind, 2);
        i32::from_ne_bytes(payload[..4].try_into().unwrap())
    };
    let number = |error: Errno| -i32::from(error.number());
    assert_eq!(error(&request(RTM_GETLINK, REQUEST, &[0, 0, 0, 0, 9, 0, 0, 0])), number(Errno::ENODEV));
    assert_eq!(error(&request(20, REQUEST, &[0; 8])), number(Errno::EOPNOTSUPP));
    assert_eq!(error(&request(RTM_GETROUTE, REQUEST, &[2])), number(Errno::ENETUNREACH));
    assert_eq!(error(&request(3000, DUMP, &[])), number(Errno::EOPNOTSUPP));
    assert_eq!(error(&request(1, REQUEST | 4, &[])), 0);
    assert_eq!(ask(&system, &request(RTM_GETLINK, 0, &[])), []);
    // Not from a process without the capability.
    let family = system.families.family(AF_NETLINK).unwrap();
    let user = isola_linux_files::Credentials { user: 5, capabilities: 0, ..system.credentials.clone() };
    let socket =
        system.with_credentials(&user, |caller| family.create(SocketKind::Datagram, 0, caller)).unwrap();
    let file = system.families.open(socket, 0);
    send(&file, &request(20, REQUEST, &[0; 8])).unwrap();
    assert_eq!(answers(&file)[0].2[..4], number(Errno::EPERM).to_ne_bytes());
    let to_other = SentMessage {
        address: Some(SocketAddress::Netlink { port: 99, groups: 0 }),
        ..SentMessage::default()
    };
    assert_eq!(send_message(&file, b"x", to_other), Err(Errno::ECONNREFUSED));
    let other = system.with(|caller| family.create(SocketKind::Raw, 15, caller));
    assert_eq!(other.err(), Some(Errno::EPROTONOSUPPORT));
    let other = system.with(|caller| family.create(SocketKind::Stream, 0, caller));
    assert_eq!(other.err(), Some(Errno::ESOCKTNOSUPPORT));
}

#[test]
fn ports_are_unique_and_answers_are_limited() {
    let system = System::new();
    let (one, other) = (open(&system), open(&system));
    let address = |port| SocketAddress::Netlink { port, groups: 0 };
    assert_eq!(system.bind(&one, &address(0)), Ok(()));
    assert_eq!(of(&one).local_address(), Ok(address(7)));
    assert_eq!(system.bind(&other, &address(7)), Err(Errno::EADDRINUSE));
    assert_eq!(system.bind(&other, &address(0)), Ok(()));
    assert_ne!(of(&other).local_address(), Ok(address(7)));
    assert_eq!(system.bind(&one, &address(8)), Err(Errno::EINVAL));
    drop(other);
    // Answers that no call receives end at the length of the buffer, with an error.
    let many = request(RTM_GETLINK, DUMP, &[0; 16]).repeat(100);
    let mut sent = 0;
    while !one.ready().intersects(isola_linux_files::Events::ERR) {
        send(&one, &many).unwrap();
        sent += 1;
        assert!(sent < 100, "the queue has a limit");
    }
    assert_eq!(receive_message(&one, 10, MessageFlags::NONE).err(), Some(Errno::ENOBUFS));
    let (bytes, message) = receive_message(&one, 10, MessageFlags::PEEK).unwrap();
    assert!(bytes.len() == 10 && message.len > 10 && message.flags == MessageFlags::TRUNC);
}

#[test]
fn requests_of_ioctl_show_an_interface() {
    let system = System::new();
    system.families.set_interfaces(Arc::new(Cell));
    let file = system.socket(SocketKind::Datagram);
    let ask = |request: u32, name: &[u8], number: u32| {
        let mut bytes = [0; 40];
        bytes[..name.len()].copy_from_slice(name);
        bytes[16..20].copy_from_slice(&number.to_ne_bytes());
        let mut buffer = UserBuffer::of_bytes(&bytes);
        let mut contents = buffer.clone();
        now(file.control(request, 0, &mut buffer))?;
        contents.read(&mut bytes);
        Ok::<_, Errno>(bytes)
    };
    assert_eq!(ask(requests::SIOCGIFINDEX, b"eth0", 0).unwrap()[16..20], 2_u32.to_ne_bytes());
    assert_eq!(ask(requests::SIOCGIFNAME, b"", 2).unwrap()[..5], *b"eth0\0");
    assert_eq!(ask(requests::SIOCGIFADDR, b"eth0", 0).unwrap()[16..24], [2, 0, 0, 0, 10, 1, 2, 3]);
    assert_eq!(ask(requests::SIOCGIFNETMASK, b"eth0", 0).unwrap()[20..24], [255, 255, 255, 0]);
    assert_eq!(ask(requests::SIOCGIFBRDADDR, b"eth0", 0).unwrap()[20..24], [10, 1, 2, 255]);
    assert_eq!(ask(requests::SIOCGIFMTU, b"lo", 0).unwrap()[16..20], 65536_u32.to_ne_bytes());
    assert_eq!(ask(requests::SIOCGIFHWADDR, b"eth0", 0).unwrap()[16..24], [1, 0, 2, 0, 0, 1, 2, 3]);
    assert_eq!(ask(requests::SIOCGIFADDR, b"none", 0).err(), Some(Errno::ENODEV));
    assert_eq!(ask(requests::SIOCGIFMTU, &[b'x'; 16], 0).err(), Some(Errno::ENODEV));
    assert_eq!(now(file.control(requests::SIOCGIFMTU, 0, &mut UserBuffer::default())), Err(Errno::EFAULT));
    assert_eq!(now(file.control(0x1234, 0, &mut UserBuffer::default())), Err(Errno::ENOTTY));
    let list = interface_list(&Cell);
    assert_eq!((list.len(), &list[1][..5], &list[1][20..24]), (2, &b"eth0\0"[..], &[10, 1, 2, 3][..]));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No bytes of a program make a request panic or answer without end.
    #[test]
    fn hostile_requests_are_survived(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        kind in prop_oneof![Just(RTM_GETLINK), Just(RTM_GETADDR), Just(RTM_GETROUTE), any::<u16>()],
        len in prop_oneof![0..320_u32, any::<u32>()],
    ) {
        let system = System::new();
        if let Some(header) = bytes.get_mut(..8) {
            header[..4].copy_from_slice(&len.to_ne_bytes());
            header[4..6].copy_from_slice(&kind.to_ne_bytes());
            header[6] |= 1;
        }
        let file = open(&system);
        prop_assert_eq!(send(&file, &bytes), Ok(bytes.len()));
        let mut count = 0;
        while receive_message(&file, 8192, MessageFlags::NONE).is_ok() {
            count += 1;
        }
        prop_assert!(count <= 300 / 16);
    }
}
