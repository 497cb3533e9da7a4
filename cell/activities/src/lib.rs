//! The activities of a cell (omni-kernel 2.2): parts of its work, each with counters of its own.
//!
//! Activities form a tree: a service, its connections, the queries of a connection. They are registered and ended while
//! the cell runs, and their number is limited by memory only.
//!
//! ```text
//!                      cell
//!      ┌────────────────┼──────────────┐
//!   application   infrastructure      web            in the ledger, which the supervisor reads
//!                                  ┌───┴────┐
//!                             10.0.0.7:51   ...      private: in the cell's memory
//! ```
//!
//! An activity without a parent has a slot of the [ledger](isola_abi::ledger), as long as one is free. All others are
//! *private*: their usage also counts in the slot of the nearest ancestor that has one, or of [`APPLICATION`]. So the
//! ledger's sums remain the usage of the whole cell.
//!
//! The usage of an activity includes that of its descendants. An activity that is ended while it has children remains
//! until the last of them has ended.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod registry;
mod table;
mod traffic;

pub use registry::{
    MAX_DEPTH, PRIVATE_NAME_LEN, Private, counted_by, counters, end, generation, list, name_of, named,
    parent_of, private, register, register_under, rename, start, traffic_of_ended, usage_of,
};
pub use traffic::{TrafficCounters, traffic};

use core::fmt;
use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;

/// The default activity: the application's start, and all events that descend from it without another.
pub const APPLICATION: ActivityId = ActivityId(0);

/// The activity for work that has no known owner yet, such as a packet of an unknown connection (omni-kernel's
/// substitute).
pub const INFRASTRUCTURE: ActivityId = ActivityId(1);

/// The reason why an activity cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityError {
    /// The parent does not exist, or was ended.
    NoSuchParent(ActivityId),
    /// The parent has [`MAX_DEPTH`] ancestors.
    TooDeep,
    /// The cell has no memory for another activity.
    NoMemory,
}

impl fmt::Display for ActivityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchParent(ActivityId(parent)) => write!(f, "the cell has no activity {parent}"),
            Self::TooDeep => write!(f, "activities nest at most {MAX_DEPTH} levels deep"),
            Self::NoMemory => f.write_str("no memory for another activity"),
        }
    }
}

impl core::error::Error for ActivityError {}

/// An activity and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The activity.
    pub id: ActivityId,
    /// `None` without a parent.
    pub parent: Option<ActivityId>,
    /// The usage since the activity's registration, its descendants' included.
    pub usage: Usage,
}

/// The usage of an activity, summed over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Cycles of the activity's events.
    pub cycles: u64,
    /// Number of events that ran.
    pub events: u64,
    /// What devices have moved for the activity.
    pub traffic: ActivityTraffic,
}

impl Usage {
    fn add(&mut self, other: Usage) {
        self.cycles = self.cycles.wrapping_add(other.cycles);
        self.events = self.events.wrapping_add(other.events);
        self.traffic = traffic::combined(self.traffic, other.traffic, u64::wrapping_add);
    }

    fn since(self, earlier: Usage) -> Usage {
        Usage {
            cycles: self.cycles.wrapping_sub(earlier.cycles),
            events: self.events.wrapping_sub(earlier.events),
            traffic: traffic::combined(self.traffic, earlier.traffic, u64::wrapping_sub),
        }
    }
}
