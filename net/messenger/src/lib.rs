//! Calls between the machines of an application: native cells and hosted processes (EbbRT 2.1, 3.3.2).
//!
//! | item | what |
//! |---|---|
//! | [`host`], [`join`] | the first machine, and those that join it; [`rejoin`] after they have [`disconnected`](disconnected()) |
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
//! | [`MAX_PAYLOAD`] | bytes on their way to a machine; what else is for it waits, and whatever its sender says behind that |
//! | an eighth of the cell's memory | queues and halves of frames of all connections; a half and a quarter of that when memory is low and critical; then the connection that takes the most ends |
//! | 10 s | for which a machine may leave what waits for it, before it is left; to say who it is |
//! | 64 | connections a core that have not said who they are; then the oldest goes |
//!
//! There is no secret between machines, and no encryption: whoever reaches the first machine's port is one of them
//! (docs/decisions/0018-star-of-machines.md). Not here: time limits for calls (`isola_events::timeout`), and
//! when to join again, which the application knows.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod backlog;
mod calls;
mod connection;
mod error;
mod frame;
pub mod id_map;
mod joining;
mod limit;
mod machines;
mod messenger;
mod outgoing;
mod patience;
mod served;
mod shared_ebb;
mod strangers;

/// Most calls of a machine to another that are under way.
pub const MAX_CALLS: usize = 16;

/// How long a machine that joins may take to say who it is, or to be told.
const GREETING: Duration = Duration::from_secs(10);

use core::time::Duration;
pub use error::{CallError, JoinError, ServeError};
pub use frame::{MAX_PAYLOAD, Refusal};
pub use isola_ebbs::{EbbId, MachineId};
pub use joining::{disconnected, join, rejoin};
pub use machines::MAX_MACHINES;
pub use messenger::{Serving, call, host, serve};
pub use served::Call;
pub use shared_ebb::{AskError, Interface, Message, SharedEbb};
