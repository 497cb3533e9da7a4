//! Fibers: blocking for code that was not written for events (EbbRT 3.3.1: save the event's state, restore it when the
//! awaited condition holds).
//!
//! - [`spawn_fiber`]: runs a closure on a stack of its own, as a task of this core. The closure may block at any call
//!   depth.
//! - [`block_on`]: blocks a fiber until a future completes. Meanwhile the core runs other events.
//! - [`Fiber`]: returns the closure's result when awaited.
//!
//! A fiber is a task whose future is a stack. Each resumption is an event, at the resource and for the activity of the
//! fiber's spawn, or for the activity to which the fiber has charged itself since. A fiber never leaves its core. Code
//! that is written for events should be `async` instead: a fiber costs a stack of [`STACK_LEN`] bytes, a blocked task
//! only its state.
//!
//! **Fibers are not cancelled.** Cancellation would have to drop the objects on its stack in the middle of a call.
//! Dropping a [`Fiber`] lets the fiber continue, and the end of a cell abandons its fibers. To end a fiber early,
//! complete its future early: [`timeout`](isola_events::timeout) in [`block_on`].
//!
//! Each stack has a guard page below it; an overflow ends the cell, as on any other stack. Later fibers of the core
//! reuse stacks.
#![no_std]
#![allow(
    unsafe_code,
    reason = "a fiber's stack is passed to the code that switches stacks, and code on it finds its switch by core"
)]

extern crate alloc;

mod block;
mod fiber;
mod stack;

pub use block::{block_on, is_in_fiber};
pub use fiber::{Fiber, spawn_fiber, spawn_fiber_with_stack};
pub use stack::{FiberError, STACK_LEN};
