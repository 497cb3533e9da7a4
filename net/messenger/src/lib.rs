//! Calls between the machines of an application: native cells and hosted processes (EbbRT 2.1, 3.3.2).
//!
//! | item | what |
//! |---|---|
//! | [`host`], [`join`] | the first machine, and those that join it |
//! | [`serve`], [`call`] | the messenger: one representative of an Ebb asks that of another machine |
//! | [`id_map`] | what is known of an Ebb on all machines; the first [keeps](id_map::keep) it |
//! | [`SharedEbb`] | an Ebb with one representative in the whole application, asked from anywhere; found by the id map |
//!
//! Machines speak in frames over TCP. What comes from another machine is hostile: it is checked,
//! bounded and paced, and a machine that breaks the rules loses its connection.
//!
//! | limit | |
//! |---|---|
//! | [`MAX_MACHINES`] | machines that join an application |
//! | [`MAX_PAYLOAD`] | bytes of a request, and of an answer |
//! | [`MAX_CALLS`] | calls of a machine to another under way; further ones wait at the caller |
//! | 8 × [`MAX_PAYLOAD`] | bytes on their way to a machine, which counts as one that does not read beyond that |
//!
//! There is no secret between machines, and no encryption: whoever reaches the first machine's port is one of them
//! (docs/decisions/0018-machines-of-an-application.md). Not here: joining again after a connection has ended, and time
//! limits for calls; both are the application's ([`join`], `isola_events::timeout`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod calls;
mod connection;
mod error;
mod frame;
pub mod id_map;
mod limit;
mod machines;
mod messenger;
mod outgoing;
mod served;
mod shared_ebb;

/// Most calls of a machine to another that are under way.
pub const MAX_CALLS: usize = 16;

pub use error::{CallError, JoinError, ServeError};
pub use frame::{MAX_PAYLOAD, Refusal};
pub use isola_ebbs::{EbbId, MachineId};
pub use machines::MAX_MACHINES;
pub use messenger::{Serving, call, host, join, serve};
pub use served::Call;
pub use shared_ebb::{AskError, Interface, Message, SharedEbb};
