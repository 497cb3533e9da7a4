//! NetPIPE (Snell, Mikler, Gustafson 1996): a message of each size goes to the server and back, and half of the round
//! trip counts as the time of one direction. The result is a curve of a connection's performance from latency to
//! throughput (EbbRT 4.1.3).
//!
//! ```text
//!   client                                    server
//!     round: direction, size, count ─────>
//!     message                 ───────────>      reads all of it
//!       reads all of it       <───────────      message            count times
//!     ...
//!     round: size 0           ───────────>      ends
//! ```
//!
//! In a round with one direction, messages follow each other back to back (NetPIPE's streaming mode). It measures bulk
//! throughput without the latency.
//!
//! Each side sends views of one buffer again and again, and discards received data as it arrives: no message is copied
//! or stored.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod client;
pub mod endpoint;
mod message;
pub mod round;
pub mod server;
pub mod sizes;

pub use client::{Measurement, Settings, measure_all};
pub use server::Server;
