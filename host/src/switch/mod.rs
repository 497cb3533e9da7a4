//! The switch between the network devices of a machine: a process of its own, beside QEMU.
//!
//! Each device has a port. The switch gives a port the frames that are for its hardware address, and no others, and takes
//! frames from it that carry the addresses of its cell, and no others. Towards QEMU's user-mode network it keeps cells
//! away from the services of the host. Decision 0051 says why it is a process, and what it costs.
//!
//! | module | what |
//! |---|---|
//! | [`fabric`] | where a frame goes: [`fabric::Fabric`], without sockets |
//! | [`guard`] | which addresses a port may use |
//! | [`host_wall`] | what may go to the host's own services |
//! | [`frame`] | what is read of a frame |
//! | [`link`] | a stream of frames to QEMU |
//! | [`process`] | the loop |
//! | [`control`] | how commands talk to it |
//!
//! Started by [`crate::machine::boot`]; which cell has which device is declared by [`crate::cellctl`].

pub mod control;
pub mod fabric;
pub mod frame;
pub mod guard;
pub mod host_wall;
pub mod link;
pub mod process;
#[cfg(test)]
mod tests;
