//! What a core was in the middle of when the supervisor took it by force: kept, and gone on with by other cores of the cell.
//!
//! The supervisor orders a core to [yield](isola_abi::places::OrderKind::Yield) and sends it a non-maskable interrupt. What
//! the core was in the middle of, all of its registers, is suspended under the name of its place: a *context*. The core is
//! free then. Another one goes on with the context when it is between two events, on the stack of the place that was left,
//! until that hands on what it carries and [ends](end).
//!
//! ```text
//!   core at place 2      interrupted: context 2 is suspended        taken back by the supervisor
//!   core at place 0      between two events: context 0 is kept  ->  context 2: the rest of its event  ->  context 0
//! ```
//!
//! A context that is gone on with stands on that of the core that does so, and can be suspended again.
//!
//! A core between two events holds nothing, so that what it goes on with can take any lock in the end. But the one that
//! was to go on may itself wait in the middle of an event for a lock that a context holds: so, as long as a context is not
//! finished, the supervisor *rotates* all cores of the cell every few milliseconds, by non-maskable interrupts. One that
//! has nobody's context on top goes on with one from the middle of its own event; one that has, suspends it and goes on
//! with its own. So each goes on in the end, whoever waits for whom.
//!
//! Nothing is suspended while the core has interrupts on, as it is between two events and will see its orders by itself,
//! and nothing of what is done here: see `may_switch`.

use super::unplug::has_forgotten;
use super::{live, places, report};
use crate::apic::local;
use crate::authority::Authority;
use crate::cpu;
use crate::interrupts::{ExceptionFrame, WAKE_VECTOR};
use crate::window::flush;
use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};
use isola_abi::id::MAX_CORES;
use isola_abi::layout::{STACK_SLOT, STACKS};
use isola_abi::places::{Order, OrderKind};

/// In the flags: interrupts are on.
const INTERRUPTS_ON: u64 = 1 << 9;

/// What a core is in the middle of. `vectors.s` knows the first two.
#[repr(C, align(16))]
struct Context {
    sse: [[u64; 2]; 16],
    frame: ExceptionFrame,
    gs_base: u64,
    fault_address: u64,
}

/// The context of a place, and where it stands.
struct Suspended {
    context: UnsafeCell<Context>,
    /// The place whose context goes on when this one has ended, and 1; 0 where there is none.
    below: AtomicU32,
    /// The place whose core is in the middle of it, or of one that stands on it.
    on: AtomicU32,
    /// It is not to be suspended for now.
    is_switching: AtomicBool,
}

// SAFETY: a context is written by the core that is in the middle of it, and read by the one that goes on with it, which
// `WAITING` and the links, both stored with release after the context, tell of it.
unsafe impl Sync for Suspended {}

static SUSPENDED: [Suspended; MAX_CORES] = [const {
    Suspended {
        context: UnsafeCell::new(Context {
            sse: [[0; 2]; 16],
            frame: ExceptionFrame::zeroed(),
            gs_base: 0,
            fault_address: 0,
        }),
        below: AtomicU32::new(0),
        on: AtomicU32::new(0),
        is_switching: AtomicBool::new(false),
    }
}; MAX_CORES];

/// By place: the place whose context its core is in the middle of, and 1; 0 for its own.
static TOP: [AtomicU32; MAX_CORES] = [const { AtomicU32::new(0) }; MAX_CORES];

/// The contexts that nobody goes on with now.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// The one that was gone on with last.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The places whose cores have come and carry what is to be run there, or wait for it: what they do can be suspended.
static INSIDE: AtomicU64 = AtomicU64::new(0);

/// How many contexts were suspended, and have not ended.
static UNFINISHED: AtomicU32 = AtomicU32::new(0);

/// By place: the rotation that its core has followed.
static FOLLOWED: [AtomicU32; MAX_CORES] = [const { AtomicU32::new(0) }; MAX_CORES];

/// By place: whether others' contexts have run on its core since it was last asked.
static DISTURBED: [AtomicBool; MAX_CORES] = [const { AtomicBool::new(false) }; MAX_CORES];

unsafe extern "sysv64" {
    /// See `vectors.s`.
    fn isola_exchange(
        kept: *mut Context,
        next: *mut Context,
        switching: &AtomicBool,
        word: &AtomicU32,
        value: u32,
    );
    fn isola_go_on(
        unused: u64,
        next: *mut Context,
        switching: &AtomicBool,
        word: &AtomicU32,
        value: u32,
    ) -> !;
}

/// What a core was asked by a non-maskable interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Something, which is done.
    Done,
    /// Nothing that is known.
    Nothing,
    /// To stop, and say where it stood.
    Stop,
    /// To yield: what it was in the middle of is suspended, and waits for whoever is told of it. Then the core has to say
    /// so, by [`Yielded::tell`], and to do nothing any more but [`Yielded::wait`].
    Yield(Yielded),
}

/// What a core was in the middle of is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the supervisor waits to be told"]
pub struct Yielded {
    place: usize,
    order: Order,
}

impl Yielded {
    /// Says so in the report. The supervisor has to be rung behind it.
    pub fn tell(self) {
        if let Some(core) = report().cores.get(self.place) {
            core.yielded.store(self.order.to_u32(), Ordering::Release);
        }
    }

    /// Waits until the supervisor takes the core. Only non-maskable interrupts reach it, by which it still forgets page
    /// tables: the processor holds them back until an IRET, so there is one here. They come on the stack that is in use, from
    /// its top, so that nothing of that is used from there on.
    pub fn wait(self) -> ! {
        // SAFETY: nothing here returns, and the frame leads to the loop, with interrupts off as before.
        unsafe {
            asm!(
                "mov rcx, rsp",
                "mov eax, ss",
                "push rax",
                "push rcx",
                "pushfq",
                "mov eax, cs",
                "push rax",
                "lea rax, [rip + 2f]",
                "push rax",
                "iretq",
                "2:",
                "pause",
                "jmp 2b",
                options(noreturn)
            )
        }
    }
}

/// What a core does at a non-maskable interrupt; to be called by its handler, with the registers that it was given.
/// `give_notice` has all cores that run look whether anything is suspended; it may be called in the middle of anything. Those
/// that are halted have to be woken where the answer is [`Asked::Yield`].
///
/// At whose place the core is says the stack, which is the place's own: nothing else is certain in the middle of anything.
pub fn non_maskable(_: Authority, frame: &ExceptionFrame, give_notice: fn()) -> Asked {
    let place = (core::ptr::from_ref(frame).addr() as u64).wrapping_sub(STACKS) / STACK_SLOT;
    let place = usize::try_from(place).unwrap_or(usize::MAX);
    if place >= MAX_CORES {
        return Asked::Nothing;
    }
    let mut asked = if has_forgotten(place) { Asked::Done } else { Asked::Nothing };
    let (order, rotations) = (places().at(place), places().rotations());
    let yielded = report().cores.get(place).map_or(0, |core| core.yielded.load(Ordering::Relaxed));
    if order.kind == OrderKind::Yield && yielded == order.to_u32() {
        // It is in `Yielded::wait`, and what it was in the middle of is another core's.
        return Asked::Done;
    }
    if live().examined.load(Ordering::Acquire) != 0 {
        return Asked::Stop;
    }
    if order.kind == OrderKind::Yield {
        asked = Asked::Done;
        if may_switch(frame, place) {
            return suspended(frame, place, order, give_notice);
        }
    }
    if FOLLOWED[place].load(Ordering::Relaxed) != rotations {
        asked = Asked::Done;
        give_notice();
        FOLLOWED[place].store(rotations, Ordering::Relaxed);
        if may_switch(frame, place) {
            follow(frame, place);
        }
    }
    asked
}

/// A core has come to its place, and nothing of another's time concerns it.
pub(super) fn enter(place: usize) {
    if let (Some(top), Some(followed)) = (TOP.get(place), FOLLOWED.get(place)) {
        top.store(0, Ordering::Relaxed);
        followed.store(places().rotations(), Ordering::Relaxed);
    }
    INSIDE.fetch_or(bit(place), Ordering::Relaxed);
}

/// Nothing is carried at the place any more: what is still done there is to leave.
pub fn depart(_: Authority, place: usize) {
    INSIDE.fetch_and(!bit(place), Ordering::Relaxed);
}

/// Whether anything was suspended that has not ended. Where nothing was, that is a load.
#[inline]
pub fn is_unfinished() -> bool {
    UNFINISHED.load(Ordering::Relaxed) != 0
}

/// Goes on with a context that was suspended, if one waits: until it ends, or the supervisor wants this core to go on
/// with its own. For the core at a place, between two events. Returns whether any context but the core's own has run on
/// this core since this was last asked: then its timer is not as it was armed.
pub fn go_on_with_others(_: Authority, place: usize) -> bool {
    let (Some(own), Some(disturbed)) = (SUSPENDED.get(place), DISTURBED.get(place)) else { return false };
    // One that is gone on with itself, by another core, is not between two events of that one.
    if is_unfinished() && own.below.load(Ordering::Relaxed) == 0 {
        own.is_switching.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if let Some(top) = claim() {
            put_on(top, place);
            own.keep_bases();
            prepare(top);
            let (kept, next) = (own.context.get(), &SUSPENDED[top]);
            // SAFETY: both contexts are this core's alone: its own, and the one that it has claimed, which was kept whole
            // by `save` or by this.
            unsafe { isola_exchange(kept, next.context.get(), &next.is_switching, &NOWHERE, 0) };
        }
        compiler_fence(Ordering::SeqCst);
        own.is_switching.store(false, Ordering::Relaxed);
    }
    disturbed.swap(false, Ordering::Relaxed)
}

/// Ends the context of that place, whose core carries nothing any more, where it is another core that goes on with it; the
/// order is echoed once nothing of it is used. Returns where it is the place's own core.
pub fn end(_: Authority, place: usize, echo: Order) {
    let Some(own) = SUSPENDED.get(place) else { return };
    own.is_switching.store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // From here on it stays on whatever core it is on.
    let Some(next) = own.below.swap(0, Ordering::Relaxed).checked_sub(1).map(|next| next as usize) else {
        own.is_switching.store(false, Ordering::Relaxed);
        return;
    };
    let here = own.on.load(Ordering::Relaxed) as usize;
    let told = report().cores.get(place);
    // The core that has suspended this has still to wake others, and to say so: it is taken once the order is echoed.
    while told.is_some_and(|core| core.yielded.load(Ordering::Acquire) == 0) {
        core::hint::spin_loop();
    }
    stand(next, here);
    own.is_switching.store(false, Ordering::Relaxed);
    UNFINISHED.fetch_sub(1, Ordering::Relaxed);
    let word = told.map_or(&NOWHERE, |core| &core.order);
    prepare(next);
    let next = &SUSPENDED[next];
    // SAFETY: what stood below this context is this core's, and was kept whole when this was put on it; nothing of this
    // one is used any more.
    unsafe { isola_go_on(0, next.context.get(), &next.is_switching, word, echo.to_u32()) }
}

/// The place to which the calling core came, which it finds by its APIC id: what runs on it may be another's.
pub fn place_of_this_core() -> Option<usize> {
    let apic = local::id();
    (0..MAX_CORES).find(|&place| places().core(place).is_some_and(|core| core.apic == apic))
}

/// A word that nobody reads.
static NOWHERE: AtomicU32 = AtomicU32::new(0);

fn bit(place: usize) -> u64 {
    u32::try_from(place).ok().and_then(|place| 1_u64.checked_shl(place)).unwrap_or(0)
}

/// The place whose context the core at a place is in the middle of.
fn top_of(place: usize) -> usize {
    TOP[place].load(Ordering::Relaxed).checked_sub(1).map_or(place, |top| top as usize)
}

/// Whether what the core at a place is in the middle of can be suspended: it has come and does not leave, has interrupts off, and
/// does nothing of what is done here.
fn may_switch(frame: &ExceptionFrame, place: usize) -> bool {
    let here = (isola_exchange as *const ()).addr() as u64;
    unsafe extern "C" {
        safe static isola_contexts_end: u8;
    }
    let end = (&raw const isola_contexts_end).addr() as u64;
    frame.rflags & INTERRUPTS_ON == 0
        && INSIDE.load(Ordering::Relaxed) & bit(place) != 0
        && !SUSPENDED[top_of(place)].is_switching.load(Ordering::Relaxed)
        && !(here..end).contains(&frame.rip)
}

/// Suspends all that the core at a place is in the middle of, and its own context with it.
fn suspended(frame: &ExceptionFrame, place: usize, order: Order, give_notice: fn()) -> Asked {
    let top = top_of(place);
    SUSPENDED[top].save(frame);
    depart(Authority::OWN, place);
    TOP[place].store(0, Ordering::Relaxed);
    UNFINISHED.fetch_add(1, Ordering::Relaxed);
    // Where that was another's context, its own is kept already. Each goes on by itself: one may wait for the other.
    SUSPENDED[top].below.store(0, Ordering::Relaxed);
    WAITING.fetch_or(bit(top) | bit(place), Ordering::Release);
    give_notice();
    Asked::Yield(Yielded { place, order })
}

/// Has the core at a place go on with its own context where it is in the middle of others', or else with one that waits.
/// Returns where none does.
fn follow(frame: &ExceptionFrame, place: usize) {
    let top = top_of(place);
    let next = if top == place {
        let Some(next) = claim() else { return };
        SUSPENDED[place].save(frame);
        put_on(next, place);
        next
    } else {
        SUSPENDED[top].save(frame);
        SUSPENDED[top].below.store(0, Ordering::Relaxed);
        stand(place, place);
        WAITING.fetch_or(bit(top), Ordering::Release);
        place
    };
    prepare(next);
    let next = &SUSPENDED[next];
    // SAFETY: the context is this core's alone, its own or the one that it has claimed, and was kept whole when another was
    // put on it, or when it was suspended. What the core was in the middle of is saved; nothing of this handler is used
    // any more.
    unsafe { isola_go_on(0, next.context.get(), &next.is_switching, &NOWHERE, 0) }
}

/// Takes a context that waits: each has its turn, as one may wait for another.
fn claim() -> Option<usize> {
    loop {
        let waiting = WAITING.load(Ordering::Relaxed);
        let next = next_in_turn(waiting, LAST.load(Ordering::Relaxed))?;
        let mask = 1 << next;
        if WAITING.fetch_and(!mask, Ordering::Acquire) & mask != 0 {
            LAST.store(next, Ordering::Relaxed);
            return Some(next as usize);
        }
    }
}

/// The lowest bit of `waiting` above bit `last`, or else the lowest.
fn next_in_turn(waiting: u64, last: u32) -> Option<u32> {
    let above = waiting & u64::MAX.checked_shl(last + 1).unwrap_or(0);
    let candidates = if above != 0 { above } else { waiting };
    (candidates != 0).then(|| candidates.trailing_zeros())
}

/// Puts a context, which the calling core has claimed, on its own.
fn put_on(top: usize, place: usize) {
    SUSPENDED[top].below.store(place as u32 + 1, Ordering::Relaxed);
    SUSPENDED[top].on.store(place as u32, Ordering::Relaxed);
    stand(top, place);
}

/// Says that the core at a place is in the middle of the context `top`, which it will be once it has changed to it.
fn stand(top: usize, place: usize) {
    SUSPENDED[top].is_switching.store(true, Ordering::Relaxed);
    DISTURBED[place].store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    TOP[place].store(if top == place { 0 } else { top as u32 + 1 }, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Makes this core fit for a context. Nothing that is kept by core may be used from here until the core goes on with it.
fn prepare(next: usize) {
    // SAFETY: the context is the calling core's to go on with, and nobody writes it.
    let context = unsafe { &*SUSPENDED[next].context.get() };
    flush();
    cpu::set_fault_address(context.fault_address);
    // SAFETY: the context's code, which this core continues, has set this base, for the data of its own core.
    unsafe { cpu::set_gs_base(context.gs_base) };
    // It may be about to halt, and have looked for interrupts that came to another core, or that were taken meanwhile.
    local::send_to_self(WAKE_VECTOR);
}

impl Suspended {
    /// Keeps what the calling core was in the middle of when it was interrupted, which was this context.
    fn save(&self, frame: &ExceptionFrame) {
        // SAFETY: the core is in the middle of this context, so that nobody else reads or writes it. The handler of
        // non-maskable interrupts was given the frame by `vectors.s`, which keeps the registers of SSE right below it.
        unsafe {
            let context = &mut *self.context.get();
            context.sse = core::ptr::from_ref(frame).cast::<[[u64; 2]; 16]>().sub(1).read();
            context.frame = frame.clone();
        }
        self.keep_bases();
    }

    /// Keeps what is not in a frame.
    fn keep_bases(&self) {
        // SAFETY: as in `save`.
        let context = unsafe { &mut *self.context.get() };
        context.gs_base = cpu::gs_base();
        context.fault_address = cpu::fault_address();
    }
}

const _: () = assert!(core::mem::offset_of!(Context, frame) == 256);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_context_that_waits_has_its_turn() {
        assert_eq!(next_in_turn(0, 5), None);
        let waiting = 1 << 3 | 1 << 7 | 1 << 63;
        assert!([3, 7, 63, 3].windows(2).all(|pair| next_in_turn(waiting, pair[0]) == Some(pair[1])));
        assert_eq!(next_in_turn(1, 0), Some(0));
    }
}
