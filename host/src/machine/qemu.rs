//! QEMU's command line.
//!
//! ```text
//! uplink u0 --- hub 0 ---+--- h1 --- network device 1      each to be given to a cell
//!                        +--- h2 --- network device 2
//!                        ...
//! ```
//!
//! All paths that QEMU makes are relative to the machine's folder, which it is started in, except the one of
//! its process number, by which it is recognised.

use super::options::{Accelerator, MachineModel, MachineOptions, Topology, Uplink};
use super::qmp;
use super::state::MachineDir;
use crate::client;
use crate::publish::Publication;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;

/// QEMU's name for what the virtual network is connected to.
pub const UPLINK_ID: &str = "u0";

/// The oldest QEMU that isola works with.
pub const OLDEST: (u32, u32) = (7, 2);

/// The first address that QEMU's DHCP server gives out; those before are for cells with a fixed one.
pub const DHCP_START: &str = "10.0.2.128";

/// The QEMU that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// Its version, as it says itself.
    pub version: String,
}

/// Why QEMU cannot be used.
#[derive(Debug, Error)]
pub enum QemuError {
    /// It cannot be started.
    #[error(
        "{program:?} cannot be started ({error}): install QEMU (Debian, Ubuntu: `apt-get install qemu-system-x86`), or set ISOLA_QEMU"
    )]
    Missing {
        /// The program.
        program: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// It is too old, or not QEMU.
    #[error("{program:?} says it is {said:?}: isola needs QEMU {}.{} or newer", OLDEST.0, OLDEST.1)]
    Version {
        /// The program.
        program: PathBuf,
        /// What it says of itself.
        said: String,
    },
}

/// What a machine boots.
#[derive(Clone, Copy, Debug)]
pub enum Boot<'a> {
    /// The supervisor, which is managed over a virtio console.
    Supervisor {
        /// Its image.
        image: &'a Path,
    },
    /// A cell image alone.
    Alone {
        /// The image.
        image: &'a Path,
        /// Its command line.
        command_line: &'a str,
        /// Ports that lead to it.
        publish: &'a [Publication],
    },
}

impl Qemu {
    /// The QEMU that the environment says (`ISOLA_QEMU`), or the system's.
    ///
    /// # Errors
    /// [`QemuError`].
    pub fn from_environment() -> Result<Self, QemuError> {
        let named = env::var_os("ISOLA_QEMU").filter(|value| !value.is_empty());
        let program = PathBuf::from(named.unwrap_or_else(|| "qemu-system-x86_64".into()));
        let output = Command::new(&program).arg("--version").output();
        let output = output.map_err(|error| QemuError::Missing { program: program.clone(), error })?;
        let said = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
        match version(&said) {
            Some((numbers, version)) if numbers >= OLDEST => {
                Ok(Self { program, version: version.to_owned() })
            }
            _ => Err(QemuError::Version { program, said }),
        }
    }
}

/// The version in what `qemu --version` prints.
fn version(said: &str) -> Option<((u32, u32), &str)> {
    let version = said.strip_prefix("QEMU emulator version ")?.split_whitespace().next()?;
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some(((parts.next()??, parts.next()??), version))
}

/// QEMU's arguments for a machine in the folder `dir`.
pub fn arguments(
    options: &MachineOptions,
    accelerator: Accelerator,
    boot: Boot<'_>,
    dir: &MachineDir,
) -> Vec<OsString> {
    let mut line = Line::default();
    let (model, suffix) = match options.model {
        MachineModel::Q35 => ("q35".to_owned(), "pci"),
        MachineModel::Microvm => ("microvm,acpi=on,rtc=on".to_owned(), "device"),
    };
    line.pair("-name", format!("isola-{}", dir.name)).pair("-M", model);
    if options.model == MachineModel::Microvm {
        line.pair("-global", "virtio-mmio.force-legacy=false");
    }
    line.pair(
        "-accel",
        match accelerator {
            Accelerator::Tcg => "tcg,thread=multi",
            Accelerator::Kvm => "kvm",
        },
    );
    line.pair("-cpu", &options.cpu)
        .pair("-smp", processors(options))
        .pair("-m", format!("{}K", memory_kib(options)));
    nodes(&mut line, options);
    line.flag("-nodefaults")
        .flag("-no-user-config")
        .flag("-no-reboot")
        .pair("-display", "none")
        .pair("-device", "isa-debug-exit,iobase=0xf4,iosize=4")
        .pair("-serial", "file:serial.log")
        .pair("-chardev", format!("socket,id=qmp,path={},server=on,wait=off", qmp::SOCKET))
        .pair("-mon", "chardev=qmp,mode=control");
    let publish = match boot {
        Boot::Supervisor { image } => {
            line.pair("-kernel", image)
                .pair("-device", format!("virtio-serial-{suffix}{}", modern(options.model)))
                .pair("-chardev", format!("socket,id=mgmt,path={},server=on,wait=off", client::SOCKET))
                .pair("-device", "virtserialport,chardev=mgmt");
            &[]
        }
        Boot::Alone { image, command_line, publish } => {
            line.pair("-kernel", image);
            if !command_line.is_empty() {
                line.pair("-append", command_line);
            }
            publish
        }
    };
    network(&mut line, options, suffix, publish, dir);
    // With a log file, QEMU keeps its error output even where it detaches itself from the terminal.
    line.pair("-pidfile", dir.pid_file()).pair("-D", dir.qemu_log());
    line.0
}

/// The processors of a machine, as `-smp` has them.
fn processors(options: &MachineOptions) -> String {
    let Topology { threads, nodes } = options.topology;
    if options.topology == Topology::default() {
        return options.cores.to_string();
    }
    let cores = options.cores / (threads * nodes);
    format!("{},sockets={nodes},cores={cores},threads={threads}", options.cores)
}

fn memory_kib(options: &MachineOptions) -> u64 {
    options.memory.0.div_ceil(1024)
}

/// NUMA nodes, where there are several: equal parts of the cores, and of the memory in whole MiB, the last one the rest.
fn nodes(line: &mut Line, options: &MachineOptions) {
    let nodes = options.topology.nodes;
    if nodes < 2 {
        return;
    }
    let (cores, memory) = (options.cores / nodes, memory_kib(options) / 1024 / u64::from(nodes) * 1024);
    for node in 0..nodes {
        let memory = if node + 1 < nodes { memory } else { memory_kib(options) - memory * u64::from(node) };
        let (first, last) = (node * cores, (node + 1) * cores - 1);
        line.pair("-object", format!("memory-backend-ram,id=node{node},size={memory}K"))
            .pair("-numa", format!("node,nodeid={node},cpus={first}-{last},memdev=node{node}"));
    }
}

fn network(
    line: &mut Line,
    options: &MachineOptions,
    suffix: &str,
    publish: &[Publication],
    dir: &MachineDir,
) {
    let modern = modern(options.model);
    let device = |netdev: &str, index: u32| {
        format!("virtio-net-{suffix},netdev={netdev},mac={}{modern}", mac(dir, index))
    };
    if options.nics == 0 {
        return;
    }
    match &options.uplink {
        Uplink::Tap { interface, queues: Some(queues) } => {
            line.pair(
                "-netdev",
                format!("tap,id={UPLINK_ID},ifname={interface},script=no,downscript=no,queues={queues}"),
            );
            let multi = match options.model {
                MachineModel::Q35 => format!(",mq=on,vectors={}", 2 * queues + 2),
                MachineModel::Microvm => ",mq=on".to_owned(),
            };
            line.pair("-device", device(UPLINK_ID, 1) + &multi);
            return;
        }
        Uplink::Tap { interface, queues: None } => {
            line.pair("-netdev", format!("tap,id={UPLINK_ID},ifname={interface},script=no,downscript=no"));
        }
        Uplink::User => {
            let forwards: String = publish.iter().map(|port| format!(",hostfwd={}", port.rule())).collect();
            line.pair("-netdev", format!("user,id={UPLINK_ID},dhcpstart={DHCP_START}{forwards}"));
        }
    }
    line.pair("-netdev", format!("hubport,id=h0,hubid=0,netdev={UPLINK_ID}"));
    for index in 1..=options.nics {
        let port = format!("h{index}");
        line.pair("-netdev", format!("hubport,id={port},hubid=0")).pair("-device", device(&port, index));
    }
}

/// The option that makes a PCI device speak nothing but virtio 1.
fn modern(model: MachineModel) -> &'static str {
    match model {
        MachineModel::Q35 => ",disable-legacy=on",
        MachineModel::Microvm => "",
    }
}

/// The address of a network device: in QEMU's range, and another one on each machine of each user, as
/// machines meet where they are on one TAP bridge.
fn mac(dir: &MachineDir, index: u32) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    dir.path().hash(&mut hasher);
    let [high, low, ..] = hasher.finish().to_le_bytes();
    format!("52:54:00:{high:02x}:{low:02x}:{index:02x}")
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn flag(&mut self, flag: &str) -> &mut Self {
        self.0.push(flag.into());
        self
    }

    fn pair(&mut self, option: &str, value: impl Into<OsString>) -> &mut Self {
        self.0.push(option.into());
        self.0.push(value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::state::StateRoot;
    use isola_abi::size::ByteSize;

    fn options(model: MachineModel, uplink: Uplink) -> MachineOptions {
        MachineOptions {
            cores: 4,
            topology: Topology::default(),
            memory: ByteSize(1 << 30),
            nics: 2,
            model,
            cpu: "max".into(),
            uplink,
        }
    }

    fn line(options: &MachineOptions, boot: Boot<'_>) -> String {
        let temporary = tempfile::tempdir().unwrap();
        let dir = StateRoot::at(temporary.path()).unwrap().machine(&"m".parse().unwrap());
        let arguments = arguments(options, Accelerator::Tcg, boot, &dir);
        arguments.iter().map(|argument| argument.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_q35_machine_has_modern_pci_devices_on_one_hub() {
        let supervisor = Boot::Supervisor { image: Path::new("/images/supervisor") };
        let line = line(&options(MachineModel::Q35, Uplink::User), supervisor);
        for part in [
            "-M q35 -accel tcg,thread=multi -cpu max -smp 4 -m 1048576K",
            "-kernel /images/supervisor -device virtio-serial-pci,disable-legacy=on",
            "-device virtserialport,chardev=mgmt",
            "-netdev user,id=u0,dhcpstart=10.0.2.128 -netdev hubport,id=h0,hubid=0,netdev=u0",
            "-netdev hubport,id=h2,hubid=0 -device virtio-net-pci,netdev=h2,mac=52:54:00:",
        ] {
            assert!(line.contains(part), "{part}\nis not in\n{line}");
        }
        assert!(!line.contains("id=h3"), "{line}");
    }

    #[test]
    fn nodes_and_siblings_are_told_to_qemu_and_share_cores_and_memory() {
        let topology = Topology { threads: 2, nodes: 2 };
        let q35 = options(MachineModel::Q35, Uplink::User);
        let shaped = MachineOptions { cores: 8, topology, memory: ByteSize(255 << 20), ..q35 };
        let line = line(&shaped, Boot::Supervisor { image: Path::new("s") });
        for part in [
            "-smp 8,sockets=2,cores=2,threads=2 -m 261120K",
            "-object memory-backend-ram,id=node0,size=130048K -numa node,nodeid=0,cpus=0-3,memdev=node0",
            "-object memory-backend-ram,id=node1,size=131072K -numa node,nodeid=1,cpus=4-7,memdev=node1",
        ] {
            assert!(line.contains(part), "{part}\nis not in\n{line}");
        }
    }

    #[test]
    fn a_microvm_has_mmio_devices() {
        let supervisor = Boot::Supervisor { image: Path::new("s") };
        let line = line(&options(MachineModel::Microvm, Uplink::User), supervisor);
        assert!(line.contains("-M microvm,acpi=on,rtc=on -global virtio-mmio.force-legacy=false"), "{line}");
        assert!(line.contains("-device virtio-serial-device -chardev"), "{line}");
        assert!(line.contains("virtio-net-device,netdev=h1,mac="), "{line}");
        assert!(!line.contains("pci") && !line.contains("disable-legacy"), "{line}");
    }

    #[test]
    fn an_image_alone_has_its_ports_and_no_management() {
        let published = Publication {
            protocol: crate::publish::Protocol::Udp,
            host: "127.0.0.1:9000".parse().unwrap(),
            cell: "10.0.2.128:9".parse().unwrap(),
        };
        let boot = Boot::Alone { image: Path::new("kv"), command_line: "--port 1", publish: &[published] };
        let line = line(&options(MachineModel::Q35, Uplink::User), boot);
        assert!(line.contains(",hostfwd=udp:127.0.0.1:9000-10.0.2.128:9 "), "{line}");
        assert!(line.contains("-kernel kv -append --port 1"), "{line}");
        assert!(!line.contains("mgmt"), "{line}");
    }

    #[test]
    fn a_tap_with_queues_leads_to_one_device() {
        let supervisor = Boot::Supervisor { image: Path::new("s") };
        let queues = Uplink::Tap { interface: "tap0".into(), queues: Some(2) };
        let with_queues = line(&options(MachineModel::Q35, queues), supervisor);
        assert!(with_queues.contains("ifname=tap0,script=no,downscript=no,queues=2"), "{with_queues}");
        assert!(with_queues.contains("mq=on,vectors=6") && !with_queues.contains("hubport"), "{with_queues}");
        let plain = Uplink::Tap { interface: "tap0".into(), queues: None };
        assert!(
            line(&options(MachineModel::Q35, plain), supervisor).contains("hubport,id=h0,hubid=0,netdev=u0")
        );
    }

    #[test]
    fn versions_are_compared_by_number() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)";
        assert_eq!(version(debian), Some(((7, 2), "7.2.22")));
        assert!(version("QEMU emulator version 10.0.2").unwrap().0 >= OLDEST);
        assert!(version("QEMU emulator version 6.2.0").unwrap().0 < OLDEST);
        assert_eq!(version("GNU bash, version 5.2"), None);
    }
}
