//! Profiles: samples of what each core executes, for the host tool (docs/decisions/0131-profiles-by-nmi.md).
//!
//! The platform stores a sample of each core's call stack at the supervisor's non-maskable interrupts, in a ring per core
//! slot. Here the samples are copied into the ring of answers: each core has a task that copies its own ring, and those
//! that no core has copied for some time, as their cores are in long events or have left. Without a profile there is no cost.
//!
//! If the reader has read nothing for [`STALL_LIMIT`], the profile ends. The interrupts end earlier: the supervisor sends
//! them only for as long as the host tool renews its request.

use crate::event::spawn_on;
use crate::event_loop::EVENTS;
use crate::task::spawn_task_for;
use crate::timer::{now, sleep};
use crate::vcore_runner::present_cores;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use isola_abi::id::{ActivityId, MAX_CORES};
use isola_abi::ledger::Generation;
use isola_abi::query::{
    Line, ProfileRecord, ProfileSpec, Ring, SampleAccount, SampleBatch, StackSample, TraceActivity,
};
use isola_activities::{INFRASTRUCTURE, generation, name_of};
use isola_ebbs::{CellEbb, Representative, current_core, platform};
use isola_platform::{CoreIndex, CoreSet, Instant, SampleCounts, Sampler};
use spin::Mutex;

/// The longest time for which a sample stays in its core's ring, unless all cores are in long events.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);

/// The time without a read after which a profile ends.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// The time without a record after which the profile writes [`ProfileRecord::Alive`].
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// The maximum number of samples of a record, which bounds its length to some KiB.
const SAMPLES_A_RECORD: usize = 64;

/// The maximum number of records that a core writes at a time for a ring, which bounds the delay of its events.
const RECORDS_A_DRAIN: usize = 8;

/// The time without a copy after which other cores copy a ring, and how many such rings a core copies at a time.
const LATE_INTERVAL: Duration = Duration::from_millis(150);
const OTHERS_A_DRAIN: usize = 8;

/// The maximum number of remembered activity names; beyond that, all are sent again.
const MAX_NAMES: usize = 4096;

static PROFILE: CellEbb<SharedProfile> = CellEbb::new();

/// The state of the profile that all cores share. The holder of the lock may write records, and reads the samples.
struct SharedProfile {
    current: Mutex<Option<CurrentProfile>>,
}

impl Representative for SharedProfile {
    fn create() -> Self {
        Self { current: Mutex::new(None) }
    }
}

/// A running profile.
struct CurrentProfile {
    /// The number of its query.
    number: u32,
    sampler: &'static dyn Sampler,
    cores: CoreSet,
    /// By core slot: the counters at the profile's start, and those that were sent last.
    counted: [(SampleCounts, SampleCounts); MAX_CORES],
    /// By core slot: the time of the last copy.
    copied: [Instant; MAX_CORES],
    /// The activities whose names the reader knows, and their generations.
    named: BTreeMap<ActivityId, Generation>,
    /// The reader's position, and the time since which it has not changed.
    read: (u64, Instant),
    /// The time of the last record.
    written: Instant,
}

/// Whether a profile continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProfileState {
    Continues,
    Ended,
}

/// Returns the account of the code that an interrupt found on this core, in the middle of any instruction. `runner` is
/// the core slot whose context this core runs. Safe to call in any context: it only reads memory that exists since the
/// vcore's first pass.
pub fn interrupted_account(runner: usize) -> SampleAccount {
    let cores = &platform().report().cores;
    let runs = cores.get(current_core().0 as usize).is_some_and(|core| {
        // A core that has passed on its vcore does nothing for the cell.
        core.passes.load(Ordering::Relaxed) != 0
            && core.vcore_runner.load(Ordering::Relaxed) as usize == runner
    });
    if runs { EVENTS.accounting.account() } else { SampleAccount::Idle }
}

/// Begins a profile, for the query `number` on [`Line::Frames`], whose ring the caller has begun. It replaces the profile
/// before.
pub fn begin(number: u32, spec: ProfileSpec) {
    let ring = answers();
    let Some(sampler) = platform().sampler() else {
        let _ = ring.push(&ProfileRecord::Unsupported.encode());
        return;
    };
    let present = present_cores();
    let mut cores = CoreSet::from_bits(present.bits() & spec.cores);
    let mut current = PROFILE.current.lock();
    // The ring is empty.
    let _ = ring.push(&ProfileRecord::Begin { cores: cores.bits() }.encode());
    let mut counted = [Default::default(); MAX_CORES];
    for core in cores {
        if sampler.start(core).is_err() {
            let _ = ring.push(&ProfileRecord::NoMemory { core: core.0 }.encode());
            cores = cores.without(core);
        }
        let counts = sampler.counts(core);
        counted[core.0 as usize] = (counts, counts);
    }
    let now = now();
    let (named, read) = (BTreeMap::new(), (ring.read(), now));
    let copied = [now; MAX_CORES];
    *current = Some(CurrentProfile { number, sampler, cores, counted, copied, named, read, written: now });
    drop(current);
    for core in present {
        spawn_on(core, move || {
            let copies = async move {
                while drain(number) == ProfileState::Continues {
                    sleep(DRAIN_INTERVAL).await;
                }
            };
            spawn_task_for(INFRASTRUCTURE, copies).detach();
        });
    }
}

/// Ends the profile, if there is one: afterwards no core writes records or stores samples.
pub fn end() {
    if let Some(ended) = PROFILE.current.lock().take() {
        ended.sampler.stop();
    }
}

fn answers() -> Ring<'static> {
    platform().report().answers.on(Line::Frames)
}

/// Copies samples of this core, and of others whose rings are filling, into the answer.
fn drain(number: u32) -> ProfileState {
    // Another core copies samples now.
    let Some(mut current) = PROFILE.current.try_lock() else { return ProfileState::Continues };
    let Some(profile) = current.as_mut().filter(|profile| profile.number == number) else {
        return ProfileState::Ended;
    };
    let (ring, now) = (answers(), now());
    let position = ring.read();
    if profile.read.0 != position {
        profile.read = (position, now);
    } else if now.since(profile.read.1) > STALL_LIMIT {
        // A reader that returns later sees that its query is not answered any more.
        ring.begin(0);
        profile.sampler.stop();
        *current = None;
        return ProfileState::Ended;
    }
    let own = current_core();
    for core in profile.late_others(own, now).into_iter().chain(profile.cores.contains(own).then_some(own)) {
        profile.drain_core(core, ring, now);
    }
    if now.since(profile.written) >= ALIVE_INTERVAL && ring.push(&ProfileRecord::Alive.encode()).is_ok() {
        profile.written = now;
    }
    ProfileState::Continues
}

impl CurrentProfile {
    /// Returns the other cores whose rings have waited longest, if that is too long.
    fn late_others(&self, own: CoreIndex, now: Instant) -> Vec<CoreIndex> {
        let copied = |core: &CoreIndex| self.copied[core.0 as usize];
        let is_late = |core: &CoreIndex| now.since(copied(core)) >= LATE_INTERVAL;
        let mut others: Vec<CoreIndex> = self.cores.without(own).filter(is_late).collect();
        others.sort_unstable_by_key(copied);
        others.truncate(OTHERS_A_DRAIN);
        others
    }

    /// Copies samples of a core, a bounded number at a time. Samples without room in the answer stay in the core's ring.
    fn drain_core(&mut self, core: CoreIndex, ring: Ring<'_>, now: Instant) {
        self.copied[core.0 as usize] = now;
        for _ in 0..RECORDS_A_DRAIN {
            let (samples, position) = self.sampler.first(core, SAMPLES_A_RECORD);
            let counts = self.sampler.counts(core);
            let (started, sent) = self.counted[core.0 as usize];
            if samples.is_empty() && counts == sent {
                return;
            }
            if self.named.len() > MAX_NAMES {
                self.named.clear();
            }
            let mut batch = SampleBatch::new(core.0);
            batch.idle = counts.idle.wrapping_sub(started.idle);
            batch.lost = counts.lost.wrapping_sub(started.lost);
            let named = self.add(&mut batch, &samples);
            let record = ProfileRecord::Samples(batch).encode();
            if ring.room() < (record.len() + 2 * size_of::<u64>()) as u64 || ring.push(&record).is_err() {
                return;
            }
            self.sampler.release(core, position);
            self.counted[core.0 as usize].1 = counts;
            self.named.extend(named);
            self.written = now;
            if samples.len() < SAMPLES_A_RECORD {
                return;
            }
        }
    }

    /// Adds samples to a batch, with the names of activities that the reader does not know, or that have ended since.
    /// Returns these activities.
    fn add(&self, batch: &mut SampleBatch, samples: &[StackSample]) -> BTreeMap<ActivityId, Generation> {
        let mut new = BTreeMap::new();
        for sample in samples {
            if let SampleAccount::Activity(activity) = sample.account {
                let current = generation(activity);
                if new.get(&activity).or_else(|| self.named.get(&activity)) != Some(&current) {
                    new.insert(activity, current);
                    batch.activities.push(TraceActivity { activity: activity.0, name: name_of(activity) });
                }
            }
            batch.push(sample);
        }
        new
    }
}
