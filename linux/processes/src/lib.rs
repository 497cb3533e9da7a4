//! Linux processes: loader, threads, signals, futexes, and the table of system calls.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod credentials;
pub mod exit_status;
pub mod family;
pub mod futex;
pub mod limits;
pub mod loader;
pub mod signals;
pub mod thread_state;
pub mod wait_queue;

pub use isola_linux_abi::Errno;
