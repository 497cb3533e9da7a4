//! The options of the image `linux`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod options;

pub use options::{Options, USAGE};
