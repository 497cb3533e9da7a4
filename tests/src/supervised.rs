//! A machine with a supervisor, and a client of its management protocol.

use crate::images;
use crate::management::Client;
use crate::namespace::Tap;
use crate::ports;
use crate::qemu::{ClockSource, Machine, MachineType, Outcome, RunningMachine, cpu_time};
use isola_abi::management::{CoreOwner, MachineInfo, RequestBody, ResponseBody};
use isola_abi::size::ByteSize;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// The name of QMP's socket in the machine's folder.
const CONTROL: &str = "qmp";

/// The configuration of a machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineSetup {
    /// The machine type.
    pub kind: MachineType,
    /// The number of cores, including the supervisor's.
    pub cores: usize,
    /// The threads of a physical core.
    pub threads: usize,
    /// The number of NUMA nodes.
    pub nodes: usize,
    /// The memory, in MiB.
    pub memory_mib: usize,
    /// The processor, by QEMU's name.
    pub cpu: &'static str,
    /// The source of its clocks.
    pub time: ClockSource,
    /// The number of network devices.
    pub network_devices: usize,
    /// The supervisor's command line.
    pub command_line: &'static str,
    /// A TCP port that the host reaches at [`SupervisedMachine::forwarded`]. The first network device is then on QEMU's
    /// user-mode network, and its cell has the address that this network assigns by DHCP. Without the port, this device
    /// is on the same hub as the others.
    pub forwards: Option<u16>,
    /// An interface of [`crate::namespace`], in which the caller runs, for the first network device. The other devices
    /// are on a hub.
    pub tap: Option<Tap>,
    /// Addresses of cells in 10.0.2.0/24, and a TCP port: the host reaches them at [`SupervisedMachine::reached`]. All devices
    /// are then on QEMU's user-mode network.
    pub addresses: (&'static [Ipv4Addr], u16),
}

impl Default for MachineSetup {
    fn default() -> Self {
        Self {
            kind: MachineType::Q35,
            cores: 2,
            threads: 1,
            nodes: 1,
            memory_mib: 128,
            cpu: "max",
            time: ClockSource::Host,
            network_devices: 2,
            command_line: "",
            forwards: None,
            tap: None,
            addresses: (&[], 0),
        }
    }
}

/// A running machine, killed on drop.
pub struct SupervisedMachine {
    /// The client of its supervisor.
    pub client: Client,
    /// `None` only while the machine powers off.
    qemu: Option<RunningMachine>,
    folder: TempDir,
    /// The host's address of the forwarded port.
    forwarded: Option<SocketAddr>,
    /// The host's address for each cell's address.
    reached: Vec<SocketAddr>,
}

impl SupervisedMachine {
    /// Boots a machine, and waits until its supervisor answers.
    pub fn boot(setup: MachineSetup) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the console");
        let console = folder.path().join("console");
        let machine = Machine::new(setup.kind, "supervisor")
            .without_exit_codes()
            .cores(setup.cores)
            .topology(setup.threads, setup.nodes)
            .memory_mib(setup.memory_mib)
            .cpu(setup.cpu)
            .time(setup.time)
            .limit(Duration::from_secs(600))
            .argument("-chardev")
            .argument(format!("socket,id=console,path={},server=on,wait=off", console.display()))
            .virtio("serial", "")
            .argument("-device")
            .argument("virtserialport,chardev=console")
            .argument("-qmp")
            .argument(format!("unix:{},server=on,wait=off", folder.path().join(CONTROL).display()))
            .command_line(setup.command_line);
        let forwarded = setup.forwards.map(|_| SocketAddr::from(([127, 0, 0, 1], ports::free())));
        let forward =
            forwarded.zip(setup.forwards).map(|(host, port)| format!(",hostfwd=tcp:{host}-:{port}"));
        let (addresses, port) = setup.addresses;
        let reached: Vec<SocketAddr> =
            addresses.iter().map(|_| SocketAddr::from(([127, 0, 0, 1], ports::free()))).collect();
        let machine = match reached.is_empty() {
            true => machine,
            false => {
                let forward = |(host, address)| format!(",hostfwd=tcp:{host}-{address}:{port}");
                let forwards: String = reached.iter().zip(addresses).map(forward).collect();
                let uplink = format!("user,id=uplink{forwards}");
                let port = "hubport,id=up,hubid=0,netdev=uplink";
                machine.argument("-netdev").argument(uplink).argument("-netdev").argument(port)
            }
        };
        let machine = (0..setup.network_devices).fold(machine, |machine, number| {
            let network = match (&forward, setup.tap) {
                (Some(forward), _) if number == 0 => format!("user,id=n0{forward}"),
                (None, Some(tap)) if number == 0 => tap.netdev("n0"),
                _ => format!("hubport,id=n{number},hubid=0"),
            };
            machine.argument("-netdev").argument(network).virtio("net", &format!(",netdev=n{number}"))
        });
        let qemu = machine.start();
        let client = Client::connect(&console);
        Self { client, qemu: Some(qemu), folder, forwarded, reached }
    }

    /// Returns the host's address of the port of [`MachineSetup::forwards`].
    pub fn forwarded(&self) -> SocketAddr {
        self.forwarded.expect("a port is forwarded")
    }

    /// Returns the host's addresses for [`MachineSetup::addresses`].
    pub fn reached(&self) -> &[SocketAddr] {
        &self.reached
    }

    /// Injects an NMI into the machine, as the host tool does for an unresponsive supervisor.
    pub fn inject_nmi(&self) {
        let stream = UnixStream::connect(self.folder.path().join(CONTROL)).expect("QEMU listens");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("QEMU greets");
        for command in ["qmp_capabilities", "inject-nmi"] {
            writeln!(stream.get_mut(), r#"{{"execute":"{command}"}}"#).expect("QEMU reads");
            line.clear();
            stream.read_line(&mut line).expect("QEMU responds");
            assert!(line.contains("return"), "{command}: {line}");
        }
    }

    /// Returns the machine's state without the fields that may differ once all cells have returned their resources.
    pub fn resources(&mut self) -> MachineInfo {
        let (info, nothing) = (self.client.machine(), ByteSize(0));
        let info = MachineInfo { boot_ns: 0, uptime_ns: 0, restarts: 0, ..info };
        MachineInfo { memory_dirty: nothing, memory_images: nothing, ..info }
    }

    /// Returns the resident memory of QEMU, in MiB.
    pub fn resident_mib(&self) -> u64 {
        let id = self.qemu.as_ref().expect("the machine runs").id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
    }

    /// Returns the serial output so far.
    pub fn serial(&mut self) -> String {
        self.qemu.as_mut().expect("the machine runs").serial()
    }

    /// Returns the CPU time that QEMU has used.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.qemu.as_ref().expect("the machine runs").id())
    }

    /// Powers the machine off, and returns the outcome.
    pub fn power_off(mut self) -> Outcome {
        assert_eq!(self.client.ask(RequestBody::PowerOff), Ok(ResponseBody::Done));
        self.qemu.take().expect("the machine runs").wait()
    }
}

impl Drop for SupervisedMachine {
    fn drop(&mut self) {
        if let Some(qemu) = &mut self.qemu
            && std::thread::panicking()
        {
            eprintln!("--- serial line\n{}", qemu.serial());
        }
    }
}

/// Returns the number of free cores.
pub fn free_cores(machine: &MachineInfo) -> usize {
    machine.cores.iter().filter(|core| core.owner == CoreOwner::Free).count()
}

/// Returns the image `cell-probe`.
pub fn probe() -> &'static [u8] {
    static PROBE: OnceLock<Vec<u8>> = OnceLock::new();
    PROBE.get_or_init(|| image("cell-probe"))
}

/// Returns an image, truncated by [`loadable`].
pub fn image(name: &str) -> Vec<u8> {
    loadable(std::fs::read(images::path(name)).unwrap())
}

/// Truncates an ELF file after its last loadable segment, as the host tool does before an upload.
pub fn loadable(mut bytes: Vec<u8>) -> Vec<u8> {
    let word = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap()) as usize;
    let half = |offset: usize| u16::from_le_bytes(bytes[offset..offset + 2].try_into().unwrap()) as usize;
    let headers = (0..half(56)).map(|index| word(32) + index * 56);
    let end = headers.map(|header| word(header + 8) + word(header + 32)).max().unwrap();
    bytes.truncate(end);
    bytes
}
