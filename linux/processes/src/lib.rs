//! Linux processes: loader, threads, signals, futexes, and the table of system calls.
//!
//! - [`System`]: the processes of a cell. [`start`] creates the first of them.
//! - [`Process`](process::Process), [`Thread`](thread::Thread): a thread is a task that runs its program in user mode, and
//!   serves its traps.
//! - [`calls`]: the table of system calls.
//! - [`asynchronous`]: operations that continue after their call, of `io_uring` and Linux AIO.
//! - [`signals`], [`delivery`]: signals are delivered before the program continues, and at no other point.
//! - [`ipc`]: System V shared memory, semaphores and message queues.
//! - [`timers`]: POSIX timers, interval timers, limits of processor time.
//! - [`loader`], [`exec`]: ELF programs, scripts, the stack of a new program.
//! - [`control`], [`account`], [`cgroup`]: each process is an activity of the resource grid, below that of its group.
//! - [`core_dump`]: the core files of processes that signals end.
//! - [`tracing`]: threads that another process traces (`ptrace`).
//! - [`out_of_memory`]: the choice of a process to kill when memory is out.
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

pub mod account;
pub mod asynchronous;
pub mod calls;
pub mod cgroup;
pub mod clone;
pub mod control;
pub mod core_dump;
pub mod core_loads;
pub mod credentials;
pub mod delivery;
pub mod direct_switch;
pub mod environment;
pub mod exec;
pub mod exit;
pub mod exit_status;
pub mod family;
pub mod futex;
pub mod ipc;
mod job_control;
pub mod limits;
pub mod loader;
mod meter;
pub mod missing;
pub mod out_of_memory;
pub mod proc;
pub mod process;
mod process_file;
mod process_list;
pub mod quick_calls;
mod rseq;
mod signal_file;
pub mod signals;
mod start;
pub mod system;
#[cfg(test)]
mod test_environment;
pub mod thread;
pub mod thread_state;
pub mod timers;
pub mod tracing;
mod vdso;
pub mod wait_queue;

pub use environment::{Activities, CoreTime, Environment, Share, SharedResource, TaskMaker, TaskPlacement};
pub use exit_status::ExitStatus;
pub use isola_linux_abi::Errno;
pub use process_list::list_processes;
pub use start::{FirstProgram, StartedCommand, start, start_command};
pub use system::System;
