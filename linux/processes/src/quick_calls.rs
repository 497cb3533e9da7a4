//! Calls that return an id and have no other effect: the platform answers them while the program runs
//! ([`UserThread::run_with`](isola_user_mode::UserThread::run_with)). The answers of a thread change with its ids.

use isola_linux_abi::numbers;
use isola_user_mode::QuickNumbers;

/// An answer, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `getpid`.
    Process,
    /// `gettid`.
    Thread,
    /// `getppid`.
    Parent,
    /// `getuid`.
    User,
    /// `geteuid`.
    EffectiveUser,
    /// `getgid`.
    Group,
    /// `getegid`.
    EffectiveGroup,
}

/// The calls.
pub static NUMBERS: QuickNumbers = QuickNumbers::new(&[
    (numbers::__NR_getpid, Answer::Process as usize),
    (numbers::__NR_gettid, Answer::Thread as usize),
    (numbers::__NR_getppid, Answer::Parent as usize),
    (numbers::__NR_getuid, Answer::User as usize),
    (numbers::__NR_geteuid, Answer::EffectiveUser as usize),
    (numbers::__NR_getgid, Answer::Group as usize),
    (numbers::__NR_getegid, Answer::EffectiveGroup as usize),
]);
