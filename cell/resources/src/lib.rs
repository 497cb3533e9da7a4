//! The resources of a cell's grid: where requests of several activities wait for something scarce (omni-kernel 2.1).
//!
//! | resource | cost | scheduler | requests |
//! |---|---|---|---|
//! | [`PROCESSOR`] | cycles | one per core | events |
//! | [`NETWORK_WRITE`] | bytes | one per queue of the device | frames to send |
//! | [`DISK`] | bytes | one per block device | requests to it |
//! | [`FILES`] | nanoseconds | one per volume | operations of its file system |
//! | [`RPC`] | nanoseconds | one for received calls, one per called machine | calls between machines |
//! | [`MEMORY`] | bytes | one | requests for memory that wait until some is free |
//!
//! A resource without a policy has no scheduler: its requests are function calls, or wait in the order of their arrival.
//! An application gives it a [policy](GridResource::set_policy), and activities an
//! [entitlement](GridResource::set_entitlement), at any time, also while requests wait.
//!
//! Both hold for the whole cell. A core divides its own time, and a queue of the device its own bytes. Rates
//! (reservations and limits) hold for each scheduler, too.
//!
//! ```ignore
//! PROCESSOR.set_entitlement(web, Entitlement::by_weight(Weight::new(300)?))?;
//! PROCESSOR.set_policy(Some(PolicyKind::Wfq));
//! ```
//!
//! Memory is kept, not served: instead of rates, activities have [budgets](MemoryBudget).
//!
//! An activity without an entitlement has the default weight and the lowest priority. The activity
//! [`INFRASTRUCTURE`] works for all others before their requests are known to be theirs. Without an entitlement of its
//! own, it has ten times the default weight and the highest priority.
//!
//! A crate that has a resource keeps a [`RequestQueue`], or an [`ActivityScheduler`] while there is a policy, and
//! [follows](GridResource::on_change) changes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod activity_scheduler;
mod merge;
mod request_queue;
mod resource;

pub use activity_scheduler::ActivityScheduler;
pub use isola_abi::grid::{
    Entitlement, EntitlementError, MemoryBudget, Metric, PolicyKind, Priority, Rate, Resource, Weight,
};
pub use isola_activities::INFRASTRUCTURE;
pub use isola_schedulers::{ClientStatistics, Cost, Dispatch, Dispatched, Ticket};
pub use merge::merged;
pub use request_queue::{NextRequest, RequestQueue, ServiceTicket};
pub use resource::{
    Configuration, DISK, FILES, GridResource, MEMORY, NETWORK_WRITE, PROCESSOR, RPC, ResourceError,
};
