//! Memory growth: plugging of memory from the supervisor, see [`isola_abi::growth`]. The supervisor's requests to
//! return memory are in `returns`.
//!
//! **Ahead of need.** While less than a quarter of the pages is free, the cell requests a block of about an eighth of
//! its memory in a pass of a loop, and continues; a later pass adds the memory. So code that allocates gradually never
//! waits. If the supervisor has no memory, the cell learns that while it still has some, though free memory may be
//! fragmented.
//!
//! **At need.** If an allocation or a page fault finds no memory, the core sends a request and waits for the answer
//! inside its allocator, so that it runs no event and takes no interrupt meanwhile. The supervisor takes some
//! microseconds to map a block, and longer if it has to scrub memory first. After [`PATIENCE_NS`] the wait ends without
//! memory, and no core waits for that answer again; the block is accepted whenever it arrives. If the supervisor hangs,
//! it is restarted before that limit: a restart takes milliseconds, and the restarted supervisor answers.
//!
//! One core sends requests at a time, under a lock; other cores without memory wait for that core, and try again. A
//! core that holds the lock allocates nothing, touches no page of a region, and takes no lock but the page allocator's,
//! which no caller holds here. The supervisor waits for no cell. Therefore no core waits forever.
//!
//! **Refused.** Obtainable memory counts as free, so it does not cause memory pressure. After a refusal it no longer
//! counts, and pressure handlers run if memory is short. The cell repeats the request after [`AGAIN_NS`] at the
//! earliest, while it needs more. While it does not, a pass that runs anyway repeats it, at intervals that grow from
//! [`AGAIN_NS`] to [`RARELY_NS`]; so obtainable memory is restored some time after the machine has free memory again. A
//! sleeping cell is not woken for that.

mod need;
mod returns;
mod shortage;

use crate::heap::{self, near, pages};
use crate::platform;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use isola_abi::descriptor::Descriptor;
use isola_abi::growth::{Answer, MAX_CHUNKS, Refusal, SMALLEST_CHUNK};
use isola_ebbs::{current_core, cycles};
use isola_machine::cell;
use isola_memory::pages::{KnownContents, MAX_RANGES};
use isola_platform::Platform;
use need::Chunk;
use returns::{Can, Gone, Returns};
use shortage::Why;
use spin::Mutex;

pub(crate) use need::Need;
pub(crate) use shortage::Shortage;

/// The time for which a core waits for an answer.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The time after which a waiting core makes the supervisor check itself for a hang. Longer than the time without
/// progress that proves a hang.
const ROUSE_NS: u64 = 4_500_000_000;

/// The time for which a refused request is not repeated.
const AGAIN_NS: u64 = 100_000_000;

/// The longest interval at which a refused cell that needs no memory repeats its request.
const RARELY_NS: u64 = 12_800_000_000;

/// With at most this many blocks left to add, requests are made large enough that the last block reaches the limit.
const FEW_PLACES: usize = MAX_CHUNKS / 2;

/// Whether the cell may get more memory at its request.
static MAY_GROW: AtomicBool = AtomicBool::new(false);

/// Whether the supervisor has interrupted a core since the last check: it may have plugged memory, or request some.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether a pass has anything to check: [`MAY_GROW`] or [`REQUESTED`], or a compaction in progress.
static LOOK: AtomicBool = AtomicBool::new(false);

/// Attempts of a core to take the lock before it leaves the check to the lock's holder.
const TRIES: usize = 1000;

/// The core that migrates pages for a reclaim request; [`NOBODY`] if none does.
static MOVER: AtomicU32 = AtomicU32::new(NOBODY);

const NOBODY: u32 = u32::MAX;

/// The number of additions of memory. Incremented after the addition, and before [`MAY_GROW`] says that it was the
/// last.
static ADDED: AtomicUsize = AtomicUsize::new(0);

/// The cycle count at which to test for obtainable memory after a refusal; [`u64::MAX`] if it was not refused.
static ASK_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// All memory that the cell has, in bytes, and its limit.
static HAS_BYTES: AtomicU64 = AtomicU64::new(0);
static MAX_BYTES: AtomicU64 = AtomicU64::new(0);

/// The reason, a [`Why`], for which the cell last got no memory.
static WHY: AtomicU32 = AtomicU32::new(Why::Limit as u32);

static GROWTH: Mutex<Growth> = Mutex::new(Growth {
    places_left: 0,
    tsc_hz: 1,
    open: None,
    refused: None,
    interval_ns: AGAIN_NS,
    returns: Returns::new(),
});

/// The state of requests.
struct Growth {
    /// The number of blocks that the page allocator can still add.
    places_left: usize,
    tsc_hz: u64,
    open: Option<Open>,
    refused: Option<Refused>,
    /// The time from the next refusal until a cell that needs no memory repeats its request.
    interval_ns: u64,
    returns: Returns,
}

/// A request that was not answered yet.
#[derive(Clone, Copy)]
struct Open {
    number: u32,
    least_bytes: u64,
    patience: Patience,
}

/// Whether a core may still wait for the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Fresh,
    Spent,
}

/// A refused request: one of at least this size is not repeated before the cycle counter reaches `until_cycles`.
#[derive(Clone, Copy)]
struct Refused {
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
    growth.places_left = MAX_RANGES.saturating_sub(descriptor.pool.len() + 1).min(MAX_CHUNKS);
    growth.tsc_hz = descriptor.clock.tsc_hz;
    if descriptor.supervisor.is_some() && growth.can_ask_for(SMALLEST_CHUNK) {
        growth.judge();
        growth.tell_room();
    }
}

/// Records that the supervisor has interrupted a core to draw attention to a change.
#[inline]
pub(crate) fn requested() {
    REQUESTED.store(true, Ordering::SeqCst);
    LOOK.store(true, Ordering::SeqCst);
}

/// Adds plugged memory, returns memory that the supervisor requests, and requests more when little is left. Called in
/// each pass of a core's loop; a single load if the cell may not grow and nothing was requested.
#[inline]
pub(crate) fn pass() {
    if LOOK.load(Ordering::Relaxed) {
        look();
    }
}

/// Does the work of [`pass`]: a load, and a few more if the cell may grow.
#[inline(never)]
fn look() {
    if REQUESTED.load(Ordering::SeqCst) || MOVER.load(Ordering::Relaxed) == current_core().0 {
        // A core that holds the lock for long is waiting for memory, and checks this itself.
        let growth = (0..TRIES).find_map(|_| {
            core::hint::spin_loop();
            GROWTH.try_lock()
        });
        if let Some(mut growth) = growth {
            REQUESTED.store(false, Ordering::SeqCst);
            growth.settle();
            growth.give_back(Can::Spare);
        }
    }
    let is_filling = heap::is_filling();
    let ask_at = ASK_AT.load(Ordering::Relaxed);
    let is_due = ask_at != u64::MAX && cycles() >= ask_at;
    if MAY_GROW.load(Ordering::Relaxed)
        && (is_filling || is_due || cell::has_grown())
        && let Some(mut growth) = GROWTH.try_lock()
    {
        growth.settle();
        if (is_filling || is_due)
            && !Returns::is_asked()
            && growth.stands_aside(SMALLEST_CHUNK)
            && growth.worth_asking(SMALLEST_CHUNK)
        {
            growth.ask(SMALLEST_CHUNK, SMALLEST_CHUNK);
        }
        if is_due && ASK_AT.load(Ordering::Relaxed) == ask_at {
            // The request was not refused just now: check for its answer when that has had time to arrive.
            ASK_AT.store(growth.in_cycles(AGAIN_NS), Ordering::Relaxed);
        }
    }
}

/// Whether a need may still get a block although enough bytes are free: these may be fragmented.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spare {
    /// It may get one.
    Left,
    /// It got one, and still found no memory.
    Used,
}

/// Repeats `attempt`, which has found no memory, while there is more memory, and requests more if the cell may have it.
#[cold]
pub(crate) fn retry<T>(need: Need, attempt: impl Fn() -> Option<T>) -> Option<T> {
    let mut spare = Spare::Left;
    loop {
        // Read before the attempt, so that memory which another core adds afterwards is not missed, even if it is the
        // last.
        let added = ADDED.load(Ordering::Acquire);
        let found = attempt();
        if found.is_some() || exhausted(need, added, &mut spare) == Retry::No {
            return found;
        }
    }
}

/// Handles a failed attempt, before which [`ADDED`] had the value `added`: requests more memory if the cell may have
/// it.
fn exhausted(need: Need, added: usize, spare: &mut Spare) -> Retry {
    let may_grow = MAY_GROW.load(Ordering::Acquire);
    if ADDED.load(Ordering::Acquire) != added {
        return Retry::Yes;
    }
    if MOVER.load(Ordering::Relaxed) != NOBODY && GROWTH.lock().returns.stop_moving() {
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
        let Chunk { least_bytes, ample_bytes } = match need.chunk(growth.room_bytes()) {
            Ok(chunk) => chunk,
            Err(why) => {
                WHY.store(why as u32, Ordering::Relaxed);
                return Retry::No;
            }
        };
        let open = growth.open.filter(|_| !growth.stands_aside(least_bytes));
        match open {
            Some(open) if open.patience == Patience::Spent || growth.wait_for(open) == Waited::InVain => {
                WHY.store(Why::Silence as u32, Ordering::Relaxed);
                return Retry::No;
            }
            Some(_) => {}
            None if need.is_present() && core::mem::replace(spare, Spare::Used) == Spare::Used => {
                if growth.refused.is_none() {
                    WHY.store(Why::Scattered as u32, Ordering::Relaxed);
                }
                return Retry::No;
            }
            None if growth.worth_asking(least_bytes) => growth.ask(least_bytes, ample_bytes),
            None => return Retry::No,
        }
    }
}

#[derive(PartialEq, Eq)]
enum Waited {
    Answered,
    InVain,
}

impl Growth {
    /// Returns the bytes that the cell may still get.
    fn room_bytes(&self) -> u64 {
        let most = if self.places_left == 0 { 0 } else { MAX_BYTES.load(Ordering::Relaxed) };
        most.saturating_sub(HAS_BYTES.load(Ordering::Relaxed)) / SMALLEST_CHUNK * SMALLEST_CHUNK
    }

    fn can_ask_for(&self, least_bytes: u64) -> bool {
        least_bytes <= self.room_bytes()
    }

    /// Returns whether a request of this size is within the limit and was not refused recently.
    fn worth_asking(&self, least_bytes: u64) -> bool {
        if !self.can_ask_for(least_bytes) {
            WHY.store(Why::Limit as u32, Ordering::Relaxed);
            return false;
        }
        let is_barred =
            |refused: Refused| least_bytes >= refused.least_bytes && cycles() < refused.until_cycles;
        !self.refused.is_some_and(is_barred)
    }

    /// Returns whether no open request blocks a request for `least_bytes`: there is none, or the wait for it has ended
    /// in vain and it is larger than this one.
    fn stands_aside(&self, least_bytes: u64) -> bool {
        self.open.is_none_or(|open| open.patience == Patience::Spent && open.least_bytes > least_bytes)
    }

    /// Requests at least `least_bytes`; preferably `ample_bytes`, an eighth of the cell's memory, or, if few blocks can
    /// still be added, such a part that the last one reaches the limit.
    fn ask(&mut self, least_bytes: u64, ample_bytes: u64) {
        if let Some(open) = self.open {
            // The new request replaces the open one, which is not repeated at once: a core has waited long enough for
            // it.
            self.bar(open.least_bytes);
        }
        let eighth = HAS_BYTES.load(Ordering::Relaxed) / 8;
        let part = match self.places_left {
            places @ 1..=FEW_PLACES => self.room_bytes() / places as u64,
            _ => 0,
        };
        let largest = eighth.max(part).max(ample_bytes).max(least_bytes);
        let number = cell::request_memory(least_bytes, largest, near());
        self.open = Some(Open { number, least_bytes, patience: Patience::Fresh });
        platform::ring();
    }

    /// Waits for an answer, for a bounded time.
    fn wait_for(&mut self, open: Open) -> Waited {
        let begin = cycles();
        let mut has_roused = false;
        while cell::answer_to(open.number).is_none() {
            if self.returns.has_news() {
                // The supervisor plugs no memory before the cell has acknowledged this.
                self.give_back(Can::Not);
            }
            if !has_roused && cycles().wrapping_sub(begin) > self.cycles_of(ROUSE_NS) {
                has_roused = true;
                platform::rouse();
            }
            if cycles().wrapping_sub(begin) > self.cycles_of(PATIENCE_NS) {
                self.open = Some(Open { patience: Patience::Spent, ..open });
                return Waited::InVain;
            }
            core::hint::spin_loop();
        }
        Waited::Answered
    }

    /// Handles the answer, if there is one, and adds plugged memory. The answer is read first: a block is published
    /// before its answer. Returns whether there is more memory.
    fn settle(&mut self) -> Retry {
        let answer = self.open.and_then(|open| Some((open, cell::answer_to(open.number)?)));
        let mut is_new = answer.is_some();
        let mut more = Retry::No;
        self.places_left += self.returns.reuse();
        while let Some((node, memory)) = cell::take_grown() {
            (is_new, more) = (true, Retry::Yes);
            let len = memory.len();
            HAS_BYTES.fetch_add(len as u64, Ordering::Relaxed);
            self.places_left = self.places_left.saturating_sub(1);
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
                self.interval_ns = AGAIN_NS;
                ASK_AT.store(u64::MAX, Ordering::Relaxed);
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
            self.tell_room();
            self.judge();
        }
        more
    }

    /// Returns memory that the supervisor requests, as far as the cell can spare it.
    fn give_back(&mut self, can: Can) {
        let Gone { len_bytes, slots } = self.returns.look(can, self.tsc_hz);
        self.places_left += slots;
        let is_moving = self.returns.is_moving();
        MOVER.store(if is_moving { current_core().0 } else { NOBODY }, Ordering::Relaxed);
        if is_moving {
            // The next pass continues the compaction, and runs at once.
            LOOK.store(true, Ordering::SeqCst);
            platform::BARE.wake(current_core());
        }
        if len_bytes > 0 {
            HAS_BYTES.fetch_sub(len_bytes, Ordering::Relaxed);
            self.tell_room();
            self.judge();
        }
    }

    /// Determines whether the cell may get more, and whether passes have anything to check.
    fn judge(&self) {
        MAY_GROW.store(self.can_ask_for(SMALLEST_CHUNK), Ordering::Release);
        LOOK.store(self.can_ask_for(SMALLEST_CHUNK), Ordering::SeqCst);
        // An interrupt that arrived before the store still gets its check, and a compaction continues.
        if REQUESTED.load(Ordering::SeqCst) || self.returns.is_moving() {
            LOOK.store(true, Ordering::SeqCst);
        }
    }

    /// Handles the refusal of a request for `least_bytes`.
    fn refuse(&mut self, least_bytes: u64, refusal: Refusal) {
        let why = if refusal == Refusal::Limit { Why::Limit } else { Why::Exhausted };
        WHY.store(why as u32, Ordering::Relaxed);
        self.bar(least_bytes);
        if least_bytes > SMALLEST_CHUNK {
            return;
        }
        if refusal == Refusal::Limit {
            // Not even the smallest block is possible: the cell has as many blocks as it may have.
            self.places_left = 0;
        }
        ASK_AT.store(self.in_cycles(self.interval_ns), Ordering::Relaxed);
        self.interval_ns = (2 * self.interval_ns).min(RARELY_NS);
    }

    /// Prevents a repetition of the request for a while.
    fn bar(&mut self, least_bytes: u64) {
        self.refused = Some(Refused { least_bytes, until_cycles: self.in_cycles(AGAIN_NS) });
    }

    /// Publishes the obtainable memory: none, if even the smallest block was refused.
    fn tell_room(&self) {
        let is_there = ASK_AT.load(Ordering::Relaxed) == u64::MAX;
        pages().set_obtainable(if is_there { self.room_bytes() as usize } else { 0 });
        heap::publish();
    }

    /// Returns the reading of the cycle counter `ns` from now.
    fn in_cycles(&self, ns: u64) -> u64 {
        cycles().saturating_add(self.cycles_of(ns))
    }

    fn cycles_of(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.tsc_hz) / 1_000_000_000) as u64
    }
}
