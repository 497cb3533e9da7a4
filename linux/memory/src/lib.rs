//! The memory of Linux processes: mappings, page faults, copies from and to programs.
//!
//! - [`PageSource`]: the contents of a mapping, such as a file's page cache. A page fault takes a frame from it.
//! - [`UserBuffer`]: bytes of a program, resolved to frames, from which calls read and to which they write.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod page_source;
mod user_buffer;

pub use isola_linux_abi::Errno;
pub use page_source::{BoxFuture, PageSource};
pub use user_buffer::{FramePart, UserBuffer};
