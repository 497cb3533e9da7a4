//! The supervisor: divides the machine's cores, memory and devices among cells, and takes them back.
//!
//! All decisions are made here, in safe code without hardware access, and are tested on a host. All hardware access is
//! behind one trait, [`effects::Effects`], which the image (`src/bin/supervisor`) implements with `isola-machine`.
//!
//! | module | contents |
//! |---|---|
//! | [`inventory`] | cores, memory and devices: each is free or owned by exactly one cell |
//! | [`image`] | validation and layout of a cell image, as untrusted bytes |
//! | [`trust`] | the digest and the signature that a specification requires of an image |
//! | [`cells`] | the cells' life cycle: create, start, stop, exit, crash, hang, restart, destroy |
//! | [`report`] | reads and validates a cell's report |
//! | [`logs`] | the cells' console output |
//! | [`journal`] | the log of changes and events |
//! | [`lending`] | the rules for core loans |
//! | [`images`] | the image store |
//! | [`staging`] | an image during its upload, hashed as it arrives |
//! | [`heap`] | the size of the supervisor's heap |
//! | [`scrub`] | zeroes memory; reads before it writes |
//! | [`server`] | the management protocol: bytes in, bytes out |
//! | [`effects`] | the hardware operations that the rest needs |
//!
//! Not here: anything that a running cell depends on. Cells never wait for the supervisor, except for requested memory,
//! and there with a time limit.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cells;
pub mod effects;
pub mod heap;
pub mod image;
pub mod images;
pub mod inventory;
pub mod journal;
pub mod lending;
pub mod logs;
pub mod report;
pub mod scrub;
pub mod server;
pub mod staging;
pub mod trust;

#[cfg(test)]
mod fake;
