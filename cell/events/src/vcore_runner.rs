//! Runs vcores on cores that join and leave the cell (docs/decisions/0033-core-hot-plug-by-vcores.md).
//!
//! A *vcore* is an event loop with all its per-core state; `CoreIndex` numbers the vcores. A core of the machine enters
//! the cell at a core slot and runs one or several vcores: the one of its own slot, its *home*, and vcores that
//! departed cores passed on to it. Events run to completion, so between two passes a loop has no frame on any stack.
//! Therefore any core that holds a vcore's `VcoreIdentity` can run its next pass.
//!
//! ```text
//!             a core joins                            a core leaves, by order
//!   home vcore never ran: runs it               passes all its vcores to the core that runs the fewest;
//!   home vcore runs on another core:            that core runs them in turn with its own
//!   requests it, and receives it at that
//!   core's next event boundary
//! ```
//!
//! No task, timer or connection moves. A core that runs a single vcore, the common case, uses the usual loop and checks
//! one word for all of this. The first core never leaves, so that a core to take over vcores always exists.

use crate::event_loop::EVENTS;
use crate::halt::MayHalt;
use crate::mailbox::{self, Mailboxes, Notice};
use crate::sync::Lock;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::id::MAX_CORES;
use isola_abi::report::CorePhase;
use isola_ebbs::{CellEbb, Representative, VcoreIdentity, current_core, cycles, platform};
use isola_platform::{CoreIndex, CoreSet, ResumeOutcome};

static VCORE_RUNNERS: CellEbb<VcoreRunners> = CellEbb::new();

/// The vcore that starts the cell, and the slot of the core that stays until the cell ends.
pub(crate) const FIRST: CoreIndex = CoreIndex(0);

/// A due time in the past: the vcore has more work and is due for a visit at once.
pub(crate) const BUSY: u64 = 0;

/// Polls for a vcore's identity before the request is repeated, because another core may run the vcore by then.
const POLLS_PER_REQUEST: u32 = 4096;

/// The cores of a cell, each named by its slot.
struct VcoreRunners {
    assignment: Lock<VcoreAssignment>,
    /// A copy of `assignment.present` that is read without the lock.
    present: AtomicU64,
    /// By vcore: its identity, in transit between two cores.
    in_transit: Box<[ArrayQueue<VcoreIdentity>]>,
    /// By core slot.
    slots: Box<[CachePadded<SlotState>]>,
}

/// Requests to the core at a slot, and the state that its vcores share during a round.
#[derive(Default)]
struct SlotState {
    /// The vcores that this core has to take over.
    offered: AtomicU64,
    /// The vcores that this core has to give back.
    requested: AtomicU64,
    /// The notice that was current at the start of the round.
    notice: AtomicU64,
    /// The reading of the cycle counter up to which all cycles are charged.
    boundary: AtomicU64,
}

/// The assignment of vcores to cores.
struct VcoreAssignment {
    present: CoreSet,
    /// By vcore: the slot of the core that runs it or is about to; `None` if it never ran.
    runner: [Option<CoreIndex>; MAX_CORES],
}

impl Representative for VcoreRunners {
    fn create() -> Self {
        let descriptor = platform().descriptor();
        let slots = 0..descriptor.core_slot_count;
        // The cell's initial cores count as present from the start, and join when they are first needed.
        let present = CoreSet::first(descriptor.cores.len());
        Self {
            assignment: Lock::new(VcoreAssignment { present, runner: [None; MAX_CORES] }),
            present: AtomicU64::new(present.bits()),
            in_transit: slots.clone().map(|_| ArrayQueue::new(1)).collect(),
            slots: slots.map(|_| CachePadded::default()).collect(),
        }
    }
}

/// Returns the slots with a core at present: work is spread over these. The other vcores remain usable; a present core
/// runs them beside its own.
pub fn present_cores() -> CoreSet {
    CoreSet::from_bits(VCORE_RUNNERS.present.load(Ordering::Acquire))
}

/// Returns the present cores that are halted, or in ring 3 ([`program`](crate::program)), or about to be: for the choice of
/// a core, as they may wake at any time.
pub fn halted_cores() -> CoreSet {
    let mailboxes = mailbox::all();
    present_cores().filter(|core| mailboxes.is_halted(*core)).fold(CoreSet::default(), CoreSet::with)
}

/// Makes all running cores check for requests at their next event boundary. Safe to call in any context, also in the
/// middle of an event: it reads memory that exists since the cell's start, and changes one word by one atomic
/// instruction.
pub fn give_notice() {
    mailbox::all().give_notice();
}

/// Wakes all halted cores; to be called after [`give_notice`].
pub fn wake_all() {
    let mailboxes = mailbox::all();
    present_cores().for_each(|core| mailboxes.wake(core));
}

/// The reason why a core no longer runs any vcore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// The cell has ended.
    Exited(i32),
    /// The core was ordered to leave, and has passed on its vcores.
    Left(Order),
}

/// A core of the cell.
pub(crate) struct VcoreRunner {
    /// The slot at which it entered.
    home: CoreIndex,
    /// The identities of the vcores that it runs, its home vcore among them.
    identities: [Option<VcoreIdentity>; MAX_CORES],
    set: CoreSet,
    /// The last order that it has seen.
    order: Order,
}

impl VcoreRunner {
    /// Enters the cell at the slot of the calling vcore: with that vcore's identity, or with a request for it.
    ///
    /// # Errors
    /// [`RunEnd::Exited`] if the cell ends before another core passes on the identity.
    pub fn enter(identity: Option<VcoreIdentity>) -> Result<Self, RunEnd> {
        let (home, order) = (current_core(), Order::from_u32(0));
        let identity = identity.map_or_else(|| VCORE_RUNNERS.request_identity(home), Ok)?;
        let mut runner =
            Self { home, identities: [const { None }; MAX_CORES], set: CoreSet::default(), order };
        runner.adopt(identity);
        let is_known = VCORE_RUNNERS.assignment.with(|assignment| {
            let before = assignment.present;
            assignment.present = before.with(home);
            VCORE_RUNNERS.present.store(assignment.present.bits(), Ordering::Release);
            before.contains(home)
        });
        if !is_known {
            mailbox::all().notify_cores_changed(FIRST);
        }
        Ok(runner)
    }

    /// Runs the core's vcores until the cell ends or the core is ordered to leave.
    pub fn run(mut self) -> RunEnd {
        let mailboxes = mailbox::all();
        loop {
            let notice = mailboxes.notice();
            if let Some(code) = notice.exit_code() {
                return RunEnd::Exited(code);
            }
            self.adopt_offered();
            self.return_requested();
            let order = platform().core_slots().at(self.home.0 as usize);
            if order != self.order {
                self.order = order;
                if matches!(order.kind, OrderKind::Leave | OrderKind::Yield) && self.home != FIRST {
                    self.leave(mailboxes);
                    return RunEnd::Left(order);
                }
                self.acknowledge();
            }
            match platform().resume_suspended() {
                ResumeOutcome::NoneResumed => {}
                ResumeOutcome::AllEnded => self.resume(),
                ResumeOutcome::MoreLeft => {
                    self.resume();
                    self.run_round(notice);
                    continue;
                }
            }
            match self.set.len() {
                1 if is_needed(self.home) => EVENTS.run_alone(mailboxes, notice),
                1 => self.sleep(mailboxes, notice),
                _ => self.run_in_turn(mailboxes, notice),
            }
        }
    }

    /// Halts until the home vcore gets its first work. Until then no representative is created for it.
    fn sleep(&self, mailboxes: &Mailboxes, notice: Notice) {
        let slot = self.home.0 as usize;
        while mailboxes.prepare_halt(self.home, notice) == MayHalt::Yes {
            platform().enter_idle();
            platform().halt();
            platform().exit_idle();
            // These interrupts only wake the core: it has no handlers yet.
            let _ = platform().take_interrupts();
            if platform().core_slots().at(slot) != self.order {
                break;
            }
        }
        mailboxes.of(self.home).finish_halt();
    }

    /// Runs rounds over all vcores of the core until the notice changes.
    fn run_in_turn(&mut self, mailboxes: &Mailboxes, notice: Notice) {
        let slot = &VCORE_RUNNERS.slots[self.home.0 as usize];
        self.begin_rounds(notice);
        let here = self.home.0 as usize;
        // The order is compared as well: if no vcore handles interrupts yet, no handler gives a notice of the order.
        while mailboxes.notice() == notice && platform().core_slots().at(here) == self.order {
            let next = self.visit_all();
            if next != BUSY {
                let boundary = match is_needed(self.home) {
                    true => EVENTS.halt_for_all(next, slot.boundary.load(Ordering::Relaxed)),
                    false => halt_until(next),
                };
                slot.boundary.store(boundary, Ordering::Relaxed);
            }
        }
    }

    /// Runs one round over all vcores of the core, whatever the current notice.
    fn run_round(&mut self, notice: Notice) {
        self.begin_rounds(notice);
        self.visit_all();
    }

    /// Initialises the state that the vcores share during rounds.
    fn begin_rounds(&self, notice: Notice) {
        let slot = &VCORE_RUNNERS.slots[self.home.0 as usize];
        slot.notice.store(notice.to_u64(), Ordering::Relaxed);
        let boundary = if is_needed(self.home) { EVENTS.charge_so_far() } else { cycles() };
        slot.boundary.store(boundary, Ordering::Relaxed);
    }

    /// Runs a bounded number of passes of each vcore. Returns when the next are due, in cycles.
    fn visit_all(&mut self) -> u64 {
        let home = u64::from(self.home.0);
        self.identities
            .iter_mut()
            .flatten()
            .map(|identity| identity.run(visit, home))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Informs all vcores that suspended contexts had the core for a while.
    fn resume(&mut self) {
        self.identities.iter_mut().flatten().for_each(|identity| _ = identity.run(resume, 0));
    }

    /// Runs the vcore of this identity from now on.
    fn adopt(&mut self, mut identity: VcoreIdentity) {
        let core = identity.core();
        VCORE_RUNNERS.assignment.with(|assignment| assignment.runner[core.0 as usize] = Some(self.home));
        platform().report().cores[core.0 as usize].vcore_runner.store(self.home.0, Ordering::Relaxed);
        self.set = self.set.with(core);
        platform().run_vcores(self.set);
        identity.run(begin, 0);
        self.identities[core.0 as usize] = Some(identity);
    }

    /// Takes over the vcores that departed cores have passed on.
    fn adopt_offered(&mut self) {
        let offered = VCORE_RUNNERS.slots[self.home.0 as usize].offered.swap(0, Ordering::AcqRel);
        for core in CoreSet::from_bits(offered) {
            // The vcore's home core may have taken it already.
            if let Some(identity) = VCORE_RUNNERS.in_transit[core.0 as usize].pop() {
                self.adopt(identity);
            }
        }
        if offered != 0 {
            mailbox::all().notify_cores_changed(FIRST);
        }
    }

    /// Gives back vcores whose home cores have returned. A request for a vcore that this core does not run is dropped:
    /// the requester repeats it to the core that runs the vcore by then.
    fn return_requested(&mut self) {
        let requested = VCORE_RUNNERS.slots[self.home.0 as usize].requested.swap(0, Ordering::AcqRel);
        for core in CoreSet::from_bits(requested).without(self.home) {
            if let Some(mut identity) = self.identities[core.0 as usize].take() {
                identity.run(end, 0);
                self.set = self.set.without(core);
                platform().run_vcores(self.set);
                hand_over(core, identity);
            }
        }
    }

    /// Passes on all vcores. From here on this core uses no per-core state; the caller still has to report that the
    /// order was carried out.
    fn leave(mut self, mailboxes: &Mailboxes) {
        for identity in self.identities.iter_mut().flatten() {
            identity.run(end, 0);
        }
        platform().run_vcores(CoreSet::default());
        let slot = &VCORE_RUNNERS.slots[self.home.0 as usize];
        let heir = VCORE_RUNNERS.assignment.with(|assignment| {
            assignment.present = assignment.present.without(self.home);
            VCORE_RUNNERS.present.store(assignment.present.bits(), Ordering::Release);
            let heir = assignment.least_loaded();
            // Vcores in transit to this core go to the heir as well. Pending requests to give vcores back are dropped
            // here: the requesters repeat them to the heir.
            let all = CoreSet::from_bits(self.set.bits() | slot.offered.swap(0, Ordering::AcqRel));
            slot.requested.store(0, Ordering::Relaxed);
            for core in all {
                assignment.runner[core.0 as usize] = Some(heir);
            }
            for core in self.set {
                if let Some(identity) = self.identities[core.0 as usize].take() {
                    hand_over(core, identity);
                }
            }
            VCORE_RUNNERS.slots[heir.0 as usize].offered.fetch_or(all.bits(), Ordering::AcqRel);
            heir
        });
        mailboxes.give_notice();
        mailboxes.wake(heir);
    }

    /// Reports that the order was carried out.
    fn acknowledge(&self) {
        let echo = &platform().report().cores[self.home.0 as usize].order;
        echo.store(self.order.to_u32(), Ordering::Release);
        platform().notify_supervisor();
    }
}

impl VcoreAssignment {
    /// Returns the present core that runs the fewest vcores.
    fn least_loaded(&self) -> CoreIndex {
        let count = |slot: &CoreIndex| self.runner.iter().flatten().filter(|runner| *runner == slot).count();
        self.present.min_by_key(count).unwrap_or(FIRST)
    }
}

impl VcoreRunners {
    /// Obtains the identity of the vcore whose home core has returned. The calling core spins until the other core has
    /// finished its event: without an identity it has no per-core state to run anything else.
    ///
    /// # Errors
    /// [`RunEnd::Exited`] if the cell has ended: then no core passes on identities any more.
    fn request_identity(&self, core: CoreIndex) -> Result<VcoreIdentity, RunEnd> {
        let mailboxes = mailbox::all();
        loop {
            if let Some(code) = mailboxes.notice().exit_code() {
                return Err(RunEnd::Exited(code));
            }
            let runner =
                self.assignment.with(|assignment| assignment.runner[core.0 as usize].unwrap_or(FIRST));
            self.slots[runner.0 as usize].requested.fetch_or(CoreSet::of(core).bits(), Ordering::AcqRel);
            mailboxes.give_notice();
            mailboxes.wake(runner);
            for _ in 0..POLLS_PER_REQUEST {
                if let Some(identity) = self.in_transit[core.0 as usize].pop() {
                    // Clear requests that no core has seen yet, so that the next core to run this vcore keeps it.
                    let others = !CoreSet::of(core).bits();
                    self.slots.iter().for_each(|slot| _ = slot.requested.fetch_and(others, Ordering::AcqRel));
                    return Ok(identity);
                }
                core::hint::spin_loop();
            }
        }
    }
}

/// Puts an identity where the vcore's next core finds it.
fn hand_over(core: CoreIndex, identity: VcoreIdentity) {
    let refused = VCORE_RUNNERS.in_transit[core.0 as usize].push(identity);
    debug_assert!(refused.is_ok(), "there is one identity of a core");
}

/// Returns whether the vcore has or had work. A vcore without any is asleep, and nothing has been created for it.
fn is_needed(core: CoreIndex) -> bool {
    let report = platform().report().cores.get(core.0 as usize);
    let has_run = report.is_some_and(|core| core.phase.load(Ordering::Relaxed) != CorePhase::Asleep as u32);
    has_run || core == FIRST || !mailbox::all().of(core).is_empty()
}

/// Runs a bounded number of passes of the calling vcore's loop, for the core at slot `slot`. Returns when the next are
/// due, in cycles.
fn visit(slot: u64) -> u64 {
    let (mailboxes, slot) = (mailbox::all(), &VCORE_RUNNERS.slots[slot as usize]);
    let notice = Notice::from_u64(slot.notice.load(Ordering::Relaxed));
    if !is_needed(current_core()) {
        let _ = platform().take_interrupts();
        platform().enter_idle();
        return match mailboxes.prepare_halt(current_core(), notice) {
            MayHalt::Yes => u64::MAX,
            MayHalt::No => BUSY,
        };
    }
    let (next, boundary) = EVENTS.visit(mailboxes, notice, slot.boundary.load(Ordering::Relaxed));
    slot.boundary.store(boundary, Ordering::Relaxed);
    next
}

/// Halts until `next`, in cycles, on a core whose home vcore was never needed. Returns the reading of the cycle counter
/// afterwards.
fn halt_until(next: u64) -> u64 {
    if next > cycles() {
        platform().arm_timer((next != u64::MAX).then_some(next));
        platform().halt();
    }
    cycles()
}

/// Informs the calling vcore that another core runs it from now on.
fn begin(_: u64) -> u64 {
    if is_needed(current_core()) {
        EVENTS.begin();
    }
    0
}

/// Informs the calling vcore that suspended contexts had its core for a while.
fn resume(_: u64) -> u64 {
    if is_needed(current_core()) {
        EVENTS.resume();
    }
    0
}

/// Prepares the calling vcore for its transfer to another core.
fn end(_: u64) -> u64 {
    match is_needed(current_core()) {
        true => EVENTS.end(),
        false => platform().enter_idle(),
    }
    0
}
