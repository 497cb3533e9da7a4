//! The JSON form of machines.

use crate::machine::record::{MachineKind, MachineRecord};
use isola_abi::management::{CoreInfo, CoreOwner, MachineInfo};
use serde::Serialize;

/// A machine: output of `up` and `inspect --machine`.
#[derive(Clone, Debug, Serialize)]
pub struct MachineView {
    /// The name.
    pub name: String,
    /// `supervised` or `standalone`.
    pub kind: &'static str,
    /// The QEMU machine type.
    pub model: String,
    /// `tcg` or `kvm`.
    pub accelerator: String,
    /// The processor model.
    pub cpu: String,
    /// The uplink of the virtual network.
    pub network: String,
    /// The id of QEMU's process.
    pub pid: Option<u32>,
    /// The number of cores.
    pub cores: u32,
    /// The amount of memory.
    pub memory_bytes: u64,
    /// The time from QEMU's start to the supervisor's first answer.
    pub ready_us: Option<u64>,
    /// The state that the supervisor reports.
    pub supervisor: Option<SupervisorView>,
}

/// The state of a machine, as its supervisor reports it.
#[derive(Clone, Debug, Serialize)]
pub struct SupervisorView {
    /// All cores: number, topology, and owner.
    pub cores: Vec<MachineCoreView>,
    /// The memory for cells.
    pub memory_bytes: u64,
    /// The part of it that is free.
    pub free_bytes: u64,
    /// The part of the free memory that is not scrubbed yet.
    pub dirty_bytes: u64,
    /// The memory in quarantine, because a core or device that did not come back could write to it.
    pub quarantined_bytes: u64,
    /// The memory of the supervisor.
    pub supervisor_bytes: u64,
    /// The memory of stored images.
    pub image_bytes: u64,
    /// The network devices for cells.
    pub devices: u32,
    /// The number of free ones.
    pub free_devices: u32,
    /// The block devices for cells.
    pub disks: u32,
    /// The number of free ones.
    pub free_disks: u32,
    /// The rate of the time-stamp counter.
    pub tsc_hz: u64,
    /// The time from the supervisor's first instruction until it could answer.
    pub boot_ns: u64,
    /// The time since then.
    pub uptime_ns: u64,
    /// The number of supervisor restarts after failures.
    pub restarts: u32,
}

/// A core of a machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachineCoreView {
    /// The core's number.
    pub id: u32,
    /// The NUMA node.
    pub node: u32,
    /// The package.
    pub package: u32,
    /// The last-level cache.
    pub cache: u32,
    /// The physical core: cores with the same one are siblings.
    pub physical: u32,
    /// The index among its siblings, from 0.
    pub thread: u32,
    /// `supervisor`, `free`, `failed`, a cell's id, or `on its way to` a cell's id during a core transfer.
    pub owner: String,
}

impl MachineView {
    /// Creates the JSON form of a machine.
    pub fn new(name: &str, record: &MachineRecord, supervisor: Option<&MachineInfo>) -> Self {
        Self {
            name: name.to_owned(),
            kind: match record.kind {
                MachineKind::Supervised => "supervised",
                MachineKind::Standalone { .. } => "standalone",
            },
            model: record.options.model.to_string(),
            accelerator: record.accelerator.to_string(),
            cpu: record.options.cpu.clone(),
            network: record.options.uplink.to_string(),
            pid: record.qemu.as_ref().map(|process| process.pid),
            cores: record.options.cores,
            memory_bytes: record.options.memory.0,
            ready_us: record.ready_us,
            supervisor: supervisor.map(SupervisorView::new),
        }
    }
}

impl SupervisorView {
    fn new(info: &MachineInfo) -> Self {
        let siblings_before = |core: &CoreInfo| {
            let before = info.cores.iter().filter(|other| other.id < core.id);
            before.filter(|other| other.site.physical == core.site.physical).count()
        };
        let core = |core: &CoreInfo| MachineCoreView {
            id: core.id.0,
            node: core.node.0,
            package: core.site.package.0,
            cache: core.site.cache.0,
            physical: core.site.physical.0,
            thread: siblings_before(core) as u32,
            owner: match core.owner {
                CoreOwner::Supervisor => "supervisor".to_owned(),
                CoreOwner::Free => "free".to_owned(),
                CoreOwner::Failed => "failed".to_owned(),
                CoreOwner::Cell(id) => id.to_string(),
                CoreOwner::InTransfer(id) => format!("in transfer to {id}"),
            },
        };
        Self {
            cores: info.cores.iter().map(core).collect(),
            memory_bytes: info.memory_total.0,
            free_bytes: info.memory_free.0,
            dirty_bytes: info.memory_dirty.0,
            quarantined_bytes: info.memory_quarantined.0,
            supervisor_bytes: info.memory_supervisor.0,
            image_bytes: info.memory_images.0,
            devices: info.devices_total,
            free_devices: info.devices_free,
            disks: info.disks_total,
            free_disks: info.disks_free,
            tsc_hz: info.tsc_hz,
            boot_ns: info.boot_ns,
            uptime_ns: info.uptime_ns,
            restarts: info.restarts,
        }
    }
}
