//! Memory growth: plugging of memory from the supervisor, see [`isola_abi::growth`]. The supervisor's requests to
//! return memory are in `unplug`.
//!
//! **Ahead of need.** While less than a quarter of the pages is free, the cell requests a block of about an eighth of
//! its memory in a pass of a loop, and continues; a later pass adds the memory. So code that allocates gradually never
//! waits. If the supervisor has no memory, the cell learns that while it still has some, though free memory may be
//! fragmented.
//!
//! **At need.** If an allocation or a page fault finds no memory, the core sends a request and waits for the answer
//! inside its allocator, so that it runs no event and takes no interrupt meanwhile. The supervisor takes some
//! microseconds to map a block, and longer if it has to scrub memory first. After [`ANSWER_TIMEOUT_NS`] the wait ends
//! without memory, and no core waits for that answer again; the block is accepted whenever it arrives. If the
//! supervisor hangs, it is restarted before that limit: a restart takes milliseconds, and the restarted supervisor
//! answers.
//!
//! One core sends requests at a time, under a lock; other cores without memory wait for that core, and try again. A
//! core that holds the lock allocates nothing, touches no page of a region, and takes no lock but the page allocator's,
//! which no caller holds here. The supervisor waits for no cell. Therefore no core waits forever.
//!
//! **Refused.** Obtainable memory counts as free, so it does not cause memory pressure. After a refusal it no longer
//! counts, and pressure handlers run if memory is short. The cell repeats the request after [`RETRY_NS`] at the
//! earliest, while it needs more. While it does not, a pass that runs anyway repeats it, at intervals that grow from
//! [`RETRY_NS`] to [`MAX_RETRY_NS`]; so obtainable memory is restored some time after the machine has free memory
//! again. A sleeping cell is not woken for that.

mod need;
mod reclaim;
mod shortage;
mod unplug;

use crate::pool::{self, near, pages};
use crate::{cores, supervisor};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use isola_abi::descriptor::Descriptor;
use isola_abi::growth::{Answer, MAX_PLUGGED_BLOCKS, Refusal, SMALLEST_BLOCK};
use isola_ebbs::{current_core, cycles};
use isola_machine::cell;
use isola_memory::pages::{KnownContents, MAX_RANGES};
use need::BlockSize;
use shortage::{HAS_BYTES, MAX_BYTES, Reason, set_reason};
use spin::Mutex;
use unplug::{Spare, Unplug, UnplugOutcome};

pub(crate) use need::Need;
pub(crate) use reclaim::{demand, end_demand};
pub(crate) use shortage::Shortage;

/// The time for which a core waits for an answer.
const ANSWER_TIMEOUT_NS: u64 = 5_000_000_000;

/// The time after which a waiting core makes the supervisor check itself for a hang. Longer than the time without
/// progress that proves a hang.
const HANG_CHECK_NS: u64 = 4_500_000_000;

/// The time for which a refused request is not repeated.
const RETRY_NS: u64 = 100_000_000;

/// The longest interval at which a refused cell that needs no memory repeats its request.
const MAX_RETRY_NS: u64 = 12_800_000_000;

/// With at most this many blocks left to add, requests are made large enough that the last block reaches the limit.
const FEW_BLOCKS: usize = MAX_PLUGGED_BLOCKS / 2;

/// Whether the cell may get more memory at its request.
static MAY_GROW: AtomicBool = AtomicBool::new(false);

/// Whether the supervisor has interrupted a core since the last check: it may have plugged memory, or request some.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether a pass has anything to check: [`MAY_GROW`] or [`REQUESTED`], or a compaction in progress.
static CHECK: AtomicBool = AtomicBool::new(false);

/// Attempts of a core to take the lock before it leaves the check to the lock's holder.
const LOCK_ATTEMPTS: usize = 1000;

/// The core that migrates pages for a reclaim request; [`NO_CORE`] if none does.
static MIGRATING_CORE: AtomicU32 = AtomicU32::new(NO_CORE);

const NO_CORE: u32 = u32::MAX;

/// The number of additions of memory. Incremented after the addition, and before [`MAY_GROW`] says that it was the
/// last.
static ADDED: AtomicUsize = AtomicUsize::new(0);

/// The cycle count at which to test for obtainable memory after a refusal; [`u64::MAX`] if it was not refused.
static RETRY_AT: AtomicU64 = AtomicU64::new(u64::MAX);

static GROWTH: Mutex<Growth> = Mutex::new(Growth {
    blocks_left: 0,
    tsc_hz: 1,
    open: None,
    refused: None,
    interval_ns: RETRY_NS,
    unplug: Unplug::new(),
});

/// The state of requests.
struct Growth {
    /// The number of blocks that the page allocator can still add.
    blocks_left: usize,
    tsc_hz: u64,
    open: Option<OpenRequest>,
    refused: Option<RefusedRequest>,
    /// The time from the next refusal until a cell that needs no memory repeats its request.
    interval_ns: u64,
    unplug: Unplug,
}

/// A request that was not answered yet.
#[derive(Clone, Copy)]
struct OpenRequest {
    number: u32,
    least_bytes: u64,
    wait: AnswerWait,
}

/// Whether a core may still wait for the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerWait {
    Allowed,
    Expired,
}

/// A refused request: one of at least this size is not repeated before the cycle counter reaches `until_cycles`.
#[derive(Clone, Copy)]
struct RefusedRequest {
    least_bytes: u64,
    until_cycles: u64,
}

/// Whether an allocation that found no memory is worth another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// There is more memory now.
    Yes,
    /// There is not.
    No,
}

/// Records the cell's limits. To be called on the first core, once the supervisor can be notified.
pub(crate) fn start(descriptor: &Descriptor) {
    HAS_BYTES.store(descriptor.memory_bytes, Ordering::Relaxed);
    MAX_BYTES.store(descriptor.memory_max_bytes, Ordering::Relaxed);
    let mut growth = GROWTH.lock();
    // The image has one range.
    growth.blocks_left = MAX_RANGES.saturating_sub(descriptor.pool.len() + 1).min(MAX_PLUGGED_BLOCKS);
    growth.tsc_hz = descriptor.clock.tsc_hz;
    if descriptor.supervisor.is_some() && growth.is_within_limit(SMALLEST_BLOCK) {
        growth.update_may_grow();
        growth.publish_obtainable();
    }
}

/// Records that the supervisor has interrupted a core to draw attention to a change.
#[inline]
pub(crate) fn note_request() {
    REQUESTED.store(true, Ordering::SeqCst);
    CHECK.store(true, Ordering::SeqCst);
}

/// Adds plugged memory, returns memory that the supervisor requests, and requests more when little is left. Called in
/// each pass of a core's loop; a single load if the cell may not grow and nothing was requested.
#[inline]
pub(crate) fn pass() {
    if CHECK.load(Ordering::Relaxed) {
        check();
    }
}

/// Does the work of [`pass`]: a load, and a few more if the cell may grow.
#[inline(never)]
fn check() {
    if REQUESTED.load(Ordering::SeqCst) || MIGRATING_CORE.load(Ordering::Relaxed) == current_core().0 {
        // A core that holds the lock for long is waiting for memory, and checks this itself.
        let growth = (0..LOCK_ATTEMPTS).find_map(|_| {
            core::hint::spin_loop();
            GROWTH.try_lock()
        });
        if let Some(mut growth) = growth {
            REQUESTED.store(false, Ordering::SeqCst);
            growth.settle();
            growth.answer_reclaim(Spare::AllFree);
        }
    }
    let is_filling = pool::is_filling();
    let retry_at = RETRY_AT.load(Ordering::Relaxed);
    let is_due = retry_at != u64::MAX && cycles() >= retry_at;
    if MAY_GROW.load(Ordering::Relaxed)
        && (is_filling || is_due || cell::has_plugged_block())
        && let Some(mut growth) = GROWTH.try_lock()
    {
        growth.settle();
        if (is_filling || is_due)
            && !Unplug::is_requested()
            && growth.permits(SMALLEST_BLOCK)
            && growth.is_worth_requesting(SMALLEST_BLOCK)
        {
            growth.request(SMALLEST_BLOCK, SMALLEST_BLOCK);
        }
        if is_due && RETRY_AT.load(Ordering::Relaxed) == retry_at {
            // The request was not refused just now: check for its answer when that has had time to arrive.
            RETRY_AT.store(growth.in_cycles(RETRY_NS), Ordering::Relaxed);
        }
    }
}

/// Whether a need may still get a block although enough bytes are free: these may be fragmented.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExtraBlock {
    /// It may get one.
    Allowed,
    /// It got one, and still found no memory.
    Used,
}

/// Repeats `attempt`, which has found no memory, while there is more memory, and requests more if the cell may have it.
#[cold]
pub(crate) fn retry<T>(need: Need, attempt: impl Fn() -> Option<T>) -> Option<T> {
    let mut extra = ExtraBlock::Allowed;
    loop {
        // Read before the attempt, so that memory which another core adds afterwards is not missed, even if it is the
        // last.
        let added = ADDED.load(Ordering::Acquire);
        let found = attempt();
        if found.is_some() || obtain(need, added, &mut extra) == Retry::No {
            return found;
        }
    }
}

/// Handles a failed attempt, before which [`ADDED`] had the value `added`: requests more memory if the cell may have
/// it.
fn obtain(need: Need, added: usize, extra: &mut ExtraBlock) -> Retry {
    let may_grow = MAY_GROW.load(Ordering::Acquire);
    if ADDED.load(Ordering::Acquire) != added {
        return Retry::Yes;
    }
    if MIGRATING_CORE.load(Ordering::Relaxed) != NO_CORE && GROWTH.lock().unplug.stop_migrating() {
        // The memory that the compaction held back is free now.
        return Retry::Yes;
    }
    if !may_grow {
        return Retry::No;
    }
    let mut growth = GROWTH.lock();
    loop {
        let settled = growth.settle();
        if settled == Retry::Yes || ADDED.load(Ordering::Acquire) != added {
            return Retry::Yes;
        }
        let BlockSize { least_bytes, ample_bytes } = match need.block_size(growth.obtainable_bytes()) {
            Ok(size) => size,
            Err(reason) => {
                set_reason(reason);
                return Retry::No;
            }
        };
        let open = growth.open.filter(|_| !growth.permits(least_bytes));
        match open {
            Some(open)
                if open.wait == AnswerWait::Expired || growth.wait_for(open) == WaitOutcome::TimedOut =>
            {
                set_reason(Reason::NoAnswer);
                return Retry::No;
            }
            Some(_) => {}
            None if need.is_present() && core::mem::replace(extra, ExtraBlock::Used) == ExtraBlock::Used => {
                if growth.refused.is_none() {
                    set_reason(Reason::Fragmented);
                }
                return Retry::No;
            }
            None if growth.is_worth_requesting(least_bytes) => growth.request(least_bytes, ample_bytes),
            None => return Retry::No,
        }
    }
}

/// The outcome of a wait for an answer.
#[derive(PartialEq, Eq)]
enum WaitOutcome {
    Answered,
    TimedOut,
}

impl Growth {
    /// Returns the bytes that the cell may still get.
    fn obtainable_bytes(&self) -> u64 {
        let most = if self.blocks_left == 0 { 0 } else { MAX_BYTES.load(Ordering::Relaxed) };
        most.saturating_sub(HAS_BYTES.load(Ordering::Relaxed)) / SMALLEST_BLOCK * SMALLEST_BLOCK
    }

    fn is_within_limit(&self, least_bytes: u64) -> bool {
        least_bytes <= self.obtainable_bytes()
    }

    /// Returns whether a request of this size is within the limit and was not refused recently.
    fn is_worth_requesting(&self, least_bytes: u64) -> bool {
        if !self.is_within_limit(least_bytes) {
            set_reason(Reason::Limit);
            return false;
        }
        let is_deferred =
            |refused: RefusedRequest| least_bytes >= refused.least_bytes && cycles() < refused.until_cycles;
        !self.refused.is_some_and(is_deferred)
    }

    /// Returns whether no open request blocks a request for `least_bytes`: there is none, or the wait for it has ended
    /// in vain and it is larger than this one.
    fn permits(&self, least_bytes: u64) -> bool {
        self.open.is_none_or(|open| open.wait == AnswerWait::Expired && open.least_bytes > least_bytes)
    }

    /// Requests at least `least_bytes`; preferably `ample_bytes`, an eighth of the cell's memory, or, if few blocks can
    /// still be added, such a part that the last one reaches the limit.
    fn request(&mut self, least_bytes: u64, ample_bytes: u64) {
        if let Some(open) = self.open {
            // The new request replaces the open one, which is not repeated at once: a core has waited long enough for
            // it.
            self.defer_retry(open.least_bytes);
        }
        let eighth = HAS_BYTES.load(Ordering::Relaxed) / 8;
        let part = match self.blocks_left {
            blocks @ 1..=FEW_BLOCKS => self.obtainable_bytes() / blocks as u64,
            _ => 0,
        };
        let largest = eighth.max(part).max(ample_bytes).max(least_bytes);
        let number = cell::request_memory(least_bytes, largest, near());
        self.open = Some(OpenRequest { number, least_bytes, wait: AnswerWait::Allowed });
        supervisor::notify();
    }

    /// Waits for an answer, for a bounded time.
    fn wait_for(&mut self, open: OpenRequest) -> WaitOutcome {
        let begin = cycles();
        let mut has_requested_check = false;
        while cell::answer_to(open.number).is_none() {
            if self.unplug.has_news() {
                // The supervisor plugs no memory before the cell has acknowledged this.
                self.answer_reclaim(Spare::Nothing);
            }
            if !has_requested_check && cycles().wrapping_sub(begin) > self.cycles_of(HANG_CHECK_NS) {
                has_requested_check = true;
                supervisor::request_hang_check();
            }
            if cycles().wrapping_sub(begin) > self.cycles_of(ANSWER_TIMEOUT_NS) {
                self.open = Some(OpenRequest { wait: AnswerWait::Expired, ..open });
                return WaitOutcome::TimedOut;
            }
            core::hint::spin_loop();
        }
        WaitOutcome::Answered
    }

    /// Handles the answer, if there is one, and adds plugged memory. The answer is read first: a block is published
    /// before its answer. Returns whether there is more memory.
    fn settle(&mut self) -> Retry {
        let answer = self.open.and_then(|open| Some((open, cell::answer_to(open.number)?)));
        let mut is_new = answer.is_some();
        let mut more = Retry::No;
        self.blocks_left += self.unplug.reuse();
        while let Some((node, memory)) = cell::take_plugged_block() {
            (is_new, more) = (true, Retry::Yes);
            let len = memory.len();
            HAS_BYTES.fetch_add(len as u64, Ordering::Relaxed);
            self.blocks_left = self.blocks_left.saturating_sub(1);
            if let Some(start) = NonNull::new(memory.as_mut_ptr()) {
                // SAFETY: the cell owns the memory until it returns it, and passes it on to the page allocator here; it
                // is zeroed. Memory for which the page allocator has no room is left unused.
                let _ = unsafe { pages().plug(node, start, len, KnownContents::Zero) };
            }
            ADDED.fetch_add(1, Ordering::Release);
        }
        match answer {
            Some((open, Answer::Given)) => {
                more = Retry::Yes;
                self.open = None;
                self.refused = self.refused.filter(|refused| refused.least_bytes > open.least_bytes);
                self.interval_ns = RETRY_NS;
                RETRY_AT.store(u64::MAX, Ordering::Relaxed);
            }
            Some((open, Answer::Refused(refusal))) => {
                self.open = None;
                self.refuse(open.least_bytes, refusal);
            }
            None => {}
        }
        let limit = cell::limit_bytes().unwrap_or_else(|| MAX_BYTES.load(Ordering::Relaxed));
        let limit_has_changed = MAX_BYTES.swap(limit, Ordering::Relaxed) != limit;
        if is_new || limit_has_changed {
            self.publish_obtainable();
            self.update_may_grow();
        }
        more
    }

    /// Returns memory that the supervisor requests, as far as the cell can spare it.
    fn answer_reclaim(&mut self, spare: Spare) {
        let UnplugOutcome { len_bytes, slots } = self.unplug.check(spare, self.tsc_hz);
        self.blocks_left += slots;
        let is_migrating = self.unplug.is_migrating();
        MIGRATING_CORE.store(if is_migrating { current_core().0 } else { NO_CORE }, Ordering::Relaxed);
        if is_migrating {
            // The next pass continues the compaction, and runs at once.
            CHECK.store(true, Ordering::SeqCst);
            cores::wake(current_core());
        }
        if len_bytes > 0 {
            HAS_BYTES.fetch_sub(len_bytes, Ordering::Relaxed);
            self.publish_obtainable();
            self.update_may_grow();
        }
    }

    /// Determines whether the cell may get more, and whether passes have anything to check.
    fn update_may_grow(&self) {
        MAY_GROW.store(self.is_within_limit(SMALLEST_BLOCK), Ordering::Release);
        CHECK.store(self.is_within_limit(SMALLEST_BLOCK), Ordering::SeqCst);
        // An interrupt that arrived before the store still gets its check, and a compaction continues.
        if REQUESTED.load(Ordering::SeqCst) || self.unplug.is_migrating() {
            CHECK.store(true, Ordering::SeqCst);
        }
    }

    /// Handles the refusal of a request for `least_bytes`.
    fn refuse(&mut self, least_bytes: u64, refusal: Refusal) {
        let reason = if refusal == Refusal::Limit { Reason::Limit } else { Reason::Exhausted };
        set_reason(reason);
        self.defer_retry(least_bytes);
        if least_bytes > SMALLEST_BLOCK {
            return;
        }
        if refusal == Refusal::Limit {
            // Not even the smallest block is possible: the cell has as many blocks as it may have.
            self.blocks_left = 0;
        }
        RETRY_AT.store(self.in_cycles(self.interval_ns), Ordering::Relaxed);
        self.interval_ns = (2 * self.interval_ns).min(MAX_RETRY_NS);
    }

    /// Prevents a repetition of the request for a while.
    fn defer_retry(&mut self, least_bytes: u64) {
        self.refused = Some(RefusedRequest { least_bytes, until_cycles: self.in_cycles(RETRY_NS) });
    }

    /// Publishes the obtainable memory: none, if even the smallest block was refused.
    fn publish_obtainable(&self) {
        let is_there = RETRY_AT.load(Ordering::Relaxed) == u64::MAX;
        pages().set_obtainable(if is_there { self.obtainable_bytes() as usize } else { 0 });
        pool::publish();
    }

    /// Returns the reading of the cycle counter `ns` from now.
    fn in_cycles(&self, ns: u64) -> u64 {
        cycles().saturating_add(self.cycles_of(ns))
    }

    fn cycles_of(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.tsc_hz) / 1_000_000_000) as u64
    }
}
