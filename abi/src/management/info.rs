//! The state of the machine and its cells.

use super::{CellSpec, CellState, LoanInfo, MemoryLoanInfo, Restarts};
use crate::histogram::Distribution;
use crate::id::{CellId, CoreId, DeviceLocation, NodeId};
use crate::integrity::ImageDigest;
use crate::report::{CellPhase, CorePhase, CrashKind, MemoryPressure};
use crate::size::ByteSize;
use crate::topology::CoreSite;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The machine's resources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// The cores.
    pub cores: Vec<CoreInfo>,
    /// All memory for cells.
    pub memory_total: ByteSize,
    /// The part that a new cell can get: free memory, and the memory of idle images.
    pub memory_free: ByteSize,
    /// Free memory that is not known to be zero. The supervisor scrubs it in idle time, or before a cell gets it.
    pub memory_dirty: ByteSize,
    /// Memory in quarantine: a lost core or device could write to it, or execute an image in it that no other cell
    /// uses.
    pub memory_quarantined: ByteSize,
    /// The supervisor's own memory.
    pub memory_supervisor: ByteSize,
    /// The memory of the image store: images, their copies on other nodes, and former images from which cells still
    /// run. Idle images count also as free, and images that only quarantined cells use count as quarantined.
    pub memory_images: ByteSize,
    /// The number of network devices for cells.
    pub devices_total: u32,
    /// The number of free ones.
    pub devices_free: u32,
    /// The number of block devices for cells.
    pub disks_total: u32,
    /// The number of free ones.
    pub disks_free: u32,
    /// The rate of the time-stamp counter, in Hz.
    pub tsc_hz: u64,
    /// The time from the supervisor's first instruction to the first request that it could answer, in ns.
    pub boot_ns: u64,
    /// The time since then, in ns.
    pub uptime_ns: u64,
    /// The number of supervisor restarts.
    pub restarts: u32,
}

/// A stored image, from which cells can be created without another upload. The store keeps it while a cell uses it or a
/// lost core may execute it, and afterwards until its memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// The image's SHA-256, computed during the upload.
    pub digest: ImageDigest,
    /// The image's length, in bytes.
    pub len_bytes: u64,
    /// The number of cells that use it: cells created from it that have not ended or await their restart.
    pub cells: u32,
}

/// A core of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreInfo {
    /// The core's number.
    pub id: CoreId,
    /// The core's NUMA node.
    pub node: NodeId,
    /// The core's location.
    pub site: CoreSite,
    /// The core's owner.
    pub owner: CoreOwner,
}

/// The owner of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoreOwner {
    /// The supervisor runs on it.
    Supervisor,
    /// No owner.
    Free,
    /// This cell.
    Cell(CellId),
    /// No owner: the core did not start, or did not come back, and is not used again.
    Failed,
    /// No owner now; the core is in transfer to this cell.
    InTransfer(CellId),
}

impl CellInfo {
    /// Returns the cell's present number of cores.
    pub fn core_count(&self) -> u32 {
        self.cores.iter().filter(|core| core.is_present && !self.state.has_ended()).count() as u32
    }
}

/// A page of the list of cells, by id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CellPage {
    /// The cells.
    pub cells: Vec<CellInfo>,
    /// The id of the next page's first cell; `None` if there are no more cells.
    pub next: Option<CellId>,
}

/// The present state of a cell. Of an ended cell, usage is that at its end, and it has no resources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellInfo {
    /// The cell's id.
    pub id: CellId,
    /// The specification.
    pub spec: CellSpec,
    /// The state in the supervisor's records.
    pub state: CellState,
    /// The phase that the cell reports.
    pub phase: CellPhase,
    /// The application's exit code, after its end.
    pub exit_code: Option<i32>,
    /// The usage of the cell's cores. An ended cell no longer owns them.
    pub cores: Vec<CoreUsage>,
    /// The memory allocated to the cell.
    pub memory_given: ByteSize,
    /// The part that the cell holds: none after its end.
    pub memory: ByteSize,
    /// The part that its image occupies.
    pub image: ByteSize,
    /// The image's text that the cell shares with other cells of the image, not part of its memory; 0 with a private
    /// copy.
    pub text: ByteSize,
    /// The usage of the cell's memory.
    pub memory_usage: MemoryUsage,
    /// The network device that the cell holds, according to the supervisor.
    pub device: Option<DeviceLocation>,
    /// The cell's network address, if it has one.
    pub address: Option<core::net::Ipv4Addr>,
    /// Network traffic.
    pub network: NetworkUsage,
    /// The usage of the cell's activities, over all cores: the first page.
    pub activities: ActivityPage,
    /// Service latencies in cycles, over all cores.
    pub service: Distribution,
    /// The borrowed cores.
    pub loans: Vec<LoanInfo>,
    /// The borrowed memory, which is part of `memory`. Empty in a list that would otherwise exceed a frame.
    pub memory_loans: Vec<MemoryLoanInfo>,
    /// The memory that the cell has lent, and which is not part of `memory`.
    pub memory_lent: ByteSize,
    /// The crash, if the cell crashed.
    pub crash: Option<Crash>,
    /// The restarts by the cell's policy.
    pub restarts: Restarts,
    /// The time of day of the cell's first creation, in ns since 1970-01-01 UTC.
    pub created_unix_ns: u64,
    /// The time of day of the last start, in ns since 1970-01-01 UTC.
    pub started_unix_ns: Option<u64>,
    /// The durations of the latest creation, start and end.
    pub durations: Durations,
}

/// Durations in ns; `None` for a step that has not happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// From the request until the cell was ready to start.
    pub create_ns: Option<u64>,
    /// From the request until the cores were sent to the cell.
    pub start_ns: Option<u64>,
    /// From there until the cell reported that it runs.
    pub first_sign_ns: Option<u64>,
    /// From the request or the crash until all resources were back.
    pub reclaim_ns: Option<u64>,
}

/// The usage of a core slot since the cell's start. Cycles are of the time-stamp counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreUsage {
    /// The core.
    pub id: CoreId,
    /// Whether the core is present. After it has left, the slot's counters continue while another core runs its vcore,
    /// or when the next core enters.
    pub is_present: bool,
    /// The core's phase.
    pub phase: CorePhase,
    /// The number of interrupts.
    pub interrupts: u64,
    /// Cycles in which the core was halted.
    pub idle_cycles: u64,
    /// Cycles of the event loop itself.
    pub loop_cycles: u64,
    /// Cycles of interrupt handlers.
    pub interrupt_cycles: u64,
    /// Cycles of events.
    pub event_cycles: u64,
    /// The number of events that ran longer than the core's event limit.
    pub long_events: u64,
    /// Cycles of the longest event.
    pub longest_event_cycles: u64,
    /// Queueing delays in cycles, sampled; empty in a list that would be too long otherwise.
    pub queueing: Distribution,
}

/// The usage of a cell's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// The size of the pool.
    pub total: ByteSize,
    /// The used part.
    pub used: ByteSize,
    /// The maximum of `used` so far.
    pub peak: ByteSize,
    /// Obtainable memory.
    pub room: ByteSize,
    /// The shortage level.
    pub pressure: MemoryPressure,
}

/// The network traffic of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkUsage {
    /// The number of frames received.
    pub received_frames: u64,
    /// Bytes of those frames.
    pub received_bytes: u64,
    /// The number of frames sent.
    pub sent_frames: u64,
    /// Bytes of those frames.
    pub sent_bytes: u64,
    /// The number of frames dropped.
    pub dropped_frames: u64,
}

/// A page of a cell's activities: at most [`ACTIVITIES_PER_PAGE`] slots of its [ledger](crate::ledger).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityPage {
    /// The activities that have these slots.
    pub activities: Vec<ActivityUsage>,
    /// The usage of all ended activities that had these slots before; without a name.
    pub ended: ActivityUsage,
    /// The first slot of the next page; `None` if no later slot was ever assigned.
    pub next: Option<u32>,
}

/// The maximum number of slots on a page.
pub const ACTIVITIES_PER_PAGE: usize = 32;

/// The usage of an activity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityUsage {
    /// The activity's name.
    pub name: String,
    /// Cycles of the activity's events.
    pub cycles: u64,
    /// The number of events that ran.
    pub events: u64,
    /// Bytes of heap memory that the activity allocated, less those that it freed: see
    /// [`crate::ledger::ActivityReport::memory_bytes`].
    pub memory_bytes: i64,
}

/// A crash of a cell. Addresses are those of the image, from which a symbol table finds the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// The kind.
    pub kind: CrashKind,
    /// The core.
    pub core: Option<CoreId>,
    /// The exception's vector, if it was an exception.
    pub vector: u32,
    /// The exception's error code.
    pub error_code: u64,
    /// The accessed address, for a page fault.
    pub fault_address: u64,
    /// The address of the interrupted instruction.
    pub instruction: u64,
    /// The stack pointer there.
    pub stack_pointer: u64,
    /// Return addresses, innermost first.
    pub backtrace: Vec<u64>,
    /// The program's message.
    pub message: String,
}

/// A part of a cell's console output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// The position of the first byte; higher than requested if older bytes are gone.
    pub from: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The number of bytes ever written.
    pub end: u64,
}
