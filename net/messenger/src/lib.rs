//! Calls between the machines of an application: native cells and hosted processes (EbbRT 2.1, 3.3.2).
//!
//! | item | contents |
//! |---|---|
//! | [`host`], [`join`] | starting as the first machine, and joining it; [`rejoin`] after the machine has [`disconnected`](disconnected()) |
//! | [`serve`], [`call`] | the messenger: a representative of an Ebb calls that on another machine |
//! | [`id_map`] | a map from an Ebb to a few bytes, for all machines; the first machine [serves](id_map::serve) it |
//! | [`SharedEbb`] | an Ebb with one representative in the whole application, which all machines call; the id map records its home |
//!
//! Machines exchange frames over TCP; two cells of one machine exchange them over a [channel](isola_channels) if the
//! manifest of the first machine's cell accepts the other one. Calls are the same over both. Input from another machine is hostile: it is validated, bounded and paced, and a
//! machine that violates the protocol loses its connection.
//!
//! | limit | |
//! |---|---|
//! | [`MAX_MACHINES`] | machines that join an application |
//! | [`MAX_PAYLOAD`] | bytes of a request, and of an answer |
//! | [`MAX_CALLS`] | concurrent calls of a machine to another; further ones wait at the caller |
//! | [`SERVED_CALLS`] | received calls in progress while the resource `rpc` has a policy; further ones wait |
//! | [`MAX_PAYLOAD`] | bytes queued to a machine; further messages to it wait, and all later messages of their senders |
//! | an eighth of the cell's memory | queues and incomplete frames of all connections; half of that while memory is low, a quarter while it is critical. Beyond it, the connection that uses the most ends |
//! | 10 s | for a machine to take 64 KiB of queued data; to greet |
//! | 2 s | for a first machine to answer by a channel; afterwards its address is joined by TCP |
//! | 64 | connections per core that have not greeted; a further one replaces the oldest |
//!
//! **Activities.** A call of another machine is answered for the activity of its connection, or for that of
//! [`charge_calls_of`]. While the resource `rpc` has a policy, it orders the received calls, and this machine's calls to
//! each other one, by the time for which they are in progress.
//!
//! There is no authentication and no encryption: any program that reaches the first machine's port can join
//! (docs/decisions/0018-star-of-machines.md). What is *not* here: time limits for calls (`isola_events::timeout`), and
//! the decision when to join again, which is the application's.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod backlog;
mod calls;
mod channel_service;
mod connection;
mod error;
mod frame;
mod greetings;
mod handlers;
pub mod id_map;
mod joining;
mod machines;
mod messenger;
mod send_queue;
mod shared_ebb;
mod slots;
mod transport;
mod write_deadline;

/// The maximum number of concurrent calls of a machine to another.
pub const MAX_CALLS: usize = 16;

/// The most received calls in progress while `rpc` has a policy: further ones wait, ordered by the policy. Fewer make
/// shares more exact.
pub const SERVED_CALLS: usize = 8;

/// The time limit of the greeting, for the joining machine and for the first machine.
const GREETING: Duration = Duration::from_secs(10);

use core::time::Duration;
pub use error::{CallError, JoinError, NoSuchActivity, ServeError};
pub use frame::{MAX_PAYLOAD, Refusal};
pub use handlers::Call;
pub use isola_ebbs::{EbbId, MachineId};
pub use joining::{FirstMachine, NotAFirstMachine, disconnected, join, rejoin};
pub use machines::MAX_MACHINES;
pub use messenger::{
    FirstMachineListener, HandlerRegistration, call, charge_calls_of, connected_machines, host, serve,
};
pub use shared_ebb::{AskError, Interface, Message, SharedEbb};
pub use slots::rpc_report;
pub use transport::TransportKind;
