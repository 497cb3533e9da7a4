//! Files: their contents, names and attributes, descriptors, readiness.

mod contents;
mod descriptors;
mod inotify;
mod names;
mod readiness;
mod splice;
mod terminals;

pub use contents::*;
pub use descriptors::*;
pub use inotify::*;
pub use names::*;
pub use readiness::*;
pub use splice::*;
