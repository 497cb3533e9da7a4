//! What the library OS promises on every platform, as checks that run on any: in a Linux process, in a cell, alone on
//! a machine.
//!
//! A check is ordinary code of a cell: an `async fn` that runs as a task of the first core and says whether what it
//! looked at holds. To add one, write it in the module of its part and name it in [`checks::CHECKS`], a line:
//!
//! ```ignore
//! pub async fn two_and_two_are_four() -> Outcome {
//!     ensure!(2 + 2 == 4, "two and two are {}", 2 + 2);
//!     Ok(())
//! }
//! ```
//!
//! Rules for checks: they hold on 1 to 64 cores ([`others`] wraps around); they leave nothing behind that the next
//! would notice; they wait for what they want to see and never expect it within a time; they share state by `Arc` or
//! Ebbs, not by `static`s, as several cells of one process run them at once.
//!
//! [`run_all`] is called by `tests/hosted.rs` here (threads as cores: 1, 2, 4 and 24), and by `tests/images/conformance`:
//! in QEMU alone on 1, 2 and 4 cores, there in cells of 1 and 3, and as processes of 1, 2, 4 and 24.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// Ends a check as broken where a condition does not hold. The rest is what `format!` takes.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::Broken(::alloc::format!($($text)+)));
        }
    };
}

pub mod checks;
mod suite;
mod support;

pub use suite::{Broken, Check, Outcome, Summary, run_all, run_some};
pub use support::{cores, cut_up_memory, on_core, others};
