//! State of the cell's network that all cores share: its address, neighbours and listeners.
//!
//! A lock protects the state, and no packet takes it: a core copies the state into its own stack when it first uses the
//! network, and receives changes by message.

use crate::core_network::{self, NETWORK};
use crate::device;
use crate::manager::{NETWORK_MANAGER, NetworkSettings};
use crate::steering;
use crate::tcp::Listener;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;
use isola_ebbs::{CellEbb, Representative, current_core, platform};
use isola_events::{on_cores_changed, present_cores, spawn_on};
use isola_net_stack::{
    Addressing, Config, ConfigError, CoreShare, Evidence, Ipv4Config, Ipv6Addressing, Ipv6Settings, KEY_LEN,
    MacAddr, Secret, Steering, TxChecksum, TxSegments, use_tcp,
};
use isola_platform::CoreIndex;
use isola_platform::network::{NetworkPort, Offloads};
use spin::{Mutex, Once};

pub(crate) static INTERFACE: CellEbb<Interface> = CellEbb::new();

/// The most neighbours that are stored for cores that join later.
const MAX_NEIGHBOURS: usize = 512;

/// The shared state of a cell's cores.
pub(crate) struct Interface {
    state: Mutex<State>,
    /// The cores with a stack, one bit each: they receive changes.
    joined: AtomicU64,
    steering: Once<Arc<Steering>>,
}

#[derive(Default)]
struct State {
    link: Option<Link>,
    address: Option<Ipv4Config>,
    ipv6: Ipv6Settings,
    neighbours: BTreeMap<IpAddr, MacAddr>,
    /// The hardware addresses to which frames go over links in memory.
    linked: Vec<MacAddr>,
    listeners: BTreeMap<u16, Arc<Listener>>,
    /// The bound UDP ports, and the cores that bound them.
    datagram_cores: BTreeMap<u16, CoreIndex>,
    waiting: Vec<Waker>,
}

/// The properties of the device, and the settings of the stacks.
struct Link {
    mac: [u8; 6],
    mtu: u16,
    headroom: usize,
    tx_checksum: TxChecksum,
    tx_segments: TxSegments,
    /// The same for all cores: one core may have to verify values that another derived from it.
    secret: [u8; 32],
    settings: NetworkSettings,
}

impl Representative for Interface {
    fn create() -> Self {
        Self { state: Mutex::default(), joined: AtomicU64::new(0), steering: Once::new() }
    }
}

/// The reason for which the network cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// The cell has no network device.
    NoDevice,
    /// The configuration by the network manager or the cell's specification is invalid.
    Config(ConfigError),
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str("the cell has no network device: run it with a network"),
            Self::Config(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for NetworkError {}

/// Starts the network that the cell's network manager supplies, on the calling core. Must be called once, before any
/// other function of this crate.
///
/// # Errors
/// [`NetworkError`], if there is no device, or the manager's settings are invalid.
pub fn start() -> Result<(), NetworkError> {
    start_over(|port| port)
}

/// Starts the network as [`start`] does, over the port that `wrap` makes of the network manager's.
///
/// # Errors
/// As [`start`].
pub fn start_over(wrap: impl FnOnce(NetworkPort) -> NetworkPort) -> Result<(), NetworkError> {
    let manager = &**NETWORK_MANAGER;
    let port = wrap(manager.open().ok_or(NetworkError::NoDevice)?);
    let offloads = port.queues.iter().map(|queue| queue.offloads()).reduce(Offloads::and).unwrap_or_default();
    let tx_checksum = if offloads.checksums { TxChecksum::Device } else { TxChecksum::Software };
    let tx_segments = TxSegments { ipv4: offloads.segments_ipv4, ipv6: offloads.segments_ipv6 };
    let link = Link {
        mac: port.mac,
        mtu: port.mtu,
        headroom: port.headroom,
        tx_checksum,
        tx_segments,
        secret: random(),
        settings: manager.settings(),
    };
    link.config(CoreIndex(0)).validate().map_err(NetworkError::Config)?;
    INTERFACE.steering.call_once(|| {
        let key: [u8; KEY_LEN] = random();
        let slots = platform().descriptor().core_slot_count as u16;
        Arc::new(Steering::begun_by(present_cores().len() as u16, slots, key))
    });
    on_cores_changed(|_| steering::rebalance_over_present_cores());
    let address = match link.settings.addressing {
        Addressing::Static(address) => Some(address),
        Addressing::Dhcp | Addressing::Unset => None,
    };
    let mut state = INTERFACE.state.lock();
    state.link = Some(link);
    state.address = address;
    drop(state);
    device::start(port.queues, port.spreading);
    // The first instance represents the interface from the start: it announces the address, or requests one.
    core_network::create_stack();
    if let Some(address) = address {
        publish_address(Some(address));
    }
    Ok(())
}

/// Returns random bytes from the platform's `entropy`.
fn random<const LEN: usize>() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes.as_chunks_mut().0.iter_mut().for_each(|word| *word = platform().entropy().to_ne_bytes());
    bytes
}

/// Returns the steering table, once the network was started.
#[inline]
pub(crate) fn steering() -> Option<&'static Arc<Steering>> {
    INTERFACE.steering.get()
}

/// The properties of the cell's network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProperties {
    /// The hardware address.
    pub mac: [u8; 6],
    /// The most bytes of an IP packet.
    pub mtu: u16,
}

/// Returns the properties of the cell's network device; `None` without one.
pub fn link() -> Option<LinkProperties> {
    let state = INTERFACE.state.lock();
    state.link.as_ref().map(|link| LinkProperties { mac: link.mac, mtu: link.mtu })
}

/// Returns the cell's IPv4 address, once it has one.
pub fn address() -> Option<Ipv4Config> {
    INTERFACE.state.lock().address
}

/// Returns the current IPv6 settings: addresses, networks, routers, name servers.
pub fn ipv6() -> Ipv6Settings {
    INTERFACE.state.lock().ipv6
}

/// The cell cannot set its IPv4 address: it was created with a fixed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressIsGiven(pub Ipv4Addr);

impl fmt::Display for AddressIsGiven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the cell was given the address {}: run it with `--network dhcp` to choose another", self.0)
    }
}

impl core::error::Error for AddressIsGiven {}

/// Replaces the cell's IPv4 address, or removes it; this ends DHCP. An address that no host can have counts as none.
/// Connections of another address fail.
///
/// The cell's network may forward only frames with addresses that it assigned; `isola`'s switch does so.
///
/// # Errors
/// [`AddressIsGiven`], if the cell was created with a fixed address.
pub fn set_address(address: Option<Ipv4Config>) -> Result<(), AddressIsGiven> {
    if let Some(given) = platform().descriptor().address {
        return Err(AddressIsGiven(given.ip));
    }
    // The first core's stack informs the others.
    spawn_on(CoreIndex(0), move || NETWORK.set_address(address));
    Ok(())
}

/// Completes when the cell has an IPv6 address of global scope.
pub async fn wait_for_ipv6() -> Ipv6Settings {
    core::future::poll_fn(|context| {
        let mut state = INTERFACE.state.lock();
        if state.ipv6.global().is_some() {
            return core::task::Poll::Ready(state.ipv6);
        }
        state.waiting.push(context.waker().clone());
        core::task::Poll::Pending
    })
    .await
}

/// Completes when the cell has an IPv4 address.
pub async fn wait_for_address() -> Ipv4Config {
    core::future::poll_fn(|context| {
        let mut state = INTERFACE.state.lock();
        match state.address {
            Some(address) => core::task::Poll::Ready(address),
            None => {
                state.waiting.push(context.waker().clone());
                core::task::Poll::Pending
            }
        }
    })
    .await
}

/// Records a change of the address that the first instance reported, and informs the other cores with a stack.
pub(crate) fn publish_address(address: Option<Ipv4Config>) {
    let mut state = INTERFACE.state.lock();
    state.address = address;
    let waiting = core::mem::take(&mut state.waiting);
    drop(state);
    let number = address.map_or(0, |config| u32::from(config.address));
    platform().report().ipv4_address.store(number, Ordering::Relaxed);
    run_on_others(move || NETWORK.set_address(address));
    waiting.into_iter().for_each(Waker::wake);
}

/// Records a change of the IPv6 settings that the first instance reported, and informs the other cores with a stack.
pub(crate) fn publish_ipv6(settings: Ipv6Settings) {
    let mut state = INTERFACE.state.lock();
    state.ipv6 = settings;
    let waiting = core::mem::take(&mut state.waiting);
    drop(state);
    run_on_others(move || NETWORK.set_ipv6(settings));
    waiting.into_iter().for_each(Waker::wake);
}

/// Records a neighbour that one core has discovered, and informs the others.
pub(crate) fn publish_neighbour(ip: IpAddr, mac: MacAddr, evidence: Evidence) {
    let mut state = INTERFACE.state.lock();
    if state.neighbours.len() >= MAX_NEIGHBOURS {
        state.neighbours.pop_first();
    }
    state.neighbours.insert(ip, mac);
    drop(state);
    run_on_others(move || NETWORK.learn(ip, mac, evidence));
}

/// Sets the hardware addresses to which frames go over links in memory, on all cores.
pub(crate) fn publish_linked(linked: Vec<MacAddr>) {
    INTERFACE.state.lock().linked.clone_from(&linked);
    let for_others = linked.clone();
    run_on_others(move || NETWORK.set_linked(for_others.clone()));
    NETWORK.set_linked(linked);
}

/// Adds a listener on all cores that have a stack, and on those that will have one.
pub(crate) fn publish_listener(port: u16, listener: Arc<Listener>) -> Result<(), ()> {
    // Here and not in `CoreNetwork::listen`, which images without TCP contain, too.
    use_tcp();
    let mut state = INTERFACE.state.lock();
    if state.listeners.contains_key(&port) {
        return Err(());
    }
    state.listeners.insert(port, listener.clone());
    drop(state);
    let for_others = listener.clone();
    run_on_others(move || NETWORK.listen(port, for_others.clone()));
    NETWORK.listen(port, listener);
    Ok(())
}

/// Removes the listener of a port.
pub(crate) fn withdraw_listener(port: u16) {
    INTERFACE.state.lock().listeners.remove(&port);
    run_on_others(move || NETWORK.stop_listening(port));
    NETWORK.stop_listening(port);
}

/// Binds a UDP port to the calling core.
///
/// # Errors
/// If any core has bound it.
pub(crate) fn bind_udp_port(port: u16) -> Result<(), ()> {
    match INTERFACE.state.lock().datagram_cores.entry(port) {
        Entry::Occupied(_) => Err(()),
        Entry::Vacant(free) => {
            free.insert(current_core());
            Ok(())
        }
    }
}

/// Unbinds a UDP port.
pub(crate) fn unbind_udp_port(port: u16) {
    INTERFACE.state.lock().datagram_cores.remove(&port);
}

/// Returns the bound UDP ports.
pub(crate) fn bound_udp_ports() -> Vec<u16> {
    INTERFACE.state.lock().datagram_cores.keys().copied().collect()
}

/// Returns the core that has bound a UDP port.
pub(crate) fn core_of_udp_port(port: u16) -> Option<CoreIndex> {
    INTERFACE.state.lock().datagram_cores.get(&port).copied()
}

/// Passes a refusal of a datagram to the core that has bound its port.
pub(crate) fn datagram_refused(port: u16, remote: SocketAddr) {
    if let Some(core) = core_of_udp_port(port) {
        spawn_on(core, move || NETWORK.datagram_refused(port, remote));
    }
}

/// Runs `work` on the other cores that have a stack.
fn run_on_others(work: impl Fn() + Clone + Send + 'static) {
    let here = current_core();
    joined_cores().filter(|core| *core != here).for_each(|core| spawn_on(core, work.clone()));
}

/// Returns the cores that have a stack.
pub(crate) fn joined_cores() -> impl Iterator<Item = CoreIndex> {
    let joined = INTERFACE.joined.load(Ordering::Acquire);
    (0..64).map(CoreIndex).filter(move |core| joined & (1 << core.0) != 0)
}

/// The initial state of a core's stack.
pub(crate) struct InitialState {
    pub config: Config,
    pub ipv6: Ipv6Settings,
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    pub linked: Vec<MacAddr>,
    pub listeners: Vec<(u16, Arc<Listener>)>,
}

/// Records that the calling core has a stack from now on, and returns its initial state; `None` if the cell has no
/// device.
///
/// A concurrent change reaches the core either in this state or as a message.
pub(crate) fn join() -> Option<InitialState> {
    let core = current_core();
    let state = INTERFACE.state.lock();
    let link = state.link.as_ref()?;
    INTERFACE.joined.fetch_or(1 << core.0, Ordering::AcqRel);
    let mut config = link.config(core);
    if let Some(address) = state.address {
        config.addressing = Addressing::Static(address);
    }
    Some(InitialState {
        config,
        ipv6: state.ipv6,
        linked: state.linked.clone(),
        neighbours: state.neighbours.iter().map(|(ip, mac)| (*ip, *mac)).collect(),
        listeners: state.listeners.iter().map(|(port, listener)| (*port, listener.clone())).collect(),
    })
}

impl Link {
    /// Returns the configuration of a core's stack, while the cell has no other address.
    fn config(&self, core: CoreIndex) -> Config {
        let NetworkSettings { addressing, ipv6, limits, tcp } = self.settings.clone();
        let (addressing, ipv6) = match core {
            CoreIndex(0) => (addressing, ipv6),
            _ => (Addressing::Unset, Ipv6Addressing::Unset),
        };
        let steering = INTERFACE.steering.get().cloned();
        let core =
            steering.map_or_else(CoreShare::alone, |steering| CoreShare { index: core.0 as u16, steering });
        let (mtu, headroom, tx_checksum) = (usize::from(self.mtu), self.headroom, self.tx_checksum);
        Config {
            addressing,
            ipv6,
            mtu,
            headroom,
            tx_checksum,
            tx_segments: self.tx_segments,
            core,
            limits,
            tcp,
            ..Config::new(MacAddr(self.mac), Secret(self.secret))
        }
    }
}
