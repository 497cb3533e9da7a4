//! The JSON forms of isola's output. Field names are stable: fields may be added, never renamed.
//!
//! Sizes are in bytes, durations in the unit in the name, times of day in RFC 3339, cycles those of the time-stamp
//! counter. Unknown values, and times of events that have not happened, are `null`.
//!
//! | module | contents |
//! |---|---|
//! | [`cell`] | cells: `ps`, `inspect`, `run -d`, `start`, `stop` |
//! | [`connection`] | TCP connections of cells: `inspect --connections` |
//! | [`crash`] | crashes of cells |
//! | [`grid`] | the resource grid and the activities of cells: `grid show`, `grid activities` |
//! | [`latency`] | latencies of requests, and queueing delays of events: `inspect` |
//! | [`machine`] | machines: `up`, `inspect` |
//! | [`event`] | the journal: `events` |
//! | [`resize`] | results of `resize` |
//! | [`stats`] | snapshots of cells: `stats` |
//! | [`memory_part`] | the memory of cells by use: `inspect` |
//! | [`process`] | processes of cells: `inspect` |
//! | [`hosted`] | cells in Linux processes: `inspect` |

pub mod cell;
pub mod connection;
pub mod crash;
pub mod event;
pub mod grid;
pub mod hosted;
pub mod latency;
pub mod machine;
pub mod memory_part;
pub mod process;
pub mod resize;
pub mod stats;

pub use cell::{
    ActivityView, CellView, CoreView, LoanView, MemoryLoanView, PortView, RestartView, TrafficView,
    VolumeView, is_running, most_memory,
};
pub use connection::{ConnectedMachineView, ConnectionView, path as path_name};
pub use crash::{CrashView, crash_kind};
pub use event::EventView;
pub use grid::{
    ActivitiesView, ActivityMemoryView, ActivityRuleView, ActivityUsageView, EntitlementView, GridClientView,
    GridResourceView, GridView, MemoryUseView,
};
pub use hosted::HostedView;
pub use latency::LatencyView;
pub use machine::{MachineCoreView, MachineView};
pub use memory_part::{MemoryPartView, kind_name};
pub use process::ProcessView;
pub use resize::ResizeView;
pub use stats::{Answers, StatsView};
