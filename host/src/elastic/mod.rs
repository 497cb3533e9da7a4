//! The elastic policy (RainForest 4.1 and 6.3.2): keeps what a service's requests take between two bounds by moving cores
//! between it and cells that can do with fewer.
//!
//! | module | what |
//! |---|---|
//! | [`bounds`] | the two bounds, as people write them: `2ms..5ms` |
//! | [`controller`] | what is decided: figures in, a move or none out |
//! | [`every`] | how often it is looked at: `1s` |
//! | [`window`] | the figures: what happened between two looks at a cell |
//!
//! The controller has no clock, no machine and no cells: who runs it looks once an interval, tells it, and does what it says
//! (`isola elastic`). The supervisor knows nothing of percentiles.

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
