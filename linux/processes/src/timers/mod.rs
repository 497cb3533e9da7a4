//! Timers: POSIX timers, interval timers, limits of processor time, and the alarms that they share with `timerfd`.
//!
//! - [`Alarms`]: the queue of alarms of all processes, with one timer of the event loop.
//! - [`ProcessTimers`]: the timers of a process.
//! - [`processor`]: timers by processor time. A thread checks them before it runs its program, and has one alarm that
//!   interrupts the program; a process that does not run has none.
//!
//! **Repetition.** As in Linux, a repeated timer gets its next alarm when its signal is delivered. Until then its expirations
//! are counted by calculation ([`Countdown`](isola_linux_files::Countdown)), so that a short interval costs a program's own
//! time only.
//!
//! **Locks.** The timers of a process are locked for a few instructions, after the signals of a process where both are
//! needed. Alarms ring without locks.

mod alarms;
mod process_timers;
pub mod processor;

pub use alarms::Alarms;
pub use process_timers::{IntervalClock, ProcessTimers, TimerClock, TimerNotice, TimerSignal};
