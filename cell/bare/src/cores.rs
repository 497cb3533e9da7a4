//! The cores of the cell: the vcores that each runs, and the interrupts to them.

use crate::state::{AUTHORITY, descriptor};
use crate::{doze, page_tables, pending};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use isola_abi::id::{ApicId, MAX_CORES};
use isola_ebbs::current_core;
use isola_events::doze::WasDozing;
use isola_machine::apic::local;
use isola_machine::cell;
use isola_machine::cell::suspended;
use isola_platform::{CoreIndex, CoreSet};

/// The vector that wakes a core for a message. It has no handler: it ends a halt.
const WAKE_VECTOR: u8 = 0xf2;

/// By vcore: the APIC id of the core that runs it; beyond the range of ids while there is none.
static APIC: [AtomicU64; MAX_CORES] = [const { AtomicU64::new(u64::MAX) }; MAX_CORES];

/// By vcore: all vcores on its core, itself included. Initially each is alone.
static VCORES_OF_CORE: [AtomicU64; MAX_CORES] = {
    let mut vcores = [const { AtomicU64::new(0) }; MAX_CORES];
    let mut core = 0;
    while core < MAX_CORES {
        vcores[core] = AtomicU64::new(1 << core);
        core += 1;
    }
    vcores
};

/// Records the initial cores, on the first core: they halt until they are woken, before they have published their APIC
/// ids.
pub(crate) fn start() {
    for (apic, core) in APIC.iter().zip(&descriptor().cores) {
        apic.store(core.apic.0.into(), Ordering::Release);
    }
}

/// Returns the vcores that the calling core runs.
#[inline]
fn vcores_here() -> CoreSet {
    CoreSet::from_bits(VCORES_OF_CORE[current_core().0 as usize].load(Ordering::Relaxed))
}

/// See [`Platform::run_vcores`](isola_platform::Platform::run_vcores).
pub(crate) fn run_vcores(cores: CoreSet) {
    let slot = current_core().0 as usize;
    if cores.is_empty() {
        suspended::depart(AUTHORITY, slot);
    }
    // This core's TLB may hold entries that these vcores flushed while another core ran them.
    page_tables::flush_tlb();
    let apic = local::id();
    for core in cores {
        VCORES_OF_CORE[core.0 as usize].store(cores.bits(), Ordering::Relaxed);
        APIC[core.0 as usize].store(apic.0.into(), Ordering::Release);
        doze::mark_awake(core);
    }
}

/// Notes an interrupt for all vcores of this core, as the right one is unknown here.
#[inline]
pub(crate) fn note_interrupt(vector: u8) {
    let mut vcores = vcores_here();
    if suspended::is_unfinished()
        && let Some(slot) = suspended::slot_of_this_core()
    {
        // This core may be running a suspended context of another slot, and the interrupt may be for the context below
        // it.
        vcores = CoreSet::from_bits(vcores.bits() | VCORES_OF_CORE[slot].load(Ordering::Relaxed));
    }
    if vcores.is_single() {
        // The common case: this core runs one vcore.
        return pending::of(current_core()).note(vector);
    }
    vcores.for_each(|core| pending::of(core).note(vector));
}

/// Returns whether any vcore of this core has an interrupt that it has not taken. Another one's pass may have opened
/// the interrupt window.
pub(crate) fn has_pending() -> bool {
    let mut vcores = vcores_here();
    if vcores.is_single() {
        return pending::of(current_core()).has_any();
    }
    vcores.any(|core| pending::of(core).has_any())
}

/// Wakes a vcore's core, so that it returns from its halt.
pub(crate) fn wake(core: CoreIndex) {
    if doze::wake(core) == WasDozing::No {
        interrupt(core, WAKE_VECTOR);
    }
}

/// Sends an interrupt with `vector` to a vcore's core.
pub(crate) fn interrupt(core: CoreIndex, vector: u8) {
    let apic = APIC.get(core.0 as usize).map(|apic| u32::try_from(apic.load(Ordering::Acquire)));
    if let Some(Ok(apic)) = apic {
        local::send(AUTHORITY, ApicId(apic), vector);
    }
}

/// Wakes the cores that got an order, to join or to leave, while the first core initialised the cell. The initial
/// cores, whose only order is to stay, sleep on until there is work for them.
pub(crate) fn wake_ordered() {
    let (slots, initial) = (cell::core_slots(), descriptor().cores.len());
    // A core whose order is not seen here sees that the cell is initialised.
    fence(Ordering::SeqCst);
    for slot in 1..MAX_CORES {
        let is_ordered = slots.at(slot).number > u32::from(slot < initial);
        if let Some(core) = slots.core(slot).filter(|_| is_ordered) {
            local::send(AUTHORITY, core.apic, WAKE_VECTOR);
        }
    }
}
