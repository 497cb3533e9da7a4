//! Files: their contents, names and attributes, descriptors, readiness.

mod contents;
mod descriptors;
mod names;
mod readiness;
mod terminals;

pub use contents::*;
pub use descriptors::*;
pub use names::*;
pub use readiness::*;
