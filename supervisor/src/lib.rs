//! The supervisor: divides the machine's cores, memory and devices among cells, and takes them back.
//!
//! Everything that decides is here, safe and pure, and is tested on a host; everything that touches hardware is
//! behind one trait, [`effects::Effects`], which the image implements over `isola-machine`.
//!
//! | module | what |
//! |---|---|
//! | [`inventory`] | cores, memory and devices: each free, or owned by exactly one cell |
//! | [`image`] | what a cell image must be, checked on bytes that nobody vouches for |
//! | [`trust`] | whether an image is what it must be |
//! | [`cells`] | the cells, and what becomes of them: create, start, stop, exit, crash, hang, restart, destroy |
//! | [`report`] | what a cell says of itself, read without believing it |
//! | [`logs`] | what cells print |
//! | [`journal`] | what the supervisor did and saw |
//! | [`images`] | the images that cells are made from, kept for the next time |
//! | [`staging`] | an image on its way in, measured as it comes |
//! | [`heap`] | how much memory all this needs |
//! | [`scrub`] | memory made zero, by looking first |
//! | [`server`] | the management protocol: bytes in, bytes out |
//! | [`effects`] | what all this needs from a machine |
//!
//! What is not here: anything that a cell needs while it runs. Cells do not wait for the supervisor but for memory,
//! where they may have more of it, and that not for ever.
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
