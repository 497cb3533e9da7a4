//! The elastic policy (RainForest 4.1 and 6.3.2): keeps a percentile of a service's latency between two bounds by
//! loans of cores.
//!
//! | module | contents |
//! |---|---|
//! | [`bounds`] | the two bounds, written `2ms..5ms` |
//! | [`controller`] | the decision: measurements in, a loan, a return or neither out |
//! | [`interval`] | the interval, written `1s` |
//! | [`window`] | the measurements: the differences between two reads of a cell's counters |
//!
//! The controller has no clock, no machine and no cells. Its caller (`isola elastic`) reads the counters once per
//! interval, passes them to the controller, and has the supervisor lend a core, renew the loans, or return a core. The
//! supervisor's rules for loans select the lender (`--lend`, `--priority`), and its leases end if the caller does. The
//! supervisor computes no percentiles.

pub mod bounds;
pub mod controller;
pub mod interval;
pub mod window;

pub use bounds::{BadBounds, Bounds};
pub use controller::{Controller, Observation, Reason, Step};
pub use interval::{BadInterval, MeasurementInterval};
pub use window::{Figure, LatencyWindow, WindowLatency};

/// The error for a setting of which cells give up cores, and which cores a service keeps.
pub const REPLACED: &str = "cores come from the cells that lend: set how many each lends with `lend`, a higher \
                            `priority` of the service, and the fewest cores of the service with its `cores` \
                            (options of `isola run`, keys of a manifest)";

#[cfg(test)]
mod simulation;
