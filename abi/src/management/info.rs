//! What is told of cells and machine.

use super::{CellSpec, LoanInfo, Restarts};
use crate::histogram::Distribution;
use crate::id::{CellId, CoreId, NodeId};
use crate::integrity::ImageDigest;
use crate::report::{CellPhase, CorePhase, CrashKind, MemoryPressure};
use crate::size::ByteSize;
use crate::topology::CoreSite;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// What the machine has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// The cores.
    pub cores: Vec<CoreInfo>,
    /// All memory that can be given to cells.
    pub memory_total: ByteSize,
    /// Of it, what a cell can be given.
    pub memory_free: ByteSize,
    /// Of that, what is not known to be zero: it is scrubbed when there is nothing else to do, or before a cell
    /// gets it.
    pub memory_dirty: ByteSize,
    /// Memory that is kept out of use for good: something that did not come back could write to it, or execute what is in it,
    /// and nobody else uses it.
    pub memory_quarantined: ByteSize,
    /// What the supervisor keeps for itself.
    pub memory_supervisor: ByteSize,
    /// What the images take that it keeps, with copies of them on the nodes of their cells, and with what was an image and cells
    /// still stand on. Of those that no cell uses, some count as free, as they give way, and the others as out of use.
    pub memory_images: ByteSize,
    /// Network devices that can be given to cells.
    pub devices_total: u32,
    /// Of them, what no cell has.
    pub devices_free: u32,
    /// Rate of the time-stamp counter.
    pub tsc_hz: u64,
    /// From the supervisor's first instruction to the first request that it could answer, in ns.
    pub boot_ns: u64,
    /// Since then, in ns.
    pub uptime_ns: u64,
    /// How often the supervisor has gone wrong and begun anew.
    pub restarts: u32,
}

/// An image that the supervisor keeps, so that cells are made from it without sending it once more: as long as a cell uses it
/// or something that did not come back may execute it, and then until its memory is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Its SHA-256, as the supervisor measured it while it came.
    pub digest: ImageDigest,
    /// Its length.
    pub len_bytes: u64,
    /// The cells that use it: they were made from it, and have not ended, or wait to be started again.
    pub cells: u32,
}

/// A core of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreInfo {
    /// Its number.
    pub id: CoreId,
    /// The NUMA node it belongs to.
    pub node: NodeId,
    /// Where it stands.
    pub site: CoreSite,
    /// Who has it.
    pub owner: CoreOwner,
}

/// Who has a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoreOwner {
    /// The supervisor runs on it.
    Supervisor,
    /// Nobody.
    Free,
    /// That cell.
    Cell(CellId),
    /// It did not come up, or did not come back: it is not used again.
    Failed,
    /// Nobody at the moment: it is between two cells, on its way to that one.
    OnItsWay(CellId),
}

/// What the supervisor holds a cell for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CellState {
    /// It has what it was given, and was not started, or not again.
    Created,
    /// Its cores run it.
    Running,
    /// It was asked to stop.
    Stopping,
    /// The application returned.
    Exited,
    /// It went wrong.
    Crashed,
    /// It was stopped by force, as asked.
    Killed,
}

impl CellInfo {
    /// How many cores it has now.
    pub fn core_count(&self) -> u32 {
        self.cores.iter().filter(|core| core.is_present && !self.state.has_ended()).count() as u32
    }
}

impl CellState {
    /// Whether a cell in this state has ended: what it was given is not its any more.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Created | Self::Running | Self::Stopping => false,
            Self::Exited | Self::Crashed | Self::Killed => true,
        }
    }
}

impl fmt::Display for CellState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Exited => "exited",
            Self::Crashed => "crashed",
            Self::Killed => "killed",
        })
    }
}

/// A cell as it is now. Of one that has ended it is told what it had used by then; it holds nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellInfo {
    /// Its id.
    pub id: CellId,
    /// What it was asked to be.
    pub spec: CellSpec,
    /// What the supervisor holds it for.
    pub state: CellState,
    /// What it says of itself.
    pub phase: CellPhase,
    /// The application's exit code, once there is one.
    pub exit_code: Option<i32>,
    /// What its cores did. Those of a cell that has ended are not its any more.
    pub cores: Vec<CoreUsage>,
    /// Memory that it was given.
    pub memory_given: ByteSize,
    /// How much of that it holds: none once it has ended.
    pub memory: ByteSize,
    /// What of that its image takes.
    pub image: ByteSize,
    /// What of its image it shares with other cells that are made from it, which is not part of its memory: none, where it has
    /// a copy of its own.
    pub text: ByteSize,
    /// What it uses of its memory.
    pub memory_usage: MemoryUsage,
    /// Its network device, while it holds one. The supervisor's word, not the cell's.
    pub device: Option<DeviceLocation>,
    /// Its address in the network, while it has one.
    pub address: Option<core::net::Ipv4Addr>,
    /// Traffic.
    pub network: NetworkUsage,
    /// What its activities used, over all cores: the first page of them.
    pub activities: ActivityPage,
    /// Cycles that requests took, over all cores.
    pub service: Distribution,
    /// The cores that it has borrowed.
    pub loans: Vec<LoanInfo>,
    /// What went wrong, where something did.
    pub crash: Option<Crash>,
    /// How often it was started again by its policy, and whether it will be.
    pub restarts: Restarts,
    /// Time of day of its first creation, in ns since 1970-01-01 UTC.
    pub created_unix_ns: u64,
    /// Time of day of its last start.
    pub started_unix_ns: Option<u64>,
    /// How long its latest creation, start and reclaim took.
    pub durations: Durations,
}

/// Where a device is in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceLocation {
    /// A PCI function.
    Pci {
        /// Its bus.
        bus: u8,
        /// Its device, which QEMU calls a slot.
        device: u8,
        /// Its function.
        function: u8,
    },
    /// A virtio-mmio register window.
    Mmio {
        /// Its physical address.
        address: u64,
    },
}

/// How long the supervisor took, in ns; `None` for what has not been done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// From the request to the cell being ready to start.
    pub create_ns: Option<u64>,
    /// From the request to its cores being on their way.
    pub start_ns: Option<u64>,
    /// From there to the cell saying that it runs.
    pub first_sign_ns: Option<u64>,
    /// From the request, or the crash, to all that it held being back.
    pub reclaim_ns: Option<u64>,
}

/// What a core of a cell did since the cell started. Cycles are of the time-stamp counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreUsage {
    /// The core.
    pub id: CoreId,
    /// Whether it is there; what one that has left did goes on at its place, run by another, or by the next that comes.
    pub is_present: bool,
    /// What it does.
    pub phase: CorePhase,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Cycles halted.
    pub idle_cycles: u64,
    /// Cycles of the event loop itself.
    pub loop_cycles: u64,
    /// Cycles of interrupt handlers.
    pub interrupt_cycles: u64,
    /// Cycles of events.
    pub event_cycles: u64,
    /// Events that ran for longer than the core's limit.
    pub long_events: u64,
    /// Cycles of the event that ran for longest.
    pub longest_event_cycles: u64,
    /// Cycles that events waited until they ran, of some of them; nothing in lists that are too long with it.
    pub queueing: Distribution,
}

/// What a cell uses of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// What it can use.
    pub total: ByteSize,
    /// What it uses.
    pub used: ByteSize,
    /// The most it ever used.
    pub peak: ByteSize,
    /// What it may still get on top.
    pub room: ByteSize,
    /// How short it is.
    pub pressure: MemoryPressure,
}

/// Traffic of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkUsage {
    /// Frames received.
    pub received_frames: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent_frames: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Frames dropped.
    pub dropped_frames: u64,
}

/// What some of a cell's activities used: at most [`ACTIVITIES_PER_PAGE`] slots of its [ledger](crate::ledger).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityPage {
    /// The activities that have these slots.
    pub activities: Vec<ActivityUsage>,
    /// What all activities that had these slots before, and have ended, used; without a name.
    pub ended: ActivityUsage,
    /// The first slot of the next page; `None` where no activity has had any of those that follow.
    pub next: Option<u32>,
}

/// Most slots of a page.
pub const ACTIVITIES_PER_PAGE: usize = 32;

/// What an activity used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityUsage {
    /// Its name.
    pub name: String,
    /// Cycles of its events.
    pub cycles: u64,
    /// Events run.
    pub events: u64,
    /// Bytes of memory that it took, less those that it gave back: see
    /// [`crate::ledger::ActivityReport::memory_bytes`].
    pub memory_bytes: i64,
}

/// What went wrong in a cell. Addresses are the image's: whoever has the image can name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// What kind of thing.
    pub kind: CrashKind,
    /// On which core.
    pub core: Option<CoreId>,
    /// The exception's vector, where it was one.
    pub vector: u32,
    /// Its error code.
    pub error_code: u64,
    /// The address that was accessed, of a page fault.
    pub fault_address: u64,
    /// Where execution stood.
    pub instruction: u64,
    /// The stack pointer there.
    pub stack_pointer: u64,
    /// Return addresses, innermost first.
    pub backtrace: Vec<u64>,
    /// What the program said.
    pub message: String,
}

/// A piece of what a cell printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// Number of the first byte: larger than what was asked for, where older ones are gone.
    pub from: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Bytes that were printed so far.
    pub end: u64,
}
