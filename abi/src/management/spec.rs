//! The specification of a cell.

use super::{
    CorePlacement, LendingSpec, MAX_ARGUMENT_BYTES, MAX_ARGUMENTS, MAX_NAME_LEN, ManagementError,
    RestartPolicy,
};
use crate::descriptor::NetworkAddress;
use crate::grid::{GridSetup, MAX_SETUP_BYTES};
use crate::id::MAX_CORES;
use crate::integrity::{ImageDigest, Requirement};
use crate::links::{ServiceName, service_name};
use crate::network_service::NetworkService;
use crate::service::ServedVolume;
use crate::size::ByteSize;
use crate::volume::{self, VolumeMount};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The specification of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSpec {
    /// The cell's name: letters, digits, `-`, `_` and `.`, a letter or digit first, at most [`MAX_NAME_LEN`] bytes.
    pub name: String,
    /// The image's name, for users.
    pub image_name: String,
    /// The digest of a stored image (see [`super::RequestBody::Images`]).
    pub image: ImageDigest,
    /// The requirements that the image must meet.
    pub requirement: Box<Requirement>,
    /// The number of cores.
    pub cores: u32,
    /// The choice of the cores.
    pub placement: CorePlacement,
    /// The size of the memory, image and stacks included; rounded up to whole chunks of 2 MiB.
    pub memory: ByteSize,
    /// The limit for memory requests of the running cell, rounded down to whole chunks. `None`: no more than `memory`.
    /// The supervisor reserves no memory for it.
    pub memory_max: Option<ByteSize>,
    /// The application's arguments.
    pub arguments: Vec<String>,
    /// The network configuration.
    pub network: NetworkSpec,
    /// The part in a network that a service cell serves.
    pub network_service: NetworkService,
    /// The restart policy.
    pub restart: RestartPolicy,
    /// The time in ms after which a cell counts as crashed if one of its cores is not halted and makes no passes of its
    /// event loop; 0 disables the watchdog.
    pub watchdog_ms: u32,
    /// The rules for lending and borrowing cores and memory.
    pub lending: LendingSpec,
    /// The location of the cell's text.
    pub text: Text,
    /// The settings of the resource grid with which it starts.
    pub grid: GridSetup,
    /// The volumes that it mounts.
    pub volumes: Vec<VolumeMount>,
    /// The volumes that it mounts and service cells serve.
    pub served_volumes: Vec<ServedVolume>,
    /// The names of the cells that may open links to it (see [`crate::links`]), or `CELL/SERVICE` for one service; `*`
    /// stands for all cells.
    pub accept: Vec<String>,
    /// The names of the cells with which it exchanges frames over links, if they agree; `*` stands for all. Empty: with
    /// none.
    pub loop_with: Vec<String>,
}

/// The location of a cell's text: its code and constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Text {
    /// In the image store: one copy for all cells of the image.
    #[default]
    Shared,
    /// In the cell's own memory: a copy that no other cell maps.
    Private,
}

/// The network configuration of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkSpec {
    /// No network device.
    None,
    /// A device, and an address by DHCP.
    Dhcp,
    /// A device, and this address.
    Static(NetworkAddress),
}

impl CellSpec {
    /// Returns whether the cell named `opener` may open links to a service of this one. A client of a served network opens
    /// the link by its own name only.
    pub fn accepts(&self, opener: &str, service: &ServiceName) -> bool {
        if self.network_service == NetworkService::Server && service_name(opener) != Some(*service) {
            return false;
        }
        self.accept.iter().any(|accepted| {
            let (cell, only) =
                accepted.split_once('/').map_or((&**accepted, None), |(cell, only)| (cell, Some(only)));
            (cell == "*" || cell == opener)
                && only.is_none_or(|only| service_name(only).is_some_and(|only| only == *service))
        })
    }

    /// Returns whether the two cells agree to exchange frames over links instead of their devices.
    pub fn agrees_to_loop(&self, other: &Self) -> bool {
        let names = |of: &Self, name: &str| of.loop_with.iter().any(|with| with == "*" || with == name);
        let [own, theirs] = [self, other].map(|spec| spec.network != NetworkSpec::None);
        own && theirs && names(self, &other.name) && names(other, &self.name)
    }

    /// Returns the assigned address of the cell, on its own network device or that of a service cell; `None` if it has no
    /// network or uses DHCP.
    pub fn static_address(&self) -> Option<NetworkAddress> {
        match self.network {
            NetworkSpec::Static(address) => Some(address),
            NetworkSpec::Dhcp => None,
            NetworkSpec::None => self.network_service.port().and_then(|port| port.address),
        }
    }

    /// Checks the specification as far as possible without the machine.
    ///
    /// # Errors
    /// [`ManagementError::BadName`] or [`ManagementError::OutOfLimits`].
    pub fn validate(&self) -> Result<(), ManagementError> {
        let mut bytes = self.name.bytes();
        let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let rest = bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if !first || !rest || self.name.len() > MAX_NAME_LEN {
            let mut name = self.name.clone();
            let end = name.floor_char_boundary(MAX_NAME_LEN);
            name.truncate(end);
            return Err(ManagementError::BadName(name));
        }
        let argument_bytes: usize = self.arguments.iter().map(|argument| argument.len() + 1).sum();
        let limit = |what: &str| Err(ManagementError::OutOfLimits(what.into()));
        if self.cores == 0 {
            return limit("a cell needs at least one core");
        }
        if self.cores as usize > MAX_CORES {
            return Err(ManagementError::OutOfLimits(format!(
                "a cell has at most {MAX_CORES} cores, not {}",
                self.cores
            )));
        }
        self.placement.validate(self.cores)?;
        if self.memory.0 == 0 {
            return limit("a cell needs memory");
        }
        if self.memory_max.is_some_and(|most| most < self.memory) {
            return limit("the most memory that a cell may have is less than what it begins with");
        }
        if self.lending.memory_low.is_some_and(|low| low > self.memory) {
            return limit(
                "the memory that a cell keeps (memory-low) is more than what it begins with (memory)",
            );
        }
        if self.image_name.len() > 4 * MAX_NAME_LEN {
            return limit("the image's name is longer than 252 bytes");
        }
        let grid_bytes = self.grid.encoded_len();
        if grid_bytes > MAX_SETUP_BYTES {
            return limit("the grid settings of a cell take at most 1 KiB: leave out activities or rules");
        }
        if let Err(error) = volume::validate(&self.volumes) {
            return Err(ManagementError::OutOfLimits(error.to_string()));
        }
        if let Err(error) = volume::validate_served(&self.volumes, &self.served_volumes) {
            return Err(ManagementError::OutOfLimits(error.to_string()));
        }
        let served = self.served_volumes.iter();
        let served_bytes: usize =
            served.map(|volume| volume.cell.len() + volume.name.len() + volume.path.len() + 16).sum();
        let volume_bytes: usize =
            self.volumes.iter().map(|volume| volume.name.len() + volume.path.len() + 16).sum();
        let accept_bytes: usize = self.accept.iter().chain(&self.loop_with).map(|name| name.len() + 1).sum();
        if self.arguments.len() > MAX_ARGUMENTS
            || argument_bytes + grid_bytes + volume_bytes + served_bytes + accept_bytes > MAX_ARGUMENT_BYTES
        {
            return limit(
                "a cell takes at most 64 arguments, of 4096 bytes together with its grid settings, volumes, accepted \
                 cells and neighbours",
            );
        }
        let has_device = self.network != NetworkSpec::None;
        if let Err(error) = self.network_service.validate(&self.name, has_device) {
            return Err(ManagementError::OutOfLimits(error.to_string()));
        }
        if self.static_address().is_some_and(|address| !(1..=31).contains(&address.prefix_len)) {
            return limit("the prefix of a network is 1 to 31 bits long");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::ActivityRule;
    use alloc::vec;

    fn spec(name: &str) -> CellSpec {
        CellSpec {
            name: name.into(),
            image_name: "kv".into(),
            image: ImageDigest([0; 32]),
            requirement: Box::default(),
            cores: 1,
            placement: CorePlacement::default(),
            memory: ByteSize(16 << 20),
            memory_max: None,
            arguments: vec![],
            network: NetworkSpec::Dhcp,
            network_service: NetworkService::None,
            restart: RestartPolicy::No,
            watchdog_ms: 0,
            lending: LendingSpec::default(),
            text: Text::Shared,
            grid: GridSetup::default(),
            volumes: vec![],
            served_volumes: vec![],
            accept: vec![],
            loop_with: vec![],
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for good in ["kv", "a", "kv-1.test_2", "0"] {
            assert_eq!(spec(good).validate(), Ok(()), "{good}");
        }
        let long = "x".repeat(MAX_NAME_LEN + 1);
        for bad in ["", "-kv", ".", "k v", "k/v", "kä", &long] {
            assert!(matches!(spec(bad).validate(), Err(ManagementError::BadName(_))), "{bad}");
        }
    }

    #[test]
    fn a_cell_has_1_to_64_cores() {
        let of = |cores| CellSpec { cores, ..spec("kv") }.validate();
        assert_eq!((of(1), of(64)), (Ok(()), Ok(())));
        for (cores, part) in
            [(0, "at least one core"), (65, "at most 64 cores, not 65"), (u32::MAX, "at most 64")]
        {
            let Err(ManagementError::OutOfLimits(what)) = of(cores) else { panic!("{cores}") };
            assert!(what.contains(part), "{what}");
        }
    }

    #[test]
    fn a_cell_accepts_other_cells_by_name_and_service() {
        let service = |name: &str| service_name(name).unwrap();
        let accept = vec!["web".into(), "kv/data".into(), "*/public".into()];
        let spec = CellSpec { accept, ..spec("store") };
        for (opener, name, is_accepted) in [
            ("web", "data", true),
            ("web", "other", true),
            ("kv", "data", true),
            ("kv", "other", false),
            ("kv", "dat", false),
            ("evil", "data", false),
            ("evil", "public", true),
        ] {
            assert_eq!(spec.accepts(opener, &service(name)), is_accepted, "{opener} to {name}");
        }
    }

    #[test]
    fn a_client_of_a_network_opens_its_link_by_its_own_name() {
        let service = |name: &str| service_name(name).unwrap();
        let network_service = NetworkService::Server;
        let spec = CellSpec { accept: vec!["*".into()], network_service, ..spec("net") };
        assert!(spec.accepts("web", &service("web")));
        for name in ["kv", "we", "web2", "*", ""] {
            assert!(!spec.accepts("web", &service(name)), "{name}");
        }
        let long = "w".repeat(MAX_NAME_LEN);
        assert!(
            !spec.accepts(&long, &service(&long[..crate::links::MAX_SERVICE_LEN])),
            "a longer name has no port"
        );
        let strict = CellSpec { accept: vec!["kv".into()], ..spec };
        assert!(!strict.accepts("web", &service("web")));
    }

    #[test]
    fn values_out_of_limits_are_refused() {
        let none = CellSpec { cores: 0, ..spec("kv") };
        let small = CellSpec { memory: ByteSize(0), ..spec("kv") };
        let wordy = CellSpec { arguments: vec!["x".repeat(MAX_ARGUMENT_BYTES)], ..spec("kv") };
        let shrinking = CellSpec { memory_max: Some(ByteSize(8 << 20)), ..spec("kv") };
        let keeping = LendingSpec { memory_low: Some(ByteSize(17 << 20)), ..LendingSpec::default() };
        let keeping = CellSpec { lending: keeping, ..spec("kv") };
        let rules = |count| {
            let rule =
                ActivityRule { port: None, peer: None, activity: "web".into(), each_connection: false };
            GridSetup { rules: vec![rule; count], ..GridSetup::default() }
        };
        let detailed = CellSpec { grid: rules(MAX_SETUP_BYTES / 6), ..spec("kv") };
        let neighbourly = CellSpec { loop_with: vec!["x".repeat(MAX_ARGUMENT_BYTES)], ..spec("kv") };
        let sociable = CellSpec { accept: vec!["x".repeat(MAX_ARGUMENT_BYTES)], ..spec("kv") };
        let arguments = vec!["x".repeat(MAX_ARGUMENT_BYTES - 50)];
        let together = CellSpec { grid: rules(10), arguments: arguments.clone(), ..spec("kv") };
        for good in [rules(0), rules(1)] {
            assert_eq!(
                CellSpec { grid: good, arguments: arguments.clone(), ..spec("kv") }.validate(),
                Ok(())
            );
        }
        for bad in [none, small, wordy, shrinking, keeping, detailed, together, sociable, neighbourly] {
            assert!(matches!(bad.validate(), Err(ManagementError::OutOfLimits(_))));
        }
    }

    #[test]
    fn two_cells_loop_only_if_both_name_the_other_and_have_a_network() {
        let named = |name: &str, with: &[&str]| CellSpec {
            loop_with: with.iter().map(|name| String::from(*name)).collect(),
            network: NetworkSpec::Dhcp,
            ..spec(name)
        };
        let agree = |a: &CellSpec, b: &CellSpec| (a.agrees_to_loop(b), b.agrees_to_loop(a));
        let (kv, web, all) = (named("kv", &["web"]), named("web", &["kv", "x"]), named("all", &["*"]));
        assert_eq!(agree(&kv, &web), (true, true));
        assert_eq!(agree(&kv, &all), (false, false), "kv does not name it");
        assert_eq!(agree(&named("any", &["*"]), &all), (true, true));
        assert_eq!(agree(&kv, &named("web", &[])), (false, false), "off by default");
        assert_eq!(agree(&kv, &CellSpec { network: NetworkSpec::None, ..web }), (false, false));
    }
}
