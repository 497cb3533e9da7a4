//! The trusted core on real hardware: the hardware traits of `isola-supervisor-core`, implemented with `isola-machine`.
//!
//! | module | contents |
//! |---|---|
//! | [`hardware`], [`space`] | the operations on the machine, and on one cell's address space |
//! | [`inventory`] | the supervisor's share of the memory, and the inventory of the rest |
//! | [`recovered`] | the state that a failed supervisor left |
//! | [`memory`] | memory regions as pieces of the inventory |
//! | [`heartbeat`] | detects a hang of the supervisor, and restarts it |
//! | [`faults`] | fault injection for tests |
//! | [`time`] | cycles as time |
//!
//! Not here: the ownership rules (`isola-supervisor-core`); boot order, console and the supervisor's loop (the image, in
//! `supervisor/src/bin`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod faults;
pub mod hardware;
pub mod heartbeat;
pub mod inventory;
pub mod memory;
pub mod recovered;
pub mod space;
pub mod time;

pub use hardware::{Core, MachineHardware};
pub use memory::{Piece, SharedPiece};
pub use space::Space;
pub use time::Time;
