//! QEMU's command line.
//!
//! ```text
//! uplink u0 --- hub 0 --- s0 --- switch ---+--- n1 --- network device 1      one device per cell
//!                                          +--- n2 --- network device 2
//!                                          ...
//! ```
//!
//! The switch is a separate process ([`crate::switch`]). A machine that needs none ([`switch::is_needed`]) has one
//! device, connected directly to the uplink.
//!
//! QEMU runs in the machine's folder, and the paths of its sockets and of the serial log are relative to it. The paths
//! of the process id file, which identifies the process, and of QEMU's log are absolute. QEMU connects to the switch in threads
//! of its own, perhaps after it has detached itself and left the folder: these paths go through a descriptor of the folder.

use super::disks::DiskSlot;
use super::options::{Accelerator, MachineModel, MachineOptions, Topology, Uplink};
use super::qmp;
use super::state::MachineDir;
use super::switch;
use crate::client;
use crate::publish::Publication;
use crate::switch::fabric::Address;
use crate::switch::frame::Mac;
use crate::switch::process::socket_name;
use isola_abi::management::DeviceLocation;
use isola_abi::volume::VolumeAccess;
use std::env;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;

/// QEMU's id of the uplink of the virtual network.
pub const UPLINK_ID: &str = "u0";

/// The oldest QEMU that isola works with.
pub const OLDEST: (u32, u32) = (7, 2);

/// The options of QEMU's seccomp filter. They forbid obsolete system calls, and those that change scheduling and
/// processor sets. `spawn=deny` and `elevateprivileges=deny` would forbid system calls that `-daemonize` needs.
pub const SANDBOX: [&str; 2] = ["-sandbox", "on,resourcecontrol=deny"];

/// The first address of QEMU's DHCP range; lower ones are for cells with a fixed address.
pub const DHCP_START: &str = "10.0.2.128";

/// The QEMU program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// Its path.
    pub program: PathBuf,
    /// The version that it reports.
    pub version: String,
}

/// The reasons why QEMU cannot be used.
#[derive(Debug, Error)]
pub enum QemuError {
    /// It cannot be started.
    #[error(
        "{program:?} cannot be started ({error}): install QEMU (Debian, Ubuntu: `apt-get install qemu-system-x86`), or set ISOLA_QEMU"
    )]
    Missing {
        /// The program.
        program: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// It is too old, or not QEMU.
    #[error("{program:?} says it is {version_line:?}: isola needs QEMU {}.{} or newer", OLDEST.0, OLDEST.1)]
    Version {
        /// The program.
        program: PathBuf,
        /// The first line of its version output.
        version_line: String,
    },
}

/// The image that a machine boots.
#[derive(Clone, Copy, Debug)]
pub enum Boot<'a> {
    /// The supervisor, which is managed over a virtio console.
    Supervisor {
        /// The supervisor's image.
        image: &'a Path,
    },
    /// A standalone cell image.
    Standalone {
        /// The image.
        image: &'a Path,
        /// The image's command line.
        command_line: &'a str,
        /// The address that the image may use.
        address: Address,
        /// Ports that forward to the image.
        publish: &'a [Publication],
        /// The files of its volumes.
        volumes: &'a [(PathBuf, VolumeAccess)],
    },
}

impl Qemu {
    /// Returns the QEMU that the environment names (`ISOLA_QEMU`), or the system's.
    ///
    /// # Errors
    /// [`QemuError`].
    pub fn from_environment() -> Result<Self, QemuError> {
        let named = env::var_os("ISOLA_QEMU").filter(|value| !value.is_empty());
        let program = PathBuf::from(named.unwrap_or_else(|| "qemu-system-x86_64".into()));
        let output = Command::new(&program).arg("--version").output();
        let output = output.map_err(|error| QemuError::Missing { program: program.clone(), error })?;
        let version_line =
            String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
        match version(&version_line) {
            Some((numbers, version)) if numbers >= OLDEST => {
                Ok(Self { program, version: version.to_owned() })
            }
            _ => Err(QemuError::Version { program, version_line }),
        }
    }
}

/// Parses the version in the output of `qemu --version`.
fn version(version_line: &str) -> Option<((u32, u32), &str)> {
    let version = version_line.strip_prefix("QEMU emulator version ")?.split_whitespace().next()?;
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some(((parts.next()??, parts.next()??), version))
}

/// Returns whether QEMU's error message reports that it was built without seccomp, or that the kernel lacks it.
pub fn lacks_sandbox(message: &str) -> bool {
    ["sandbox", "seccomp"].iter().any(|word| message.contains(word))
}

/// Returns QEMU's arguments for a machine in the folder `dir`. QEMU inherits the descriptor `folder` of it.
pub fn arguments(
    options: &MachineOptions,
    accelerator: Accelerator,
    boot: Boot<'_>,
    dir: &MachineDir,
    folder: BorrowedFd<'_>,
) -> Vec<OsString> {
    let mut line = CommandLine::default();
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
        .pair("-serial", "file:serial.log")
        .pair("-chardev", format!("socket,id=qmp,path={},server=on,wait=off", qmp::SOCKET))
        .pair("-mon", "chardev=qmp,mode=control");
    let publish = match boot {
        Boot::Supervisor { image } => {
            line.pair("-kernel", image)
                .pair(
                    "-device",
                    format!(
                        "virtio-serial-{suffix}{}{}",
                        modern(options.model),
                        console_bus_address(options.model)
                    ),
                )
                .pair("-chardev", format!("socket,id=mgmt,path={},server=on,wait=off", client::SOCKET))
                .pair("-device", "virtserialport,chardev=mgmt");
            &[]
        }
        Boot::Standalone { image, command_line, publish, .. } => {
            // For the exit code. Beside a supervisor, one cell's write to this I/O port would end all other cells.
            line.pair("-kernel", image).pair("-device", "isa-debug-exit,iobase=0xf4,iosize=4");
            if !command_line.is_empty() {
                line.pair("-append", command_line);
            }
            publish
        }
    };
    network(&mut line, options, suffix, publish, (dir, folder));
    disks(&mut line, options, boot);
    // With a log file, QEMU keeps its error output even after it detaches itself from the terminal.
    line.pair("-pidfile", dir.pid_file()).pair("-D", dir.qemu_log());
    line.0
}

/// Returns the processors of a machine, in the syntax of `-smp`.
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

/// Adds NUMA nodes if there are several. They share the cores equally, and the memory in whole MiB, with the remainder
/// in the last node.
fn nodes(line: &mut CommandLine, options: &MachineOptions) {
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
    line: &mut CommandLine,
    options: &MachineOptions,
    suffix: &str,
    publish: &[Publication],
    (dir, folder): (&MachineDir, BorrowedFd<'_>),
) {
    let modern = modern(options.model);
    let device = |netdev: &str, index: u32| {
        let (mac, bus_address) = (mac_text(mac(dir, index)), bus_address(options.model, index));
        format!("virtio-net-{suffix},netdev={netdev},mac={mac}{modern}{bus_address}")
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
        Uplink::User | Uplink::UserWithHost => {
            let forwards: String = publish.iter().map(|port| format!(",hostfwd={}", port.rule())).collect();
            line.pair("-netdev", format!("user,id={UPLINK_ID},dhcpstart={DHCP_START}{forwards}"));
        }
    }
    if !switch::is_needed(options) {
        line.pair("-device", device(UPLINK_ID, 1));
        return;
    }
    let stream = |id: &str, number: u32| {
        let socket = format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), socket_name(number as usize));
        format!("stream,id={id},server=off,addr.type=unix,addr.path={socket}")
    };
    line.pair("-netdev", stream("s0", 0))
        .pair("-netdev", format!("hubport,id=h0,hubid=0,netdev={UPLINK_ID}"))
        .pair("-netdev", "hubport,id=h1,hubid=0,netdev=s0");
    for index in 1..=options.nics {
        let port = format!("n{index}");
        line.pair("-netdev", stream(&port, index)).pair("-device", device(&port, index));
    }
}

/// Adds the block devices: empty ones for cells, or those with the volumes of a standalone image.
fn disks(line: &mut CommandLine, options: &MachineOptions, boot: Boot<'_>) {
    let volumes = match boot {
        Boot::Supervisor { .. } => &[],
        Boot::Standalone { volumes, .. } => volumes,
    };
    for number in 0..options.disks {
        for (option, value) in DiskSlot(number).options(options, volumes.get(number as usize)) {
            line.pair(option, value);
        }
    }
}

/// The PCI slot of the first network device; slot 1 has the console.
const FIRST_SLOT: u32 = 2;

/// The base address of a microvm's virtio-mmio register blocks, and their distance.
const MMIO_BASE: u64 = 0xfeb0_0000;
const MMIO_STEP: u64 = 0x200;

/// The number of a microvm's last virtio-mmio register block, which has the console; the network devices precede it.
const LAST_WINDOW: u32 = 23;

/// Returns the options for the bus address of the network device `index`, counted from 1. [`mac_at`] computes the
/// reverse.
fn bus_address(model: MachineModel, index: u32) -> String {
    match model {
        MachineModel::Q35 => format!(",bus=pcie.0,addr={:#x}", FIRST_SLOT + index - 1),
        MachineModel::Microvm => format!(",bus=virtio-mmio-bus.{}", LAST_WINDOW - index),
    }
}

/// Returns the physical address of a microvm's virtio-mmio register block.
pub(super) fn mmio_address(number: u32) -> u64 {
    MMIO_BASE + u64::from(number) * MMIO_STEP
}

/// Returns the option that keeps the console off the bus addresses of network devices. QEMU places a microvm's console
/// last.
fn console_bus_address(model: MachineModel) -> &'static str {
    match model {
        MachineModel::Q35 => ",bus=pcie.0,addr=0x1",
        MachineModel::Microvm => "",
    }
}

/// Returns the hardware address of the network device at that location of the machine.
pub fn mac_at(dir: &MachineDir, options: &MachineOptions, location: Option<DeviceLocation>) -> Option<Mac> {
    let index = match (options.model, location?) {
        (MachineModel::Q35, DeviceLocation::Pci { bus: 0, device, function: 0 }) => {
            u32::from(device).checked_sub(FIRST_SLOT)?
        }
        (MachineModel::Microvm, DeviceLocation::Mmio { address }) => {
            LAST_WINDOW.checked_sub(1 + u32::try_from(address.checked_sub(MMIO_BASE)? / MMIO_STEP).ok()?)?
        }
        _ => return None,
    };
    (index < options.nics).then(|| mac(dir, index + 1))
}

/// Returns the hardware addresses of a machine's network devices.
pub fn macs(dir: &MachineDir, options: &MachineOptions) -> Vec<Mac> {
    (1..=options.nics).map(|index| mac(dir, index)).collect()
}

/// Returns the option that restricts a PCI device to virtio 1.
fn modern(model: MachineModel) -> &'static str {
    match model {
        MachineModel::Q35 => ",disable-legacy=on",
        MachineModel::Microvm => "",
    }
}

/// Returns the hardware address of a network device: in QEMU's range, with two bytes that depend on the machine's
/// folder, as machines can share a TAP bridge.
fn mac(dir: &MachineDir, index: u32) -> Mac {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    dir.path().hash(&mut hasher);
    let [high, low, ..] = hasher.finish().to_le_bytes();
    [0x52, 0x54, 0, high, low, index as u8]
}

fn mac_text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[derive(Default)]
struct CommandLine(Vec<OsString>);

impl CommandLine {
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
    use std::os::fd::AsFd;

    fn options(model: MachineModel, uplink: Uplink) -> MachineOptions {
        MachineOptions { nics: 2, model, uplink, ..crate::test_data::machine_options() }
    }

    fn line(options: &MachineOptions, boot: Boot<'_>) -> String {
        let temporary = tempfile::tempdir().unwrap();
        let dir = StateRoot::at(temporary.path()).unwrap().machine(&"m".parse().unwrap());
        let arguments = arguments(options, Accelerator::Tcg, boot, &dir, std::io::stdin().as_fd());
        arguments.iter().map(|argument| argument.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_q35_machine_has_modern_pci_devices_at_its_switch() {
        let supervisor = Boot::Supervisor { image: Path::new("/images/supervisor") };
        let line = line(&options(MachineModel::Q35, Uplink::User), supervisor);
        for part in [
            "-M q35 -accel tcg,thread=multi -cpu max -smp 4 -m 1048576K",
            "-kernel /images/supervisor -device virtio-serial-pci,disable-legacy=on,bus=pcie.0,addr=0x1 ",
            "-device virtserialport,chardev=mgmt",
            "-netdev user,id=u0,dhcpstart=10.0.2.128 -netdev stream,id=s0,server=off,addr.type=unix,addr.path=/proc/self/fd/0/port0.sock",
            "-netdev hubport,id=h0,hubid=0,netdev=u0 -netdev hubport,id=h1,hubid=0,netdev=s0",
            "-netdev stream,id=n2,server=off,addr.type=unix,addr.path=/proc/self/fd/0/port2.sock -device virtio-net-pci,netdev=n2,mac=52:54:00:",
            ":02,disable-legacy=on,bus=pcie.0,addr=0x3",
        ] {
            assert!(line.contains(part), "{part}\nis not in\n{line}");
        }
        assert!(!line.contains("id=n3"), "{line}");
        assert!(
            !line.contains("isa-debug-exit"),
            "a cell could end the machine by a write to the port: {line}"
        );
    }

    #[test]
    fn nodes_share_the_cores_and_the_memory() {
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
        assert!(line.contains("virtio-net-device,netdev=n1,mac="), "{line}");
        assert!(!line.contains("pci") && !line.contains("disable-legacy"), "{line}");
    }

    #[test]
    fn a_standalone_image_has_its_ports_and_no_management() {
        let published = Publication {
            protocol: isola_abi::hosted::Transport::Udp,
            host: "127.0.0.1:9000".parse().unwrap(),
            cell: "10.0.2.128:9".parse().unwrap(),
        };
        let (image, address) = (Path::new("kv"), Address::Dhcp);
        let boot = Boot::Standalone {
            image,
            command_line: "--port 1",
            address,
            publish: &[published],
            volumes: &[],
        };
        let line = line(&options(MachineModel::Q35, Uplink::User), boot);
        assert!(line.contains(",hostfwd=udp:127.0.0.1:9000-10.0.2.128:9 "), "{line}");
        assert!(
            line.contains("-kernel kv -device isa-debug-exit,iobase=0xf4,iosize=4 -append --port 1"),
            "{line}"
        );
        assert!(!line.contains("mgmt"), "{line}");
    }

    #[test]
    fn a_tap_with_queues_serves_one_device() {
        let supervisor = Boot::Supervisor { image: Path::new("s") };
        let queues = Uplink::Tap { interface: "tap0".into(), queues: Some(2) };
        let with_queues = line(&options(MachineModel::Q35, queues), supervisor);
        assert!(with_queues.contains("ifname=tap0,script=no,downscript=no,queues=2"), "{with_queues}");
        assert!(with_queues.contains("mq=on,vectors=6") && !with_queues.contains("hubport"), "{with_queues}");
        let plain = Uplink::Tap { interface: "tap0".into(), queues: None };
        let plain = options(MachineModel::Q35, plain);
        assert!(line(&plain, supervisor).contains("-netdev hubport,id=h0,hubid=0,netdev=u0"));
        let alone = line(&MachineOptions { nics: 1, ..plain }, supervisor);
        assert!(alone.contains("-device virtio-net-pci,netdev=u0,"), "{alone}");
        assert!(!alone.contains("hubport") && !alone.contains("stream"), "{alone}");
    }

    #[test]
    fn a_device_is_identified_by_its_bus_address() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = StateRoot::at(temporary.path()).unwrap().machine(&"m".parse().unwrap());
        let q35 = options(MachineModel::Q35, Uplink::User);
        let pci = |device| Some(DeviceLocation::Pci { bus: 0, device, function: 0 });
        assert_eq!([2, 3].map(|device| mac_at(&dir, &q35, pci(device)).unwrap()), macs(&dir, &q35)[..]);
        let microvm = options(MachineModel::Microvm, Uplink::User);
        let mmio = |address| Some(DeviceLocation::Mmio { address });
        assert_eq!(mac_at(&dir, &microvm, mmio(0xfeb0_2a00)), Some(macs(&dir, &microvm)[1]));
        for (options, elsewhere) in [
            (&q35, pci(1)),
            (&q35, pci(4)),
            (&q35, mmio(0xfeb0_0000)),
            (&microvm, mmio(0)),
            (&microvm, mmio(0xfeb0_2e00)),
            (&microvm, None),
        ] {
            assert_eq!(mac_at(&dir, options, elsewhere), None, "{elsewhere:?}");
        }
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
