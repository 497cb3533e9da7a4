//! The report: what a cell says of itself, in memory that it shares with the supervisor.
//!
//! The cell writes, the supervisor reads, at any time and without asking: `inspect` costs the cell nothing.
//! All fields are atomics with relaxed order, each written by one core; a reader sees every value whole, and
//! values of slightly different moments. Where order matters it is said at the field. The cell is not
//! trusted: the supervisor bounds every index and length that it finds here, and takes nothing for true
//! beyond what the cell says of itself.
//!
//! After changing [`Report::phase`] a cell rings the supervisor's doorbell, as it does when the console ring
//! holds more than half of what it can, after a new [`Report::memory_request`] or [`Report::offer`], and when a core is about to leave.

use crate::growth::GrowthRequest;
use crate::histogram::Histogram;
use crate::query::Answers;
use crate::unplug::Offer;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};
use serde::{Deserialize, Serialize};

/// Capacity of the console ring, in bytes.
pub const CONSOLE_LEN: usize = 32 * 1024;

/// Longest crash message, in bytes of UTF-8.
pub const CRASH_MESSAGE_LEN: usize = 512;

/// Most return addresses of a crash's backtrace.
pub const BACKTRACE_LEN: usize = 32;

/// What the cell says of itself. It ends with as many records as the cell has places for cores, so that nobody has memory for
/// more; [`report_bytes`](crate::layout::report_bytes) says how much that is.
#[repr(C)]
pub struct Report<C: ?Sized = [CoreReport]> {
    /// [`crate::VERSION`]; 0 until the cell has started.
    pub version: AtomicU32,
    /// A [`CellPhase`]; written last (release), after the fields that belong to it.
    pub phase: AtomicU32,
    /// The application's exit code; meaningful in [`CellPhase::Exited`].
    pub exit_code: AtomicI32,
    /// No slot of the [ledger](crate::ledger) from this one on was ever given to an activity.
    pub activity_count: AtomicU32,
    /// The address in use, as a big-endian number; 0 while there is none.
    pub ipv4_address: AtomicU32,
    /// How often a core of the cell has requested another one, as its events wait for too long: counted up (release), then
    /// the supervisor is rung for.
    pub core_requests: AtomicU32,
    /// What went wrong; meaningful in [`CellPhase::Crashed`].
    pub crash: CrashReport,
    /// Memory.
    pub memory: MemoryReport,
    /// Memory that the cell wants on top.
    pub memory_request: GrowthRequest,
    /// Memory that the cell can do without.
    pub offer: Offer,
    /// Network.
    pub network: NetworkReport,
    /// What the cell prints.
    pub console: ConsoleRing,
    /// What it answers to queries.
    pub answers: Answers,
    /// A record a place, in the order of core indices.
    pub cores: C,
}

impl Report {
    /// The report that begins at `start`, of a cell of so many places.
    pub const fn at(start: *const u8, places: usize) -> *const Self {
        core::ptr::slice_from_raw_parts(start.cast::<CoreReport>(), places) as *const Self
    }
}

/// How far a cell has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CellPhase {
    /// It has not said anything yet.
    Silent = 0,
    /// The application runs.
    Running = 1,
    /// The application is done; the cell waits to be reclaimed.
    Exited = 2,
    /// Something went wrong; the cell waits to be reclaimed.
    Crashed = 3,
}

impl CellPhase {
    /// The phase of that number, where there is one.
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

/// What a core does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CorePhase {
    /// Never needed so far: halted since the cell started.
    Asleep = 0,
    /// Halted until the next interrupt.
    Halted = 1,
    /// Running events.
    Running = 2,
}

impl CorePhase {
    /// The phase of that number, where there is one.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Asleep,
            1 => Self::Halted,
            2 => Self::Running,
            _ => return None,
        })
    }
}

/// What a core did. Cycles are of the time-stamp counter.
#[repr(C)]
pub struct CoreReport {
    /// A [`CorePhase`].
    pub phase: AtomicU32,
    /// The activity whose event runs, or ran last.
    pub activity: AtomicU32,
    /// The [order](crate::places::Order) of this place that its core has carried out; stored (release) last; set to 0 by the
    /// supervisor before one is sent there.
    pub order: AtomicU32,
    /// The last [order](crate::places::Order) to yield by which a core at this place has suspended what it was in the
    /// middle of. Stored (release) once another can go on with that; set to 0 by the supervisor before one is sent there.
    pub yielded: AtomicU32,
    /// The [generation](crate::unplug::UnplugRequest) of the cell's page tables when the core at this place last looked; 0 until a
    /// core has entered, and non-maskable interrupts may be sent to it. By it the cell knows what such an interrupt was for;
    /// the supervisor believes no more of it than that it is not 0. Stored (release) by the core; set to 0 by the supervisor
    /// before one is sent there.
    pub forgotten: AtomicU32,
    /// The place whose core runs what belongs to this one: this one, or that of a core that has taken it over.
    pub carrier: AtomicU32,
    /// Passes of the event loop: what stands still in a core that is not halted, hangs.
    pub passes: AtomicU64,
    /// Interrupts taken.
    pub interrupts: AtomicU64,
    /// Cycles in which the core was halted.
    pub idle_cycles: AtomicU64,
    /// Cycles of the event loop itself.
    pub loop_cycles: AtomicU64,
    /// Cycles of passes of the loop in which interrupts came, up to their events.
    pub interrupt_cycles: AtomicU64,
    /// Events that ran for longer than the core's limit.
    pub long_events: AtomicU64,
    /// Cycles of the event that ran for longest.
    pub longest_event_cycles: AtomicU64,
    /// How long an event that comes waits until it runs: from the core's look at what has come before that, so at most so
    /// long, and some of them only.
    pub queueing: Histogram,
    /// How long requests took: from when the last of their bytes can first have come to when their answers were handed to
    /// the device. The application says what a request is.
    pub service: Histogram,
}

/// Memory of the cell, in bytes.
#[repr(C)]
pub struct MemoryReport {
    /// The pool.
    pub total_bytes: AtomicU64,
    /// Of it, handed out by the page allocator.
    pub used_bytes: AtomicU64,
    /// The most that was ever handed out.
    pub peak_bytes: AtomicU64,
    /// What may still be added to the pool; 0 while the supervisor has none to give.
    pub room_bytes: AtomicU64,
    /// A [`MemoryPressure`].
    pub pressure: AtomicU32,
    /// Not used.
    pub reserved: AtomicU32,
}

/// How short a cell's memory is. What may still be added counts as free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum MemoryPressure {
    /// It is not.
    #[default]
    None = 0,
    /// Less than a sixteenth is free: who can do without some of what it holds gives it back.
    Low = 1,
    /// Less than a thirty-second is free: nothing new is begun.
    Critical = 2,
}

impl MemoryPressure {
    /// The level of that number, where there is one.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::None,
            1 => Self::Low,
            2 => Self::Critical,
            _ => return None,
        })
    }
}

/// Network traffic of the cell.
#[repr(C)]
pub struct NetworkReport {
    /// Frames received.
    pub received_frames: AtomicU64,
    /// Bytes of those frames.
    pub received_bytes: AtomicU64,
    /// Frames sent.
    pub sent_frames: AtomicU64,
    /// Bytes of those frames.
    pub sent_bytes: AtomicU64,
    /// Frames dropped, received or to be sent, for whatever reason.
    pub dropped_frames: AtomicU64,
}

/// What went wrong in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CrashKind {
    /// The program panicked.
    Panic = 0,
    /// The processor raised an exception: a wild access, an invalid instruction, ...
    Exception = 1,
    /// An exception could not be delivered: the stack has overflowed.
    DoubleFault = 2,
    /// The supervisor stopped a cell that did not answer.
    Hang = 3,
    /// Memory ran out.
    OutOfMemory = 4,
}

impl CrashKind {
    /// The kind of that number, where there is one.
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

/// Where and how a cell crashed. Filled by the core that crashed first.
#[repr(C)]
pub struct CrashReport {
    /// 0: unclaimed; else 1 + the index of the core that fills the record.
    pub claimed_by: AtomicU32,
    /// A [`CrashKind`].
    pub kind: AtomicU32,
    /// Index of the core.
    pub core_index: AtomicU32,
    /// The exception's vector.
    pub vector: AtomicU32,
    /// The exception's error code.
    pub error_code: AtomicU64,
    /// The address that was accessed, of a page fault.
    pub fault_address: AtomicU64,
    /// Where execution stood.
    pub instruction: AtomicU64,
    /// The stack pointer there.
    pub stack_pointer: AtomicU64,
    /// Return addresses, innermost first; 0 ends them.
    pub backtrace: [AtomicU64; BACKTRACE_LEN],
    /// What the program said, filled up with zero bytes.
    pub message: [AtomicU8; CRASH_MESSAGE_LEN],
}

/// A ring of what the cell prints.
///
/// `written` counts all bytes ever put in; byte `n` stands at `n % CONSOLE_LEN`. The cell never waits for a
/// reader: what is overwritten before it was read is lost, and the reader can tell how much, as `begun` is counted before
/// bytes are put in.
#[repr(C)]
pub struct ConsoleRing {
    /// Bytes ever written, and those that are being written; stored before the bytes, with a fence (release) between.
    pub begun: AtomicU64,
    /// Bytes ever written; stored (release) after the bytes.
    pub written: AtomicU64,
    /// Where the supervisor has read to; stored by the supervisor.
    pub read: AtomicU64,
    /// The bytes.
    pub bytes: [AtomicU8; CONSOLE_LEN],
}
