//! The network interfaces that programs see: loopback, and the cell's device as `eth0`.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use isola_linux_sockets::{
    InterfaceAddress, InterfaceCounters, InterfaceKind, NetworkInterface, NetworkInterfaces, Route,
    interface_flags,
};

/// The number of the device's interface.
const DEVICE: u32 = 2;
/// The length of the network of an IPv6 address, in bits.
const IPV6_PREFIX: u8 = 64;

/// The network interfaces of the cell.
pub struct CellInterfaces;

impl NetworkInterfaces for CellInterfaces {
    fn interfaces(&self) -> Vec<NetworkInterface> {
        use interface_flags::{BROADCAST, LOWER_UP, MULTICAST, RUNNING, UP};
        let mut interfaces = alloc::vec![NetworkInterface::loopback()];
        let Some(link) = isola_net::interface::link() else { return interfaces };
        let v4 = isola_net::address();
        let v4 = v4.map(|own| InterfaceAddress { address: own.address.into(), prefix_len: own.prefix_len });
        let v6 = isola_net::ipv6();
        let v6 = v6.addresses.iter().flatten();
        let v6 = v6.map(|own| InterfaceAddress { address: own.ip.into(), prefix_len: IPV6_PREFIX });
        interfaces.push(NetworkInterface {
            index: DEVICE,
            name: "eth0".into(),
            kind: InterfaceKind::Ethernet,
            hardware_address: link.mac,
            mtu: link.mtu.into(),
            flags: UP | BROADCAST | RUNNING | MULTICAST | LOWER_UP,
            addresses: v4.into_iter().chain(v6).collect(),
            counters: InterfaceCounters::default(),
        });
        interfaces
    }

    fn routes(&self) -> Vec<Route> {
        let mut routes = Vec::new();
        let route = |destination: IpAddr, prefix_len, gateway, source| Route {
            destination,
            prefix_len,
            gateway,
            interface: DEVICE,
            source,
        };
        if let Some(own) = isola_net::address() {
            let source = Some(IpAddr::from(own.address));
            if let Some(gateway) = own.gateway {
                routes.push(route(Ipv4Addr::UNSPECIFIED.into(), 0, Some(gateway.into()), source));
            }
            let network = InterfaceAddress { address: own.address.into(), prefix_len: own.prefix_len };
            let network = Ipv4Addr::from_bits(own.address.to_bits() & network.mask().to_bits());
            routes.push(route(network.into(), own.prefix_len, None, source));
        }
        let v6 = isola_net::ipv6();
        for prefix in v6.prefixes.iter().flatten() {
            routes.push(route(prefix.ip.into(), prefix.len, None, None));
        }
        if let Some(router) = v6.routers.iter().flatten().next() {
            routes.push(route(Ipv6Addr::UNSPECIFIED.into(), 0, Some((*router).into()), None));
        }
        routes
    }
}
