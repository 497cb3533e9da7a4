//! The bare platform: the machine as the cores of a cell see it.

use crate::AUTHORITY;
use crate::doze;
use crate::{console, grow, heap, network, pending, window};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use isola_abi::core_slots::{CoreSlots, Order};
use isola_abi::descriptor::{Descriptor, DeviceKind, HaltMode, REQUEST_VECTOR, Request};
use isola_abi::id::{ApicId, MAX_CORES};
use isola_abi::ledger::Ledger;
use isola_abi::query::Queries;
use isola_abi::report::{CellPhase, CorePhase, Report};
use isola_ebbs::{current_core, cycles};
use isola_events::doze::Woken;
use isola_machine::apic::local;
use isola_machine::cell::suspended;
use isola_machine::device::DeviceRegisters;
use isola_machine::{cell, cpu, interrupts, power};
use isola_platform::network::NetworkPort;
use isola_platform::{Clock, CoreIndex, CoreSet, OwnTurn, PendingVectors, Platform};
use spin::{Mutex, Once};

/// The platform of the cell.
pub static BARE: Bare = Bare { made: Once::new() };

/// The vector of the core's timer. It has no handler: it ends a halt, and the loop checks its alarms.
const TIMER_VECTOR: u8 = 0xf1;

/// The vector that wakes a core for a message. It has no handler either.
const WAKE_VECTOR: u8 = 0xf2;

/// By vcore: the APIC id of the core that runs it; beyond the range of ids while there is none.
static APIC: [AtomicU64; MAX_CORES] = [const { AtomicU64::new(u64::MAX) }; MAX_CORES];

/// By vcore: all vcores on its core, itself included. Initially each is alone.
static MATES: [AtomicU64; MAX_CORES] = {
    let mut mates = [const { AtomicU64::new(0) }; MAX_CORES];
    let mut core = 0;
    while core < MAX_CORES {
        mates[core] = AtomicU64::new(1 << core);
        core += 1;
    }
    mates
};

/// Bare hardware.
pub struct Bare {
    made: Once<Made>,
}

struct Made {
    descriptor: Descriptor,
    clock: Clock,
    /// Ticks of the local APIC's timer per cycle, as a fraction of 2^32.
    timer_ticks_per_cycle: u64,
    /// The devices that are not in use yet.
    devices: Mutex<Vec<(DeviceKind, DeviceRegisters)>>,
}

/// Initialises the platform from the descriptor, on the first core.
pub(crate) fn start(descriptor: Descriptor, devices: Vec<(DeviceKind, DeviceRegisters)>) {
    let words = descriptor.clock;
    let ratio = (u128::from(words.apic_timer_hz) << 32) / u128::from(words.tsc_hz.max(1));
    let timer_ticks_per_cycle = u64::try_from(ratio).unwrap_or(u64::MAX);
    // The initial cores halt until they are woken, before they have published their APIC ids.
    for (apic, core) in APIC.iter().zip(&descriptor.cores) {
        apic.store(core.apic.0.into(), Ordering::Release);
    }
    BARE.made.call_once(|| Made {
        clock: Clock::new(&words),
        descriptor,
        timer_ticks_per_cycle,
        devices: Mutex::new(devices),
    });
    interrupts::set_interrupt_handler(AUTHORITY, note);
}

/// Notes an interrupt for all vcores of this core, as the right one is unknown here.
#[inline]
fn note(vector: u8) {
    if vector == REQUEST_VECTOR {
        grow::requested();
    }
    let here = current_core();
    let mut mates = CoreSet::from_bits(MATES[here.0 as usize].load(Ordering::Relaxed));
    if suspended::is_unfinished()
        && let Some(place) = suspended::slot_of_this_core()
    {
        // This core may be running a suspended context of another slot, and the interrupt may be for the context below
        // it.
        mates = CoreSet::from_bits(mates.bits() | MATES[place].load(Ordering::Relaxed));
    }
    if mates.is_single() {
        // The common case: this core runs one vcore.
        return pending::of(here).note(vector);
    }
    mates.for_each(|core| pending::of(core).note(vector));
}

/// The outcome of zeroing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cleared {
    /// There is nothing left to zero, or another core does it.
    AllThatIsFree,
    /// An interrupt arrived.
    Some,
}

/// Returns whether this vcore was ever needed. One that was not does nothing at all, so no activity is charged for it.
fn has_joined() -> bool {
    let report = cell::report().cores.get(current_core().0 as usize);
    report.is_some_and(|core| core.phase.load(Ordering::Relaxed) != CorePhase::Asleep as u32)
}

/// Returns whether any vcore of this core has an interrupt that it has not taken. Another one's pass may have opened
/// the interrupt window.
fn has_pending() -> bool {
    let here = current_core();
    let mut mates = CoreSet::from_bits(MATES[here.0 as usize].load(Ordering::Relaxed));
    if mates.is_single() {
        return pending::of(here).has_any();
    }
    mates.any(|core| pending::of(core).has_any())
}

/// Zeroes free pages until an interrupt arrives, on a core that would halt otherwise.
#[cold]
#[inline(never)]
fn clear_pages() -> Cleared {
    while heap::clear_some() {
        interrupts::window();
        if has_pending() {
            return Cleared::Some;
        }
    }
    Cleared::AllThatIsFree
}

/// Halts on behalf of a vcore that has joined, unless an interrupt is pending or arrives while the core zeroes pages.
fn halt_joined(mode: HaltMode) {
    if has_pending() || (heap::has_unclear() && clear_pages() == Cleared::Some) {
        return;
    }
    doze::halt(mode, current_core());
}

/// Reports the cell's phase to the supervisor.
pub(crate) fn say(phase: CellPhase) {
    let report = cell::report();
    report.version.store(isola_abi::VERSION, Ordering::Relaxed);
    report.phase.store(phase as u32, Ordering::Release);
    ring();
}

/// Sends the supervisor, if there is one, an NMI at which it checks whether it hangs, and restarts if it does.
pub(crate) fn rouse() {
    if let Some(target) = BARE.made.get().and_then(|made| made.descriptor.supervisor) {
        local::send_non_maskable(AUTHORITY, target.apic);
    }
}

/// Wakes the cores that got an order, to join or to leave, while the first core initialised the cell. The initial
/// cores, whose only order is to stay, sleep on until there is work for them.
pub(crate) fn call_who_is_wanted() {
    let (places, begun_with) = (cell::core_slots(), BARE.descriptor().cores.len());
    // A core whose order is not seen here sees that the cell is initialised.
    fence(Ordering::SeqCst);
    for place in 1..MAX_CORES {
        let is_wanted = places.at(place).number > u32::from(place < begun_with);
        if let Some(core) = places.core(place).filter(|_| is_wanted) {
            local::send(AUTHORITY, core.apic, WAKE_VECTOR);
        }
    }
}

/// Notifies the supervisor, if there is one and the cell has its descriptor already.
pub(crate) fn ring() {
    if let Some(target) = BARE.made.get().and_then(|made| made.descriptor.supervisor) {
        local::send(AUTHORITY, target.apic, target.vector);
    }
}

/// Ends the machine if the image is standalone.
pub(crate) fn end_machine_if_alone(code: i32) {
    if is_alone() {
        power::exit(AUTHORITY, code as u8)
    }
}

/// Returns whether the image is standalone, or does not have its descriptor yet.
pub(crate) fn is_alone() -> bool {
    BARE.made.get().is_none_or(|made| made.descriptor.supervisor.is_none())
}

impl Bare {
    fn made(&self) -> &Made {
        self.made.get().expect("the first core makes the platform before any event runs")
    }
}

impl Platform for Bare {
    fn descriptor(&self) -> &Descriptor {
        &self.made().descriptor
    }

    fn report(&self) -> &Report {
        cell::report()
    }

    fn ledger(&self) -> Ledger<'_> {
        cell::ledger()
    }

    fn clock(&self) -> &Clock {
        &self.made().clock
    }

    fn take_interrupts(&self) -> PendingVectors {
        let pending = pending::of(current_core());
        if !pending.has_any() {
            interrupts::window();
        }
        window::pass();
        grow::pass();
        pending.take()
    }

    fn rest(&self) {
        heap::relieve();
        heap::publish();
        window::before_halt();
    }

    fn halt(&self) {
        let mode = self.descriptor().halt_mode;
        if has_joined() {
            halt_joined(mode);
        } else if !has_pending() {
            doze::halt(mode, current_core());
        }
    }

    fn rise(&self) {
        window::after_halt();
    }

    fn sleep(&self) -> PendingVectors {
        self.rest();
        halt_joined(self.descriptor().halt_mode);
        self.rise();
        grow::pass();
        pending::of(current_core()).take()
    }

    fn core_slots(&self) -> &CoreSlots {
        cell::core_slots()
    }

    fn carry(&self, cores: CoreSet) {
        let place = current_core().0 as usize;
        if cores.is_empty() {
            suspended::depart(AUTHORITY, place);
        }
        // This core's TLB may hold entries that these vcores flushed while another core ran them.
        window::forget();
        let apic = local::id();
        for core in cores {
            MATES[core.0 as usize].store(cores.bits(), Ordering::Relaxed);
            APIC[core.0 as usize].store(apic.0.into(), Ordering::Release);
            doze::rise(core);
        }
    }

    fn leave(&self, order: Order) {
        let (place, echo) = (current_core().0 as usize, order.left());
        // Does not return if another core is finishing this slot's suspended context: that core reports the order and
        // resumes its own context.
        suspended::end(AUTHORITY, place, echo);
        if let Some(core) = cell::report().cores.get(place) {
            core.order.store(echo.to_u32(), Ordering::Release);
        }
        ring();
        power::stop()
    }

    fn resume_suspended(&self) -> OwnTurn {
        if !suspended::resume_suspended(AUTHORITY, current_core().0 as usize) {
            return OwnTurn::Undisturbed;
        }
        // A context that ended here has reported that.
        ring();
        if suspended::is_unfinished() { OwnTurn::Brief } else { OwnTurn::Last }
    }

    fn arm_timer(&self, deadline: Option<u64>) {
        let Some(deadline) = deadline else { return local::disarm_timer(AUTHORITY) };
        let delay = u128::from(deadline.saturating_sub(cycles()));
        let ticks = (delay * u128::from(self.made().timer_ticks_per_cycle)) >> 32;
        local::arm_timer(AUTHORITY, TIMER_VECTOR, u64::try_from(ticks).unwrap_or(u64::MAX).max(1));
    }

    fn wake(&self, core: CoreIndex) {
        if doze::wake(core) == Woken::No {
            self.interrupt(core, WAKE_VECTOR);
        }
    }

    fn interrupt(&self, core: CoreIndex, vector: u8) {
        let apic = APIC.get(core.0 as usize).map(|apic| u32::try_from(apic.load(Ordering::Acquire)));
        if let Some(Ok(apic)) = apic {
            local::send(AUTHORITY, ApicId(apic), vector);
        }
    }

    fn print(&self, text: &[u8]) {
        console::print(text);
    }

    fn ring_supervisor(&self) {
        ring();
    }

    fn request(&self) -> Request {
        cell::request()
    }

    fn queries(&self) -> &Queries {
        cell::queries()
    }

    fn open_network(&self) -> Vec<NetworkPort> {
        let made = self.made();
        network::open(&made.descriptor, core::mem::take(&mut *made.devices.lock()))
    }

    fn memory_free(&self) -> usize {
        heap::free_bytes()
    }

    fn entropy(&self) -> u64 {
        // Without RDRAND, the cycle counter is the only source: it distinguishes two runs, and an attacker who knows
        // the time can guess it. `isola::entropy` and docs/isolation.md say so.
        cpu::random().unwrap_or_else(|| cycles().wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}
