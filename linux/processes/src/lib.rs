//! Linux processes: loader, threads, signals, futexes, and the table of system calls.
//!
//! - [`System`]: the processes of a cell. [`start`] creates the first of them.
//! - [`Process`](process::Process), [`Thread`](thread::Thread): a thread is a task that runs its program in user mode, and
//!   serves its traps.
//! - [`calls`]: the table of system calls.
//! - [`signals`], [`delivery`]: signals are delivered before the program continues, and at no other point.
//! - [`loader`], [`exec`]: ELF programs, scripts, the stack of a new program.
//!
//! **Waiting.** A call that waits is a future. [`Thread::interruptible`](thread::Thread::interruptible) drops it when a signal
//! arrives; bytes that it has moved are its result.
//!
//! **Locks** are spin locks, held for a few instructions and never over an `await`. Order: the family of processes, the
//! signals of a process, those of a thread.
//!
//! Not here: files (`isola-linux-files`), memory (`isola-linux-memory`), the processor (`isola-user-mode`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod calls;
pub mod clone;
pub mod credentials;
pub mod delivery;
pub mod environment;
pub mod exec;
pub mod exit;
pub mod exit_status;
pub mod family;
pub mod futex;
mod job_control;
pub mod limits;
pub mod loader;
pub mod missing;
pub mod proc;
pub mod process;
pub mod signals;
mod start;
pub mod system;
pub mod thread;
pub mod thread_state;
pub mod wait_queue;

pub use environment::{Environment, TaskMaker};
pub use exit_status::ExitStatus;
pub use isola_linux_abi::Errno;
pub use start::{FirstProgram, StartedCommand, start, start_command};
pub use system::System;
