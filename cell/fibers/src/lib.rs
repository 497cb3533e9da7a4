//! Blocking for code that was not written for events (EbbRT 3.3.1: the event's state is saved, and restored when what it
//! waits for is there).
//!
//! - [`spawn_fiber`]: runs a closure on a stack of its own, as a task of this core. The closure may call, as deep down as
//!   it likes, what waits.
//! - [`block_on`]: in a fiber, waits for a future. The core goes on with other events meanwhile.
//! - [`Fiber`]: awaiting it gives what the closure returns.
//!
//! A fiber is a task whose future is a stack: each time it goes on is an event, at the resource and for the activity that
//! it was spawned for, or for whom it has charged itself to since. It never leaves its core. What is written for events
//! should be `async` instead: a fiber costs a stack of [`STACK_LEN`] bytes, a blocked task what it holds.
//!
//! **No fiber is cancelled.** What is on its stack would have to be dropped in the middle of a call that does not know of
//! it. Dropping a [`Fiber`] lets it run on, and a cell that ends leaves its fibers as they are. To end one early, have what it
//! waits for complete: [`timeout`](isola_events::timeout) in [`block_on`].
//!
//! A stack has a guard page below: what overflows it ends the cell, as on any other stack. Stacks are used again by later
//! fibers of their core.
#![no_std]
#![allow(
    unsafe_code,
    reason = "a fiber's stack is handed to what switches stacks, and what runs on it finds the way back by core"
)]

extern crate alloc;

mod block;
mod fiber;
mod stack;

pub use block::{block_on, is_in_fiber};
pub use fiber::{Fiber, spawn_fiber, spawn_fiber_with_stack};
pub use stack::{FiberError, STACK_LEN};
