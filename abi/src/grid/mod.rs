//! The resource grid of a cell: resources, policies and entitlements, as the host tool and the cell exchange them in
//! [queries](crate::query). `isola-schedulers` and `isola-resources` implement them.

mod budget;
mod change;
mod entitlement;
mod policy;
mod resource;
mod rule;
mod setup;

pub use budget::{BudgetChange, MemoryBudget};
pub use change::{EntitlementChange, GridChange, PolicyChange, RateChange};
pub use entitlement::{Entitlement, EntitlementError, Priority, Rate, Weight};
pub use policy::{PolicyKind, UnknownPolicy};
pub use resource::{Metric, Resource, UnknownResource};
pub use rule::{ActivityRule, RuleChange};
pub use setup::{GridSetup, MAX_SETUP_BYTES};
