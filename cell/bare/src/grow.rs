//! More memory while the cell runs, where it may have more: from the supervisor, see [`isola_abi::growth`].
//!
//! **Ahead.** While less than a quarter of the pages is free, the cell asks for more in a pass of its loops, about an
//! eighth of what it has, and goes on: the memory is added in a later pass. So whoever takes memory little by little
//! never waits; and where there is none, the cell knows while there is enough left to do something, though what is free
//! may be in pieces.
//!
//! **In need.** Where an allocation or a page fault finds nothing, the core asks, and waits for the answer: in its
//! allocator, so that no event runs meanwhile, and no interrupt comes. That takes as long as the supervisor takes to map a
//! block, some microseconds; longer where it has to scrub memory first; [`PATIENCE_NS`] at the most, after which there
//! was none, and nobody waits for that answer again. When it comes, it is as good as any other.
//!
//! One core asks at a time, under a lock; others that find nothing wait for that core, and try again. While the lock is
//! held nothing is allocated, no page of a region is touched, and no lock is taken but that of the page allocator, which
//! nobody holds who gets here. The supervisor waits for nothing. So nobody waits for ever.
//!
//! **Refused.** What may still come counts as free memory, so that nobody calls the cell short. When the supervisor has
//! none, it no longer does: then memory is as short as it is, and who can do without some gives it back. The cell asks
//! again [`AGAIN_NS`] later at the earliest, as long as it needs more.

use crate::heap::{self, near, pages};
use crate::platform;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use isola_abi::descriptor::Descriptor;
use isola_abi::growth::{Answer, LARGEST_CHUNK, MAX_CHUNKS, Refusal, SMALLEST_CHUNK};
use isola_abi::size::ByteSize;
use isola_ebbs::cycles;
use isola_machine::cell;
use isola_memory::pages::MAX_RANGES;
use spin::Mutex;

/// How long a core waits for an answer.
const PATIENCE_NS: u64 = 5_000_000_000;

/// How long the cell does not ask again for what it was refused.
const AGAIN_NS: u64 = 100_000_000;

/// When no more chunks than these can be added, they are made large enough for what the cell may still get.
const FEW_PLACES: usize = MAX_CHUNKS / 2;

/// Whether the cell may get more: what every pass looks at.
static MAY_GROW: AtomicBool = AtomicBool::new(false);

/// How often memory was added.
static ADDED: AtomicUsize = AtomicUsize::new(0);

/// All memory that the cell has, in bytes, and the most that it may have.
static HAS_BYTES: AtomicU64 = AtomicU64::new(0);
static MAX_BYTES: AtomicU64 = AtomicU64::new(0);

/// Why the cell last got none: a [`Why`].
static WHY: AtomicU32 = AtomicU32::new(Why::Limit as u32);

static GROWTH: Mutex<Growth> = Mutex::new(Growth { places_left: 0, tsc_hz: 1, open: None, refused: None });

/// What whoever asks has to know.
struct Growth {
    /// How many more chunks the page allocator has room for.
    places_left: usize,
    tsc_hz: u64,
    open: Option<Open>,
    refused: Option<Refused>,
}

/// A wish that was not answered yet.
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

/// A wish that was refused: so much is not asked for again before the cycle counter has got there.
#[derive(Clone, Copy)]
struct Refused {
    least_bytes: u64,
    until_cycles: u64,
}

/// Why there is no more memory.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Why {
    Limit = 0,
    Exhausted = 1,
    Silence = 2,
    TooLarge = 3,
}

/// Whether a request for memory that found none is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
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
        MAY_GROW.store(true, Ordering::Relaxed);
        growth.tell_room();
    }
}

/// Adds what has come, and asks for more where little is left. In each pass of a core's loop; a load where the cell may
/// not grow.
#[inline]
pub(crate) fn pass() {
    if MAY_GROW.load(Ordering::Relaxed) {
        look();
    }
}

/// A load, and a few more where the cell may grow.
#[inline(never)]
fn look() {
    let is_filling = heap::is_filling();
    if (is_filling || cell::has_grown())
        && let Some(mut growth) = GROWTH.try_lock()
    {
        growth.settle();
        if is_filling && growth.open.is_none() && growth.worth_asking(SMALLEST_CHUNK) {
            growth.ask(SMALLEST_CHUNK, SMALLEST_CHUNK);
        }
    }
}

/// What has found no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A run of so many bytes at a multiple of its length: a power of two.
    Run(usize),
    /// So many bytes, which may be in pieces.
    Pieces(usize),
}

/// A request has found no memory. Gets more, where that can be.
#[cold]
pub(crate) fn exhausted(need: Need) -> Retry {
    if !MAY_GROW.load(Ordering::Relaxed) {
        return Retry::No;
    }
    let added = ADDED.load(Ordering::Relaxed);
    let mut growth = GROWTH.lock();
    loop {
        growth.settle();
        if ADDED.load(Ordering::Relaxed) != added {
            return Retry::Yes;
        }
        let Chunk { least_bytes, ample_bytes } = match need.chunk(growth.room_bytes()) {
            Ok(chunk) => chunk,
            Err(why) => {
                WHY.store(why as u32, Ordering::Relaxed);
                return Retry::No;
            }
        };
        let open = growth.open;
        match open {
            Some(open) if open.patience == Patience::Spent || growth.wait_for(open) == Waited::InVain => {
                WHY.store(Why::Silence as u32, Ordering::Relaxed);
                return Retry::No;
            }
            Some(_) => {}
            None if growth.worth_asking(least_bytes) => growth.ask(least_bytes, ample_bytes),
            None => return Retry::No,
        }
    }
}

/// Which chunk to ask for.
struct Chunk {
    least_bytes: u64,
    ample_bytes: u64,
}

impl Need {
    /// The smallest chunk that will do, and an ample one, for a cell that may get so much more.
    ///
    /// The records of a chunk go before all of its blocks: one of twice a block's length has one, of four times three.
    /// What may be in pieces is to come in a few chunks, so that the cell is not given all that there is for something
    /// that cannot be had in the end.
    fn chunk(self, room_bytes: u64) -> Result<Chunk, Why> {
        match self {
            Self::Run(len) if 2 * len as u64 > LARGEST_CHUNK => Err(Why::TooLarge),
            Self::Run(len) => {
                Ok(Chunk { least_bytes: (2 * len as u64).max(SMALLEST_CHUNK), ample_bytes: 4 * len as u64 })
            }
            Self::Pieces(len) => {
                let missing = (len as u64).saturating_sub(heap::present_bytes() as u64);
                if missing > room_bytes {
                    return Err(Why::Limit);
                }
                let quarter = (missing / 4).clamp(SMALLEST_CHUNK, LARGEST_CHUNK);
                Ok(Chunk {
                    least_bytes: 1 << quarter.ilog2(),
                    ample_bytes: missing.saturating_add(SMALLEST_CHUNK),
                })
            }
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

    /// Asks for at least so much, preferably an ample amount, or an eighth of what there is, or, where few places are
    /// left, a part by which the last one will reach the limit.
    fn ask(&mut self, least_bytes: u64, ample_bytes: u64) {
        let eighth = HAS_BYTES.load(Ordering::Relaxed) / 8;
        let part = match self.places_left {
            places @ 1..=FEW_PLACES => self.room_bytes() / places as u64,
            _ => 0,
        };
        let largest = eighth.max(part).max(ample_bytes).max(least_bytes);
        let number = cell::wish(least_bytes, largest, near());
        self.open = Some(Open { number, least_bytes, patience: Patience::Fresh });
        platform::ring();
    }

    /// Waits for an answer, within bounds.
    fn wait_for(&mut self, open: Open) -> Waited {
        let begin = cycles();
        while cell::answer_to(open.number).is_none() {
            if cycles().wrapping_sub(begin) > self.cycles_of(PATIENCE_NS) {
                self.open = Some(Open { patience: Patience::Spent, ..open });
                return Waited::InVain;
            }
            core::hint::spin_loop();
        }
        Waited::Answered
    }

    /// Takes note of the answer, if there is one, and adds what has come: in this order, as what is given comes first.
    fn settle(&mut self) {
        let answer = self.open.and_then(|open| Some((open, cell::answer_to(open.number)?)));
        let mut is_new = answer.is_some();
        while let Some((node, memory)) = cell::take_grown() {
            is_new = true;
            let len = memory.len();
            HAS_BYTES.fetch_add(len as u64, Ordering::Relaxed);
            self.places_left = self.places_left.saturating_sub(1);
            if let Some(start) = NonNull::new(memory.as_mut_ptr()) {
                // SAFETY: the memory is owned, for good, and given away here; it comes zeroed. What the page allocator has
                // no room for is left alone.
                let _ = unsafe { pages().add_zero_range_of(node, start, len) };
            }
            ADDED.fetch_add(1, Ordering::Relaxed);
        }
        match answer {
            Some((_, Answer::Given)) => (self.open, self.refused) = (None, None),
            Some((open, Answer::Refused(refusal))) => {
                let why = if refusal == Refusal::Limit { Why::Limit } else { Why::Exhausted };
                WHY.store(why as u32, Ordering::Relaxed);
                let until_cycles = cycles().saturating_add(self.cycles_of(AGAIN_NS));
                self.open = None;
                self.refused = Some(Refused { least_bytes: open.least_bytes, until_cycles });
            }
            None => {}
        }
        if is_new {
            self.tell_room();
            MAY_GROW.store(self.can_ask_for(SMALLEST_CHUNK), Ordering::Relaxed);
        }
    }

    /// Says how much may still come: none, if not even the least is to be had.
    fn tell_room(&self) {
        let is_refused = self.refused.is_some_and(|refused| refused.least_bytes <= SMALLEST_CHUNK);
        pages().set_room(if is_refused { 0 } else { self.room_bytes() as usize });
        heap::publish();
    }

    fn cycles_of(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.tsc_hz) / 1_000_000_000) as u64
    }
}

/// What is said of a cell whose memory has run out: how much it has and may have, and why it has no more.
pub(crate) struct Shortage;

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = ByteSize(HAS_BYTES.load(Ordering::Relaxed));
        let most = ByteSize(MAX_BYTES.load(Ordering::Relaxed));
        let why = WHY.load(Ordering::Relaxed);
        if has >= most || why == Why::Limit as u32 {
            return write!(f, "the cell has {has}, and may have no more than {most}: give it more");
        }
        write!(f, "the cell has {has} of the {most} that it may have, and ")?;
        f.write_str(match why {
            why if why == Why::Exhausted as u32 => "the machine has no more for it",
            why if why == Why::Silence as u32 => "the supervisor does not answer",
            _ => "no cell gets so much at once while it runs: let it begin with more",
        })
    }
}
