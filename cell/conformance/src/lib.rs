//! The guarantees of the library OS on every platform, as checks that run in a Linux process, in a cell and standalone.
//!
//! A check is ordinary code of a cell: an `async fn` that runs as a task of the first core and returns whether a
//! guarantee holds. To add one, write it in the module of its subject, and add a line to [`checks::CHECKS`]:
//!
//! ```ignore
//! pub async fn two_and_two_are_four() -> Outcome {
//!     ensure!(2 + 2 == 4, "two and two are {}", 2 + 2);
//!     Ok(())
//! }
//! ```
//!
//! Rules for checks: they hold on 1 to 64 cores ([`others`] wraps around); they leave no state that a later check would
//! notice; they wait for conditions without a time limit; they share state by `Arc` or Ebbs, not by `static`s, because
//! several cells of one process run them at the same time.
//!
//! [`run_all`] runs in `tests/hosted.rs` of this crate, on 1, 2, 4 and 24 threads as cores, and in
//! `tests/images/conformance`: in QEMU standalone on 1, 2 and 4 cores, in QEMU in cells of 1 and 3, and in processes of
//! 1, 2, 4 and 24.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// Fails a check if a condition does not hold. The other arguments are those of `format!`.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::BrokenGuarantee(::alloc::format!($($text)+)));
        }
    };
}

mod check;
pub mod checks;
mod suite;
mod support;

pub use check::{BrokenGuarantee, Check, Outcome};
pub use suite::{Summary, run_all, run_some};
pub use support::{cores, fragment_memory, on_core, others};
