//! Samples for tests.

use super::sample::{CellSample, Sample};
use crate::query::{Extent, QueryAnswer};
use crate::test_data::cell;
use isola_abi::grid::{MemoryBudget, PolicyKind, Resource};
use isola_abi::histogram::Histogram;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{ActivityUsage, CellInfo, CoreUsage};
use isola_abi::query::{ActivityMemory, GridClient, GridSettings};
use isola_abi::report::CorePhase;
use std::num::NonZeroU32;
use std::time::Instant;

/// Returns a core with this use.
pub(super) fn core(id: u32, busy: u64, idle: u64, waits: &Histogram) -> CoreUsage {
    CoreUsage {
        id: CoreId(id),
        is_present: true,
        phase: CorePhase::Running,
        interrupts: 0,
        idle_cycles: idle,
        loop_cycles: 0,
        interrupt_cycles: 0,
        event_cycles: busy,
        long_events: 0,
        longest_event_cycles: 0,
        queueing: waits.read(),
    }
}

/// Returns a sample of these cells.
pub(super) fn sample(cells: Vec<CellSample>) -> Sample {
    let cells = cells.into_iter().map(|cell| (cell.info.id, cell)).collect();
    Sample { at: Instant::now(), tsc_hz: 1_000_000_000, cells }
}

/// Returns a sample of a cell that was not queried.
pub(super) fn quiet(info: CellInfo) -> CellSample {
    CellSample { info, activities: None, grid: None, is_silent: false }
}

/// Returns a sample of these cells, which were not queried.
pub(super) fn sample_of(cells: Vec<CellInfo>) -> Sample {
    sample(cells.into_iter().map(quiet).collect())
}

/// Returns a cell with a core that worked for half of the time, and two activities.
pub(super) fn busy(id: u32, name: &str, cycles: u64) -> CellInfo {
    let usage = |name: &str, cycles| ActivityUsage {
        name: name.into(),
        cycles,
        events: cycles / 100,
        memory_bytes: 4096,
    };
    let mut info = CellInfo { id: CellId(id), ..cell(name) };
    info.cores = vec![core(id, cycles, cycles, &Histogram::new())];
    info.activities.activities = vec![usage("infrastructure", cycles / 4), usage("web", cycles / 2)];
    info
}

/// Returns the answer to a query for activities: `web`, and two connections below it.
pub(super) fn activities_answer(cycles: u64) -> QueryAnswer {
    let usage = |activity, parent, name: &str, cycles| isola_abi::query::ActivityUsage {
        activity,
        parent,
        name: name.into(),
        cycles,
        events: cycles / 100,
        traffic: isola_abi::query::ActivityTraffic::default(),
        memory: parent.is_none().then_some(ActivityMemory {
            charged_bytes: 4096,
            budget: MemoryBudget { soft: Some(1 << 20), hard: Some(2 << 20) },
            reclaimed_bytes: cycles,
        }),
    };
    QueryAnswer {
        activities: vec![
            usage(2, None, "web", cycles / 2),
            usage(800, Some(2), "10.0.2.2:40001", cycles / 4),
            usage(801, Some(2), "10.0.2.2:40002", cycles / 8),
            usage(1, None, "infrastructure", cycles / 4),
        ],
        activity_count: 4,
        activity_cycles: cycles / 4 * 3,
        extent: Extent::Whole,
        ..QueryAnswer::default()
    }
}

/// Returns the answer to a query for the grid: two activities on one core.
pub(super) fn grid_answer(served: u64) -> QueryAnswer {
    let settings = Resource::ALL.map(|resource| GridSettings {
        resource,
        policy: (resource == Resource::Processor).then_some(PolicyKind::Wfq),
        batch: NonZeroU32::MIN,
        limit: None,
        capacity: None,
        entitlements: 0,
    });
    let client = |activity, name: &str, part| GridClient {
        resource: Resource::Processor,
        core: 0,
        activity,
        parent: None,
        name: name.into(),
        entitlement: Default::default(),
        waiting: part,
        dispatched: served * part,
        cost: served * part * 1000,
        waited_ns: served * part * 2000,
        longest_wait_ns: 9_000_000,
    };
    QueryAnswer {
        grid_settings: settings.into(),
        grid_clients: vec![client(2, "web", 3), client(3, "batch", 1)],
        extent: Extent::Whole,
        ..QueryAnswer::default()
    }
}
