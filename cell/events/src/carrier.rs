//! Who runs the cores of the cell: processor cores that come and go (docs/decisions/0033-core-hot-plug-by-vcores.md).
//!
//! A core of the cell is an event loop and all that is kept by core. A processor core *carries* one or more of them: its
//! own, whose place it came to, and those of processor cores that have left. Events run to completion, so that between
//! two passes of a loop nothing of it is on any stack: whoever holds the core's identity can run the next pass.
//!
//! ```text
//!             come                                    leave, by order
//!   a core that never ran: runs it              hands all that it carries to the one that carries fewest,
//!   one that another carries: asks for it,      and is gone; that one runs them in turn with its own
//!   and gets it at the other's next boundary
//! ```
//!
//! Neither moves a task, a timer or a connection. Where one processor core carries one core, as most do, its loop is the
//! usual one, and looks at one word for all of this. The first core's place is never vacated, so that somebody is there
//! to hand cores to.

use crate::event_loop::EVENTS;
use crate::halt::MayHalt;
use crate::mailbox::{self, Mailboxes, Notice};
use crate::sync::Lock;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use isola_abi::id::MAX_CORES;
use isola_abi::places::{Order, OrderKind};
use isola_abi::report::CorePhase;
use isola_ebbs::{CellEbb, CoreIdentity, Representative, current_core, cycles, platform};
use isola_platform::{CoreIndex, CoreSet, OwnTurn};

static CARRIERS: CellEbb<Carriers> = CellEbb::new();

/// The core that begins the cell, and is there until its end.
pub(crate) const FIRST: CoreIndex = CoreIndex(0);

/// When a core is to be visited again that has more to do: at once.
pub(crate) const BUSY: u64 = 0;

/// Looks that are taken for an identity before its wish is put again, to whoever carries the core by then.
const LOOKS_A_WISH: u32 = 4096;

/// The processor cores of a cell, each known by the core whose place it came to.
struct Carriers {
    members: Lock<Members>,
    /// The cores whose own processor cores are there: as in `members`, for who wants to know.
    present: AtomicU64,
    /// By core: its identity, on its way from one to another.
    in_transit: Box<[ArrayQueue<CoreIdentity>]>,
    /// By processor core.
    places: Box<[CachePadded<Place>]>,
}

/// What a processor core is asked, and what its cores in turn tell each other.
#[derive(Default)]
struct Place {
    /// The cores that it is to run as well.
    offered: AtomicU64,
    /// The cores that it is to give back.
    wanted: AtomicU64,
    /// The notice that was seen before this round.
    notice: AtomicU64,
    /// The reading of the cycle counter up to which all is charged.
    boundary: AtomicU64,
}

/// Who carries what.
struct Members {
    present: CoreSet,
    /// By core: who carries it, or will; none where it never ran.
    carrier: [Option<CoreIndex>; MAX_CORES],
}

impl Representative for Carriers {
    fn create() -> Self {
        let descriptor = platform().descriptor();
        let places = 0..descriptor.core_places;
        // Those that the cell begins with come as soon as they are needed.
        let present = CoreSet::first(descriptor.cores.len());
        Self {
            members: Lock::new(Members { present, carrier: [None; MAX_CORES] }),
            present: AtomicU64::new(present.bits()),
            in_transit: places.clone().map(|_| ArrayQueue::new(1)).collect(),
            places: places.map(|_| CachePadded::default()).collect(),
        }
    }
}

/// The cores whose own processor cores are there now: what work is spread over. The others can be used as well: somebody
/// runs them beside its own.
pub fn present_cores() -> CoreSet {
    CoreSet::from_bits(CARRIERS.present.load(Ordering::Acquire))
}

/// Has all processor cores that run look whether anything is asked of them. May be called in the middle of anything: it
/// looks at what is there since the cell began, and changes one word by one instruction.
pub fn give_notice() {
    mailbox::all().give_notice();
}

/// Wakes all processor cores that are halted, after [`give_notice`].
pub fn wake_all() {
    let mailboxes = mailbox::all();
    present_cores().for_each(|core| mailboxes.wake(core));
}

/// Why a processor core runs no core any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The cell has ended.
    Exited(i32),
    /// It was ordered to leave, and has handed on what it carried.
    Left(Order),
}

/// A processor core of the cell.
pub(crate) struct Carrier {
    /// The core whose place it came to.
    home: CoreIndex,
    /// What it carries, its own among it.
    carried: [Option<CoreIdentity>; MAX_CORES],
    set: CoreSet,
    /// The last order that it has seen.
    order: Order,
}

impl Carrier {
    /// A processor core that comes to the place of the calling core, with its identity, or to ask for it.
    ///
    /// # Errors
    /// How the cell has ended, where it has before somebody could give the identity.
    pub fn come(identity: Option<CoreIdentity>) -> Result<Self, Ending> {
        let (home, order) = (current_core(), Order::from_u32(0));
        let identity = identity.map_or_else(|| CARRIERS.ask_back(home), Ok)?;
        let mut carrier = Self { home, carried: [const { None }; MAX_CORES], set: CoreSet::default(), order };
        carrier.take_up(identity);
        let is_known = CARRIERS.members.with(|members| {
            let before = members.present;
            members.present = before.with(home);
            CARRIERS.present.store(members.present.bits(), Ordering::Release);
            before.contains(home)
        });
        if !is_known {
            mailbox::all().tell_of_cores(FIRST);
        }
        Ok(carrier)
    }

    /// Runs what it carries until the cell ends, or it is ordered to leave.
    pub fn run(mut self) -> Ending {
        let mailboxes = mailbox::all();
        loop {
            let notice = mailboxes.notice();
            if let Some(code) = notice.exit_code() {
                return Ending::Exited(code);
            }
            self.accept();
            self.give_back();
            let order = platform().places().at(self.home.0 as usize);
            if order != self.order {
                self.order = order;
                if matches!(order.kind, OrderKind::Leave | OrderKind::Yield) && self.home != FIRST {
                    self.leave(mailboxes);
                    return Ending::Left(order);
                }
                self.acknowledge();
            }
            match platform().go_on_with_others() {
                OwnTurn::Undisturbed => {}
                OwnTurn::Last => self.resume(),
                OwnTurn::Brief => {
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

    /// Halts until somebody has work for its core, which never had any. Nothing is made for it before.
    fn sleep(&self, mailboxes: &Mailboxes, notice: Notice) {
        let place = self.home.0 as usize;
        while mailboxes.prepare_halt(self.home, notice) == MayHalt::Yes {
            platform().rest();
            platform().halt();
            platform().rise();
            // They have woken the core, and have no handlers.
            let _ = platform().take_interrupts();
            if platform().places().at(place) != self.order {
                break;
            }
        }
        mailboxes.of(self.home).finish_halt();
    }

    /// Passes of all that it carries, one after the other, until there is another notice.
    fn run_in_turn(&mut self, mailboxes: &Mailboxes, notice: Notice) {
        let place = &CARRIERS.places[self.home.0 as usize];
        self.begin_rounds(notice);
        let here = self.home.0 as usize;
        // Where nobody has any work, nobody tells of the order either.
        while mailboxes.notice() == notice && platform().places().at(here) == self.order {
            let next = self.visit_all();
            if next != BUSY {
                let boundary = match is_needed(self.home) {
                    true => EVENTS.halt_for_all(next, place.boundary.load(Ordering::Relaxed)),
                    false => halt_until(next),
                };
                place.boundary.store(boundary, Ordering::Relaxed);
            }
        }
    }

    /// Some passes of each core that it carries, whatever notice there is.
    fn run_round(&mut self, notice: Notice) {
        self.begin_rounds(notice);
        self.visit_all();
    }

    /// Before the first of several rounds.
    fn begin_rounds(&self, notice: Notice) {
        let place = &CARRIERS.places[self.home.0 as usize];
        place.notice.store(notice.to_u64(), Ordering::Relaxed);
        let boundary = if is_needed(self.home) { EVENTS.settle() } else { cycles() };
        place.boundary.store(boundary, Ordering::Relaxed);
    }

    /// Some passes of each core that it carries. Returns when the next are due, in cycles.
    fn visit_all(&mut self) -> u64 {
        let home = u64::from(self.home.0);
        self.carried.iter_mut().flatten().map(|identity| identity.run(visit, home)).min().unwrap_or(u64::MAX)
    }

    /// What it carries has its processor core back, which others had.
    fn resume(&mut self) {
        self.carried.iter_mut().flatten().for_each(|identity| _ = identity.run(resume, 0));
    }

    /// Runs the core of that identity from here on.
    fn take_up(&mut self, mut identity: CoreIdentity) {
        let core = identity.core();
        CARRIERS.members.with(|members| members.carrier[core.0 as usize] = Some(self.home));
        platform().report().cores[core.0 as usize].carrier.store(self.home.0, Ordering::Relaxed);
        self.set = self.set.with(core);
        platform().carry(self.set);
        identity.run(begin, 0);
        self.carried[core.0 as usize] = Some(identity);
    }

    /// Takes up what others have left to it.
    fn accept(&mut self) {
        let offered = CARRIERS.places[self.home.0 as usize].offered.swap(0, Ordering::AcqRel);
        for core in CoreSet::from_bits(offered) {
            // Its own may have been faster.
            if let Some(identity) = CARRIERS.in_transit[core.0 as usize].pop() {
                self.take_up(identity);
            }
        }
        if offered != 0 {
            mailbox::all().tell_of_cores(FIRST);
        }
    }

    /// Gives cores back whose own processor cores are back. Those that it does not carry are asked of another by now.
    fn give_back(&mut self) {
        let wanted = CARRIERS.places[self.home.0 as usize].wanted.swap(0, Ordering::AcqRel);
        for core in CoreSet::from_bits(wanted).without(self.home) {
            if let Some(mut identity) = self.carried[core.0 as usize].take() {
                identity.run(end, 0);
                self.set = self.set.without(core);
                platform().carry(self.set);
                hand_over(core, identity);
            }
        }
    }

    /// Hands on all that it carries. From here on this processor core uses nothing that is kept by core; what is left to
    /// be said is that the order was carried out.
    fn leave(mut self, mailboxes: &Mailboxes) {
        for identity in self.carried.iter_mut().flatten() {
            identity.run(end, 0);
        }
        platform().carry(CoreSet::default());
        let place = &CARRIERS.places[self.home.0 as usize];
        let heir = CARRIERS.members.with(|members| {
            members.present = members.present.without(self.home);
            CARRIERS.present.store(members.present.bits(), Ordering::Release);
            let heir = members.least_burdened();
            // What was on its way here goes there. Who wants some of it back asks there soon.
            let all = CoreSet::from_bits(self.set.bits() | place.offered.swap(0, Ordering::AcqRel));
            place.wanted.store(0, Ordering::Relaxed);
            for core in all {
                members.carrier[core.0 as usize] = Some(heir);
            }
            for core in self.set {
                if let Some(identity) = self.carried[core.0 as usize].take() {
                    hand_over(core, identity);
                }
            }
            CARRIERS.places[heir.0 as usize].offered.fetch_or(all.bits(), Ordering::AcqRel);
            heir
        });
        mailboxes.give_notice();
        mailboxes.wake(heir);
    }

    /// Says that the order was carried out.
    fn acknowledge(&self) {
        let echo = &platform().report().cores[self.home.0 as usize].order;
        echo.store(self.order.to_u32(), Ordering::Release);
        platform().ring_supervisor();
    }
}

impl Members {
    /// Who carries fewest of those that are there.
    fn least_burdened(&self) -> CoreIndex {
        let carried =
            |place: &CoreIndex| self.carrier.iter().flatten().filter(|carrier| *carrier == place).count();
        self.present.min_by_key(carried).unwrap_or(FIRST)
    }
}

impl Carriers {
    /// Gets the identity of a core whose own processor core is back. The calling one spins until the other has finished
    /// its event: it is nobody yet, and cannot do anything else.
    ///
    /// # Errors
    /// How the cell has ended, where it has: nobody gives anything then.
    fn ask_back(&self, core: CoreIndex) -> Result<CoreIdentity, Ending> {
        let mailboxes = mailbox::all();
        loop {
            if let Some(code) = mailboxes.notice().exit_code() {
                return Err(Ending::Exited(code));
            }
            let carrier = self.members.with(|members| members.carrier[core.0 as usize].unwrap_or(FIRST));
            self.places[carrier.0 as usize].wanted.fetch_or(CoreSet::of(core).bits(), Ordering::AcqRel);
            mailboxes.give_notice();
            mailboxes.wake(carrier);
            for _ in 0..LOOKS_A_WISH {
                if let Some(identity) = self.in_transit[core.0 as usize].pop() {
                    // Wishes that nobody has looked at are over: the next who carries the core is to keep it.
                    let others = !CoreSet::of(core).bits();
                    self.places.iter().for_each(|place| _ = place.wanted.fetch_and(others, Ordering::AcqRel));
                    return Ok(identity);
                }
                core::hint::spin_loop();
            }
        }
    }
}

/// Puts an identity where the next who is to run the core takes it.
fn hand_over(core: CoreIndex, identity: CoreIdentity) {
    let refused = CARRIERS.in_transit[core.0 as usize].push(identity);
    debug_assert!(refused.is_ok(), "there is one identity of a core");
}

/// Whether the core has, or had, anything to do: one that had not sleeps, and nothing was made for it.
fn is_needed(core: CoreIndex) -> bool {
    let report = platform().report().cores.get(core.0 as usize);
    let has_run = report.is_some_and(|core| core.phase.load(Ordering::Relaxed) != CorePhase::Asleep as u32);
    has_run || core == FIRST || !mailbox::all().of(core).is_empty()
}

/// Some passes of the calling core's loop, for the processor core of that place. Returns when the next are due, in cycles.
fn visit(place: u64) -> u64 {
    let (mailboxes, place) = (mailbox::all(), &CARRIERS.places[place as usize]);
    let notice = Notice::from_u64(place.notice.load(Ordering::Relaxed));
    if !is_needed(current_core()) {
        let _ = platform().take_interrupts();
        platform().rest();
        return match mailboxes.prepare_halt(current_core(), notice) {
            MayHalt::Yes => u64::MAX,
            MayHalt::No => BUSY,
        };
    }
    let (next, boundary) = EVENTS.visit(mailboxes, notice, place.boundary.load(Ordering::Relaxed));
    place.boundary.store(boundary, Ordering::Relaxed);
    next
}

/// Halts until `next`, in cycles, on the place of a core for which nothing was made. Returns the reading of the cycle
/// counter after it.
fn halt_until(next: u64) -> u64 {
    if next > cycles() {
        platform().arm_timer((next != u64::MAX).then_some(next));
        platform().halt();
    }
    cycles()
}

/// The calling core is run by another processor core than before.
fn begin(_: u64) -> u64 {
    if is_needed(current_core()) {
        EVENTS.begin();
    }
    0
}

/// The calling core's processor core was others' for a while.
fn resume(_: u64) -> u64 {
    if is_needed(current_core()) {
        EVENTS.resume();
    }
    0
}

/// The calling core is run by another processor core from here on.
fn end(_: u64) -> u64 {
    match is_needed(current_core()) {
        true => EVENTS.end(),
        false => platform().rest(),
    }
    0
}
