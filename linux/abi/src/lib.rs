//! Linux's binary interface on x86-64, as programs use it: errors, numbers, structures.
//!
//! [`numbers`] has the kernel's own constants and structures, from its headers. [`Errno`] is the error of a system call.
#![no_std]
#![forbid(unsafe_code)]

mod errno;

pub use errno::Errno;

/// The kernel's constants and structures, generated from its headers.
pub mod numbers {
    pub use linux_raw_sys::auxvec::*;
    pub use linux_raw_sys::general::*;
}

/// The options of `prctl`.
pub mod prctl {
    pub use linux_raw_sys::prctl::*;
}

/// The constants of `ptrace`.
pub mod ptrace {
    pub use linux_raw_sys::ptrace::*;
}

/// The constants and structures of `io_uring`.
pub mod io_uring {
    pub use linux_raw_sys::io_uring::*;
}

/// The constants and structures of sockets.
pub mod net {
    pub use linux_raw_sys::net::*;
}

/// The requests of `ioctl`.
pub mod requests {
    pub use linux_raw_sys::ioctl::*;
}
