//! The catalogue of metric families. Names follow the conventions of Prometheus: base units, and the unit as the name's
//! suffix. The text formats append `_total` to the names of counters, and `_info` to those of infos.

/// A metric family.
#[derive(Debug)]
pub struct Family {
    /// The name, with its unit.
    pub name: &'static str,
    /// The unit.
    pub unit: Option<BaseUnit>,
    /// The type.
    pub kind: Kind,
    /// The names of the labels, in the order of each series' values.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A count that only grows while the cell or the supervisor runs.
    Counter,
    /// A present value.
    Gauge,
    /// A cumulative histogram.
    Histogram,
    /// Labels only.
    Info,
}

/// The unit of a family's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseUnit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Cycles of the time-stamp counter.
    Cycles,
    /// Hertz.
    Hertz,
}

impl BaseUnit {
    /// Returns the suffix of names with this unit.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::Cycles => "cycles",
            Self::Hertz => "hertz",
        }
    }
}

impl Kind {
    /// Returns the type's name in the text formats.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

impl Family {
    /// Returns the names of the family's samples.
    pub fn sample_names(&self) -> Vec<String> {
        let suffixes: &[&str] = match self.kind {
            Kind::Counter => &["_total"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
            Kind::Info => &["_info"],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name)).collect()
    }
}

/// Defines the families as constants, and [`ALL`].
macro_rules! families {
    ($($constant:ident: $kind:ident $name:literal $(in $unit:ident)?, [$($label:literal),*], $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $constant: Family = Family {
                name: $name,
                unit: families!(@unit $($unit)?),
                kind: Kind::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )+
        /// All families.
        pub const ALL: &[&Family] = &[$(&$constant),+];
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(BaseUnit::$unit) };
}

families! {
    MACHINE: Info "isola_machine", ["machine", "model", "accelerator"],
        "The machine.";
    MACHINE_CORES: Gauge "isola_machine_cores", ["owner"],
        "Cores of the machine by owner: supervisor, cell, free, failed, or transfer (on the way to a cell).";
    MACHINE_MEMORY: Gauge "isola_machine_memory_bytes" in Bytes, [],
        "Memory for cells.";
    MACHINE_MEMORY_FREE: Gauge "isola_machine_memory_free_bytes" in Bytes, [],
        "Memory that a new cell can get.";
    MACHINE_MEMORY_DIRTY: Gauge "isola_machine_memory_dirty_bytes" in Bytes, [],
        "Free memory that is not scrubbed yet.";
    MACHINE_MEMORY_QUARANTINED: Gauge "isola_machine_memory_quarantined_bytes" in Bytes, [],
        "Memory in quarantine, because a lost core or device could write to it.";
    MACHINE_MEMORY_SUPERVISOR: Gauge "isola_machine_memory_supervisor_bytes" in Bytes, [],
        "Memory of the supervisor.";
    MACHINE_MEMORY_IMAGES: Gauge "isola_machine_memory_images_bytes" in Bytes, [],
        "Memory of the image store.";
    MACHINE_DEVICES: Gauge "isola_machine_network_devices", [],
        "Network devices for cells.";
    MACHINE_DEVICES_FREE: Gauge "isola_machine_network_devices_free", [],
        "Network devices that no cell has.";
    MACHINE_DISKS: Gauge "isola_machine_block_devices", [],
        "Block devices for cells.";
    MACHINE_DISKS_FREE: Gauge "isola_machine_block_devices_free", [],
        "Block devices that no cell has.";
    MACHINE_CLOCK: Gauge "isola_machine_clock_hertz" in Hertz, [],
        "Rate of the time-stamp counter, the unit of all cycles.";
    SUPERVISOR_UPTIME: Gauge "isola_supervisor_uptime_seconds" in Seconds, [],
        "Time since the supervisor could answer.";
    SUPERVISOR_RESTARTS: Counter "isola_supervisor_restarts", [],
        "Restarts of the supervisor after failures.";
    READING_DURATION: Gauge "isola_reading_duration_seconds" in Seconds, [],
        "Duration of the reading of these values, from the first request to the last answer.";

    CELL: Info "isola_cell", ["cell", "id", "image"],
        "A cell, with its id and the name of its image.";
    CELL_STATE: Gauge "isola_cell_state", ["cell", "state"],
        "1 for the state of the cell, 0 for the other states.";
    CELL_CORES: Gauge "isola_cell_cores", ["cell"],
        "Present cores of the cell.";
    CELL_BORROWED_CORES: Gauge "isola_cell_borrowed_cores", ["cell"],
        "Cores that the cell has borrowed.";
    CELL_BORROWED_MEMORY: Gauge "isola_cell_borrowed_memory_bytes" in Bytes, ["cell"],
        "Memory that the cell has borrowed, part of its memory.";
    CELL_LENT_MEMORY: Gauge "isola_cell_lent_memory_bytes" in Bytes, ["cell"],
        "Memory of the cell that it has lent, not part of its memory.";
    CELL_MEMORY: Gauge "isola_cell_memory_bytes" in Bytes, ["cell"],
        "Memory that the cell has; 0 after its end.";
    CELL_MEMORY_LIMIT: Gauge "isola_cell_memory_limit_bytes" in Bytes, ["cell"],
        "The most memory that the cell can have by its own requests.";
    CELL_POOL: Gauge "isola_cell_pool_bytes" in Bytes, ["cell"],
        "Memory of the cell's page allocator: its memory without the image.";
    CELL_POOL_USED: Gauge "isola_cell_pool_used_bytes" in Bytes, ["cell"],
        "Memory in use, of the page allocator's.";
    CELL_POOL_PEAK: Gauge "isola_cell_pool_peak_bytes" in Bytes, ["cell"],
        "Maximum of the memory in use since the cell's start.";
    CELL_RESTARTS: Counter "isola_cell_restarts", ["cell"],
        "Restarts by the cell's policy since its last start by a command.";
    CELL_START_TIME: Gauge "isola_cell_start_time_seconds" in Seconds, ["cell"],
        "Time of the cell's last start, since 1970-01-01 UTC.";
    CELL_ANSWERED: Gauge "isola_cell_answered", ["cell"],
        "Whether all cores of the running cell have answered this reading's queries in time. Without an answer, the \
         cell has no series of isola_cell_network_events and isola_grid.";
    CELL_CUT: Gauge "isola_cell_series_cut", ["cell", "kind"],
        "Whether the cell has more activities, counters or grid clients than this endpoint shows.";
    CELL_REQUEST_DURATION: Histogram "isola_cell_request_duration_seconds" in Seconds, ["cell"],
        "Latency of the requests that the application counts. Each is in the first bucket that includes its whole \
         bucket of the cell, a fourth wide; the sum is estimated from the middle of the cell's buckets.";
    CELL_RECEIVED_FRAMES: Counter "isola_cell_network_received_frames", ["cell"],
        "Frames received.";
    CELL_RECEIVED: Counter "isola_cell_network_received_bytes" in Bytes, ["cell"],
        "Bytes of received frames.";
    CELL_SENT_FRAMES: Counter "isola_cell_network_sent_frames", ["cell"],
        "Frames sent.";
    CELL_SENT: Counter "isola_cell_network_sent_bytes" in Bytes, ["cell"],
        "Bytes of sent frames.";
    CELL_DROPPED_FRAMES: Counter "isola_cell_network_dropped_frames", ["cell"],
        "Frames dropped.";
    CELL_NETWORK_EVENTS: Counter "isola_cell_network_events", ["cell", "layer", "counter"],
        "Counters of the cell's protocol stack, as in isola inspect, summed over the cores.";

    CORE_CYCLES: Counter "isola_core_cycles" in Cycles, ["cell", "core", "account"],
        "Cycles of the cell's core by account: activity (events), loop, interrupt, idle.";
    CORE_TIME: Counter "isola_core_time_seconds" in Seconds, ["cell", "core", "account"],
        "Time of the cell's core by account: activity (events), loop, interrupt, idle.";
    CORE_INTERRUPTS: Counter "isola_core_interrupts", ["cell", "core"],
        "Interrupts that the core has taken.";
    CORE_LONG_EVENTS: Counter "isola_core_long_events", ["cell", "core"],
        "Events that ran for longer than the core's limit.";
    CORE_LONGEST_EVENT: Gauge "isola_core_longest_event_seconds" in Seconds, ["cell", "core"],
        "Duration of the longest event since the cell's start.";
    CORE_QUEUEING_DELAY: Histogram "isola_core_queueing_delay_seconds" in Seconds, ["cell", "core"],
        "Time from an event's creation to its run. The core samples events, and does not count all. Buckets and sum \
         are as those of isola_cell_request_duration_seconds.";

    ACTIVITY_CYCLES: Counter "isola_activity_cycles" in Cycles, ["cell", "activity"],
        "Cycles of the activity's events on all cores. Activities with the same name are summed; those that have \
         ended are summed as (ended).";
    ACTIVITY_TIME: Counter "isola_activity_time_seconds" in Seconds, ["cell", "activity"],
        "Time of the activity's events on all cores.";
    ACTIVITY_EVENTS: Counter "isola_activity_events", ["cell", "activity"],
        "Events of the activity that ran.";
    ACTIVITY_MEMORY: Gauge "isola_activity_memory_bytes" in Bytes, ["cell", "activity"],
        "Memory that is charged to the activity: heap memory and region pages that it allocated, less those that it \
         freed; negative if it frees memory of others.";
    ACTIVITY_MEMORY_SOFT: Gauge "isola_activity_memory_soft_bytes" in Bytes, ["cell", "activity"],
        "Memory that the activity does not lose to others; missing without a soft budget.";
    ACTIVITY_MEMORY_HARD: Gauge "isola_activity_memory_hard_bytes" in Bytes, ["cell", "activity"],
        "The most memory of the activity; missing without a hard budget.";
    ACTIVITY_MEMORY_RECLAIMED: Counter "isola_activity_memory_reclaimed_bytes" in Bytes, ["cell", "activity"],
        "Memory that the activity has lost to others, or to its hard budget.";
    ACTIVITY_MEMORY_WAITING: Gauge "isola_activity_memory_waiting_requests", ["cell", "activity"],
        "Requests of the activity that wait for memory.";

    GRID_POLICY: Info "isola_grid_policy", ["cell", "resource", "policy"],
        "The policy of a resource; direct without a scheduler.";
    GRID_REQUESTS: Counter "isola_grid_requests", ["cell", "resource", "core", "activity"],
        "Requests served in competition with other activities.";
    GRID_CYCLES: Counter "isola_grid_cost_cycles" in Cycles, ["cell", "resource", "core", "activity"],
        "Cost of the served requests, of resources that are measured in cycles.";
    GRID_TIME: Counter "isola_grid_cost_seconds" in Seconds, ["cell", "resource", "core", "activity"],
        "Cost of the served requests in seconds, of resources that are measured in cycles or in time.";
    GRID_BYTES: Counter "isola_grid_cost_bytes" in Bytes, ["cell", "resource", "core", "activity"],
        "Cost of the served requests, of resources that are measured in bytes.";
    GRID_WAITING: Gauge "isola_grid_waiting_requests", ["cell", "resource", "core", "activity"],
        "Requests that wait now.";
    GRID_WAIT: Counter "isola_grid_wait_seconds" in Seconds, ["cell", "resource", "core", "activity"],
        "Sum of the waiting times of the served requests.";
    GRID_LONGEST_WAIT: Gauge "isola_grid_longest_wait_seconds" in Seconds, ["cell", "resource", "core", "activity"],
        "Longest waiting time of a request.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_have_their_unit_as_suffix_and_are_unique() {
        let mut names = BTreeSet::new();
        for family in ALL {
            let rest = match family.unit {
                Some(unit) => family.name.strip_suffix(unit.name()).and_then(|name| name.strip_suffix('_')),
                None => Some(family.name),
            };
            let rest = rest.unwrap_or_else(|| panic!("{} has another unit", family.name));
            assert!(rest.starts_with("isola_") && !rest.ends_with("_total"), "{}", family.name);
            for name in family.sample_names() {
                assert!(names.insert(name), "{} occurs twice", family.name);
            }
        }
    }

    #[test]
    fn help_texts_are_sentences() {
        for family in ALL {
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{}", family.name);
            assert!(!family.help.contains("  "), "{}", family.name);
        }
    }
}
