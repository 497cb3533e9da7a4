//! A machine with a supervisor on it, and a client that speaks to it.

use crate::images;
use crate::management::Client;
use crate::namespace::Tap;
use crate::ports;
use crate::qemu::{Machine, MachineType, Outcome, Running, Time, cpu_time};
use isola_abi::management::{CoreOwner, MachineInfo, RequestBody, ResponseBody};
use isola_abi::size::ByteSize;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// Name of the socket of QEMU's control channel, in the machine's folder.
const CONTROL: &str = "qmp";

/// What a machine shall be.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The machine type.
    pub kind: MachineType,
    /// Number of cores, the supervisor's included.
    pub cores: usize,
    /// Cores of a physical core.
    pub threads: usize,
    /// NUMA nodes.
    pub nodes: usize,
    /// Memory, in MiB.
    pub memory_mib: usize,
    /// The processor, as QEMU calls it.
    pub cpu: &'static str,
    /// What its clocks go by.
    pub time: Time,
    /// Number of network devices.
    pub network_devices: usize,
    /// The supervisor's command line.
    pub command_line: &'static str,
    /// A TCP port, at the address that QEMU's user-mode network gives: what uses the first network device is reached by it,
    /// at [`Supervised::forwarded`]. Without it, the devices are on a network of their own.
    pub forwards: Option<u16>,
    /// An interface of [`crate::namespace`], which the caller is in: what uses the first network device is on it, and the
    /// other devices on a network of their own.
    pub tap: Option<Tap>,
    /// Addresses in 10.0.2.0/24, where cells are that have them, and a TCP port: reached at [`Supervised::reached`].
    /// All devices are on QEMU's user-mode network then.
    pub addresses: (&'static [Ipv4Addr], u16),
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kind: MachineType::Q35,
            cores: 2,
            threads: 1,
            nodes: 1,
            memory_mib: 128,
            cpu: "max",
            time: Time::Host,
            network_devices: 2,
            command_line: "",
            forwards: None,
            tap: None,
            addresses: (&[], 0),
        }
    }
}

/// A machine that runs. Dropped, it is killed.
pub struct Supervised {
    /// What speaks to its supervisor.
    pub client: Client,
    /// Always there but while the machine is ended.
    qemu: Option<Running>,
    folder: TempDir,
    /// Where the port is on the host.
    forwarded: Option<SocketAddr>,
    /// Where the port of each address is on the host.
    reached: Vec<SocketAddr>,
}

impl Supervised {
    /// Boots a machine, and waits until its supervisor answers.
    pub fn boot(setup: Setup) -> Self {
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

    /// Where the port of [`Setup::forwards`] is on the host.
    pub fn forwarded(&self) -> SocketAddr {
        self.forwarded.expect("a port is forwarded")
    }

    /// Where the ports of [`Setup::addresses`] are on the host.
    pub fn reached(&self) -> &[SocketAddr] {
        &self.reached
    }

    /// Raises the machine's non-maskable interrupt, as the host tool does where a supervisor does not answer.
    pub fn inject_nmi(&self) {
        let stream = UnixStream::connect(self.folder.path().join(CONTROL)).expect("QEMU listens");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("QEMU greets");
        for command in ["qmp_capabilities", "inject-nmi"] {
            writeln!(stream.get_mut(), r#"{{"execute":"{command}"}}"#).expect("QEMU reads");
            line.clear();
            stream.read_line(&mut line).expect("QEMU answers");
            assert!(line.contains("return"), "{command}: {line}");
        }
    }

    /// What of the machine must be as before once everything is given back.
    pub fn resources(&mut self) -> MachineInfo {
        let (info, nothing) = (self.client.machine(), ByteSize(0));
        let info = MachineInfo { boot_ns: 0, uptime_ns: 0, restarts: 0, ..info };
        MachineInfo { memory_dirty: nothing, memory_images: nothing, ..info }
    }

    /// Memory of the host that QEMU uses, in MiB.
    pub fn resident_mib(&self) -> u64 {
        let id = self.qemu.as_ref().expect("the machine runs").id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
    }

    /// What the machine has written to its serial line so far.
    pub fn serial(&mut self) -> String {
        self.qemu.as_mut().expect("the machine runs").serial()
    }

    /// CPU time that QEMU has used so far.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.qemu.as_ref().expect("the machine runs").id())
    }

    /// Has the machine end.
    pub fn power_off(mut self) -> Outcome {
        assert_eq!(self.client.ask(RequestBody::PowerOff), Ok(ResponseBody::Done));
        self.qemu.take().expect("the machine runs").wait()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        if let Some(qemu) = &mut self.qemu
            && std::thread::panicking()
        {
            eprintln!("--- serial line\n{}", qemu.serial());
        }
    }
}

/// How many cores can be given to cells.
pub fn free_cores(machine: &MachineInfo) -> usize {
    machine.cores.iter().filter(|core| core.owner == CoreOwner::Free).count()
}

/// The bytes of the image `cell-probe`.
pub fn probe() -> &'static [u8] {
    static PROBE: OnceLock<Vec<u8>> = OnceLock::new();
    PROBE.get_or_init(|| image("cell-probe"))
}

/// The bytes of an image, as far as the supervisor needs them.
pub fn image(name: &str) -> Vec<u8> {
    loadable(std::fs::read(images::path(name)).unwrap())
}

/// Cuts an ELF file behind its last loadable segment, as the host tool does before it sends it.
pub fn loadable(mut bytes: Vec<u8>) -> Vec<u8> {
    let word = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap()) as usize;
    let half = |offset: usize| u16::from_le_bytes(bytes[offset..offset + 2].try_into().unwrap()) as usize;
    let headers = (0..half(56)).map(|index| word(32) + index * 56);
    let end = headers.map(|header| word(header + 8) + word(header + 32)).max().unwrap();
    bytes.truncate(end);
    bytes
}
