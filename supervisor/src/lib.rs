//! The supervisor's policy and services: it divides the machine's cores, memory and devices among cells, and takes them
//! back.
//!
//! The trusted core (`isola-supervisor-core`) owns the resources and carries out what is decided here. It checks each
//! request, so a defect here costs service, but gives no resource two owners. All is safe code without hardware access,
//! and is tested on a host; the image (`src/bin/supervisor`) puts it on hardware.
//!
//! | module | contents |
//! |---|---|
//! | [`cells`] | the cells' life cycle: create, start, stop, exit, crash, hang, restart, destroy |
//! | [`lending`] | the rules for core loans |
//! | [`images`] | the image store |
//! | [`staging`] | an image during its upload, hashed as it arrives |
//! | [`trust`] | the digest and the signature that a specification requires of an image |
//! | [`report`] | reads and validates a cell's report |
//! | [`logs`] | the cells' console output |
//! | [`journal`] | the log of changes and events |
//! | [`heap`] | the size of the supervisor's heap |
//! | [`server`] | the management protocol: bytes in, bytes out |
//!
//! Not here: anything that a running cell depends on. Cells never wait for the supervisor, except for requested memory,
//! and there with a time limit.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cells;
pub mod heap;
pub mod images;
pub mod journal;
pub mod lending;
pub mod logs;
pub mod report;
pub mod server;
pub mod staging;
pub mod trust;

#[cfg(test)]
mod fake;
