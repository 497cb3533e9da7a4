//! Buffers that carry data between devices and applications without copies (EbbRT 3.3.1's `IOBuf`).
//!
//! Three types, one for each thing that is done with bytes:
//!
//! - [`IoBufMut`]: sole owner of a piece of memory, with head- and tailroom. A device fills it, a protocol
//!   prepends its header.
//! - [`IoBuf`]: a read-only view, shared. Cloning and slicing cost a reference count, never a copy. What a
//!   TCP sender keeps for retransmission and what the device reads are two views of one memory.
//! - [`Chain`]: several views one after the other, as one byte sequence. What goes to a device, and what
//!   a stream hands to an application.
//!
//! A [`Frame`] is what a network stack makes of them for a device. Bytes are read by a [`Cursor`] and written by an [`Emitter`], neither of which can leave its bytes.
//!
//! The memory below is ordinary heap memory: in a bare cell the heap is direct-mapped, so that every buffer
//! can be handed to a device. How a buffer's address becomes a device's is not here: see the platforms.
#![no_std]

extern crate alloc;

mod buf;
mod chain;
mod cursor;
mod emit;
mod frame;

pub use buf::{IoBuf, IoBufMut};
pub use chain::Chain;
pub use cursor::Cursor;
pub use emit::Emitter;
pub use frame::{Frame, PartialChecksum};
