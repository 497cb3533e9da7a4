//! NetPIPE (Snell, Mikler, Gustafson 1996): a message of each size goes there and back, and half of the time that it takes is
//! what one way takes. What a connection can do is then a curve, from its latency to its throughput (EbbRT 4.1.3).
//!
//! ```text
//!   client                                    server
//!     round: way, size, count ───────────>
//!     message                 ───────────>      reads all of it
//!       reads all of it       <───────────      message            count times
//!     ...
//!     round: size 0           ───────────>      ends
//! ```
//!
//! In a round of the other kind, messages go one way only, one behind the other (NetPIPE's streaming mode): what a connection
//! carries in bulk, with the latency out of it.
//!
//! Each end sends the same memory again and again, and forgets what it reads as it comes: nobody copies a message, and
//! nobody holds one.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod client;
pub mod end;
mod message;
pub mod round;
pub mod server;
pub mod sizes;

pub use client::{Measured, Settings, measure_all};
pub use server::Server;
