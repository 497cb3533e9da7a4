//! Drivers of virtio 1.2 devices, as state machines over rings and registers: whoever uses one calls it, and it
//! never waits, never takes an interrupt and knows no event loop. So the supervisor and the cells use the same.
//!
//! | module | what | virtio 1.2 |
//! |---|---|---|
//! | [`virtqueue`] | the split ring: lends buffers to the device, takes them back | 2.6, 2.7 |
//! | [`transport`] | how a device is reached: [`transport::pci`], [`transport::mmio`] | 4.1, 4.2 |
//! | [`device`] | what all devices share: status, features, the way to a running device | 2, 3 |
//! | [`net`] | the network device | 5.1 |
//! | [`console`] | the console, port 0 | 5.3 |
//!
//! ```text
//!   net   console                      Frames, bytes. What a cell or the supervisor calls.
//!     |   |
//!     device  ---- creates ---->  virtqueue        One owner each: queues can go to other cores.
//!       |                            |   |
//!     transport (pci | mmio)         |   notifier  One register write, where the device wants it.
//!       |                            |
//!     machine::registers          machine::dma     The door to hardware.
//! ```
//!
//! # What a driver believes
//! Nothing that it could not check. A device is outside of a wall: it can be another cell, or a hypervisor that
//! is broken. All bookkeeping stands in memory that the device does not see, and what the device says (which
//! buffer it returns, how long its contents are, where its registers stand) is compared with it. A device
//! that breaks the rules makes its queue refuse all further work with a [`virtqueue::Fault`]; its buffers stay
//! lent until it has been reset. What no driver can prevent, without an IOMMU, is that a device writes to memory
//! that nobody lent to it.
//!
//! # Memory that a device uses
//! The addresses that reach a device come from [`isola_machine::dma`] alone: from a
//! [`DmaBuffer`](isola_machine::dma::DmaBuffer) or a [`DmaRegion`](isola_machine::dma::DmaRegion). A queue that
//! is dropped while its device runs leaks what it lent, rather than free memory that the device may yet write.
//! Reset the device first, and nothing leaks.
//!
//! What is not here: mapping registers and finding devices (`machine`, and the descriptor of a cell), steering
//! of flows to queues, and what stands in a frame.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod console;
pub mod device;
#[cfg(test)]
mod fake;
pub mod net;
pub mod transport;
pub mod virtqueue;
