//! A machine with a supervisor on it, and a client that speaks to it.

use crate::images;
use crate::management::Client;
use crate::qemu::{Machine, MachineType, Outcome, Running};
use isola_abi::management::{CoreOwner, MachineInfo, RequestBody, ResponseBody};
use isola_abi::size::ByteSize;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

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
    /// Number of network devices.
    pub network_devices: usize,
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
            network_devices: 2,
        }
    }
}

/// A machine that runs. Dropped, it is killed.
pub struct Supervised {
    /// What speaks to its supervisor.
    pub client: Client,
    /// Always there but while the machine is ended.
    qemu: Option<Running>,
    _folder: TempDir,
}

impl Supervised {
    /// Boots a machine, and waits until its supervisor answers.
    pub fn boot(setup: Setup) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the console");
        let console = folder.path().join("console");
        let machine = Machine::new(setup.kind, "supervisor")
            .cores(setup.cores)
            .topology(setup.threads, setup.nodes)
            .memory_mib(setup.memory_mib)
            .cpu(setup.cpu)
            .limit(Duration::from_secs(600))
            .argument("-chardev")
            .argument(format!("socket,id=console,path={},server=on,wait=off", console.display()))
            .virtio("serial", "")
            .argument("-device")
            .argument("virtserialport,chardev=console");
        let machine = (0..setup.network_devices).fold(machine, |machine, number| {
            let network = format!("hubport,id=n{number},hubid=0");
            machine.argument("-netdev").argument(network).virtio("net", &format!(",netdev=n{number}"))
        });
        let qemu = machine.start();
        let client = Client::connect(&console);
        Self { client, qemu: Some(qemu), _folder: folder }
    }

    /// What of the machine must be as before once everything is given back.
    pub fn resources(&mut self) -> MachineInfo {
        let nothing = ByteSize(0);
        MachineInfo { uptime_ns: 0, memory_dirty: nothing, memory_images: nothing, ..self.client.machine() }
    }

    /// Memory of the host that QEMU uses, in MiB.
    pub fn resident_mib(&self) -> u64 {
        let id = self.qemu.as_ref().expect("the machine runs").id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
    }

    /// CPU time that QEMU has used so far.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!(
            "/proc/{}/stat",
            self.qemu.as_ref().expect("the machine runs").id()
        ))
        .unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // User and system time in ticks of 10 ms: fields 14 and 15, counted from the process id.
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(10 * ticks)
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
    PROBE.get_or_init(|| loadable(std::fs::read(images::path("cell-probe")).unwrap()))
}

/// Cuts an ELF file behind its last loadable segment, as the host tool does before it sends it.
fn loadable(mut bytes: Vec<u8>) -> Vec<u8> {
    let word = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap()) as usize;
    let half = |offset: usize| u16::from_le_bytes(bytes[offset..offset + 2].try_into().unwrap()) as usize;
    let headers = (0..half(56)).map(|index| word(32) + index * 56);
    let end = headers.map(|header| word(header + 8) + word(header + 32)).max().unwrap();
    bytes.truncate(end);
    bytes
}
