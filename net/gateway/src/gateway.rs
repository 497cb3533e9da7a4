//! The gateway's own cell: its start, and its published ports.

use crate::{outbound, published};
use isola_abi::descriptor::NetworkAddress;
use isola_abi::hosted::{Forward, Transport};
use isola_events::{run, spawn_task};
use isola_hosted::{Loss, Settings, link};
use isola_platform::network::NetworkPort;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::sync::Mutex;
use std::thread;

/// The address at which the cell reaches its host.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The cell's address.
pub const CELL: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// The length of the network's prefix.
const PREFIX_LEN: u8 = 24;

/// The reason why the gateway cannot be started.
#[derive(Debug)]
pub enum GatewayError {
    /// A port of the host cannot be bound.
    Port {
        /// The address and port.
        host: SocketAddrV4,
        /// The transport protocol.
        transport: Transport,
        /// The error from Linux.
        error: io::Error,
    },
    /// The gateway's thread cannot be started.
    Thread(io::Error),
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port { host, transport, error } => {
                write!(f, "port {host}/{transport} cannot be published: {error}")?;
                f.write_str(match error.kind() {
                    io::ErrorKind::AddrInUse => "; choose another host port, or end the program that uses it",
                    io::ErrorKind::PermissionDenied => {
                        "; ports below 1024 need root privileges: choose a higher one"
                    }
                    io::ErrorKind::AddrNotAvailable => "; the address is not one of this host's",
                    _ => "",
                })
            }
            Self::Thread(error) => write!(f, "the gateway's thread cannot be started: {error}"),
        }
    }
}

impl std::error::Error for GatewayError {}

/// A published port of the host.
pub(crate) enum PublishedPort {
    /// Connections go to this port of the cell.
    Tcp(TcpListener, u16),
    /// Datagrams go to this port of the cell.
    Udp(UdpSocket, u16),
}

/// Starts a gateway for one cell and publishes these ports of the host, until the process ends. Returns the cell's
/// network device, and its address there.
///
/// # Errors
/// [`GatewayError`]; then no port is published.
pub fn start(forwards: &[Forward]) -> Result<(NetworkPort, NetworkAddress), GatewayError> {
    let ports = forwards.iter().map(open).collect::<Result<Vec<PublishedPort>, GatewayError>>()?;
    raise_limit();
    let (inner, outer) = link(Loss::Never);
    let outer = outbound::inspect_received(outer);
    let (ports, outer) = (Mutex::new(Some(ports)), vec![outer]);
    let address = |ip, gateway| NetworkAddress { ip, prefix_len: PREFIX_LEN, gateway };
    let settings =
        Settings { name: "gateway".into(), address: Some(address(GATEWAY, None)), ..Settings::default() };
    let cell = move || {
        isola_hosted::run(settings, outer, |_| {
            isola_net::start().expect("the gateway has a device and a fixed address");
            let ports = ports.lock().ok().and_then(|mut ports| ports.take()).unwrap_or_default();
            for port in ports {
                match port {
                    PublishedPort::Tcp(listener, cell_port) => {
                        spawn_task(published::serve(listener, cell_port)).detach()
                    }
                    PublishedPort::Udp(socket, cell_port) => {
                        spawn_task(published::forward_datagrams(socket, cell_port)).detach()
                    }
                }
            }
            run()
        });
    };
    thread::Builder::new().name("gateway".into()).spawn(cell).map_err(GatewayError::Thread)?;
    Ok((inner, address(CELL, Some(GATEWAY))))
}

fn open(forward: &Forward) -> Result<PublishedPort, GatewayError> {
    let Forward { transport, host, cell_port } = *forward;
    match transport {
        Transport::Tcp => TcpListener::bind(host).map(|listener| PublishedPort::Tcp(listener, cell_port)),
        Transport::Udp => UdpSocket::bind(host).map(|socket| PublishedPort::Udp(socket, cell_port)),
    }
    .map_err(|error| GatewayError::Port { host, transport, error })
}

/// Raises the limit of file descriptors to the maximum: each connection uses one.
fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If this fails, connections are refused earlier.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
