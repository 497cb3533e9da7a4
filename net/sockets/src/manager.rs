//! The network manager: an Ebb that says what the network of a cell is made of, and which an application can put its own
//! in the place of.
//!
//! It is asked once, when the network starts: for the device by which the cell talks, and for the settings of the protocol
//! stack. A manager of the application's may give another device than the cell's (a tunnel, a link within the process), its
//! own between the device and the stack ([`crate::filter()`]), none at all, or an address of its own. It is not on the path
//! of a packet: only what it put there is.
//!
//! ```ignore
//! isola::app!(main, components: components);
//!
//! fn components() -> Result<(), InUse> {
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

/// The network manager of the cell. [`CellEbb::replace`] it before the network starts: an application names a function
/// that does (`isola::app!`).
pub static NETWORK_MANAGER: CellEbb<Box<dyn NetworkManager>> = CellEbb::new();

/// What the network of a cell is made of. Asked once, on the core that starts the network.
pub trait NetworkManager: Send + Sync {
    /// The device by which the cell talks; `None` where it does not. The cell's own can be taken once, and so
    /// can [`CellNetwork::open`] be called.
    fn open(&self) -> Option<NetworkPort>;

    /// What every core's stack is set to.
    fn settings(&self) -> NetworkSettings {
        NetworkSettings::default()
    }
}

/// What a protocol stack is set to.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// How the cell comes by its IPv4 address; `Unset`: not until it is [set](crate::set_address).
    pub addressing: Addressing,
    /// How the cell comes by its IPv6 addresses; `Unset`: not at all.
    pub ipv6: Ipv6Addressing,
    /// Bounds of everything but TCP, a core.
    pub limits: Limits,
    /// TCP's settings and bounds, a core.
    pub tcp: TcpConfig,
}

impl Default for NetworkSettings {
    /// The IPv4 address that the cell was given, or DHCP where it was given none; IPv6 as routers say; the stack's
    /// own bounds.
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

/// Isola's own: the cell's first network device, as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct CellNetwork;

impl NetworkManager for CellNetwork {
    fn open(&self) -> Option<NetworkPort> {
        platform().open_network().into_iter().next()
    }
}

impl Representative for Box<dyn NetworkManager> {
    fn create() -> Self {
        Box::new(CellNetwork)
    }
}
