//! A cell's memory: pages, the heap above them (EbbRT 3.3.3), and virtual regions (XOS IV-B).
//!
//! ```text
//!   core 0      core 1      core 2         GlobalAlloc
//!  [ cache ]   [ cache ]   [ cache ]       a free list per size class; no lock, no atomic operation
//!      \___________|___________/           batches
//!   [ central list per node and class ]    spans of equal objects; one lock each
//!      ____________|___________
//!   [ pages: a buddy system per node ]     one lock each
//! ```
//!
//! - [`Pages`] owns ranges of memory and allocates runs of 4 KiB pages. A run is physically contiguous if its range is,
//!   so a cell can lend any of this memory to a device.
//! - [`Heap`] is the general allocator. Objects of up to 32 KiB come in 40 size classes from the current core's cache;
//!   larger ones come from [`Pages`] directly, or are virtually contiguous ([`virtual_alloc`]) if no run is long
//!   enough.
//! - [`CoreSource`] identifies the current core: in a cell, [`ThisCore`]. The heap needs nothing else of the platform.
//! - [`frame`]: pages that programs in user mode have mapped.
//! - [`regions`]: virtual memory that a pager fills, one of the library's or the application's own.
//! - [`Hardened`] is for tests: an allocator around another one that detects misuse of memory.
//!
//! The cell's report ([`isola_abi::report`]) shows the memory pressure, its ledger the memory of each activity.
//! `isola-events` makes the upcalls under memory pressure.
//!
//! Objects have no header: the class follows from the size that Rust passes to a free.
//!
//! Lock order: a central list, then a node's pages. Neither is held during calls out of the heap. Virtually contiguous
//! objects and regions have their own locks; the heap is not called with these held, nor are they taken with a lock of
//! the heap held. No interrupt handler may run while a core is within an allocator; a cell takes interrupts only
//! between events.
//!
//! What is *not* here: the memory itself (the platform adds ranges at start, from the descriptor's pool or the
//! machine's memory map), the reaction to exhausted memory (the platform's allocation error handler), page tables and
//! device addresses (the platforms).
#![no_std]
#![allow(unsafe_code, reason = "an allocator makes owned memory out of addresses, which has no safe form")]

extern crate alloc;

pub mod frame;
pub mod hardened;
pub mod heap;
pub mod pages;
pub mod regions;
pub mod virtual_alloc;

pub use hardened::Hardened;
pub use heap::{CoreSource, Heap, ThisCore};
pub use pages::Pages;

/// Frees the memory of dropped regions, and the addresses of freed virtually contiguous objects, for which every core
/// has flushed its TLB. It costs two loads if there are none.
pub fn collect() {
    virtual_alloc::collect();
    regions::collect();
}
