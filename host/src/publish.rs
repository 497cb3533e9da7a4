//! Port publication: forwarding of a host port to a port of a cell.
//!
//! On QEMU's user-mode network this is a forwarding rule of QEMU, which can be added and removed while the machine
//! runs.

use crate::machine::qemu::UPLINK_ID;
use crate::machine::qmp::{Qmp, QmpError};
use isola_abi::hosted::Transport;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::str::FromStr;
use thiserror::Error;

/// The host address of a published port if none is given: the loopback address, so only this host can connect.
pub const DEFAULT_HOST_IP: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A request to publish: `[IP:]HOST:CELL[/tcp|udp]`, or `CELL[/tcp|udp]` for any free host port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublishSpec {
    /// The host's address.
    pub host_ip: Ipv4Addr,
    /// The host's port; 0 for any free one.
    pub host_port: u16,
    /// The cell's port.
    pub cell_port: u16,
    /// The protocol.
    pub protocol: Transport,
}

/// A published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Publication {
    /// The protocol.
    pub protocol: Transport,
    /// The address and port on the host.
    pub host: SocketAddrV4,
    /// The address and port of the cell.
    pub cell: SocketAddrV4,
}

/// The error for a text that does not describe a port to publish.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no port to publish: write [IP:]HOST_PORT:CELL_PORT[/tcp|udp], as in 11211:11211 or 127.0.0.1:8080:80/tcp"
)]
pub struct BadPublishSpec(String);

/// The reasons why a port was not published.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The port is already published for a cell of this user.
    #[error(
        "port {host}/{protocol} is published for cell {cell:?} of machine {machine:?} already: choose another host port"
    )]
    Published {
        /// The port.
        host: SocketAddrV4,
        /// The protocol.
        protocol: Transport,
        /// The cell.
        cell: String,
        /// The machine.
        machine: String,
    },
    /// Two requests name the port, for different ports of the cell.
    #[error("port {host}/{protocol} is to lead to two ports of the cell: choose another host port for one")]
    Twice {
        /// The port.
        host: SocketAddrV4,
        /// The protocol.
        protocol: Transport,
    },
    /// Another program uses the port.
    #[error(
        "port {host}/{protocol} is in use by another program: choose another host port, or end that program"
    )]
    InUse {
        /// The port.
        host: SocketAddrV4,
        /// The protocol.
        protocol: Transport,
    },
    /// The host rejected the port.
    #[error("the host does not give port {host}/{protocol}: {error}{}", advice(error, *host))]
    Refused {
        /// The port.
        host: SocketAddrV4,
        /// The protocol.
        protocol: Transport,
        /// The host's error.
        error: io::Error,
    },
    /// QEMU could not forward the port.
    #[error("QEMU cannot forward {host}/{protocol}: {answer}")]
    Forward {
        /// The port.
        host: SocketAddrV4,
        /// The protocol.
        protocol: Transport,
        /// QEMU's message.
        answer: String,
    },
    /// QEMU did not answer.
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
    /// Returns a host port that is free now: the requested one, or any free one if the request has port 0.
    ///
    /// # Errors
    /// [`PublishError::InUse`] or [`PublishError::Refused`].
    pub fn free_host_port(&self) -> Result<SocketAddrV4, PublishError> {
        let (host, protocol) = (SocketAddrV4::new(self.host_ip, self.host_port), self.protocol);
        // QEMU's UDP socket would share the port with another program's, so QEMU would not detect the conflict.
        let bound = match protocol {
            Transport::Tcp => TcpListener::bind(host).and_then(|socket| socket.local_addr()),
            Transport::Udp => UdpSocket::bind(host).and_then(|socket| socket.local_addr()),
        };
        match bound {
            Ok(address) => Ok(SocketAddrV4::new(self.host_ip, address.port())),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(PublishError::InUse { host, protocol })
            }
            Err(error) => Err(PublishError::Refused { host, protocol, error }),
        }
    }

    /// Returns whether the request names the host port of `publication`.
    pub fn collides_with(&self, publication: &Publication) -> bool {
        let everywhere = |ip: Ipv4Addr| ip.is_unspecified();
        let ip = *publication.host.ip();
        self.host_port == publication.host.port()
            && self.protocol == publication.protocol
            && (self.host_ip == ip || everywhere(self.host_ip) || everywhere(ip))
    }

    /// Checks that no two requests name one host port for different ports of a cell.
    ///
    /// # Errors
    /// [`PublishError::Twice`].
    pub fn check_conflicts(specs: &[Self]) -> Result<(), PublishError> {
        for (index, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.host_port != 0) {
            let host = SocketAddrV4::new(spec.host_ip, spec.host_port);
            let of = |other: &Self| Publication {
                protocol: other.protocol,
                host: SocketAddrV4::new(other.host_ip, other.host_port),
                cell: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, other.cell_port),
            };
            let mut earlier = specs.iter().take(index).filter(|other| other.cell_port != spec.cell_port);
            if earlier.any(|other| spec.collides_with(&of(other))) {
                return Err(PublishError::Twice { host, protocol: spec.protocol });
            }
        }
        Ok(())
    }

    /// Returns the publication that satisfies the request for the cell with the address `cell_ip`. Publishes nothing.
    ///
    /// # Errors
    /// As [`PublishSpec::free_host_port`].
    pub fn resolve(&self, cell_ip: Ipv4Addr) -> Result<Publication, PublishError> {
        let host = self.free_host_port()?;
        Ok(Publication { protocol: self.protocol, host, cell: SocketAddrV4::new(cell_ip, self.cell_port) })
    }
}

impl Publication {
    /// Publishes: adds the forwarding rule to QEMU.
    ///
    /// # Errors
    /// [`PublishError::Forward`] and [`PublishError::Qmp`]; nothing is published then.
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

    /// Removes the forwarding rule from QEMU. QEMU's answer is ignored, as a rule that it does not have is removed
    /// already.
    ///
    /// # Errors
    /// [`PublishError::Qmp`] if QEMU did not answer.
    pub fn end(&self, qmp: &mut Qmp) -> Result<(), PublishError> {
        qmp.human(&format!("hostfwd_remove {UPLINK_ID} {}:{}", self.protocol, colons(self.host)))?;
        Ok(())
    }

    /// Returns the forwarding rule in QEMU's syntax.
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
                None => (text, Transport::Tcp),
                Some((ports, "tcp")) => (ports, Transport::Tcp),
                Some((ports, "udp")) => (ports, Transport::Udp),
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
    // `parse` would accept a plus sign.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_s_port_syntax_is_accepted() {
        let any = Ipv4Addr::UNSPECIFIED;
        let cases = [
            ("11211:11211", DEFAULT_HOST_IP, 11211, 11211, Transport::Tcp),
            ("8080:80/tcp", DEFAULT_HOST_IP, 8080, 80, Transport::Tcp),
            ("0.0.0.0:53:5353/udp", any, 53, 5353, Transport::Udp),
            ("80", DEFAULT_HOST_IP, 0, 80, Transport::Tcp),
            ("0.0.0.0::80", any, 0, 80, Transport::Tcp),
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
    fn a_port_in_use_is_detected_for_tcp_and_udp() {
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
            protocol: Transport::Tcp,
            host: "127.0.0.1:80".parse().unwrap(),
            cell: "10.0.2.16:80".parse().unwrap(),
        };
        let collides = |text: &str| text.parse::<PublishSpec>().unwrap().collides_with(&published);
        assert!(collides("80:1") && collides("0.0.0.0:80:1"));
        assert!(!collides("81:80") && !collides("80:1/udp") && !collides("127.0.0.2:80:1"));
        assert_eq!(published.rule(), "tcp:127.0.0.1:80-10.0.2.16:80");
    }
}
