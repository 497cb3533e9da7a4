//! A check and its result.

use alloc::boxed::Box;
use alloc::string::String;
use core::future::Future;
use core::pin::Pin;

/// The result of a check.
pub type Outcome = Result<(), BrokenGuarantee>;

/// The description of a violated guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenGuarantee(pub String);

/// A named check.
#[derive(Clone, Copy)]
pub struct Check {
    /// The check's module and name, for example `timers::a_sleep_is_never_short`.
    pub name: &'static str,
    pub(crate) run: fn() -> Pin<Box<dyn Future<Output = Outcome>>>,
}
