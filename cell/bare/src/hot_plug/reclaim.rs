//! Memory for the supervisor's reclaim request that the cell has in use.
//!
//! ```text
//!   Free ───► Return ───► choose a window ───► Vacate ───► Return ───► whole chunks are free ───► answer
//!   (bytes)  (caches)          ▲             (addresses)  (caches)          │ not yet, ROUNDS times in all
//!                              └────────── another window ◄────────────────┘
//! ```
//!
//! *Free*: the holders free as many bytes as the cell has to lose ([`MemoryDemand::Free`]). The freed objects are scattered.
//! *Vacate*: the page allocator opens the window that is least in use, and the holders copy what they have there to the
//! space that is now free elsewhere ([`MemoryDemand::Vacate`]). *Return*: the cores return the free objects in their caches.
//! Memory of other owners, such as connections, keeps its chunk; the other chunks of the window become free.
//!
//! The memory scheduler (`isola_events::reclaim`) runs between the steps, as events. One core looks in each of its passes
//! whether a step is over. An allocation that finds no memory meanwhile closes the window. If no window became free, the
//! holders free some more, and all windows are tried once more.

use crate::core_caches::return_all_caches;
use crate::page_tables::{is_over, retire};
use crate::pool;
use core::ptr;
use core::sync::atomic::Ordering;
use isola_abi::layout::DIRECT_MAP;
use isola_abi::report::RECLAIM;
use isola_abi::unplug::CHUNK;
use isola_ebbs::cycles;
use isola_machine::cell;
use isola_machine::dma::{Access, device_piece};
use isola_memory::pages::CompactionWindow;
use isola_memory::regions::Retirement;
use isola_platform::{MemoryDemand, VacatedMemory};
use spin::Mutex;

/// The demand that the memory scheduler sees.
static DEMAND: Mutex<Demand> = Mutex::new(Demand { kind: DemandKind::None, is_over: true });

/// How often the holders are asked to vacate a window: objects that a core allocated from its cache in the meantime, and
/// memory of answers in transit, are found at a later time.
const ROUNDS: u32 = 6;

/// How many of these rounds may pass without effect.
const VAIN_ROUNDS: u32 = 2;

/// The chunks of a window, as a power of two, at most: 64 MiB.
const MAX_WINDOW_ORDER: u32 = 5;

/// A window is at most this part of the memory, as there must be room for its contents elsewhere.
const WINDOW_PART: usize = 4;

/// The windows of a request that did not become free, at most.
const MAX_TRIED: usize = 32;

/// The attempts for one request, each of which frees a thirty-second more.
const MAX_ATTEMPTS: usize = 4;

/// The chunks of a window, at least: more than are wanted at the end, as some may have memory that stays.
const MIN_WINDOW_CHUNKS: usize = 4;

/// The time during which requests are parts of one, in ns.
const RECENT_NS: u64 = 10_000_000_000;

/// The time for the steps of one request, in ns: the supervisor waits for five seconds. Then the cell asks for another
/// request, which continues them.
const LIMIT_NS: u64 = 4_000_000_000;

struct Demand {
    kind: DemandKind,
    is_over: bool,
}

#[derive(Clone, Copy)]
enum DemandKind {
    None,
    /// The bytes that the supervisor wants, and the number of earlier attempts that freed too little.
    Free(usize, usize),
    Vacate(CompactionWindow),
}

/// Returns what the memory scheduler is to do.
pub(crate) fn demand() -> MemoryDemand {
    let demand = DEMAND.lock();
    match demand.kind {
        _ if demand.is_over => MemoryDemand::None,
        DemandKind::None => MemoryDemand::None,
        DemandKind::Free(wanted, attempts) => MemoryDemand::Free(missing_bytes(wanted, attempts)),
        DemandKind::Vacate(CompactionWindow { start, len_bytes }) => {
            MemoryDemand::Vacate(VacatedMemory::new(start..start.saturating_add(len_bytes), address_of_piece))
        }
    }
}

/// Returns the address in the direct map of the byte at an address of the heap: an object of several pieces is elsewhere.
fn address_of_piece(address: usize) -> usize {
    let address = ptr::without_provenance(address);
    let piece = device_piece(address, 1, Access::DeviceReads);
    piece.map_or(address.addr(), |(physical, _)| (DIRECT_MAP + physical) as usize)
}

/// Ends the demand, if it is still this one.
pub(crate) fn end_demand(ended: &MemoryDemand) {
    let mut demand = DEMAND.lock();
    let is_it = match (ended, demand.kind) {
        (MemoryDemand::Free(_), DemandKind::Free(..)) => true,
        (MemoryDemand::Vacate(memory), DemandKind::Vacate(window)) => {
            memory.addresses().start == window.start
        }
        _ => false,
    };
    if is_it {
        demand.is_over = true;
    }
}

/// Returns the bytes to free before the cell can do without `wanted` bytes: a sixteenth of the rest is to stay free, and
/// half as much is the loss by pieces that only objects of one size can use. After each attempt this is found to be more.
fn missing_bytes(wanted: usize, attempts: usize) -> usize {
    let rest = pool::total_bytes().saturating_sub(wanted);
    let lost = rest / 32 * (1 + attempts);
    pool::live_bytes().saturating_sub((rest - rest / 16).saturating_sub(lost))
}

/// The steps for the latest request.
#[derive(Clone, Copy)]
enum Step {
    Over,
    /// The holders free memory.
    Free,
    /// The cores return their caches, before the first window.
    Return(Retirement),
    /// The holders vacate the window.
    Vacate(CompactionWindow),
    /// The cores return their caches.
    ReturnOf(CompactionWindow, Retirement),
}

/// The outcome of a look at the steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReclaimProgress {
    InProgress,
    /// The request can be answered.
    Over,
}

/// The progress of a reclaim.
pub(super) struct Reclaim {
    step: Step,
    /// The request for which it was last started, and the cycle count of that.
    request: u32,
    began: u64,
    wanted: usize,
    rounds_left: u32,
    /// The number of the last rounds that had no effect.
    vain_rounds: u32,
    /// The bytes in use in the window after the last round.
    used_bytes: usize,
    /// The number of attempts after which no chunk was free.
    attempts: usize,
    /// Whether the time for the latest request ended before its steps.
    is_cut_short: bool,
    /// The start and the end of windows in which memory stayed in use.
    tried: [(usize, usize); MAX_TRIED],
    tried_count: usize,
}

impl Reclaim {
    pub const fn new() -> Self {
        Self {
            step: Step::Over,
            request: 0,
            began: 0,
            wanted: 0,
            rounds_left: 0,
            vain_rounds: 0,
            used_bytes: 0,
            attempts: 0,
            is_cut_short: false,
            tried: [(0, 0); MAX_TRIED],
            tried_count: 0,
        }
    }

    /// Returns whether it is in progress.
    pub fn is_active(&self) -> bool {
        !matches!(self.step, Step::Over)
    }

    /// Returns whether it was started for that request.
    pub fn is_for(&self, request: u32) -> bool {
        self.request == request
    }

    /// Returns whether it could not free a chunk for that request, however much the holders have freed.
    pub fn has_failed(&self, request: u32) -> bool {
        self.request == request && self.attempts >= MAX_ATTEMPTS
    }

    /// Returns whether the time for that request ended before the steps, which another request continues.
    pub fn is_cut_short(&self, request: u32) -> bool {
        self.request == request && self.is_cut_short
    }

    /// Returns whether it was started in the last seconds: the supervisor asks in parts.
    pub fn is_recent(&self, tsc_hz: u64) -> bool {
        self.began != 0 && cycles().wrapping_sub(self.began) < in_cycles(RECENT_NS, tsc_hz)
    }

    /// Starts the steps for a request of `wanted` bytes, or starts them again if they freed no chunk.
    pub fn start(&mut self, request: u32, wanted: usize, tsc_hz: u64) {
        if self.request == request {
            self.attempts += 1;
            self.tried_count = 0;
        } else {
            if !self.is_recent(tsc_hz) || self.attempts >= MAX_ATTEMPTS {
                (self.attempts, self.tried_count) = (0, 0);
            }
            self.began = cycles().max(1);
        }
        (self.request, self.wanted, self.is_cut_short) = (request, wanted, false);
        self.step = Step::Free;
        set_demand(DemandKind::Free(wanted, self.attempts));
    }

    /// Ends the steps in their present state.
    pub fn end(&mut self) {
        if self.is_active() {
            self.step = Step::Over;
            set_demand(DemandKind::None);
            pool::close_window();
        }
    }

    /// Goes on as far as possible without waiting.
    pub fn advance(&mut self, tsc_hz: u64) -> ReclaimProgress {
        if self.is_active() && cycles().wrapping_sub(self.began) > in_cycles(LIMIT_NS, tsc_hz) {
            self.end();
            self.is_cut_short = true;
        }
        self.step = match self.step {
            Step::Free if has_ended() => {
                return_all_caches();
                Step::Return(retire())
            }
            Step::Return(begun) if is_over(begun) => {
                pool::trim();
                self.next_window()
            }
            Step::Vacate(window) if has_ended() => {
                return_all_caches();
                Step::ReturnOf(window, retire())
            }
            Step::ReturnOf(window, begun) if is_over(begun) => {
                pool::trim();
                self.look(window)
            }
            step => step,
        };
        if self.is_active() { ReclaimProgress::InProgress } else { ReclaimProgress::Over }
    }

    /// Looks at the window whose holders have done what they could.
    fn look(&mut self, window: CompactionWindow) -> Step {
        let state = pool::window_use();
        self.vain_rounds = if state.used_bytes < self.used_bytes { 0 } else { self.vain_rounds + 1 };
        self.used_bytes = state.used_bytes;
        if state.used_bytes > 0 && self.rounds_left > 0 && self.vain_rounds < VAIN_ROUNDS {
            self.rounds_left -= 1;
            set_demand(DemandKind::Vacate(window));
            return Step::Vacate(window);
        }
        set_demand(DemandKind::None);
        pool::close_window();
        if state.used_bytes > 0 && self.tried_count < MAX_TRIED {
            self.tried[self.tried_count] = (window.start, window.start.saturating_add(window.len_bytes));
            self.tried_count += 1;
        }
        if state.free_chunk_bytes > 0 { Step::Over } else { self.next_window() }
    }

    /// Opens another window.
    fn next_window(&mut self) -> Step {
        let chunk = CHUNK as usize;
        let most = pool::total_bytes() / WINDOW_PART / chunk;
        let chunks = self.wanted.div_ceil(chunk).max(MIN_WINDOW_CHUNKS).min(most.max(1));
        let tried = self.tried.get(..self.tried_count).unwrap_or_default();
        // What was left in such a window could not be vacated.
        let is_tried = |start: usize| tried.iter().any(|(first, end)| (*first..*end).contains(&start));
        let window = if tried.len() == MAX_TRIED {
            None
        } else {
            pool::open_window(chunks.ilog2().min(MAX_WINDOW_ORDER), is_tried)
        };
        let Some(window) = window else {
            set_demand(DemandKind::None);
            return Step::Over;
        };
        (self.rounds_left, self.vain_rounds, self.used_bytes) = (ROUNDS - 1, 0, usize::MAX);
        // Objects of the window that are in a core's cache would be allocated once more.
        return_all_caches();
        set_demand(DemandKind::Vacate(window));
        Step::Vacate(window)
    }
}

fn in_cycles(ns: u64, tsc_hz: u64) -> u64 {
    (u128::from(ns) * u128::from(tsc_hz) / 1_000_000_000) as u64
}

fn set_demand(kind: DemandKind) {
    let mut demand = DEMAND.lock();
    *demand = Demand { kind, is_over: matches!(kind, DemandKind::None) };
    if !demand.is_over {
        cell::report().memory.pressure.fetch_or(RECLAIM, Ordering::SeqCst);
    }
}

fn has_ended() -> bool {
    DEMAND.lock().is_over
}
