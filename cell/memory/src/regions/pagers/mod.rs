//! The pagers that come with the library OS. Each is what an application could have written.

mod colored;
mod on_demand;
mod prefault;

pub use colored::Colored;
pub use on_demand::OnDemand;
pub use prefault::Prefault;
