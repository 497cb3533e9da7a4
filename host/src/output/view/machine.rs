//! The JSON form of machines.

use crate::machine::record::{MachineKind, MachineRecord};
use isola_abi::management::{CoreInfo, CoreOwner, MachineInfo};
use serde::Serialize;

/// A machine: of `up` and `inspect --machine`.
#[derive(Clone, Debug, Serialize)]
pub struct MachineView {
    /// Its name.
    pub name: String,
    /// `supervised` or `standalone`.
    pub kind: &'static str,
    /// QEMU's machine.
    pub model: String,
    /// `tcg` or `kvm`.
    pub accelerator: String,
    /// The processor's model.
    pub cpu: String,
    /// What the virtual network is connected to.
    pub network: String,
    /// QEMU's process.
    pub pid: Option<u32>,
    /// Processors.
    pub cores: u32,
    /// Memory.
    pub memory_bytes: u64,
    /// From QEMU's start to the supervisor's first answer.
    pub ready_us: Option<u64>,
    /// What the supervisor says.
    pub supervisor: Option<SupervisorView>,
}

/// What a supervisor says of its machine.
#[derive(Clone, Debug, Serialize)]
pub struct SupervisorView {
    /// Every core: its number, where it stands, and who has it (`supervisor`, `free`, `failed`, or a cell's id).
    pub cores: Vec<MachineCoreView>,
    /// Memory for cells.
    pub memory_bytes: u64,
    /// Of that, what a cell can be given.
    pub free_bytes: u64,
    /// Of that, what is yet to be scrubbed.
    pub dirty_bytes: u64,
    /// What is kept out of use, as something that did not come back could write to it.
    pub quarantined_bytes: u64,
    /// What the supervisor keeps.
    pub supervisor_bytes: u64,
    /// What the images take that it keeps for the next cell.
    pub image_bytes: u64,
    /// Network devices for cells.
    pub devices: u32,
    /// Of those, what no cell has.
    pub free_devices: u32,
    /// Rate of the time-stamp counter.
    pub tsc_hz: u64,
    /// From the supervisor's first instruction until it could answer.
    pub boot_ns: u64,
    /// Since then.
    pub uptime_ns: u64,
    /// How often the supervisor has gone wrong and begun anew.
    pub restarts: u32,
}

/// A core of a machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachineCoreView {
    /// Its number.
    pub id: u32,
    /// Its NUMA node.
    pub node: u32,
    /// Its package.
    pub package: u32,
    /// Its last-level cache.
    pub cache: u32,
    /// Its physical core: cores with the same one are siblings.
    pub physical: u32,
    /// Which of its siblings it is, from 0.
    pub thread: u32,
    /// Who has it.
    pub owner: String,
}

impl MachineView {
    /// The JSON form of a machine.
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
                CoreOwner::OnItsWay(id) => format!("on its way to {id}"),
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
            tsc_hz: info.tsc_hz,
            boot_ns: info.boot_ns,
            uptime_ns: info.uptime_ns,
            restarts: info.restarts,
        }
    }
}
