//! The cell, as the personality sees it.

use core::sync::atomic::{AtomicU64, Ordering};
use isola::ebbs::{CoreIndex, current_core, cycles};
use isola::events::activity::{self, APPLICATION};
use isola::events::{self, Event, Placement, spawn_task, spawn_task_for};
use isola::grid::{DISK, Entitlement, PROCESSOR, PolicyKind, Rate, Weight};
use isola::prelude::*;
use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;
use isola_ebbs::platform;
use isola_linux_files::ConsoleOutput;
use isola_linux_memory::BoxFuture;
use isola_linux_processes::{
    Activities, CoreTime, Environment, Errno, Share, SharedResource, TaskMaker, TaskPlacement,
};
use isola_linux_vdso::ClockPage;

/// The cell.
pub struct CellEnvironment;

impl Environment for CellEnvironment {
    fn monotonic_ns(&self) -> u64 {
        events::now().as_ns()
    }

    fn unix_ns(&self) -> u64 {
        isola::unix_time().as_nanos() as u64
    }

    fn cycles(&self) -> (u64, u64) {
        (cycles(), platform().descriptor().clock.tsc_hz)
    }

    fn clock_page(&self) -> ClockPage {
        let (zero_cycles, ns_per_cycle, unix_ns_at_zero) = platform().clock().parameters();
        ClockPage { sequence: 0, is_usable: 1, zero_cycles, ns_per_cycle, unix_ns_at_zero }
    }

    fn sleep_until(&self, monotonic_ns: u64) -> BoxFuture<'static, ()> {
        Box::pin(events::sleep_until(events::Instant::from_ns(monotonic_ns)))
    }

    fn spawn(&self, task: TaskMaker, placement: TaskPlacement) {
        let here = current_core();
        let core = placement.core.map_or(here, |core| CoreIndex(core as u32));
        let activity = placement.activity.unwrap_or(APPLICATION);
        if core == here {
            spawn_task_for(activity, task()).detach();
        } else {
            let event = Event::new().at(Placement::Core(core)).charged_to(activity);
            event.spawn(move || spawn_task(task()).detach());
        }
    }

    fn random(&self) -> u64 {
        isola::entropy()
    }

    fn core_count(&self) -> usize {
        isola::core_count()
    }

    fn current_core(&self) -> usize {
        current_core().0 as usize
    }

    fn cores(&self) -> u64 {
        events::present_cores().bits()
    }

    fn halted_cores(&self) -> u64 {
        events::halted_cores().bits()
    }

    fn has_competition(&self) -> bool {
        events::processor::has_competition()
    }

    fn has_policy(&self) -> bool {
        events::processor::has_policy()
    }

    fn core_times(&self) -> Vec<CoreTime> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let hz = u128::from(platform().descriptor().clock.tsc_hz.max(1));
        let ns = |cycles: u64| (u128::from(cycles) * 1_000_000_000 / hz) as u64;
        let time = |core: CoreIndex| {
            let index = core.0 as usize;
            let report = &platform().report().cores[index];
            let used: u64 = platform().ledger().core(index).iter().map(|used| read(&used.cycles)).sum();
            CoreTime {
                core: index,
                busy_ns: ns(used + read(&report.loop_cycles)),
                interrupt_ns: ns(read(&report.interrupt_cycles)),
                idle_ns: ns(read(&report.idle_cycles)),
                interrupts: read(&report.interrupts),
            }
        };
        events::present_cores().map(time).collect()
    }

    fn activities(&self) -> &dyn Activities {
        &CellActivities
    }

    fn memory(&self) -> (u64, u64) {
        (isola::memory_total() as u64, isola::memory_free() as u64)
    }

    fn cached_memory(&self) -> u64 {
        crate::memory::clean_bytes()
    }

    fn host_name(&self) -> String {
        platform().descriptor().name.clone()
    }

    fn report(&self, line: &str) {
        println!("{line}");
    }
}

/// The activities of the cell: all processes are below that of the application.
struct CellActivities;

impl Activities for CellActivities {
    fn register(&self, parent: Option<ActivityId>, name: &str) -> Option<ActivityId> {
        activity::register_activity_under(parent.unwrap_or(APPLICATION), name).ok()
    }

    fn rename(&self, activity: ActivityId, name: &str) {
        activity::rename_activity(activity, name);
    }

    fn end(&self, activity: ActivityId, parent: Option<ActivityId>) {
        if activity::current_activity() == activity {
            activity::charge_to(parent.unwrap_or(APPLICATION));
        }
        activity::end_activity(activity);
    }

    fn charge_to(&self, activity: Option<ActivityId>) {
        activity::charge_to(activity.unwrap_or(APPLICATION));
    }

    fn cycles(&self, activity: ActivityId) -> u64 {
        activity::activity_usage(activity).cycles
    }

    fn traffic(&self, activity: Option<ActivityId>) -> ActivityTraffic {
        activity::activity_usage(activity.unwrap_or(APPLICATION)).traffic
    }

    fn set_share(&self, activity: ActivityId, resource: SharedResource, share: Share) {
        let resource = match resource {
            SharedResource::Processor => PROCESSOR,
            SharedResource::Disk => DISK,
        };
        let entitlement = Entitlement {
            weight: Weight::new(share.weight).unwrap_or_default(),
            limit: share.bytes_per_second.and_then(|rate| Rate::per_second(rate.min(Rate::MAX)).ok()),
            ..Entitlement::default()
        };
        // Without a scheduler, shares and limits have no effect. A policy of the operator stays, unless a limit needs
        // another one.
        let wanted = match (resource.summary().policy, entitlement.limit) {
            (None, None) => Some(PolicyKind::Wfq),
            (None | Some(PolicyKind::Wfq), Some(_)) => Some(PolicyKind::Reserve),
            (Some(_), _) => None,
        };
        // The activity may have ended meanwhile, and then needs no share.
        if resource.set_entitlement(activity, entitlement).is_ok() && wanted.is_some() {
            resource.set_policy(wanted);
        }
    }
}

/// The cell's console.
pub struct CellOutput;

impl ConsoleOutput for CellOutput {
    fn write(&self, bytes: &[u8]) {
        platform().print(bytes);
    }
}

/// Returns the error that counts among those of a program's possible paths: that of a file which exists.
pub fn start_errors(former: Option<Errno>, error: Errno) -> Option<Errno> {
    if matches!(error, Errno::ENOENT | Errno::ENOTDIR) { former } else { Some(error) }
}
