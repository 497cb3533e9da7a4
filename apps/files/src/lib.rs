//! The parts of `files` that need no cell: the parser of requests, and the heads of responses.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod head;
mod request;

pub use head::{Body, head};
pub use request::{MAX_REQUEST, Method, Request, RequestError};
