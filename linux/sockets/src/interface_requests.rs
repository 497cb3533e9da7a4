//! The requests of `ioctl` about network interfaces (netdevice(7)).

use crate::Errno;
use crate::interfaces::{InterfaceAddress, NetworkInterface, NetworkInterfaces};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use isola_linux_abi::requests as linux;
use isola_linux_memory::UserBuffer;

/// The length of a name in `struct ifreq`.
const NAME_LEN: usize = 16;
/// The length of `struct ifreq`.
const REQUEST_LEN: usize = 40;
/// The length of the queue of packets that programs see.
const QUEUE_LEN: u32 = 1000;

/// Returns whether a request is one about interfaces that is served here.
pub(crate) fn is_request(request: u32) -> bool {
    matches!(
        request,
        linux::SIOCGIFNAME
            | linux::SIOCGIFFLAGS
            | linux::SIOCGIFADDR
            | linux::SIOCGIFBRDADDR
            | linux::SIOCGIFDSTADDR
            | linux::SIOCGIFNETMASK
            | linux::SIOCGIFMETRIC
            | linux::SIOCGIFMTU
            | linux::SIOCGIFHWADDR
            | linux::SIOCGIFINDEX
            | linux::SIOCGIFTXQLEN
    )
}

/// Serves a request with `struct ifreq`.
pub(crate) fn serve(
    interfaces: &dyn NetworkInterfaces,
    request: u32,
    buffer: &mut UserBuffer,
) -> Result<(), Errno> {
    let mut bytes = [0; REQUEST_LEN];
    let mut target = buffer.clone();
    if buffer.read(&mut bytes) < REQUEST_LEN {
        return Err(Errno::EFAULT);
    }
    let interfaces = interfaces.interfaces();
    let number = u32::from_ne_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    let name_len = bytes[..NAME_LEN].iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
    let is_asked = |interface: &&NetworkInterface| match request {
        linux::SIOCGIFNAME => interface.index == number,
        _ => interface.name.as_bytes() == &bytes[..name_len],
    };
    let interface = interfaces.iter().find(is_asked).ok_or(Errno::ENODEV)?;
    let address = || {
        let is_v4 = |address: &&InterfaceAddress| matches!(address.address, IpAddr::V4(_));
        interface.addresses.iter().find(is_v4).ok_or(Errno::EADDRNOTAVAIL)
    };
    let v4 = |address: Ipv4Addr| inet_address(address).to_vec();
    let answer: Vec<u8> = match request {
        linux::SIOCGIFNAME => {
            let name = padded_name(interface);
            target.write(&name);
            return Ok(());
        }
        linux::SIOCGIFFLAGS => (interface.flags as u16).to_ne_bytes().to_vec(),
        linux::SIOCGIFADDR | linux::SIOCGIFDSTADDR => match address()?.address {
            IpAddr::V4(address) => v4(address),
            IpAddr::V6(_) => return Err(Errno::EADDRNOTAVAIL),
        },
        linux::SIOCGIFBRDADDR => v4(address()?.broadcast().unwrap_or(Ipv4Addr::UNSPECIFIED)),
        linux::SIOCGIFNETMASK => v4(address()?.mask()),
        linux::SIOCGIFMETRIC => 0_u32.to_ne_bytes().to_vec(),
        linux::SIOCGIFMTU => interface.mtu.to_ne_bytes().to_vec(),
        linux::SIOCGIFINDEX => interface.index.to_ne_bytes().to_vec(),
        linux::SIOCGIFTXQLEN => QUEUE_LEN.to_ne_bytes().to_vec(),
        linux::SIOCGIFHWADDR => {
            let mut address = (interface.kind as u16).to_ne_bytes().to_vec();
            address.extend(interface.hardware_address);
            address
        }
        _ => return Err(Errno::ENOTTY),
    };
    bytes[NAME_LEN..NAME_LEN + answer.len()].copy_from_slice(&answer);
    target.write(&bytes);
    Ok(())
}

/// Returns the entries of `SIOCGIFCONF`: a `struct ifreq` for each IPv4 address.
pub fn interface_list(interfaces: &dyn NetworkInterfaces) -> Vec<[u8; REQUEST_LEN]> {
    let mut list = Vec::new();
    for interface in interfaces.interfaces() {
        for address in &interface.addresses {
            if let IpAddr::V4(address) = address.address {
                let mut entry = [0; REQUEST_LEN];
                entry[..NAME_LEN].copy_from_slice(&padded_name(&interface));
                entry[NAME_LEN..2 * NAME_LEN].copy_from_slice(&inet_address(address));
                list.push(entry);
            }
        }
    }
    list
}

fn padded_name(interface: &NetworkInterface) -> [u8; NAME_LEN] {
    let mut name = [0; NAME_LEN];
    let len = interface.name.len().min(NAME_LEN - 1);
    name[..len].copy_from_slice(&interface.name.as_bytes()[..len]);
    name
}

/// Returns an address without a port, as `struct sockaddr_in`.
fn inet_address(address: Ipv4Addr) -> [u8; 16] {
    let bytes = crate::SocketAddress::Inet(SocketAddrV4::new(address, 0)).encode();
    core::array::from_fn(|index| bytes[index])
}
