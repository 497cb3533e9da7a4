//! Reclaim: which activity has to give memory up, and how much.
//!
//! ```text
//!   little free memory ──┐
//!   hard budget exceeded ├──> the memory scheduler ──> the holder of the activity that is furthest above its part:
//!   supervisor's request ┘    chooses an activity      frees some, a bounded amount per event
//! ```
//!
//! A [holder](MemoryHolder) has memory that the cell could do without: a cache, the items of a key-value server. The
//! memory scheduler is a task, of which at most one exists in a cell. It runs while memory is demanded and the holders
//! have some, and chooses by the rule of [`choice`]. A reason for it is a [`MemoryDemand`] of the platform, the pressure
//! level, or an activity above its hard budget. The first and the last are announced by [`RECLAIM_FLAG`] beside the
//! level, so that a pass of the loop checks everything by one load.
//!
//! Code that can wait for memory [reserves](reserve) it.
//!
//! Freed objects are scattered. If the platform needs whole chunks, it demands that the holders vacate memory.

mod choice;
mod grants;
mod holders;
mod over_budget;
mod reservation;
mod single_task;

pub use holders::{
    HolderRegistration, MemoryHolder, ReclaimCause, VacateHandler, on_vacate, register_memory_holder,
};
pub use isola_platform::VacatedMemory;
pub use over_budget::is_over_budget;
pub use reservation::{Reservation, ReserveError, reserve, waiting_requests_of};

use self::choice::{Share, Victim, next_victim, over_hard_budget};
use self::holders::HOLDERS;
use self::over_budget::OverBudget;
use self::single_task::{MayEnd, MustSpawn, SingleTask};
use crate::elsewhere::elsewhere;
use crate::event_loop::EVENTS;
use crate::task::{spawn_task_for, yield_now};
use crate::timer::now;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_abi::report::{MemoryPressure, OVER_BUDGET, PRESSURE_LEVEL, RECLAIM as RECLAIM_FLAG};
use isola_activities::{INFRASTRUCTURE, counted_by, generation};
use isola_ebbs::{CellEbb, Representative, current_core, platform};
use isola_platform::{CoreIndex, Instant, MemoryDemand};
use isola_resources::MEMORY;
use spin::{Mutex, Once};

static RECLAIM: CellEbb<Reclaim> = CellEbb::new();

/// The most that an activity loses in one event, in bytes.
const SLICE: u64 = 256 << 10;

/// The time after a shortage's reclaim during which the shortage causes no other. What was freed may be in pieces that
/// only objects of the same size can use, and would otherwise not end before all caches are empty.
const SHORTAGE_INTERVAL: Duration = Duration::from_millis(100);

/// The state of the cell's memory scheduler.
#[derive(Default)]
struct Reclaim {
    task: SingleTask,
    /// The cores with holders, as bits.
    cores: AtomicU64,
    /// The cores with holders or handlers that vacate memory.
    vacating_cores: AtomicU64,
    /// When a shortage may next cause reclaim, in nanoseconds.
    next_for_shortage: AtomicU64,
    /// The activities that have more than they may.
    over_budget: OverBudget,
    /// The limits that the heap watches.
    limits: Once<&'static [AtomicU64]>,
    /// The bytes that each activity has lost.
    lost: Mutex<BTreeMap<ActivityId, (Generation, u64)>>,
}

impl Representative for Reclaim {
    fn create() -> Self {
        Self::default()
    }
}

impl Reclaim {
    fn add_core(&self, core: CoreIndex) {
        self.cores.fetch_or(1 << core.0, Ordering::Relaxed);
        self.add_vacating_core(core);
    }

    fn add_vacating_core(&self, core: CoreIndex) {
        self.vacating_cores.fetch_or(1 << core.0, Ordering::Relaxed);
    }

    fn cores(&self) -> impl Iterator<Item = CoreIndex> + use<> {
        each_core(&self.cores)
    }

    fn note_lost(&self, activity: ActivityId, len_bytes: u64) {
        let generation = generation(activity);
        let mut lost = self.lost.lock();
        let entry = lost.entry(activity).or_insert((generation, 0));
        let before = if entry.0 == generation { entry.1 } else { 0 };
        *entry = (generation, before + len_bytes);
    }
}

/// Returns the cores whose bits are set.
fn each_core(cores: &AtomicU64) -> impl Iterator<Item = CoreIndex> + use<> {
    let cores = cores.load(Ordering::Relaxed);
    (0..u64::BITS).filter(move |core| cores >> core & 1 == 1).map(CoreIndex)
}

/// Returns the bytes that an activity has lost to others, or to its own hard budget.
pub fn lost_bytes(activity: ActivityId) -> u64 {
    let lost = RECLAIM.lost.lock();
    lost.get(&activity).filter(|(of, _)| *of == generation(activity)).map_or(0, |(_, bytes)| *bytes)
}

/// Returns whether the platform wants memory back at the moment.
pub fn is_memory_demanded() -> bool {
    platform().memory_demand() != MemoryDemand::None
}

/// Charges heap memory of `len_bytes` bytes to the activity `to` in place of `from`: if an event frees memory that was
/// allocated for `from`, the heap takes it from the activity for which the event works, `to`. Activities below others count
/// for those with slots in the ledger.
pub fn move_memory_charge(from: ActivityId, to: ActivityId, len_bytes: usize) {
    platform().move_memory_charge(counted_by(from), counted_by(to), len_bytes);
}

/// Returns the memory of an activity in bytes, as the ledger counts it.
pub fn used_bytes(activity: ActivityId) -> u64 {
    let ledger = platform().ledger();
    let Some(record) = ledger.records().get(activity.index()) else { return 0 };
    // Negative if it has freed memory of others.
    let own = slot_bytes(activity).wrapping_sub(record.before.memory_bytes.load(Ordering::Relaxed)) as i64;
    own.max(0) as u64
}

/// Returns the memory that the ledger counts for a slot, also of earlier activities of the slot.
fn counted_bytes(activity: ActivityId) -> u64 {
    (slot_bytes(activity) as i64).max(0) as u64
}

fn slot_bytes(activity: ActivityId) -> u64 {
    let ledger = platform().ledger();
    let of_cores = ledger.counters().iter().skip(activity.index()).step_by(ledger.records().len().max(1));
    of_cores.fold(0, |sum, core| sum.wrapping_add(core.memory_bytes.load(Ordering::Relaxed)))
}

/// Makes the memory scheduler look whether memory is to be freed. To be called in a pass of the loop, if the flag is set
/// or memory is short.
#[cold]
pub(crate) fn look(word: u32) {
    if word & OVER_BUDGET != 0 {
        RECLAIM.over_budget.relax();
    }
    if word & RECLAIM_FLAG == 0 {
        if word & PRESSURE_LEVEL == MemoryPressure::None as u32 {
            return;
        }
        let next = RECLAIM.next_for_shortage.load(Ordering::Relaxed);
        if now() < Instant::from_ns(next) || RECLAIM.cores.load(Ordering::Relaxed) == 0 {
            return;
        }
    } else {
        // Cleared before the demand is read: a later one sets it again.
        platform().report().memory.pressure.fetch_and(!RECLAIM_FLAG, Ordering::SeqCst);
    }
    if RECLAIM.task.call() == MustSpawn::Yes {
        spawn_task_for(INFRASTRUCTURE, run()).detach();
    }
}

/// The memory scheduler.
async fn run() {
    loop {
        RECLAIM.task.begin();
        reclaim().await;
        watch();
        if RECLAIM.task.end() == MayEnd::Yes {
            return;
        }
        yield_now().await;
    }
}

/// Follows the budgets of activities. To be called on the first core, before its loop.
pub(crate) fn start() {
    MEMORY.on_change(demand);
}

fn demand() {
    platform().report().memory.pressure.fetch_or(RECLAIM_FLAG, Ordering::SeqCst);
}

/// Sets the limits beyond which the heap demands a look at an activity: the hard budget, or if the activity has more
/// already and keeps it, a sixteenth of the budget more than it has.
fn watch() {
    if !MEMORY.has_hard_budgets() && RECLAIM.limits.get().is_none() {
        return;
    }
    let slots = platform().ledger().records().len();
    let limits = RECLAIM.limits.call_once(|| {
        let limits: &'static [AtomicU64] = Vec::leak((0..slots).map(|_| AtomicU64::new(u64::MAX)).collect());
        platform().watch_memory(limits);
        limits
    });
    for (slot, limit) in limits.iter().enumerate() {
        let activity = ActivityId(slot as u32);
        // A slot without an activity causes a look when it has one.
        let is_in_use = generation(activity).is_in_use();
        let hard = if is_in_use { MEMORY.entitlement(activity).memory.hard } else { Some(0) };
        let most = match hard {
            Some(hard) if is_in_use && used_bytes(activity) > hard => {
                counted_bytes(activity).saturating_add((hard / 16).max(SLICE))
            }
            // The heap counts the memory of the slot's earlier activities, too.
            Some(hard) => counted_bytes(activity).saturating_sub(used_bytes(activity)).saturating_add(hard),
            None => u64::MAX,
        };
        limit.store(most, Ordering::Relaxed);
    }
    RECLAIM.over_budget.update();
}

/// Frees memory until none is demanded, or no holder frees more.
async fn reclaim() {
    let mut shortage = Shortage::now();
    loop {
        let demand = platform().memory_demand();
        if let MemoryDemand::Vacate(memory) = &demand {
            vacate(memory, &demand).await;
            platform().end_memory_demand(&demand);
            continue;
        }
        let shares = shares(ReclaimCause::Budget).await;
        let mut freed = match over_hard_budget(&shares) {
            Some(victim) => free(ReclaimCause::Budget, victim, victim.most).await,
            None => 0,
        };
        if freed == 0
            && let MemoryDemand::Free(wanted) = demand
        {
            freed = free_for(ReclaimCause::Supervisor, wanted as u64).await;
            if freed == 0 {
                platform().end_memory_demand(&demand);
                continue;
            }
        }
        if freed == 0 && shortage.left_bytes > 0 {
            freed = free_for(ReclaimCause::Shortage(shortage.level), shortage.left_bytes).await;
            shortage.left_bytes = shortage.left_bytes.saturating_sub(freed);
        }
        if freed == 0 {
            return;
        }
        yield_now().await;
    }
}

/// The memory to free for the pressure level.
struct Shortage {
    level: MemoryPressure,
    left_bytes: u64,
}

impl Shortage {
    /// Returns the bytes that are missing at the moment before the level *low* ends.
    fn now() -> Self {
        let level = crate::memory_pressure();
        let mut shortage = Self { level, left_bytes: 0 };
        if level == MemoryPressure::None {
            return shortage;
        }
        let total = total_bytes();
        let wanted = total / 16 + total / 64 + total / 128;
        shortage.left_bytes = wanted.saturating_sub(platform().memory_free() as u64);
        let next = now() + SHORTAGE_INTERVAL;
        RECLAIM.next_for_shortage.store(next.as_ns(), Ordering::Relaxed);
        shortage
    }
}

/// Frees some memory of the activity that is furthest above its part. Returns the number of bytes: 0 if none has any.
async fn free_for(cause: ReclaimCause, wanted: u64) -> u64 {
    let mut shares = shares(cause).await;
    while let Some(victim) = next_victim(&shares, total_bytes().saturating_sub(wanted)) {
        let freed = free(cause, victim, wanted).await;
        if freed > 0 {
            return freed;
        }
        // It has said that it has some, and frees none.
        shares.iter_mut().filter(|share| share.activity == victim.activity).for_each(|share| {
            share.reclaimable = 0;
        });
    }
    0
}

/// Frees up to `wanted` bytes of an activity, and at most a slice. Returns the number of bytes.
async fn free(cause: ReclaimCause, victim: Victim, wanted: u64) -> u64 {
    let Victim { activity, most } = victim;
    let len_bytes = wanted.min(most).min(SLICE) as usize;
    let mut freed = 0;
    for core in RECLAIM.cores() {
        let left = len_bytes - len_bytes.min(freed);
        if left > 0 {
            freed += on(core, move || {
                let before = EVENTS.current_tag().activity;
                EVENTS.retag(activity);
                let freed = HOLDERS.free(cause, activity, left);
                EVENTS.retag(before);
                freed
            })
            .await;
        }
    }
    if freed > 0 {
        RECLAIM.note_lost(activity, freed as u64);
    }
    freed as u64
}

/// Returns the activities that hold memory.
async fn shares(cause: ReclaimCause) -> Vec<Share> {
    let mut held: BTreeMap<ActivityId, u64> = BTreeMap::new();
    for core in RECLAIM.cores() {
        for (activity, len_bytes) in on(core, move || HOLDERS.held(cause)).await {
            *held.entry(activity).or_default() += len_bytes as u64;
        }
    }
    let share = |(activity, reclaimable)| Share {
        activity,
        used: used_bytes(activity).max(reclaimable),
        reclaimable,
        budget: MEMORY.entitlement(activity).memory,
    };
    held.into_iter().map(share).collect()
}

/// Makes all holders and handlers vacate some memory, until the platform ends the demand.
async fn vacate(memory: &VacatedMemory, demand: &MemoryDemand) {
    for core in each_core(&RECLAIM.vacating_cores) {
        let mut next = Some((0, 0));
        while let Some(position) = next
            && platform().memory_demand() == *demand
        {
            let memory = memory.clone();
            next = on(core, move || {
                // No object in this memory is in the cache from which copies are allocated, and those that are
                // freed do not stay there.
                platform().empty_cache();
                let next = HOLDERS.vacate(&memory, position);
                platform().empty_cache();
                next
            })
            .await;
            yield_now().await;
        }
    }
}

/// Runs `call` on a core.
async fn on<T: Send + 'static>(core: CoreIndex, call: impl FnOnce() -> T + Send + 'static) -> T {
    if core == current_core() {
        return call();
    }
    elsewhere(core, move || async move { call() }).await
}

/// Returns the cell's memory, with the part that it does not have yet.
fn total_bytes() -> u64 {
    let memory = &platform().report().memory;
    memory.total_bytes.load(Ordering::Relaxed).saturating_add(memory.room_bytes.load(Ordering::Relaxed))
}
