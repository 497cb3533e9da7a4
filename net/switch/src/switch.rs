//! The forwarding decision.

use crate::addresses::{Addresses, Owner};
use crate::frame::{Content, Frame, Mac, Payload, is_group, neighbour_target};
use alloc::collections::BTreeMap;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

/// The types of ICMP and ICMPv6 messages that the rules name (RFC 792; RFC 4861).
mod icmp {
    pub const REDIRECT_V4: u8 = 5;
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    pub const REDIRECT: u8 = 137;
}

/// UDP ports of DHCP servers and clients (RFC 2131, RFC 8415).
const DHCP_SERVER: u16 = 67;
const DHCP6_SERVER: u16 = 547;

/// A port of the switch. The number of a removed port is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortId(u64);

/// The source of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The network device.
    Uplink,
    /// The serving cell.
    Own,
    /// A client.
    Port(PortId),
}

/// The ports that a frame goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipients {
    /// None.
    None,
    /// One.
    One(PortId),
    /// All but the frame's source.
    All,
}

/// The targets of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// Whether it goes to the network device.
    pub uplink: bool,
    /// Whether it goes to the serving cell.
    pub own: bool,
    /// The ports that it goes to.
    pub ports: Recipients,
}

impl Targets {
    const NONE: Self = Self { uplink: false, own: false, ports: Recipients::None };
}

/// The reason why the switch dropped a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// It is shorter than an Ethernet header, or its packet than its lengths demand, or its protocol is not one that the
    /// switch can check.
    Malformed,
    /// Its source address, of hardware or IP, is not its port's.
    ForeignAddress,
    /// It has no receiver here: a frame of the uplink for another machine, or one that the uplink returned.
    NoReceiver,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the frame is malformed",
            Self::ForeignAddress => "the source address belongs to another host",
            Self::NoReceiver => "no port has the destination address",
        })
    }
}

impl core::error::Error for DropReason {}

/// The reason why a client gets no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortRefusal {
    /// A port has the hardware address.
    MacTaken,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    own: Mac,
    ports: BTreeMap<PortId, Mac>,
    by_mac: BTreeMap<Mac, PortId>,
    addresses: Addresses,
    next: u64,
}

/// Returns the hardware address of the client with this name, at a switch whose uplink has the address `uplink`: the same
/// for each connection of the client, and another one at another machine.
pub fn port_mac(uplink: Mac, name: &str) -> Mac {
    // FNV-1a, with a finalizer, as the last bytes of names alone tell many clients apart.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in uplink.iter().chain(name.as_bytes()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [a, b, c, d, e, f, ..] = (hash ^ (hash >> 29)).to_be_bytes();
    // Locally administered, and no group.
    [a & 0xfc | 2, b, c, d, e, f]
}

impl Switch {
    /// Creates a switch without ports, in a cell whose network device has this hardware address.
    pub fn new(own: Mac) -> Self {
        Self {
            own,
            ports: BTreeMap::new(),
            by_mac: BTreeMap::new(),
            addresses: Addresses::default(),
            next: 0,
        }
    }

    /// Returns the hardware address of the network device.
    pub fn own_mac(&self) -> Mac {
        self.own
    }

    /// Returns the port with this hardware address.
    pub fn port_of(&self, mac: Mac) -> Option<PortId> {
        self.by_mac.get(&mac).copied()
    }

    /// Adds a port.
    ///
    /// # Errors
    /// [`PortRefusal::MacTaken`].
    pub fn add_port(&mut self, mac: Mac, now: Duration) -> Result<PortId, PortRefusal> {
        if mac == self.own || self.by_mac.contains_key(&mac) {
            return Err(PortRefusal::MacTaken);
        }
        // Clients come and go for ever, but the table of addresses does not grow.
        self.addresses.purge(now);
        let port = PortId(self.next);
        self.next += 1;
        self.ports.insert(port, mac);
        self.by_mac.insert(mac, port);
        Ok(port)
    }

    /// Removes a port. Its IP addresses remain those of its hardware address until they were unused for
    /// [`AGE`](crate::AGE).
    pub fn remove_port(&mut self, port: PortId) {
        if let Some(mac) = self.ports.remove(&port) {
            self.by_mac.remove(&mac);
        }
    }

    /// Reserves an address for the hosts behind the uplink for good: that of a router, before it sends anything.
    pub fn reserve(&mut self, ip: IpAddr) {
        self.addresses.reserve(ip);
    }

    /// Returns the targets of a frame that arrived at `now`, a time that never decreases.
    ///
    /// # Errors
    /// The [`DropReason`] if the frame has none.
    pub fn forward(&mut self, from: Source, bytes: &[u8], now: Duration) -> Result<Targets, DropReason> {
        let frame = Frame::parse(bytes).ok_or(DropReason::Malformed)?;
        match from {
            Source::Uplink => self.check_uplink(&frame, now)?,
            Source::Own => {
                if let Payload::Arp { sender, .. } = frame.payload {
                    self.addresses.claim(Owner::Own, sender.into(), now);
                }
            }
            Source::Port(port) => self.check_port(port, &frame, now)?,
        }
        let targets = self.targets(from, &frame, now);
        if targets == Targets::NONE { Err(DropReason::NoReceiver) } else { Ok(targets) }
    }

    fn targets(&self, from: Source, frame: &Frame<'_>, now: Duration) -> Targets {
        let destination = frame.destination;
        if is_group(destination) {
            let (uplink, own) = (from != Source::Uplink, from != Source::Own);
            return Targets { uplink, own, ports: self.group_members(from, &frame.payload, now) };
        }
        if destination == self.own {
            return Targets { own: from != Source::Own, ..Targets::NONE };
        }
        match self.by_mac.get(&destination) {
            // A frame to oneself.
            Some(port) if from == Source::Port(*port) => Targets::NONE,
            Some(port) => Targets { ports: Recipients::One(*port), ..Targets::NONE },
            None => Targets { uplink: from != Source::Uplink, ..Targets::NONE },
        }
    }

    /// Returns the ports of a broadcast or multicast: not those whose clients it would wake for nothing.
    fn group_members(&self, from: Source, payload: &Payload<'_>, now: Duration) -> Recipients {
        // No client is a router (RFC 4541 2.1.1 and 3).
        if payload.is_for_routers() {
            return Recipients::None;
        }
        // An answer of another client than the owner would be dropped. The uplink still gets the request: a host there may
        // use an address that it has not announced.
        match payload.requested().and_then(|ip| self.addresses.owner(ip, now)) {
            None => Recipients::All,
            Some(Owner::Uplink | Owner::Own) => Recipients::None,
            Some(Owner::Port(mac)) => match self.port_of(mac) {
                Some(port) if from != Source::Port(port) => Recipients::One(port),
                _ => Recipients::None,
            },
        }
    }

    fn check_uplink(&mut self, frame: &Frame<'_>, now: Duration) -> Result<(), DropReason> {
        // A frame of this machine that the network returns would cause a loop.
        if frame.source == self.own || self.by_mac.contains_key(&frame.source) || is_group(frame.source) {
            return Err(DropReason::NoReceiver);
        }
        let announced = match frame.payload {
            Payload::Arp { sender, .. } => Some(IpAddr::from(sender)),
            Payload::Ipv6 { source, content: Content::Icmp { .. }, .. } => Some(source.into()),
            _ => None,
        };
        announced.into_iter().for_each(|ip| _ = self.addresses.claim(Owner::Uplink, ip, now));
        Ok(())
    }

    /// Checks the source addresses of a client's frame.
    fn check_port(&mut self, port: PortId, frame: &Frame<'_>, now: Duration) -> Result<(), DropReason> {
        let mac = *self.ports.get(&port).ok_or(DropReason::ForeignAddress)?;
        if frame.source != mac {
            return Err(DropReason::ForeignAddress);
        }
        let owner = Owner::Port(mac);
        let mut claim = |ip: IpAddr| self.addresses.claim(owner, ip, now);
        let is_permitted = match frame.payload {
            // An ARP probe for a duplicate address has sender address 0 (RFC 5227 2.1.1).
            Payload::Arp { sender_mac, sender, .. } => {
                sender_mac == mac && (sender.is_unspecified() || claim(sender.into()))
            }
            Payload::Ipv4 { source, content, .. } => match content {
                Content::Udp { from: DHCP_SERVER, .. } | Content::Icmp { kind: icmp::REDIRECT_V4, .. } => {
                    false
                }
                Content::Udp { to: DHCP_SERVER, .. } if source.is_unspecified() => true,
                _ => claim(source.into()),
            },
            Payload::Ipv6 { source, content, .. } => match content {
                Content::Udp { from: DHCP6_SERVER, .. }
                | Content::Icmp { kind: icmp::ROUTER_ADVERTISEMENT | icmp::REDIRECT, .. } => false,
                Content::Icmp { kind: icmp::NEIGHBOUR_ADVERTISEMENT, rest } => {
                    neighbour_target(rest).is_some_and(|target| claim(target.into())) && claim(source.into())
                }
                // Duplicate address detection sends from the unspecified address (RFC 4862 5.4).
                Content::Icmp { .. } if source.is_unspecified() => true,
                _ => claim(source.into()),
            },
            Payload::Other => return Err(DropReason::Malformed),
        };
        if is_permitted { Ok(()) } else { Err(DropReason::ForeignAddress) }
    }
}
