//! The supervisor's trusted core: it alone owns cores, memory and devices, and the address spaces of cells.
//!
//! [`TrustedCore`] carries out requests of the policy (`isola-supervisor`), which decides who gets which resources and
//! when. The policy is not trusted with ownership: the core validates each request and rejects a wrong one, so that
//! after any sequence of calls each resource has at most one owner, and memory is free only if nothing can still write
//! to it. A wrong policy can still stop or starve cells, and lend their cores.
//!
//! | module | contents |
//! |---|---|
//! | [`trusted_core`] | the cells' resources: build, start, end; core and memory hot-plug; recovery |
//! | [`inventory`] | cores, memory and devices: each is free or owned by exactly one cell |
//! | [`image`] | validation and layout of a cell image, as untrusted bytes |
//! | [`report`] | a cell's memory requests and offers, as untrusted data |
//! | [`hardware`], [`space`] | the operations on the machine, and on one cell's address space |
//! | [`scrub`] | zeroes memory; reads before it writes |
//!
//! Not here: names, specifications of ended cells, the image store, signatures, restarts, loans, the journal, and the
//! management protocol (`isola-supervisor`); hardware access (`isola-supervisor-machine`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod hardware;
pub mod image;
pub mod inventory;
pub mod report;
pub mod scrub;
pub mod space;
pub mod trusted_core;

pub use hardware::Hardware;
pub use space::CellSpace;
pub use trusted_core::TrustedCore;
