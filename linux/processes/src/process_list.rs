//! The processes as the host tool shows them (`isola inspect`).

use crate::calls::process_time;
use crate::proc::{command_line, process_name, process_state, resident_bytes};
use crate::process::Process;
use crate::system::System;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use isola_abi::query::{MAX_COMMAND, ProcessUsage};

/// Returns the number of processes, and the `most` of them that have used most time, in the order of their ids.
pub fn list_processes(system: &System, most: usize) -> (usize, Vec<ProcessUsage>) {
    let all: Vec<Arc<Process>> =
        system.family.lock().processes().map(|(_, process)| process.clone()).collect();
    let mut shown: Vec<ProcessUsage> = all.iter().map(|process| usage(system, process)).collect();
    if shown.len() > most {
        shown.sort_by_key(|usage| Reverse(usage.user_ns + usage.system_ns));
        shown.truncate(most);
    }
    shown.sort_by_key(|usage| usage.pid);
    (all.len(), shown)
}

fn usage(system: &System, process: &Process) -> ProcessUsage {
    let time = process_time(system, process);
    let (_, hz) = system.environment.cycles();
    let ns = time.user_ns.saturating_add(time.system_ns);
    // Their locks must not be held below.
    let parent = system.family.lock().parent(process.pid);
    let user = process.user.lock().effective;
    ProcessUsage {
        pid: process.pid,
        parent,
        user,
        user_name: None,
        state: process_state(system, process),
        threads: process.thread_count() as u32,
        resident_bytes: resident_bytes(process),
        user_ns: time.user_ns,
        system_ns: time.system_ns,
        cycles: (u128::from(ns) * u128::from(hz) / 1_000_000_000) as u64,
        command: command(&command_line(process), &process_name(process)),
    }
}

/// Returns arguments that end with NUL as a text, without control characters.
fn command(arguments: &[u8], name: &str) -> String {
    let arguments = arguments.strip_suffix(b"\0").unwrap_or(arguments);
    if arguments.is_empty() {
        return alloc::format!("[{name}]");
    }
    let text = String::from_utf8_lossy(&arguments[..arguments.len().min(MAX_COMMAND)]).into_owned();
    let mut text: String =
        text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    while text.len() > MAX_COMMAND {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_line_of_bounded_length() {
        assert_eq!(command(b"sh\0-c\0a\nb\0", "sh"), "sh -c a b");
        assert_eq!(command(b"", "worker"), "[worker]");
        assert_eq!(command(b"\0", "worker"), "[worker]");
        // Bytes that are no text become characters of three bytes.
        let long = command(&[0xff; 1000], "x");
        assert!(long.len() <= MAX_COMMAND && long.chars().all(|letter| letter == '\u{fffd}'));
    }
}
