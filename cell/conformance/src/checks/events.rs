//! Events: their order, their cores and their activities.

use crate::support::until_set;
use crate::{BrokenGuarantee, Outcome, cores, on_core, others};
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_ebbs::{current_core, cycles, platform};
use isola_events::activity::{APPLICATION, INFRASTRUCTURE, charge_to};
use isola_events::affinity;
use isola_events::event::{Event, Label, Placement};
use isola_events::{
    current_activity, end_activity, parallel, register_activity, register_activity_under, sleep, spawn,
    spawn_on, spawn_task, yield_now,
};
use isola_platform::CoreIndex;

pub async fn events_of_a_core_run_in_the_order_of_creation() -> Outcome {
    let order = Rc::new(RefCell::new(Vec::new()));
    let done = Rc::new(Cell::new(false));
    for number in 0..100 {
        let order = order.clone();
        spawn(move || order.borrow_mut().push(number));
    }
    let last = done.clone();
    spawn(move || last.set(true));
    until_set(&done).await;
    ensure!(order.borrow().iter().copied().eq(0..100), "{:?}", order.borrow());
    Ok(())
}

pub async fn an_event_runs_on_its_target_core() -> Outcome {
    for core in (0..cores() as u32).map(CoreIndex) {
        let ran_on = Arc::new(AtomicUsize::new(usize::MAX));
        let shared = ran_on.clone();
        spawn_on(core, move || shared.store(current_core().0 as usize, Ordering::Release));
        while ran_on.load(Ordering::Acquire) == usize::MAX {
            yield_now().await;
        }
        let ran_on = ran_on.load(Ordering::Acquire);
        ensure!(ran_on == core.0 as usize, "made for {core:?}, ran on {ran_on}");
    }
    Ok(())
}

pub async fn messages_of_all_cores_arrive() -> Outcome {
    const EACH: usize = 500;
    let here = current_core();
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = arrived.clone();
    parallel(cores(), move |_| {
        let counted = counted.clone();
        async move {
            for _ in 0..EACH {
                let counted = counted.clone();
                spawn_on(here, move || {
                    counted.fetch_add(1, Ordering::Relaxed);
                });
            }
        }
    })
    .await;
    while arrived.load(Ordering::Relaxed) < EACH * cores() {
        yield_now().await;
    }
    ensure!(arrived.load(Ordering::Relaxed) == EACH * cores(), "more arrived than were sent");
    Ok(())
}

pub async fn no_wake_up_is_lost_between_cores_that_halt() -> Outcome {
    fn pass_on(turn: usize, home: CoreIndex, left: usize, done: Arc<AtomicUsize>) {
        let next = match left {
            0 => return done.store(1, Ordering::Release),
            1 => home,
            _ => CoreIndex(((turn + 1) % cores()) as u32),
        };
        spawn_on(next, move || pass_on(turn + 1, home, left - 1, done));
    }
    let done = Arc::new(AtomicUsize::new(0));
    let shared = done.clone();
    let home = current_core();
    // The first core halts as well, until the last message arrives.
    let waiting = spawn_task(async move {
        while shared.load(Ordering::Acquire) == 0 {
            isola_events::sleep(Duration::from_millis(20)).await;
        }
    });
    pass_on(home.0 as usize, home, 500, done);
    waiting.await;
    Ok(())
}

pub async fn events_inherit_their_activity() -> Outcome {
    let own = current_activity();
    let Ok(query) = register_activity("conformance") else { return Ok(()) };
    ensure!(query != own, "{query:?} is taken");
    let seen = Arc::new(AtomicUsize::new(usize::MAX));
    let shared = seen.clone();
    let there = others().next().unwrap_or(current_core());
    Event::new().charged_to(query).spawn(move || {
        spawn_on(there, move || {
            spawn_task(async move {
                yield_now().await;
                shared.store(current_activity().index(), Ordering::Release);
            })
            .detach();
        });
    });
    while seen.load(Ordering::Acquire) == usize::MAX {
        yield_now().await;
    }
    let seen = seen.load(Ordering::Acquire);
    ensure!(seen == query.index(), "{query:?} made an event of activity {seen}");
    ensure!(current_activity() == own, "the check itself is charged to {:?}", current_activity());
    Ok(())
}

pub async fn affinity_labels_keep_to_a_core_of_the_cell() -> Outcome {
    // Labels would leave this core, which is busy.
    affinity::set_expiry(Duration::from_secs(3_600));
    let core_of = |label| Placement::Affine(Label(label)).core();
    let placed: Vec<_> = (0..1_000).map(core_of).collect();
    for core in (0..cores() as u32).map(CoreIndex) {
        ensure!(placed.contains(&core), "no label of a thousand means {core:?}");
    }
    ensure!(placed.iter().all(|core| (core.0 as usize) < cores()), "a label means a core that is none");
    ensure!((0..1_000).map(core_of).eq(placed), "labels have changed their cores");
    Ok(())
}

pub async fn cycles_are_charged_to_their_activity() -> Outcome {
    const WORK: u64 = 2_000_000;
    let Ok(worker) = register_activity("worker") else { return Ok(()) };
    charged_on_another_core(worker, worker, WORK).await?;
    // The ledger counts the work of an activity without a slot for its parent.
    let Ok(child) = register_activity_under(worker, "child") else { return Ok(()) };
    charged_on_another_core(child, child, WORK).await?;
    charged_on_another_core(child, worker, WORK).await
}

/// Runs an event for `worker` that takes `work` cycles, and checks that they are charged to `charged`.
async fn charged_on_another_core(worker: ActivityId, charged: ActivityId, work: u64) -> Outcome {
    let core = others().next().unwrap_or(current_core());
    let charged = || {
        let used = isola_activities::counters(charged, core.0 as usize);
        used.map_or(0, |used| used.cycles.load(Ordering::Relaxed))
    };
    let before = charged();
    let done = Arc::new(AtomicUsize::new(0));
    let shared = done.clone();
    Event::new().at(Placement::Core(core)).charged_to(worker).spawn(move || {
        let start = cycles();
        while cycles() - start < work {}
        shared.store(1, Ordering::Release);
    });
    while done.load(Ordering::Acquire) == 0 {
        yield_now().await;
    }
    // The event has ended once its core has run another one.
    on_core(core, || async {}).await;
    ensure!(charged() - before >= work, "{} cycles charged of {work}", charged() - before);
    Ok(())
}

/// The sum over all activities, with the cycles in which the core was idle, in the loop and in interrupts, is all time
/// that has passed, on each core, while activities come and go there.
pub async fn no_cycle_is_unattributed() -> Outcome {
    for core in (0..cores() as u32).map(CoreIndex) {
        on_core(core, no_cycle_of_this_core_is_unattributed).await.unwrap_or(Ok(()))?;
    }
    Ok(())
}

async fn no_cycle_of_this_core_is_unattributed() -> Outcome {
    let (begun, before) = (Boundary::mark(), attributed());
    for round in 0..50_u32 {
        let Ok(activity) = register_activity("tenant") else { break };
        let Ok(child) = register_activity_under(activity, "connection") else { break };
        let work = move || {
            for owner in [activity, child, INFRASTRUCTURE, activity] {
                charge_to(owner);
                let start = cycles();
                while cycles() - start < 500 {}
            }
        };
        Event::new().charged_to(child).spawn(work);
        match round % 3 {
            0 => sleep(Duration::from_micros(200)).await,
            1 => yield_now().await,
            _ => {}
        }
        end_activity(child);
        end_activity(activity);
    }
    let (ended, after) = (Boundary::mark(), attributed());
    let spent = after.wrapping_sub(before);
    let (least, most) =
        (ended.earliest.wrapping_sub(begun.latest), ended.latest.wrapping_sub(begun.earliest));
    ensure!((least..=most).contains(&spent), "{spent} cycles are attributed, of {least} to {most}");
    Ok(())
}

/// A boundary of the accounting, which is between two readings of the cycle counter.
struct Boundary {
    earliest: u64,
    latest: u64,
}

impl Boundary {
    /// Charges all cycles so far.
    fn mark() -> Self {
        let own = current_activity();
        charge_to(if own == INFRASTRUCTURE { APPLICATION } else { INFRASTRUCTURE });
        let earliest = cycles();
        charge_to(own);
        Self { earliest, latest: cycles() }
    }
}

/// Returns the cycles of this core up to the last boundary.
fn attributed() -> u64 {
    let core = current_core().0 as usize;
    let report = &platform().report().cores[core];
    let others = [&report.idle_cycles, &report.loop_cycles, &report.interrupt_cycles];
    let of_activities = platform().ledger().core(core).iter().map(|used| &used.cycles);
    of_activities.chain(others).fold(0, |sum, cycles| sum.wrapping_add(cycles.load(Ordering::Relaxed)))
}

pub async fn any_number_of_activities_come_and_go() -> Outcome {
    let ledger = platform().ledger();
    let slots = ledger.records().len();
    let used = |activity: ActivityId| {
        let before = &ledger.record(activity).expect("it has a slot").before;
        ledger.sum(activity.index()).cycles.into_inner() - before.cycles.load(Ordering::Relaxed)
    };
    let own = current_activity();
    for number in 0..2 * slots {
        let Ok(query) = register_activity("query") else {
            return Err(BrokenGuarantee(alloc::format!(
                "of {slots} slots none is free for activity {number}"
            )));
        };
        ensure!(used(query) == 0, "activity {number} has begun with {} cycles", used(query));
        charge_to(query);
        let begun = cycles();
        while cycles() - begun < 1_000 {}
        charge_to(own);
        yield_now().await;
        ensure!(used(query) >= 1_000, "activity {number} was charged {} cycles", used(query));
        ensure!(end_activity(query), "activity {number} did not end");
    }
    Ok(())
}
