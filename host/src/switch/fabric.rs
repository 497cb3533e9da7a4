//! The forwarding decision: a pure state machine, on ports instead of sockets.
//!
//! ```text
//! port 0..n (a network device each) ──guard──┬── unicast to another port: to that port alone
//!                                            ├── broadcast, multicast: to all other ports ──┐
//!                                            └── everything else ──host wall──> uplink <────┘
//! uplink ── unicast to a port: to that port alone; broadcast, multicast: to all ports
//! ```

use super::frame::{Frame, Mac, is_group};
use super::guard::Guard;
use super::host_wall::HostWall;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::time::Instant;

/// A network device's port, counted from 0.
pub type Port = usize;

/// The source of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The uplink out of the machine.
    Uplink,
    /// A network device.
    Port(Port),
}

/// The targets of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Whether the frame goes to the uplink.
    pub uplink: bool,
    /// The ports that the frame goes to, one bit each.
    pub ports: u32,
}

/// The IPv4 address that the cell behind a port may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Address {
    /// None: no cell has the device, and the switch forwards nothing from it, not even IPv6.
    None,
    /// A fixed address.
    Fixed(Ipv4Addr),
    /// The one that the DHCP server behind the uplink acknowledges.
    Dhcp,
    /// Any that no other port and no host behind the uplink has: the cell is a switch for other cells.
    Switch,
}

/// Whether cells reach the services of the host by the addresses of QEMU's user-mode network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostAccess {
    /// They do, or the network has no such addresses.
    Open,
    /// They do not.
    Closed,
}

/// Counters of a port's dropped frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Dropped frames of its cell with a source address that is not the cell's.
    pub foreign_address: u64,
    /// Dropped frames of its cell to a service of the host.
    pub to_host: u64,
    /// Dropped frames for its cell, because the cell did not read earlier ones.
    pub not_read: u64,
}

/// The switch without its sockets.
#[derive(Debug)]
pub struct Fabric {
    guard: Guard,
    wall: Option<HostWall>,
    /// The counters of each port.
    pub counters: Vec<PortCounters>,
}

impl Fabric {
    /// Creates a switch with a port for each of the hardware addresses; no port has an IPv4 address yet.
    pub fn new(macs: Vec<Mac>, host: HostAccess) -> Self {
        let ports = macs.len();
        let wall = (host == HostAccess::Closed).then(|| HostWall::new(ports));
        Self { guard: Guard::new(macs), wall, counters: vec![PortCounters::default(); ports] }
    }

    /// Declares the address of the cell behind the device with that hardware address. Returns whether that device
    /// exists.
    pub fn declare(&mut self, mac: Mac, address: Address) -> bool {
        let port = self.guard.device_of(mac);
        port.inspect(|port| self.guard.declare(*port, address)).is_some()
    }

    /// Returns the targets of a frame: none if it breaks a rule.
    pub fn forward(&mut self, from: Source, bytes: &[u8], now: Instant) -> Targets {
        let Some(frame) = Frame::parse(bytes) else { return Targets::default() };
        match from {
            Source::Uplink => self.take_from_uplink(&frame, now),
            Source::Port(port) => self.take_from_port(port, &frame, now),
        }
    }

    fn take_from_uplink(&mut self, frame: &Frame<'_>, now: Instant) -> Targets {
        // A port's own frame that the uplink returns would cause a loop.
        if self.guard.port_of(frame.source).is_some() {
            return Targets::default();
        }
        self.guard.learn(frame);
        let ports = self.ports_of(frame.destination);
        if let Some(wall) = &mut self.wall {
            (0..self.counters.len())
                .filter(|port| ports & (1 << port) != 0)
                .for_each(|port| wall.note(port, frame, now));
        }
        Targets { uplink: false, ports }
    }

    fn take_from_port(&mut self, port: Port, frame: &Frame<'_>, now: Instant) -> Targets {
        let Some(counters) = self.counters.get_mut(port) else { return Targets::default() };
        if !self.guard.may_send(port, frame) {
            counters.foreign_address += 1;
            return Targets::default();
        }
        let ports = self.ports_of(frame.destination) & !(1 << port);
        let out = is_group(frame.destination) || self.guard.port_of(frame.destination).is_none();
        let uplink = out && self.wall.as_ref().is_none_or(|wall| wall.may_pass(port, frame, now));
        // A broadcast or multicast frame still reaches the other ports, so it does not count as dropped.
        if out
            && !uplink
            && !is_group(frame.destination)
            && let Some(counters) = self.counters.get_mut(port)
        {
            counters.to_host += 1;
        }
        Targets { uplink, ports }
    }

    /// Returns the ports that a hardware address denotes, one bit each.
    fn ports_of(&self, destination: Mac) -> u32 {
        match self.guard.port_of(destination) {
            Some(port) => 1 << port,
            None if is_group(destination) => (1 << self.counters.len()) - 1,
            None => 0,
        }
    }
}
