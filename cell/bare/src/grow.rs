//! More memory while the cell runs, where it may have more: from the supervisor, see [`isola_abi::growth`]. And less, where
//! the supervisor asks for some (`returns`).
//!
//! **Ahead.** While less than a quarter of the pages is free, the cell asks for more in a pass of its loops, about an
//! eighth of what it has, and goes on: the memory is added in a later pass. So whoever takes memory little by little
//! never waits; and where there is none, the cell knows while there is enough left to do something, though what is free
//! may be in pieces.
//!
//! **In need.** Where an allocation or a page fault finds nothing, the core asks, and waits for the answer: in its
//! allocator, so that no event runs meanwhile, and no interrupt comes. That takes as long as the supervisor takes to map a
//! block, some microseconds; longer where it has to scrub memory first; [`PATIENCE_NS`] at the most, after which there
//! was none, and nobody waits for that answer again. When it comes, it is as good as any other. A supervisor that stands
//! still is had begin anew before that: it takes milliseconds, and answers then.
//!
//! One core asks at a time, under a lock; others that find nothing wait for that core, and try again. While the lock is
//! held nothing is allocated, no page of a region is touched, and no lock is taken but that of the page allocator, which
//! nobody holds who gets here. The supervisor waits for nothing. So nobody waits for ever.
//!
//! **Refused.** What may still come counts as free memory, so that nobody calls the cell short. When the supervisor has
//! none, it no longer does: then memory is as short as it is, and who can do without some gives it back. The cell asks
//! again [`AGAIN_NS`] later at the earliest, as long as it needs more. While it does not, a pass that comes by anyway
//! asks, at intervals that grow from [`AGAIN_NS`] to [`RARELY_NS`]: so the room is back some time after the machine has
//! memory again. A cell that sleeps is not woken for it.

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
use isola_memory::pages::{Contents, MAX_RANGES};
use isola_platform::Platform;
use need::Chunk;
use returns::{Can, Gone, Returns};
use shortage::Why;
use spin::Mutex;

pub(crate) use need::Need;
pub(crate) use shortage::Shortage;

/// How long a core waits for an answer.
const PATIENCE_NS: u64 = 5_000_000_000;

/// After how long the core has the supervisor see whether it stands still. Longer than that takes to be sure of it.
const ROUSE_NS: u64 = 4_500_000_000;

/// How long the cell does not ask again for what it was refused.
const AGAIN_NS: u64 = 100_000_000;

/// How long at the most a cell that was refused, and does not need more, does not ask whether there is some.
const RARELY_NS: u64 = 12_800_000_000;

/// When no more chunks than these can be added, they are made large enough for what the cell may still get.
const FEW_PLACES: usize = MAX_CHUNKS / 2;

/// Whether the cell may get more when it asks.
static MAY_GROW: AtomicBool = AtomicBool::new(false);

/// Whether the supervisor has interrupted a core since somebody last looked: it may have given something, or want some.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether there may be something to look at: what every pass looks at, [`MAY_GROW`] or [`REQUESTED`].
static LOOK: AtomicBool = AtomicBool::new(false);

/// How often a core tries to get at what another looks at, before it leaves that to the other.
const TRIES: usize = 1000;

/// The core that has pages on their way elsewhere, as memory is asked for; [`NOBODY`] where none has.
static MOVER: AtomicU32 = AtomicU32::new(NOBODY);

const NOBODY: u32 = u32::MAX;

/// How often memory was added. Counted behind it, and before [`MAY_GROW`] says that this was the last.
static ADDED: AtomicUsize = AtomicUsize::new(0);

/// When to ask for the room that a refusal took, in cycles; [`u64::MAX`]: it is there.
static ASK_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// All memory that the cell has, in bytes, and the most that it may have.
static HAS_BYTES: AtomicU64 = AtomicU64::new(0);
static MAX_BYTES: AtomicU64 = AtomicU64::new(0);

/// Why the cell last got none: a [`Why`].
static WHY: AtomicU32 = AtomicU32::new(Why::Limit as u32);

static GROWTH: Mutex<Growth> = Mutex::new(Growth {
    places_left: 0,
    tsc_hz: 1,
    open: None,
    refused: None,
    interval_ns: AGAIN_NS,
    returns: Returns::new(),
});

/// What whoever asks has to know.
struct Growth {
    /// How many more chunks the page allocator has room for.
    places_left: usize,
    tsc_hz: u64,
    open: Option<Open>,
    refused: Option<Refused>,
    /// How long from the next refusal on until a cell asks that does not need more.
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

/// Whether it is worth waiting for an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Fresh,
    Spent,
}

/// A request that was refused: so much is not asked for again before the cycle counter has got there.
#[derive(Clone, Copy)]
struct Refused {
    least_bytes: u64,
    until_cycles: u64,
}

/// Whether a request for memory that found none is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// There is more memory now.
    Yes,
    /// There is not.
    No,
}

/// Notes what the cell may have. On the first core, when the supervisor can be rung.
pub(crate) fn start(descriptor: &Descriptor) {
    HAS_BYTES.store(descriptor.memory_bytes, Ordering::Relaxed);
    MAX_BYTES.store(descriptor.memory_max_bytes, Ordering::Relaxed);
    let mut growth = GROWTH.lock();
    // One range stands in the image.
    growth.places_left = MAX_RANGES.saturating_sub(descriptor.pool.len() + 1).min(MAX_CHUNKS);
    growth.tsc_hz = descriptor.clock.tsc_hz;
    if descriptor.supervisor.is_some() && growth.can_ask_for(SMALLEST_CHUNK) {
        growth.judge();
        growth.tell_room();
    }
}

/// A core was interrupted because the supervisor has something to say.
#[inline]
pub(crate) fn requested() {
    REQUESTED.store(true, Ordering::SeqCst);
    LOOK.store(true, Ordering::SeqCst);
}

/// Adds what has come, gives back what is asked for, and asks for more where little is left. In each pass of a core's loop;
/// a load where the cell may not grow and nobody has asked for anything.
#[inline]
pub(crate) fn pass() {
    if LOOK.load(Ordering::Relaxed) {
        look();
    }
}

/// A load, and a few more where the cell may grow.
#[inline(never)]
fn look() {
    if REQUESTED.load(Ordering::SeqCst) || MOVER.load(Ordering::Relaxed) == current_core().0 {
        // Who has it for long, as it waits for memory, looks itself.
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
            // It was not refused just now: the answer is looked for when it has had time to come.
            ASK_AT.store(growth.in_cycles(AGAIN_NS), Ordering::Relaxed);
        }
    }
}

/// A chunk for a need of which there is enough already: it may be in pieces too small.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spare {
    /// There may be one.
    Left,
    /// There was one, and the need found no memory all the same.
    Used,
}

/// `attempt` has found no memory. Tries again while there is more, and gets more, where that can be.
#[cold]
pub(crate) fn retry<T>(need: Need, attempt: impl Fn() -> Option<T>) -> Option<T> {
    let mut spare = Spare::Left;
    loop {
        // Before the attempt: what others add behind it is not missed, even if it was the last.
        let added = ADDED.load(Ordering::Acquire);
        let found = attempt();
        if found.is_some() || exhausted(need, added, &mut spare) == Retry::No {
            return found;
        }
    }
}

/// A request has found no memory, after memory had been added so often. Gets more, where that can be.
fn exhausted(need: Need, added: usize, spare: &mut Spare) -> Retry {
    let may_grow = MAY_GROW.load(Ordering::Acquire);
    if ADDED.load(Ordering::Acquire) != added {
        return Retry::Yes;
    }
    if MOVER.load(Ordering::Relaxed) != NOBODY && GROWTH.lock().returns.stop_moving() {
        // There is what was held for that.
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
    /// How much the cell may still get.
    fn room_bytes(&self) -> u64 {
        let most = if self.places_left == 0 { 0 } else { MAX_BYTES.load(Ordering::Relaxed) };
        most.saturating_sub(HAS_BYTES.load(Ordering::Relaxed)) / SMALLEST_CHUNK * SMALLEST_CHUNK
    }

    fn can_ask_for(&self, least_bytes: u64) -> bool {
        least_bytes <= self.room_bytes()
    }

    /// Whether so much may be had, and was not refused just now.
    fn worth_asking(&self, least_bytes: u64) -> bool {
        if !self.can_ask_for(least_bytes) {
            WHY.store(Why::Limit as u32, Ordering::Relaxed);
            return false;
        }
        let is_barred =
            |refused: Refused| least_bytes >= refused.least_bytes && cycles() < refused.until_cycles;
        !self.refused.is_some_and(is_barred)
    }

    /// Whether no open request is in the way of one for so much: there is none, or nobody waits for it any more, and it
    /// asks for more than this one.
    fn stands_aside(&self, least_bytes: u64) -> bool {
        self.open.is_none_or(|open| open.patience == Patience::Spent && open.least_bytes > least_bytes)
    }

    /// Asks for at least so much, preferably an ample amount, or an eighth of what there is, or, where few places are
    /// left, a part by which the last one will reach the limit.
    fn ask(&mut self, least_bytes: u64, ample_bytes: u64) {
        if let Some(open) = self.open {
            // This one takes its place. It is not made again at once: it was waited for long enough.
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

    /// Waits for an answer, within bounds.
    fn wait_for(&mut self, open: Open) -> Waited {
        let begin = cycles();
        let mut has_roused = false;
        while cell::answer_to(open.number).is_none() {
            if self.returns.has_news() {
                // Nothing is given before that was seen.
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

    /// Takes note of the answer, if there is one, and adds what has come: in this order, as what is given comes first.
    /// Whether there is more memory.
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
                // SAFETY: the memory is owned, until it is given back, and given away here; it comes zeroed. What the page
                // allocator has no room for is left alone.
                let _ = unsafe { pages().bring_back(node, start, len, Contents::Zero) };
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

    /// Gives back what the supervisor asks for, as far as the cell can do without.
    fn give_back(&mut self, can: Can) {
        let Gone { len_bytes, slots } = self.returns.look(can, self.tsc_hz);
        self.places_left += slots;
        let is_moving = self.returns.is_moving();
        MOVER.store(if is_moving { current_core().0 } else { NOBODY }, Ordering::Relaxed);
        if is_moving {
            // The next pass goes on with it, and comes at once.
            LOOK.store(true, Ordering::SeqCst);
            platform::BARE.wake(current_core());
        }
        if len_bytes > 0 {
            HAS_BYTES.fetch_sub(len_bytes, Ordering::Relaxed);
            self.tell_room();
            self.judge();
        }
    }

    /// Whether the cell may get more, and what passes have to look at.
    fn judge(&self) {
        MAY_GROW.store(self.can_ask_for(SMALLEST_CHUNK), Ordering::Release);
        LOOK.store(self.can_ask_for(SMALLEST_CHUNK), Ordering::SeqCst);
        // Whoever was interrupted before that is looked after all the same.
        if REQUESTED.load(Ordering::SeqCst) || self.returns.is_moving() {
            LOOK.store(true, Ordering::SeqCst);
        }
    }

    /// So much was refused.
    fn refuse(&mut self, least_bytes: u64, refusal: Refusal) {
        let why = if refusal == Refusal::Limit { Why::Limit } else { Why::Exhausted };
        WHY.store(why as u32, Ordering::Relaxed);
        self.bar(least_bytes);
        if least_bytes > SMALLEST_CHUNK {
            return;
        }
        if refusal == Refusal::Limit {
            // Not even the least: there is no place for it, and there will be none.
            self.places_left = 0;
        }
        ASK_AT.store(self.in_cycles(self.interval_ns), Ordering::Relaxed);
        self.interval_ns = (2 * self.interval_ns).min(RARELY_NS);
    }

    /// So much is not asked for again for a while.
    fn bar(&mut self, least_bytes: u64) {
        self.refused = Some(Refused { least_bytes, until_cycles: self.in_cycles(AGAIN_NS) });
    }

    /// Says how much may still come: none, if not even the least is to be had.
    fn tell_room(&self) {
        let is_there = ASK_AT.load(Ordering::Relaxed) == u64::MAX;
        pages().set_room(if is_there { self.room_bytes() as usize } else { 0 });
        heap::publish();
    }

    /// What the cycle counter says in so many ns.
    fn in_cycles(&self, ns: u64) -> u64 {
        cycles().saturating_add(self.cycles_of(ns))
    }

    fn cycles_of(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.tsc_hz) / 1_000_000_000) as u64
    }
}
