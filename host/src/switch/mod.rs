//! The software switch between the network devices of a machine: a process beside QEMU.
//!
//! Each device has a port. The switch sends to a port only the frames for its hardware address, and accepts from it
//! only frames with the addresses of its cell. At QEMU's user-mode network it keeps cells from the services of the
//! host. Decision 0051 has the reasons for a separate process, and its cost.
//!
//! | module | contents |
//! |---|---|
//! | [`fabric`] | the forwarding decision: [`fabric::Fabric`], without sockets |
//! | [`guard`] | the addresses that a port may use |
//! | [`host_wall`] | the filter towards the host's own services |
//! | `frame` | the parser of frames, of `isola-switch` |
//! | [`link`] | a stream of frames to QEMU |
//! | [`process`] | the poll loop |
//! | [`control`] | the control protocol between commands and the switch |
//!
//! [`crate::machine::boot`] starts it; [`crate::cellctl`] declares the cell of each device.

pub mod control;
pub mod fabric;
pub mod guard;
pub mod host_wall;
pub mod link;
pub mod process;
#[cfg(test)]
mod tests;

pub use isola_switch::frame;
