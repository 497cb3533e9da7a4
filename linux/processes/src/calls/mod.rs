//! The table of system calls.
//!
//! Each entry names a call, its parameters, and the function that serves it; the number is the kernel's. The table
//! generates the dispatch and `docs/linux.md`. A function returns the value of RAX, or an error. One that can wait is
//! `async`.

pub mod files;
pub mod futex;
mod identity;
mod information;
mod memory;
mod processes;
mod scheduling;
mod signals;
mod time;
mod words;

use crate::Errno;
use crate::thread::Thread;
use alloc::format;
use alloc::string::String;
use isola_linux_abi::numbers;
use words::Word;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: &'static str,
    /// The names of its parameters.
    pub parameters: &'static [&'static str],
    /// What differs from Linux; empty if nothing is known.
    pub notes: &'static str,
}

/// The result of a call.
pub type CallResult = Result<u64, Errno>;

macro_rules! calls {
    ($($(#[doc = $notes:literal])* $name:ident($($parameter:ident),*) => $path:path $([$kind:ident])?;)*) => {
        /// All calls, in ascending order of their names.
        pub const CALLS: &[Call] = &[$(Call {
            number: numbers::calls::$name,
            name: stringify!($name),
            parameters: &[$(stringify!($parameter)),*],
            notes: concat!($($notes),*),
        }),*];

        /// Dispatches a call.
        async fn dispatch(thread: &mut Thread, number: u64, words: [u64; 6]) -> CallResult {
            match number {
                $(numbers::calls::$name => {
                    let [$($parameter,)* ..] = words;
                    calls!(@run thread, $path, ($($parameter),*) $([$kind])?)
                })*
                _ => Err(missing(thread, number)),
            }
        }
    };
    (@run $thread:ident, $path:path, ($($parameter:ident),*)) => {
        $path($thread, $(Word::from_word($parameter)),*)
    };
    (@run $thread:ident, $path:path, ($($parameter:ident),*) [wait]) => {
        $path($thread, $(Word::from_word($parameter)),*).await
    };
}

calls! {
    arch_prctl(code, address) => identity::arch_prctl;
    brk(address) => memory::brk [wait];
}

/// Serves a call.
pub async fn serve(thread: &mut Thread, number: u64, words: [u64; 6]) -> CallResult {
    if !thread.system.traces {
        return dispatch(thread, number, words).await;
    }
    let name = call(number).map_or_else(|| format!("call {number}"), |call| call.name.into());
    let arguments = arguments(call(number), words);
    let (pid, tid) = (thread.process.pid, thread.state.tid());
    if matches!(number, numbers::calls::execve | numbers::calls::exit | numbers::calls::exit_group) {
        thread.system.environment.report(&format!("[{pid}/{tid}] {name}({arguments})"));
    }
    let system = thread.system.clone();
    let result = dispatch(thread, number, words).await;
    let shown = match result {
        Ok(value) if value as i64 > -4096 && value < 10_000_000 => format!("{value}"),
        Ok(value) => format!("{value:#x}"),
        Err(errno) => format!("-1 {errno}"),
    };
    system.environment.report(&format!("[{pid}/{tid}] {name}({arguments}) = {shown}"));
    result
}

/// Returns the call with this number.
pub fn call(number: u64) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.number == number)
}

/// Returns the arguments of a call in a trace.
fn arguments(call: Option<&Call>, words: [u64; 6]) -> String {
    let count = call.map_or(6, |call| call.parameters.len());
    let shown = words.iter().take(count).enumerate().map(|(index, word)| {
        let name = call.and_then(|call| call.parameters.get(index)).copied().unwrap_or("");
        let value = if *word < 65_536 || (*word as i64) < 0 && (*word as i64) > -65_536 {
            format!("{}", *word as i64)
        } else {
            format!("{word:#x}")
        };
        if name.is_empty() { value } else { format!("{name}: {value}") }
    });
    shown.collect::<alloc::vec::Vec<_>>().join(", ")
}

/// Counts a call that does not exist.
fn missing(thread: &Thread, number: u64) -> Errno {
    thread.system.missing.count(&format!("call {number}"));
    Errno::ENOSYS
}

/// Counts a feature of a call that does not exist.
pub(crate) fn unsupported(thread: &Thread, feature: &str, errno: Errno) -> Errno {
    thread.system.missing.count(feature);
    errno
}
