//! Drivers of virtio 1.2 devices, as state machines over rings and registers. Their caller polls them: a driver never
//! blocks, never takes an interrupt and knows no event loop. The supervisor and the cells therefore use the same
//! drivers.
//!
//! | module | contents | virtio 1.2 |
//! |---|---|---|
//! | [`virtqueue`] | the split ring: lends buffers to the device, takes them back | 2.6, 2.7 |
//! | [`transport`] | access to a device: [`transport::pci`], [`transport::mmio`], [`transport::channel`] | 4.1, 4.2 |
//! | [`device`] | common to all devices: status, features, initialisation | 2, 3 |
//! | [`net`] | the network device | 5.1 |
//! | [`block`] | the block device | 5.2 |
//! | [`console`] | the console, one port | 5.3 |
//!
//! ```text
//!   net  block  console                Frames, requests, bytes. The interface of a cell or the supervisor.
//!     |   |   |
//!     device  ---- creates ---->  virtqueue        One owner each: queues can move to other cores.
//!       |                            |   |
//!     transport (pci | mmio | channel) |   notifier  One register write, if the device requests it.
//!       |                            |
//!     machine::registers          machine::dma     All hardware access.
//! ```
//!
//! # Trust in the device
//! A device is outside of a trust boundary: it can be another cell, or a faulty hypervisor. A driver uses no value of a
//! device that it has not checked. All bookkeeping is in memory that the device cannot access, and the driver checks
//! against it the buffers that the device returns, the lengths of their contents, and the positions of its registers.
//! If a device violates the protocol, its queue rejects all further work with a [`virtqueue::Fault`]; its buffers stay
//! lent until the device has been reset. Without an IOMMU no driver can prevent a device from writing to memory that
//! was not lent to it.
//!
//! # Memory that a device uses
//! All addresses that reach a device come from [`isola_machine::dma`]: from a
//! [`DmaBuffer`](isola_machine::dma::DmaBuffer) or a [`DmaRegion`](isola_machine::dma::DmaRegion). A queue that is
//! dropped while its device runs leaks the lent buffers, because the device may still write to them. After a reset of
//! the device nothing leaks.
//!
//! Not here: mapping of registers and discovery of devices (`machine`, and the descriptor of a cell), steering of flows
//! to queues, and the contents of frames.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod block;
pub mod console;
pub mod device;
#[cfg(test)]
mod fake;
pub mod net;
pub mod transport;
pub mod virtqueue;
