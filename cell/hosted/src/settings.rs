//! The settings of a hosted cell.

use isola_abi::descriptor::NetworkAddress;
use isola_abi::network_service::NetworkService;
use isola_abi::volume::VolumeMount;
use isola_platform::LinkPort;
use std::path::PathBuf;

/// The settings of a hosted cell.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cell's name.
    pub name: String,
    /// The number of cores; at most 64.
    pub cores: usize,
    /// The number of core slots, for cores that are [plugged](crate::Hosted::plug_core) while it runs; at least
    /// `cores`, at most 64.
    pub core_slot_count: usize,
    /// Whether its cores are pinned to processors.
    pub pinning: Pinning,
    /// Arguments for the application.
    pub arguments: Vec<String>,
    /// The files of its volumes, with their mounts.
    pub volumes: Vec<(PathBuf, VolumeMount)>,
    /// The cell's network address; without one it uses DHCP.
    pub address: Option<NetworkAddress>,
    /// The cell's links to others, whose supervisor the caller simulates.
    pub links: Option<&'static dyn LinkPort>,
    /// The cell's part in a network that one of these cells serves.
    pub network_service: NetworkService,
}

/// Whether cores are pinned to processors of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Linux schedules cores freely: for tests that run in parallel.
    Free,
    /// Each core is pinned to a processor of its own if the process may use as many processors as the cell has cores;
    /// otherwise the same as [`Self::Free`].
    WherePossible,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: "hosted".into(),
            cores: 1,
            core_slot_count: 1,
            pinning: Pinning::Free,
            arguments: Vec::new(),
            volumes: Vec::new(),
            address: None,
            links: None,
            network_service: NetworkService::None,
        }
    }
}
