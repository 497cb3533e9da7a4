//! Flows: bytes from a source to a sink, started by one call (Vortex 3.1).
//!
//! ```text
//!   Source (file, TCP stream, memory) --poll_read--> window of the flow --poll_write--> Sink (TCP stream, file, memory)
//!          stops when the window is full                       stops when the sink has no room
//! ```
//!
//! ```ignore
//! let flowed = flow(file.source(0), &mut stream).length(len).await;
//! println!("{} bytes", flowed.bytes);
//! flowed.result?;
//! ```
//!
//! - [`Source`] and [`Sink`]: the two ends. Files (`isola-volumes`), TCP streams (`isola-net`) and [`Chain`]s in memory
//!   implement them.
//! - [`flow`] makes a [`Flow`], a future: awaiting it moves the bytes in the caller's task, [`Flow::start`] and
//!   [`Flow::start_for`] in a task of its own. Dropping it cancels it.
//! - [`Flowed`]: the bytes that the sink took, the end that failed, and [`FlowStatistics`].
//!
//! **Window.** A flow has at most [`Flow::window`] bytes that the source has returned, or prepares, and the sink has not
//! taken: it reads ahead while the sink is busy, and a slow sink stops the source. A source is asked again when half of
//! the window is free, so that a sink that takes a few bytes at a time does not cause tiny reads.
//!
//! **Order.** The sink gets the bytes in the source's order. Views of the bytes are moved; nothing is copied, and a flow
//! allocates nothing for each chunk.
//!
//! **Charges.** All that a flow causes (processor time, cached blocks, bytes of devices) is charged to the activity of
//! its task.
//!
//! [`Chain`]: isola_iobuf::Chain
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ends;
mod flow;

pub use ends::{Sink, Source};
pub use flow::{DEFAULT_WINDOW, Flow, FlowError, FlowStatistics, Flowed, SinkEnd, flow};
