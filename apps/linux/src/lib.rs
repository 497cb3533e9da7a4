//! The options of the image `linux`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod options;
mod tmpfs;
mod users;

pub use options::{Options, USAGE};
pub use tmpfs::TmpfsMount;
pub use users::{User, find_user, user_names};
