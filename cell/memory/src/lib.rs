//! A cell's memory: pages, the heap on top of them (EbbRT 3.3.3), and virtual regions (XOS IV-B).
//!
//! ```text
//!   core 0      core 1      core 2         GlobalAlloc
//!  [ cache ]   [ cache ]   [ cache ]       a free list a size class; neither lock nor atomic operation
//!      \___________|___________/           batches
//!   [ central list of a node and a class ] spans of equal objects; a lock each
//!      ____________|___________
//!   [ pages: a buddy system a node ]       a lock each
//! ```
//!
//! - [`Pages`] owns ranges of memory and hands out runs of 4 KiB pages, physically contiguous wherever the
//!   range is: all memory of a cell that comes from here can be given to a device.
//! - [`Heap`] is the general allocator: objects of up to 32 KiB in 40 size classes, from the cache of the
//!   core that asks; what is larger comes from [`Pages`] directly, and in pieces ([`mapped`]) where no run is long enough.
//! - [`CoreSource`] says which core asks: in a cell, [`ThisCore`]. It is all that the heap wants to know of
//!   the platform.
//! - [`regions`]: virtual memory that a pager fills, which the application chooses or writes.
//! - [`Hardened`] is for tests: an allocator around another one that finds what a program does wrong.
//!
//! How short memory is, and what each activity uses, stands in the cell's report: see [`isola_abi::report`]; upcalls are
//! made of the one by `isola-events`.
//!
//! No per-object header exists: the size that Rust passes when it frees is what tells the class.
//!
//! Lock order: a central list, then a node's pages. Neither is held while anything else is called. Objects in pieces and
//! regions have locks of their own, with which the heap is never called, nor are they called with one of the heap's. No
//! interrupt handler may run while a core is within an allocator; in a cell, interrupts are taken between
//! events only.
//!
//! What is *not* here: the memory itself (the platform adds ranges at start, from the descriptor's pool or
//! from the machine's memory map), what happens when memory has run out (the platform's allocation error
//! handler), page tables (the platforms), and device addresses (the platforms).
#![no_std]
#![allow(unsafe_code, reason = "an allocator makes owned memory out of addresses, which has no safe form")]

extern crate alloc;

pub mod hardened;
pub mod heap;
pub mod mapped;
pub mod pages;
pub mod regions;

pub use hardened::Hardened;
pub use heap::{CoreSource, Heap, ThisCore};
pub use pages::Pages;
