//! Reference-counted buffers for zero-copy I/O between devices and applications (`IOBuf` in EbbRT 3.3.1).
//!
//! - [`IoBufMut`]: the sole owner of a buffer, with head- and tailroom. A device fills it, a protocol prepends its
//!   header.
//! - [`IoBuf`]: a shared, read-only view. Clones and slices cost a reference count, never a copy. A TCP sender's data
//!   for retransmission and the data that the device reads are two views of one memory.
//! - [`Chain`]: several views as one byte sequence, for a device to send or for an application to read from a stream.
//!
//! A [`Frame`] is a network stack's output to a device. A [`Cursor`] reads bytes, an [`Emitter`] writes them; neither
//! can leave its bytes.
//!
//! The memory is ordinary heap memory. In a bare cell the heap is direct-mapped, so a device can use every buffer. The
//! translation to device addresses is in the platforms.
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
