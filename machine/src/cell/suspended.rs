//! Suspended contexts: the registers of events whose cores the supervisor took by force. Other cores of the cell resume
//! them.
//!
//! The supervisor orders a core to [yield](isola_abi::core_slots::OrderKind::Yield) and sends it a non-maskable
//! interrupt. The core's *context*, all of its registers, is suspended under the number of its core slot, and the core
//! is free. Another core resumes the context between two of its own events, on the stack of the former slot, until the
//! event loop there has passed on its vcores and [ends](end).
//!
//! ```text
//!   core at slot 2      interrupted: context 2 is suspended         reclaimed by the supervisor
//!   core at slot 0      between two events: context 0 is saved  ->  context 2: the rest of its event  ->  context 0
//! ```
//!
//! A resumed context is on top of the context of the core that resumed it, and can be suspended again.
//!
//! A core between two events holds no lock, so a context that it resumes can take any lock eventually. But the core
//! that should resume a context may itself wait, in the middle of an event, for a lock that the context holds. So while
//! a context is unfinished, the supervisor *rotates* all cores of the cell every few milliseconds, by non-maskable
//! interrupts: a core that runs its own context suspends it, in the middle of an event, and resumes another; a core
//! that runs another's context suspends that and resumes its own. So every context makes progress, and
//! every lock is released eventually.
//!
//! No context is suspended while its core has interrupts on, as it is between two events then and will see its orders
//! by itself, or while it executes the code of this module: see `may_switch`.

use super::samples::{self, SampleSource};
use super::unplug::was_flushed;
use super::{core_slots, live, report};
use crate::apic::local;
use crate::authority::Authority;
use crate::cpu;
use crate::interrupts::{ExceptionFrame, WAKE_VECTOR};
use crate::region_area::flush;
use crate::user::{CoreBlock, is_user};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::id::MAX_CORES;
use isola_abi::layout::{STACK_SLOT, STACKS};

/// The flag by which interrupts are enabled.
const INTERRUPTS_ON: u64 = 1 << 9;

/// A saved context. `vectors.s` uses the first two fields.
#[repr(C, align(16))]
struct Context {
    sse: [[u64; 2]; 16],
    frame: ExceptionFrame,
    gs_base: u64,
    fault_address: u64,
}

/// The context of a core slot, with its links.
struct Suspended {
    context: UnsafeCell<Context>,
    /// The slot whose context continues when this one has ended, plus 1; 0 if there is none.
    below: AtomicU32,
    /// The slot whose core runs this context, or one on top of it.
    on: AtomicU32,
    /// Set while the context must not be suspended.
    is_switching: AtomicBool,
}

// SAFETY: only the core that runs a context writes it, and only the core that resumes it reads it. If these differ, the
// second has claimed the context from `WAITING` (acquire), to which the first added it (release) after the write.
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

/// By core slot: the slot whose context its core runs, plus 1; 0 for its own.
static TOP: [AtomicU32; MAX_CORES] = [const { AtomicU32::new(0) }; MAX_CORES];

/// The suspended contexts that no core runs: bit n for that of slot n.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// The context that was claimed last.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The slots whose cores have entered and run vcores or wait for some: their contexts can be suspended.
static INSIDE: AtomicU64 = AtomicU64::new(0);

/// The number of suspensions by force whose context has not ended.
static UNFINISHED: AtomicU32 = AtomicU32::new(0);

/// By core slot: the last rotation that its core has followed.
static FOLLOWED: [AtomicU32; MAX_CORES] = [const { AtomicU32::new(0) }; MAX_CORES];

/// By core slot: whether its core has run other slots' contexts since the last query.
static DISTURBED: [AtomicBool; MAX_CORES] = [const { AtomicBool::new(false) }; MAX_CORES];

unsafe extern "sysv64" {
    /// See `vectors.s`.
    fn isola_switch_context(
        saved: *mut Context,
        next: *mut Context,
        switching: &AtomicBool,
        word: &AtomicU32,
        value: u32,
    );
    fn isola_resume(
        unused: u64,
        next: *mut Context,
        switching: &AtomicBool,
        word: &AtomicU32,
        value: u32,
    ) -> !;
}

/// The supervisor's instruction behind a non-maskable interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NmiAction {
    /// An instruction that is carried out.
    Done,
    /// None that is known.
    Unknown,
    /// Stop, and report the place in the code.
    Stop,
    /// Yield: the context is suspended, and waits for a core that resumes it. The core has to report that, by
    /// [`YieldedCore::report`], and may only call [`YieldedCore::wait`].
    Yield(YieldedCore),
}

/// A core whose context is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the supervisor waits for the report"]
pub struct YieldedCore {
    slot: usize,
    order: Order,
}

impl YieldedCore {
    /// Reports the suspension to the supervisor. The caller has to notify the supervisor afterwards.
    pub fn report(self) {
        if let Some(core) = report().cores.get(self.slot) {
            core.yielded.store(self.order.to_u32(), Ordering::Release);
        }
    }

    /// Waits until the supervisor takes the core. Only non-maskable interrupts reach it, by which it still flushes its
    /// TLB: the processor blocks them until an IRET, so this executes one. They use the current stack from its top, so
    /// nothing on that stack is used from there on.
    pub fn wait(self) -> ! {
        // SAFETY: this does not return, and the IRET frame leads to the loop, with interrupts off as before.
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

/// Handles a non-maskable interrupt, for the platform's handler, with the registers that this got. `give_notice` makes
/// all running cores check for suspended contexts; it may be called at any point of the interrupted code. If the result
/// is [`NmiAction::Yield`], the caller has to wake the halted cores.
///
/// The stack of the interrupt identifies the core slot: nothing else is certain at an arbitrary point of the code.
/// Several reasons can lead to one interrupt, so each is checked.
pub fn non_maskable(
    _: Authority,
    frame: &ExceptionFrame,
    give_notice: fn(),
    source: &SampleSource,
) -> NmiAction {
    let slot = (core::ptr::from_ref(frame).addr() as u64).wrapping_sub(STACKS) / STACK_SLOT;
    let slot = usize::try_from(slot).unwrap_or(usize::MAX);
    if slot >= MAX_CORES {
        return NmiAction::Unknown;
    }
    let mut action = if was_flushed(slot) { NmiAction::Done } else { NmiAction::Unknown };
    let (order, rotations) = (core_slots().at(slot), core_slots().rotations());
    let yielded = report().cores.get(slot).map_or(0, |core| core.yielded.load(Ordering::Relaxed));
    if order.kind == OrderKind::Yield && yielded == order.to_u32() {
        // The core is in `YieldedCore::wait`; its context belongs to another core.
        return NmiAction::Done;
    }
    // Other cores may be interrupted meanwhile for other reasons.
    if live().stop_at_nmi.load(Ordering::Acquire) == slot as u32 + 1 {
        return NmiAction::Stop;
    }
    if is_user(frame) || CoreBlock::of(slot).is_pinned() {
        // The core runs a program, or is about to, so its context is not suspended. It returns from user mode, as for
        // any interrupt, and passes on its vcores at the end of the event.
        if FOLLOWED[slot].load(Ordering::Relaxed) != rotations || order.kind == OrderKind::Yield {
            local::send_to_self(WAKE_VECTOR);
        }
    }
    // Before the context may be suspended.
    if samples::take(frame, slot, top_of(slot), source) {
        action = NmiAction::Done;
    }
    if order.kind == OrderKind::Yield {
        action = NmiAction::Done;
        if may_switch(frame, slot) {
            return suspended(frame, slot, order, give_notice);
        }
    }
    if FOLLOWED[slot].load(Ordering::Relaxed) != rotations {
        action = NmiAction::Done;
        give_notice();
        FOLLOWED[slot].store(rotations, Ordering::Relaxed);
        if may_switch(frame, slot) {
            rotate(frame, slot);
        }
    }
    action
}

/// Resets the state of a core slot that a core has just entered.
pub(super) fn enter(slot: usize) {
    if let (Some(top), Some(followed)) = (TOP.get(slot), FOLLOWED.get(slot)) {
        top.store(0, Ordering::Relaxed);
        followed.store(core_slots().rotations(), Ordering::Relaxed);
    }
    samples::enter(slot);
    if slot < MAX_CORES {
        CoreBlock::of(slot).reset();
    }
    INSIDE.fetch_or(bit(slot), Ordering::Relaxed);
}

/// Excludes the core at `slot` from suspension: it runs no vcores any more and only has to leave.
pub fn depart(_: Authority, slot: usize) {
    INSIDE.fetch_and(!bit(slot), Ordering::Relaxed);
}

/// Returns whether a suspended context has not ended. A single load.
#[inline]
pub fn is_unfinished() -> bool {
    UNFINISHED.load(Ordering::Relaxed) != 0
}

/// Resumes a suspended context, if one waits, until it ends or the supervisor rotates this core back to its own. To be
/// called by the core at `slot`, between two events. Returns whether this core has run any other context since the
/// last call: its timer is not as armed then.
pub fn resume_suspended(_: Authority, slot: usize) -> bool {
    let (Some(own), Some(disturbed)) = (SUSPENDED.get(slot), DISTURBED.get(slot)) else { return false };
    // If another core runs this context, that core is not between two events of its own.
    if is_unfinished() && own.below.load(Ordering::Relaxed) == 0 {
        own.is_switching.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if let Some(top) = claim() {
            put_on_top(top, slot);
            own.save_bases();
            prepare(top);
            let (saved, next) = (own.context.get(), &SUSPENDED[top]);
            // SAFETY: both contexts belong to this core: its own, and the one that it claimed, which `save` or
            // `isola_switch_context` saved completely.
            unsafe { isola_switch_context(saved, next.context.get(), &next.is_switching, &UNUSED_WORD, 0) };
        }
        compiler_fence(Ordering::SeqCst);
        own.is_switching.store(false, Ordering::Relaxed);
    }
    disturbed.swap(false, Ordering::Relaxed)
}

/// Ends the context of `slot`, which runs no vcores any more, if another core runs it; echoes the order once none
/// of its state is used. Returns if the slot's own core runs it.
pub fn end(_: Authority, slot: usize, echo: Order) {
    let Some(own) = SUSPENDED.get(slot) else { return };
    own.is_switching.store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // From here on the context stays on its present core.
    let Some(next) = own.below.swap(0, Ordering::Relaxed).checked_sub(1).map(|next| next as usize) else {
        own.is_switching.store(false, Ordering::Relaxed);
        return;
    };
    let here = own.on.load(Ordering::Relaxed) as usize;
    let core_report = report().cores.get(slot);
    // The core that suspended this context still has to wake others and report: the supervisor takes it as soon as the
    // order is echoed.
    while core_report.is_some_and(|core| core.yielded.load(Ordering::Acquire) == 0) {
        core::hint::spin_loop();
    }
    set_top(next, here);
    own.is_switching.store(false, Ordering::Relaxed);
    UNFINISHED.fetch_sub(1, Ordering::Relaxed);
    let word = core_report.map_or(&UNUSED_WORD, |core| &core.order);
    prepare(next);
    let next = &SUSPENDED[next];
    // SAFETY: the context below this one belongs to this core and was saved completely when this one was put on top;
    // nothing of this context is used any more.
    unsafe { isola_resume(0, next.context.get(), &next.is_switching, word, echo.to_u32()) }
}

/// Returns the core slot that the calling core entered, by its APIC id: it may run the context of another slot.
pub fn slot_of_this_core() -> Option<usize> {
    let apic = local::id();
    (0..MAX_CORES).find(|&slot| core_slots().core(slot).is_some_and(|core| core.apic == apic))
}

/// A word that no core reads.
static UNUSED_WORD: AtomicU32 = AtomicU32::new(0);

fn bit(slot: usize) -> u64 {
    u32::try_from(slot).ok().and_then(|slot| 1_u64.checked_shl(slot)).unwrap_or(0)
}

/// Returns the slot whose context the core at `slot` runs.
fn top_of(slot: usize) -> usize {
    TOP[slot].load(Ordering::Relaxed).checked_sub(1).map_or(slot, |top| top as usize)
}

/// Returns whether the context that the core at `slot` runs can be suspended: the core has entered and is not leaving,
/// has interrupts off, and does not execute the code of this module.
fn may_switch(frame: &ExceptionFrame, slot: usize) -> bool {
    let here = (isola_switch_context as *const ()).addr() as u64;
    unsafe extern "C" {
        safe static isola_contexts_end: u8;
    }
    let end = (&raw const isola_contexts_end).addr() as u64;
    frame.rflags & INTERRUPTS_ON == 0
        && INSIDE.load(Ordering::Relaxed) & bit(slot) != 0
        && !CoreBlock::of(slot).is_pinned()
        && !SUSPENDED[top_of(slot)].is_switching.load(Ordering::Relaxed)
        && !(here..end).contains(&frame.rip)
}

/// Suspends the context that the core at `slot` runs, and its own.
fn suspended(frame: &ExceptionFrame, slot: usize, order: Order, give_notice: fn()) -> NmiAction {
    let top = top_of(slot);
    SUSPENDED[top].save(frame);
    depart(Authority::OWN, slot);
    TOP[slot].store(0, Ordering::Relaxed);
    UNFINISHED.fetch_add(1, Ordering::Relaxed);
    // If the top context is another slot's, the core's own is already saved. Each waits separately, as one may wait for
    // a lock of the other.
    SUSPENDED[top].below.store(0, Ordering::Relaxed);
    WAITING.fetch_or(bit(top) | bit(slot), Ordering::Release);
    give_notice();
    NmiAction::Yield(YieldedCore { slot, order })
}

/// Rotates the core at `slot`: to its own context if it runs another's, else to a waiting one. Returns if none waits.
fn rotate(frame: &ExceptionFrame, slot: usize) {
    let top = top_of(slot);
    let next = if top == slot {
        let Some(next) = claim() else { return };
        SUSPENDED[slot].save(frame);
        put_on_top(next, slot);
        next
    } else {
        SUSPENDED[top].save(frame);
        SUSPENDED[top].below.store(0, Ordering::Relaxed);
        set_top(slot, slot);
        WAITING.fetch_or(bit(top), Ordering::Release);
        slot
    };
    prepare(next);
    let next = &SUSPENDED[next];
    // SAFETY: the context belongs to this core: its own, or the one that it claimed. It was saved completely when
    // another was put on top of it, or when it was suspended. The interrupted context is saved; nothing of this handler
    // is used any more.
    unsafe { isola_resume(0, next.context.get(), &next.is_switching, &UNUSED_WORD, 0) }
}

/// Claims a waiting context, round-robin, as one may wait for another.
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

/// Returns the lowest set bit of `waiting` above bit `last`, or else the lowest.
fn next_in_turn(waiting: u64, last: u32) -> Option<u32> {
    let above = waiting & u64::MAX.checked_shl(last + 1).unwrap_or(0);
    let candidates = if above != 0 { above } else { waiting };
    (candidates != 0).then(|| candidates.trailing_zeros())
}

/// Puts a context, which the calling core has claimed, on top of the core's own.
fn put_on_top(top: usize, slot: usize) {
    SUSPENDED[top].below.store(slot as u32 + 1, Ordering::Relaxed);
    SUSPENDED[top].on.store(slot as u32, Ordering::Relaxed);
    set_top(top, slot);
}

/// Records that the core at `slot` runs the context `top`, to which it is about to switch.
fn set_top(top: usize, slot: usize) {
    SUSPENDED[top].is_switching.store(true, Ordering::Relaxed);
    DISTURBED[slot].store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    TOP[slot].store(if top == slot { 0 } else { top as u32 + 1 }, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Prepares this core's registers for a context. No per-core data may be used from here until the core has switched to
/// it.
fn prepare(next: usize) {
    // SAFETY: the calling core is about to resume the context, so no other core accesses it.
    let context = unsafe { &*SUSPENDED[next].context.get() };
    flush();
    cpu::set_fault_address(context.fault_address);
    // SAFETY: the context's code, which this core resumes, has set this base, for the data of its own slot.
    unsafe { cpu::set_gs_base(context.gs_base) };
    // The context may be about to halt, after a check for interrupts that another core has received, or that were
    // handled meanwhile.
    local::send_to_self(WAKE_VECTOR);
}

impl Suspended {
    /// Saves the context that the calling core ran when it was interrupted, which must be this one.
    fn save(&self, frame: &ExceptionFrame) {
        // SAFETY: the core runs this context, so no other core reads or writes it. `vectors.s` passed the frame to the
        // NMI handler, and stores the SSE registers directly below it.
        unsafe {
            let context = &mut *self.context.get();
            context.sse = core::ptr::from_ref(frame).cast::<[[u64; 2]; 16]>().sub(1).read();
            context.frame = frame.clone();
        }
        self.save_bases();
    }

    /// Saves the registers that are not in a frame.
    fn save_bases(&self) {
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
    fn waiting_contexts_are_claimed_round_robin() {
        assert_eq!(next_in_turn(0, 5), None);
        let waiting = 1 << 3 | 1 << 7 | 1 << 63;
        assert!([3, 7, 63, 3].windows(2).all(|pair| next_in_turn(waiting, pair[0]) == Some(pair[1])));
        assert_eq!(next_in_turn(1, 0), Some(0));
    }
}
