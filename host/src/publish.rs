//! Publishing: a port of the host leads to a port of a cell.
//!
//! On QEMU's user-mode network this is a forwarding rule of QEMU, made and unmade while the machine runs.

use crate::machine::qemu::UPLINK_ID;
use crate::machine::qmp::{Qmp, QmpError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::str::FromStr;
use thiserror::Error;

/// Where a port is published when no address is given: on this host alone.
pub const DEFAULT_HOST_IP: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// What is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP connections.
    Tcp,
    /// UDP datagrams.
    Udp,
}

/// A request to publish: `[IP:]HOST:CELL[/tcp|udp]`, or `CELL[/tcp|udp]` for whichever host port is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublishSpec {
    /// The host's address.
    pub host_ip: Ipv4Addr,
    /// The host's port; 0 for whichever is free.
    pub host_port: u16,
    /// The cell's port.
    pub cell_port: u16,
    /// What is forwarded.
    pub protocol: Protocol,
}

/// A published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Publication {
    /// What is forwarded.
    pub protocol: Protocol,
    /// Where on the host.
    pub host: SocketAddrV4,
    /// Where to.
    pub cell: SocketAddrV4,
}

/// A text that says no port to publish.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no port to publish: write [IP:]HOST_PORT:CELL_PORT[/tcp|udp], as in 11211:11211 or 127.0.0.1:8080:80/tcp"
)]
pub struct BadPublishSpec(String);

/// Why a port was not published.
#[derive(Debug, Error)]
pub enum PublishError {
    /// Another cell of this user has it.
    #[error(
        "port {host}/{protocol} is published for cell {cell:?} of machine {machine:?} already: choose another host port"
    )]
    Published {
        /// The port.
        host: SocketAddrV4,
        /// What is forwarded.
        protocol: Protocol,
        /// For whom.
        cell: String,
        /// On which machine.
        machine: String,
    },
    /// Another program has it.
    #[error(
        "port {host}/{protocol} is in use by another program: choose another host port, or end that program"
    )]
    InUse {
        /// The port.
        host: SocketAddrV4,
        /// What would be forwarded.
        protocol: Protocol,
    },
    /// The host does not allow it.
    #[error("the host does not give port {host}/{protocol}: {error}{}", advice(error, *host))]
    Refused {
        /// The port.
        host: SocketAddrV4,
        /// What would be forwarded.
        protocol: Protocol,
        /// What the host says.
        error: io::Error,
    },
    /// QEMU could not forward it.
    #[error("QEMU cannot forward {host}/{protocol}: {answer}")]
    Forward {
        /// The port.
        host: SocketAddrV4,
        /// What would be forwarded.
        protocol: Protocol,
        /// What QEMU says.
        answer: String,
    },
    /// QEMU could not be asked.
    #[error(transparent)]
    Qmp(#[from] QmpError),
}

fn advice(error: &io::Error, host: SocketAddrV4) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if host.port() < 1024 => {
            "; ports below 1024 are for root: choose a higher one"
        }
        io::ErrorKind::AddrNotAvailable => "; the address is not one of this host's",
        _ => "",
    }
}

impl PublishSpec {
    /// Finds a host port that is free now, which is the requested one where one is.
    ///
    /// # Errors
    /// [`PublishError::InUse`] or [`PublishError::Refused`].
    pub fn free_host_port(&self) -> Result<SocketAddrV4, PublishError> {
        let (host, protocol) = (SocketAddrV4::new(self.host_ip, self.host_port), self.protocol);
        // A UDP socket of QEMU's would share the port with another program's, so trying is not left to QEMU.
        let bound = match protocol {
            Protocol::Tcp => TcpListener::bind(host).and_then(|socket| socket.local_addr()),
            Protocol::Udp => UdpSocket::bind(host).and_then(|socket| socket.local_addr()),
        };
        match bound {
            Ok(address) => Ok(SocketAddrV4::new(self.host_ip, address.port())),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(PublishError::InUse { host, protocol })
            }
            Err(error) => Err(PublishError::Refused { host, protocol, error }),
        }
    }

    /// Whether the request has a host port that `publication` already has.
    pub fn collides_with(&self, publication: &Publication) -> bool {
        let everywhere = |ip: Ipv4Addr| ip.is_unspecified();
        let ip = *publication.host.ip();
        self.host_port == publication.host.port()
            && self.protocol == publication.protocol
            && (self.host_ip == ip || everywhere(self.host_ip) || everywhere(ip))
    }

    /// What fulfils the request for the cell that has `cell_ip`; nothing is published by that yet.
    ///
    /// # Errors
    /// As [`PublishSpec::free_host_port`].
    pub fn resolve(&self, cell_ip: Ipv4Addr) -> Result<Publication, PublishError> {
        let host = self.free_host_port()?;
        Ok(Publication { protocol: self.protocol, host, cell: SocketAddrV4::new(cell_ip, self.cell_port) })
    }
}

impl Publication {
    /// Publishes: from now on the host's port leads to the cell.
    ///
    /// # Errors
    /// [`PublishError::Forward`] and [`PublishError::Qmp`], where nothing is published.
    pub fn begin(&self, qmp: &mut Qmp) -> Result<(), PublishError> {
        let answer = qmp.human(&format!("hostfwd_add {UPLINK_ID} {}", self.rule()))?;
        match answer.trim() {
            "" => Ok(()),
            answer => {
                let answer = answer.to_owned();
                Err(PublishError::Forward { host: self.host, protocol: self.protocol, answer })
            }
        }
    }

    /// Ends the publication. One that QEMU does not know has ended already.
    ///
    /// # Errors
    /// [`PublishError::Qmp`] where QEMU could not be asked.
    pub fn end(&self, qmp: &mut Qmp) -> Result<(), PublishError> {
        qmp.human(&format!("hostfwd_remove {UPLINK_ID} {}:{}", self.protocol, colons(self.host)))?;
        Ok(())
    }

    /// QEMU's words for the forwarding.
    pub fn rule(&self) -> String {
        format!("{}:{}-{}", self.protocol, colons(self.host), colons(self.cell))
    }
}

fn colons(address: SocketAddrV4) -> String {
    format!("{}:{}", address.ip(), address.port())
}

impl FromStr for PublishSpec {
    type Err = BadPublishSpec;

    fn from_str(text: &str) -> Result<Self, BadPublishSpec> {
        let parse = || {
            let (ports, protocol) = match text.split_once('/') {
                None => (text, Protocol::Tcp),
                Some((ports, "tcp")) => (ports, Protocol::Tcp),
                Some((ports, "udp")) => (ports, Protocol::Udp),
                Some(_) => return None,
            };
            let mut parts = ports.rsplitn(3, ':');
            let cell_port = port(parts.next()?)?;
            let host_port =
                parts.next().map_or(Some(0), |text| if text.is_empty() { Some(0) } else { port(text) })?;
            let host_ip = parts.next().map_or(Some(DEFAULT_HOST_IP), |text| text.parse().ok())?;
            Some(Self { host_ip, host_port, cell_port, protocol })
        };
        parse().ok_or_else(|| BadPublishSpec(text.to_owned()))
    }
}

fn port(text: &str) -> Option<u16> {
    // `parse` would take a plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

impl TryFrom<String> for PublishSpec {
    type Error = BadPublishSpec;

    fn try_from(text: String) -> Result<Self, BadPublishSpec> {
        text.parse()
    }
}

impl From<PublishSpec> for String {
    fn from(spec: PublishSpec) -> Self {
        spec.to_string()
    }
}

impl fmt::Display for PublishSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_port {
            0 => write!(f, "{}::{}/{}", self.host_ip, self.cell_port, self.protocol),
            port => write!(f, "{}:{port}:{}/{}", self.host_ip, self.cell_port, self.protocol),
        }
    }
}

impl fmt::Display for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}/{}", self.host, self.cell.port(), self.protocol)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_s_ways_to_say_a_port_are_understood() {
        let any = Ipv4Addr::UNSPECIFIED;
        let cases = [
            ("11211:11211", DEFAULT_HOST_IP, 11211, 11211, Protocol::Tcp),
            ("8080:80/tcp", DEFAULT_HOST_IP, 8080, 80, Protocol::Tcp),
            ("0.0.0.0:53:5353/udp", any, 53, 5353, Protocol::Udp),
            ("80", DEFAULT_HOST_IP, 0, 80, Protocol::Tcp),
            ("0.0.0.0::80", any, 0, 80, Protocol::Tcp),
        ];
        for (text, host_ip, host_port, cell_port, protocol) in cases {
            let spec = PublishSpec { host_ip, host_port, cell_port, protocol };
            assert_eq!(text.parse(), Ok(spec), "{text}");
            assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
        }
        for bad in ["", ":", "0", "80:0", "70000:1", "+80", "a:80", "1:2:3", "80/sctp", "::1:80:80", "80:80/"]
        {
            assert!(bad.parse::<PublishSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_taken_port_is_seen_for_tcp_and_udp() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (port, protocol) in
            [(tcp.local_addr().unwrap().port(), "tcp"), (udp.local_addr().unwrap().port(), "udp")]
        {
            let spec: PublishSpec = format!("{port}:80/{protocol}").parse().unwrap();
            assert!(matches!(spec.free_host_port(), Err(PublishError::InUse { .. })), "{protocol}");
        }
        let free = "80".parse::<PublishSpec>().unwrap().free_host_port().unwrap();
        assert_ne!(free.port(), 0);
        let foreign: PublishSpec = "203.0.113.1:8080:80".parse().unwrap();
        let error = foreign.free_host_port().unwrap_err().to_string();
        assert!(error.contains("not one of this host's"), "{error}");
    }

    #[test]
    fn two_requests_for_one_port_collide() {
        let published = Publication {
            protocol: Protocol::Tcp,
            host: "127.0.0.1:80".parse().unwrap(),
            cell: "10.0.2.16:80".parse().unwrap(),
        };
        let collides = |text: &str| text.parse::<PublishSpec>().unwrap().collides_with(&published);
        assert!(collides("80:1") && collides("0.0.0.0:80:1"));
        assert!(!collides("81:80") && !collides("80:1/udp") && !collides("127.0.0.2:80:1"));
        assert_eq!(published.rule(), "tcp:127.0.0.1:80-10.0.2.16:80");
    }
}
