//! The elastic policy (RainForest 4.1 and 6.3.2): keeps a percentile of a service's latency between two bounds by
//! moving cores between the service and other cells, the donors.
//!
//! | module | contents |
//! |---|---|
//! | [`bounds`] | the two bounds, written `2ms..5ms` |
//! | [`controller`] | the decision: measurements in, a core move or none out |
//! | [`every`] | the interval, written `1s` |
//! | [`window`] | the measurements: the differences between two reads of a cell's counters |
//!
//! The controller has no clock, no machine and no cells. Its caller (`isola elastic`) reads the counters once per
//! interval, passes them to the controller, and executes the decision. The supervisor computes no percentiles.

pub mod bounds;
pub mod controller;
pub mod every;
pub mod window;

pub use bounds::{BadBounds, Bounds};
pub use controller::{Controller, Donor, Look, Patience, Reason, Step};
pub use every::{BadInterval, Every};
pub use window::{Figure, Seen, Window};

#[cfg(test)]
mod simulation;
