//! The report: a cell's state, in memory that the cell shares with the supervisor.
//!
//! The cell writes and the supervisor reads, at any time and without the cell's help, so `inspect` costs the cell
//! nothing. The supervisor writes only the fields that say so.
//!
//! Each field is an atomic that one core writes. A reader sees whole values, of slightly different times. Accesses are
//! relaxed unless the field's documentation specifies an order. The supervisor does not trust the cell: it checks every
//! index and length, and uses values only as the cell's claims about itself.
//!
//! The cell notifies the supervisor after a change of [`Report::phase`], when more than half of the console ring is
//! unread, after a new [`Report::memory_request`], [`Report::offer`] or [`Report::link_request`], after an increment of
//! [`Report::core_requests`], and when a core is about to leave.

use crate::growth::GrowthRequest;
use crate::histogram::Histogram;
use crate::links::LinkRequest;
use crate::query::Answers;
use crate::unplug::UnplugOffer;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};
use serde::{Deserialize, Serialize};

/// The capacity of the console ring, in bytes.
pub const CONSOLE_LEN: usize = 32 * 1024;

/// The maximum length of a crash message, in bytes of UTF-8.
pub const CRASH_MESSAGE_LEN: usize = 512;

/// The maximum number of return addresses in a crash's backtrace.
pub const BACKTRACE_LEN: usize = 32;

/// The state of a cell. Its length depends on the number of core slots, so that no memory is reserved for slots that a
/// cell lacks; [`report_bytes`](crate::layout::report_bytes) returns the length.
#[repr(C)]
pub struct Report<C: ?Sized = [CoreReport]> {
    /// The [`crate::VERSION`] of the image; 0 until the cell has started.
    pub version: AtomicU32,
    /// A [`CellPhase`]; stored last (release), after the fields that belong to it.
    pub phase: AtomicU32,
    /// The application's exit code, valid in [`CellPhase::Exited`].
    pub exit_code: AtomicI32,
    /// All slots of the [ledger](crate::ledger) that were ever assigned to an activity are below this one.
    pub activity_count: AtomicU32,
    /// The cell's IPv4 address as a number, the first octet in the highest bits; 0 without an address.
    pub ipv4_address: AtomicU32,
    /// The number of requests of the cell's cores for another core, because events wait too long. A core increments it
    /// (release) and then notifies the supervisor.
    pub core_requests: AtomicU32,
    /// The crash, valid in [`CellPhase::Crashed`].
    pub crash: CrashReport,
    /// Memory usage.
    pub memory: MemoryReport,
    /// The cell's memory request.
    pub memory_request: GrowthRequest,
    /// The memory that the cell offers to return.
    pub offer: UnplugOffer,
    /// The cell's request about a link.
    pub link_request: LinkRequest,
    /// Network traffic.
    pub network: NetworkReport,
    /// The console output.
    pub console: ConsoleRing,
    /// The answers to queries.
    pub answers: Answers,
    /// A record per core slot, in the order of core indices.
    pub cores: C,
}

impl Report {
    /// Returns the report at `start`, of a cell with `core_slots` core slots.
    pub const fn at(start: *const u8, core_slots: usize) -> *const Self {
        core::ptr::slice_from_raw_parts(start.cast::<CoreReport>(), core_slots) as *const Self
    }
}

/// The phase of a cell's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CellPhase {
    /// The cell has not reported yet.
    Silent = 0,
    /// The application runs.
    Running = 1,
    /// The application has ended; the cell waits for the supervisor to reclaim it.
    Exited = 2,
    /// The cell has crashed, and waits for the supervisor to reclaim it.
    Crashed = 3,
}

impl CellPhase {
    /// Decodes a phase; `None` for an unknown number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Silent,
            1 => Self::Running,
            2 => Self::Exited,
            3 => Self::Crashed,
            _ => return None,
        })
    }
}

/// The activity of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CorePhase {
    /// The core has halted since the cell's start, without work so far.
    Asleep = 0,
    /// The core is halted until the next interrupt.
    Halted = 1,
    /// The core runs events.
    Running = 2,
}

impl CorePhase {
    /// Decodes a phase; `None` for an unknown number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Asleep,
            1 => Self::Halted,
            2 => Self::Running,
            _ => return None,
        })
    }
}

/// The state and the counters of a core slot. Cycles are of the time-stamp counter.
#[repr(C)]
pub struct CoreReport {
    /// A [`CorePhase`].
    pub phase: AtomicU32,
    /// The activity of the running event, or of the last one.
    pub activity: AtomicU32,
    /// The latest [order](crate::core_slots::Order) of this core slot that its core has carried out; stored last
    /// (release). The supervisor sets it to 0 before it sends a core there.
    pub order: AtomicU32,
    /// The latest order to [yield](crate::core_slots::OrderKind::Yield) at which a core of this slot has suspended its
    /// context; stored (release) once another core can resume the context. The supervisor sets it to 0 before it sends
    /// a core there.
    pub yielded: AtomicU32,
    /// The [generation](crate::unplug::UnplugRequest) of the cell's page tables at the latest TLB flush of the core at
    /// this slot; 0 until a core has entered and can take NMIs. From a difference to the current generation the cell
    /// recognises an NMI for a TLB shootdown; the supervisor checks only for 0. The core stores it (release). The
    /// supervisor sets it to 0 before it sends a core there.
    pub flushed_generation: AtomicU32,
    /// The core slot whose core runs this slot's vcore: this slot, or another one after the vcore was passed on.
    pub vcore_runner: AtomicU32,
    /// Passes of the event loop. If a core is not halted and the number does not change, the core hangs.
    pub passes: AtomicU64,
    /// The number of interrupts.
    pub interrupts: AtomicU64,
    /// Cycles in which the core was halted.
    pub idle_cycles: AtomicU64,
    /// Cycles of the event loop itself.
    pub loop_cycles: AtomicU64,
    /// Cycles of passes with interrupts, until the pass's event.
    pub interrupt_cycles: AtomicU64,
    /// The number of events that ran longer than the core's event limit.
    pub long_events: AtomicU64,
    /// Cycles of the longest event.
    pub longest_event_cycles: AtomicU64,
    /// Queueing delays, sampled. A delay begins when the core last checked for new work before the event's arrival, and
    /// is therefore an upper bound.
    pub queueing: Histogram,
    /// Service latencies: from the earliest possible arrival of a request's last byte to the hand-over of its answer to
    /// the device. The application defines the requests.
    pub service: Histogram,
}

/// Memory usage of the cell, in bytes.
#[repr(C)]
pub struct MemoryReport {
    /// The size of the pool.
    pub total_bytes: AtomicU64,
    /// The part of the pool that the page allocator has allocated.
    pub used_bytes: AtomicU64,
    /// The maximum of `used_bytes` so far.
    pub peak_bytes: AtomicU64,
    /// Obtainable memory: memory that the cell lacks and may request; 0 after a refusal.
    pub room_bytes: AtomicU64,
    /// A [`MemoryPressure`], [`RECLAIM`] and [`OVER_BUDGET`].
    pub pressure: AtomicU32,
    /// The number of holders of memory that the cell could do without, and would free at a reclaim request.
    pub holders: AtomicU32,
}

/// Set in [`MemoryReport::pressure`] while the cell is to free memory for another reason than its level. The loop of each
/// core thus learns of both by one load.
pub const RECLAIM: u32 = 1 << 8;

/// Set in [`MemoryReport::pressure`] while an activity has more memory than its hard budget although the memory that it
/// could do without was freed.
pub const OVER_BUDGET: u32 = 1 << 9;

/// The bits of [`MemoryReport::pressure`] that are the level.
pub const PRESSURE_LEVEL: u32 = RECLAIM - 1;

/// The shortage level of a cell's memory. Obtainable memory counts as free. A level ends when free memory exceeds its
/// threshold by a quarter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum MemoryPressure {
    /// No shortage.
    #[default]
    None = 0,
    /// Less than a sixteenth is free: holders of dispensable memory release it.
    Low = 1,
    /// Less than a thirty-second is free: applications begin no new work.
    Critical = 2,
}

impl MemoryPressure {
    /// Decodes a level, with or without [`RECLAIM`] and [`OVER_BUDGET`]; `None` for an unknown number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value & !(RECLAIM | OVER_BUDGET) {
            0 => Self::None,
            1 => Self::Low,
            2 => Self::Critical,
            _ => return None,
        })
    }
}

/// The network traffic of the cell.
#[repr(C)]
pub struct NetworkReport {
    /// The number of frames received.
    pub received_frames: AtomicU64,
    /// Bytes of those frames.
    pub received_bytes: AtomicU64,
    /// The number of frames sent.
    pub sent_frames: AtomicU64,
    /// Bytes of those frames.
    pub sent_bytes: AtomicU64,
    /// The number of frames dropped, received or to be sent, for any reason.
    pub dropped_frames: AtomicU64,
}

/// The kind of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CrashKind {
    /// The program panicked.
    Panic = 0,
    /// The processor raised an exception, for example for an illegal access or an invalid instruction.
    Exception = 1,
    /// The processor could not deliver an exception: the stack has overflowed.
    DoubleFault = 2,
    /// The supervisor stopped the cell because it did not respond.
    Hang = 3,
    /// The cell ran out of memory.
    OutOfMemory = 4,
}

impl CrashKind {
    /// Decodes a kind; `None` for an unknown number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Panic,
            1 => Self::Exception,
            2 => Self::DoubleFault,
            3 => Self::Hang,
            4 => Self::OutOfMemory,
            _ => return None,
        })
    }
}

/// The location and the cause of a crash. The first core that crashes fills it in.
#[repr(C)]
pub struct CrashReport {
    /// 0 while unclaimed; otherwise 1 + the index of the core that fills in the record.
    pub claimed_by: AtomicU32,
    /// A [`CrashKind`].
    pub kind: AtomicU32,
    /// The core's index.
    pub core_index: AtomicU32,
    /// The exception's vector.
    pub vector: AtomicU32,
    /// The exception's error code.
    pub error_code: AtomicU64,
    /// The accessed address, for a page fault.
    pub fault_address: AtomicU64,
    /// The address of the interrupted instruction.
    pub instruction: AtomicU64,
    /// The stack pointer there.
    pub stack_pointer: AtomicU64,
    /// Return addresses, innermost first, terminated by 0.
    pub backtrace: [AtomicU64; BACKTRACE_LEN],
    /// The program's message, padded with zero bytes.
    pub message: [AtomicU8; CRASH_MESSAGE_LEN],
}

/// A ring of console output.
///
/// `written` counts all bytes ever written; byte `n` is at `n % CONSOLE_LEN`. The cell does not wait for the reader:
/// bytes overwritten before the read are lost. Because the cell increments `begun` before it writes the bytes, the
/// reader knows how many.
#[repr(C)]
pub struct ConsoleRing {
    /// The number of bytes ever written, those in progress included; stored before the bytes, with a release fence in
    /// between.
    pub begun: AtomicU64,
    /// The number of bytes ever written; stored (release) after the bytes.
    pub written: AtomicU64,
    /// The position up to which the supervisor has read; stored by the supervisor.
    pub read: AtomicU64,
    /// The bytes.
    pub bytes: [AtomicU8; CONSOLE_LEN],
}
