//! The options of a machine, as `isola up` parses them.

use isola_abi::size::ByteSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The maximum number of cores: QEMU gives each a local APIC id, and an id above [`MAX_APIC_ID`] needs an interrupt
/// remapping unit, which these machines do not have.
pub const MAX_CORES: u32 = MAX_APIC_ID + 1;

/// The highest id of a local APIC that messages of devices can name.
const MAX_APIC_ID: u32 = 254;

/// The maximum number of network devices: both kinds of machine have slots for this many.
pub const MAX_NICS: u32 = 22;

/// The maximum number of block devices.
pub const MAX_DISKS: u32 = 16;

/// The maximum number of network and block devices together: the usable slots of a microvm.
pub const MAX_DEVICES: u32 = 22;

/// The maximum number of NUMA nodes, and of cores per physical core.
pub const MAX_SHARES: u32 = 8;

/// The options of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineOptions {
    /// The number of cores; the supervisor takes one.
    pub cores: u32,
    /// The topology of the cores.
    #[serde(default)]
    pub topology: Topology,
    /// The amount of memory.
    pub memory: ByteSize,
    /// The number of network devices, and so of cells that can have one.
    pub nics: u32,
    /// The number of block devices, and so of volumes that cells can have at one time.
    #[serde(default)]
    pub disks: u32,
    /// The QEMU machine type.
    pub model: MachineModel,
    /// The processor model, as QEMU names it.
    pub cpu: String,
    /// The uplink of the virtual network.
    pub uplink: Uplink,
}

/// The topology of a machine's cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The number of cores per physical core.
    pub threads: u32,
    /// The number of NUMA nodes, one package each; they share cores and memory equally.
    pub nodes: u32,
}

impl Default for Topology {
    /// One core per physical core, and one node.
    fn default() -> Self {
        Self { threads: 1, nodes: 1 }
    }
}

impl Topology {
    /// Returns the highest id of a local APIC: QEMU numbers packages, physical cores and their cores by fields of whole
    /// bits.
    fn highest_apic_id(self, cores: u32) -> u32 {
        let Self { threads, nodes } = self;
        let physical = cores / (threads * nodes);
        let core = (physical - 1) * threads.next_power_of_two() + threads - 1;
        (nodes - 1) * physical.next_power_of_two() * threads.next_power_of_two() + core
    }
}

/// The QEMU machine type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MachineModel {
    /// An ordinary PC with PCI Express.
    Q35,
    /// A minimal machine without PCI; starts faster.
    Microvm,
}

/// The accelerator: the component that executes the machine's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// QEMU's emulator.
    Tcg,
    /// The processor itself, through Linux KVM.
    Kvm,
}

/// The requested accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AcceleratorChoice {
    /// KVM where it works, else the emulator.
    Auto,
    /// QEMU's emulator.
    Tcg,
    /// Linux' KVM.
    Kvm,
}

/// The uplink of a machine's virtual network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Uplink {
    /// QEMU's user-mode network: needs no privileges; ports are published on the host. Cells cannot reach the host's
    /// own services.
    User,
    /// The same, with access to the host's services: 10.0.2.2 is its 127.0.0.1.
    #[serde(rename = "user,host-access")]
    UserWithHost,
    /// A TAP interface of the host, which a privileged user has created.
    Tap {
        /// The interface's name.
        interface: String,
        /// The number of queues. With it, the machine has one network device with that many queues, directly at the
        /// interface.
        queues: Option<u32>,
    },
}

/// The reasons why options are invalid.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum OptionsError {
    /// The number of cores.
    #[error(
        "a machine has 2 to {MAX_CORES} cores, not {0}: the supervisor takes one, the others are for cells"
    )]
    Cores(u32),
    /// The ids of the cores.
    #[error(
        "{cores} cores in {nodes} nodes of physical cores of {threads} have interrupt controllers up to number {highest}, \
         and the last that devices reach is {MAX_APIC_ID}: ask for fewer cores, or numbers that are powers of two"
    )]
    ApicIds {
        /// The number of cores.
        cores: u32,
        /// Cores of a physical core.
        threads: u32,
        /// NUMA nodes.
        nodes: u32,
        /// The highest id of a local APIC.
        highest: u32,
    },
    /// The topology.
    #[error(
        "{cores} cores cannot be {nodes} nodes of physical cores of {threads}: ask for a multiple of {}", nodes * threads
    )]
    Uneven {
        /// The number of cores.
        cores: u32,
        /// Cores of a physical core.
        threads: u32,
        /// NUMA nodes.
        nodes: u32,
    },
    /// The number of threads or nodes.
    #[error("a machine has 1 to {MAX_SHARES} nodes, and physical cores of 1 to {MAX_SHARES} cores")]
    Topology,
    /// Nodes where there can be one.
    #[error("a microvm has one NUMA node: use --machine q35 for more")]
    Nodes,
    /// The memory.
    #[error("a machine needs at least 32 MiB of memory, not {0}")]
    Memory(ByteSize),
    /// The network devices.
    #[error("a machine has at most {MAX_NICS} network devices, not {0}")]
    Nics(u32),
    /// The block devices.
    #[error("a machine has at most {MAX_DISKS} block devices, not {0}")]
    Disks(u32),
    /// The devices together.
    #[error("a machine has at most {MAX_DEVICES} network and block devices together, not {0}")]
    Devices(u32),
    /// The network.
    #[error(
        "{0:?} is no network: write `user`, `user,host-access`, `tap:INTERFACE` or `tap:INTERFACE,queues=N`"
    )]
    Uplink(String),
}

impl MachineOptions {
    /// Checks for options that QEMU would reject, or that would leave no room for a cell.
    ///
    /// # Errors
    /// [`OptionsError`] names the invalid option.
    pub fn validate(&self) -> Result<(), OptionsError> {
        if !(2..=MAX_CORES).contains(&self.cores) {
            return Err(OptionsError::Cores(self.cores));
        }
        let Topology { threads, nodes } = self.topology;
        if !(1..=MAX_SHARES).contains(&threads) || !(1..=MAX_SHARES).contains(&nodes) {
            return Err(OptionsError::Topology);
        }
        if !self.cores.is_multiple_of(threads * nodes) {
            return Err(OptionsError::Uneven { cores: self.cores, threads, nodes });
        }
        let highest = self.topology.highest_apic_id(self.cores);
        if highest > MAX_APIC_ID {
            return Err(OptionsError::ApicIds { cores: self.cores, threads, nodes, highest });
        }
        if nodes > 1 && self.model == MachineModel::Microvm {
            return Err(OptionsError::Nodes);
        }
        if self.memory < ByteSize(32 << 20) {
            return Err(OptionsError::Memory(self.memory));
        }
        if self.nics > MAX_NICS {
            return Err(OptionsError::Nics(self.nics));
        }
        if self.disks > MAX_DISKS {
            return Err(OptionsError::Disks(self.disks));
        }
        if self.nics + self.disks > MAX_DEVICES {
            return Err(OptionsError::Devices(self.nics + self.disks));
        }
        Ok(())
    }
}

impl Uplink {
    /// Returns whether it is QEMU's user-mode network.
    pub fn is_user(&self) -> bool {
        matches!(self, Self::User | Self::UserWithHost)
    }
}

impl FromStr for Uplink {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let bad = || OptionsError::Uplink(text.to_owned());
        match text {
            "user" => return Ok(Self::User),
            "user,host-access" => return Ok(Self::UserWithHost),
            _ => {}
        }
        let (interface, queues) = match text.strip_prefix("tap:").ok_or_else(bad)?.split_once(',') {
            None => (text.trim_start_matches("tap:"), None),
            Some((interface, queues)) => {
                let number = queues.strip_prefix("queues=").unwrap_or(queues);
                let queues =
                    number.parse().ok().filter(|queues| (1..=64).contains(queues)).ok_or_else(bad)?;
                (interface, Some(queues))
            }
        };
        // The limit of Linux is IFNAMSIZ minus the final zero byte; a comma would end QEMU's option.
        let good = (1..=15).contains(&interface.len())
            && interface.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b',' | b':'));
        good.then(|| Self::Tap { interface: interface.to_owned(), queues }).ok_or_else(bad)
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("user"),
            Self::UserWithHost => f.write_str("user,host-access"),
            Self::Tap { interface, queues: None } => write!(f, "tap:{interface}"),
            Self::Tap { interface, queues: Some(queues) } => write!(f, "tap:{interface},queues={queues}"),
        }
    }
}

impl fmt::Display for MachineModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Q35 => "q35",
            Self::Microvm => "microvm",
        })
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplinks_round_trip() {
        for text in ["user", "user,host-access", "tap:tap0", "tap:tap0,queues=2"] {
            assert_eq!(text.parse::<Uplink>().unwrap().to_string(), text);
        }
        let two = Uplink::Tap { interface: "t".into(), queues: Some(2) };
        assert_eq!("tap:t,2".parse::<Uplink>(), Ok(two));
        for bad in [
            "",
            "bridge",
            "user,",
            "user,host",
            "tap:",
            "tap:a,0",
            "tap:a,x",
            "tap:a/b",
            "tap:a,b,c",
            "tap:sixteenletters..",
        ] {
            assert_eq!(bad.parse::<Uplink>(), Err(OptionsError::Uplink(bad.into())), "{bad}");
        }
    }

    #[test]
    fn invalid_machine_options_are_rejected() {
        let good = crate::test_data::machine_options();
        assert_eq!(good.validate(), Ok(()));
        let one_core = MachineOptions { cores: 1, ..good.clone() };
        assert_eq!(one_core.validate(), Err(OptionsError::Cores(1)));
        let of = |cores| MachineOptions { cores, ..good.clone() }.validate();
        assert_eq!((of(2), of(255), of(256)), (Ok(()), Ok(()), Err(OptionsError::Cores(256))));
        assert!(OptionsError::Cores(256).to_string().contains("2 to 255 cores, not 256"));
        let of_shape = |cores, threads, nodes| {
            let topology = Topology { threads, nodes };
            MachineOptions { cores, topology, model: MachineModel::Q35, ..good.clone() }.validate()
        };
        assert_eq!((of_shape(254, 2, 1), of_shape(252, 2, 2)), (Ok(()), Ok(())));
        let sparse = |cores, threads, nodes, highest| {
            (of_shape(cores, threads, nodes), Err(OptionsError::ApicIds { cores, threads, nodes, highest }))
        };
        for (found, expected) in [sparse(195, 3, 1, 258), sparse(210, 1, 6, 354)] {
            assert_eq!(found, expected);
        }
        let shaped = |threads, nodes, model| {
            let topology = Topology { threads, nodes };
            MachineOptions { cores: 8, topology, model, ..good.clone() }.validate()
        };
        assert_eq!(shaped(2, 2, MachineModel::Q35), Ok(()));
        assert_eq!(shaped(2, 1, MachineModel::Microvm), Ok(()));
        assert_eq!(
            shaped(3, 2, MachineModel::Q35),
            Err(OptionsError::Uneven { cores: 8, threads: 3, nodes: 2 })
        );
        assert_eq!(shaped(0, 1, MachineModel::Q35), Err(OptionsError::Topology));
        assert_eq!(shaped(1, u32::MAX, MachineModel::Q35), Err(OptionsError::Topology));
        assert_eq!(shaped(1, 2, MachineModel::Microvm), Err(OptionsError::Nodes));
        assert!(MachineOptions { memory: ByteSize(1 << 20), ..good.clone() }.validate().is_err());
        let devices = |nics, disks| MachineOptions { nics, disks, ..good.clone() }.validate();
        assert_eq!((devices(22, 0), devices(6, 16)), (Ok(()), Ok(())));
        assert_eq!(devices(23, 0), Err(OptionsError::Nics(23)));
        assert_eq!(devices(0, 17), Err(OptionsError::Disks(17)));
        assert_eq!(devices(22, 1), Err(OptionsError::Devices(23)));
    }
}
