//! The pagers of the library OS. They use only the public interface of pagers.

mod colored;
mod on_demand;
mod prefault;

pub use colored::Colored;
pub use on_demand::OnDemand;
pub use prefault::Prefault;
