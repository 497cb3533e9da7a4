//! The network manager: an Ebb that selects the device and the settings of the cell's network. An application can
//! replace it.
//!
//! It is called once, when the network starts, for the cell's network device and for the settings of the protocol
//! stack. An application's manager can supply another device than the cell's (a tunnel, a link within the process), a
//! filter between the device and the stack ([`crate::filter()`]), no device, or another address. The manager itself is
//! not on the path of packets.
//!
//! ```ignore
//! isola::app!(main, components: components);
//!
//! fn components() -> Result<(), EbbInUse> {
//!     NETWORK_MANAGER.replace(|| Box::new(Firewall))
//! }
//!
//! struct Firewall;
//!
//! impl NetworkManager for Firewall {
//!     fn open(&self) -> Option<NetworkPort> {
//!         Some(filter(CellNetwork.open()?, |_queue| OnlyTheWeb::default()))
//!     }
//! }
//! ```

use alloc::boxed::Box;
use isola_ebbs::{CellEbb, Representative, platform};
use isola_net_stack::{Addressing, Ipv4Config, Ipv6Addressing, Limits, TcpConfig};
use isola_platform::network::NetworkPort;
use spin::Mutex;

/// The network manager of the cell. Replace it ([`CellEbb::replace`]) before the network starts: an application names a
/// function that does so (`isola::app!`).
pub static NETWORK_MANAGER: CellEbb<Box<dyn NetworkManager>> = CellEbb::new();

/// The device and settings of a cell's network. Called once, on the core that starts the network.
pub trait NetworkManager: Send + Sync {
    /// Returns the cell's network device, `None` if it has none. The cell's own device can be taken only once, and so
    /// [`CellNetwork::open`] can be called only once.
    fn open(&self) -> Option<NetworkPort>;

    /// Returns the settings of every core's stack.
    fn settings(&self) -> NetworkSettings {
        NetworkSettings::default()
    }
}

/// The settings of a protocol stack.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// The source of the cell's IPv4 address; with `Unset` it has none until it is [set](crate::set_address).
    pub addressing: Addressing,
    /// The source of the cell's IPv6 addresses; with `Unset` it has none.
    pub ipv6: Ipv6Addressing,
    /// Limits of all protocols but TCP, per core.
    pub limits: Limits,
    /// TCP's settings and limits, per core.
    pub tcp: TcpConfig,
}

impl Default for NetworkSettings {
    /// Returns the cell's fixed IPv4 address, or DHCP without one; IPv6 by router advertisements; and the stack's
    /// default limits.
    fn default() -> Self {
        let given = platform().descriptor().address;
        let fixed = given.map(|given| Ipv4Config::new(given.ip, given.prefix_len, given.gateway));
        Self {
            addressing: fixed.map_or(Addressing::Dhcp, Addressing::Static),
            ipv6: Ipv6Addressing::Auto,
            limits: Limits::default(),
            tcp: TcpConfig::default(),
        }
    }
}

/// Isola's default manager: the cell's first network device, or the one that a service cell serves, without a filter.
#[derive(Clone, Copy, Debug, Default)]
pub struct CellNetwork;

impl NetworkManager for CellNetwork {
    fn open(&self) -> Option<NetworkPort> {
        SERVED.take().or_else(|| platform().open_network().into_iter().next())
    }
}

static SERVED: CellEbb<ServedPort> = CellEbb::new();

/// The network device that a service cell serves to this one, until it is opened.
#[derive(Default)]
struct ServedPort(Mutex<Option<NetworkPort>>);

impl ServedPort {
    fn take(&self) -> Option<NetworkPort> {
        self.0.lock().take()
    }
}

impl Representative for ServedPort {
    fn create() -> Self {
        Self::default()
    }
}

/// Makes a device that a service cell serves the one that [`CellNetwork::open`] returns. To be called before the network
/// starts.
pub fn supply(port: NetworkPort) {
    SERVED.0.lock().replace(port);
}

impl Representative for Box<dyn NetworkManager> {
    fn create() -> Self {
        Box::new(CellNetwork)
    }
}
