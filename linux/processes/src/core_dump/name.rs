//! The name of a core file: `/proc/sys/kernel/core_pattern`.

use crate::Errno;
use crate::signals::Signal;
use crate::system::System;
use crate::thread::Thread;
use alloc::string::ToString;
use alloc::sync::Weak;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_linux_files::{CallerIds, GeneratedText, LinkTarget};
use spin::Mutex;

/// The longest pattern, in bytes, as in Linux (with the zero at its end 128).
const LONGEST: usize = 127;

/// The pattern of core files' names.
#[derive(Debug)]
pub struct CorePattern {
    pattern: Mutex<Vec<u8>>,
    /// `/proc/sys/kernel/core_uses_pid`: a pattern without `%p` gets the process id at its end.
    uses_pid: AtomicBool,
}

impl Default for CorePattern {
    fn default() -> Self {
        Self { pattern: Mutex::new(b"core".to_vec()), uses_pid: AtomicBool::new(false) }
    }
}

impl CorePattern {
    /// Returns the path of the core file of a thread's process. An empty one stands for none.
    pub(super) fn name(&self, thread: &Thread, signal: Signal, limit: u64) -> Vec<u8> {
        let pattern = self.pattern.lock().clone();
        let number = |number: u64| number.to_string().into_bytes();
        let pid = u64::from(thread.process.pid);
        let value = |letter: u8| match letter {
            b'%' => b"%".to_vec(),
            b'p' | b'P' => number(pid),
            b'i' | b'I' => number(thread.state.tid().into()),
            b'u' => number(thread.credentials.user.real.into()),
            b'g' => number(thread.credentials.group.real.into()),
            b'd' => number(thread.process.is_dumpable().into()),
            b's' => number(signal.number().into()),
            b't' => number(thread.system.environment.unix_ns() / 1_000_000_000),
            b'h' => one_name(thread.system.host_name.lock().as_bytes()),
            b'e' => one_name(&thread.state.name.lock()),
            b'f' => one_name(executable(thread).rsplit(|byte| *byte == b'/').next().unwrap_or_default()),
            b'E' => one_name(&executable(thread)),
            b'c' => number(limit),
            _ => Vec::new(),
        };
        let (mut name, has_pid) = expand(&pattern, value);
        if self.uses_pid.load(Ordering::Relaxed) && !has_pid && !name.is_empty() {
            name.push(b'.');
            name.extend(number(pid));
        }
        name
    }

    fn set(&self, bytes: &[u8]) -> Result<(), Errno> {
        let pattern = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        // No program gets the core file by a pipe.
        if pattern.len() > LONGEST || pattern.contains(&0) || pattern.starts_with(b"|") {
            return Err(Errno::EINVAL);
        }
        *self.pattern.lock() = pattern.to_vec();
        Ok(())
    }
}

/// Replaces each `%` and its letter. Also returns whether the id of the process was one of them.
fn expand(pattern: &[u8], value: impl Fn(u8) -> Vec<u8>) -> (Vec<u8>, bool) {
    let (mut name, mut has_pid) = (Vec::new(), false);
    let mut bytes = pattern.iter();
    while let Some(&byte) = bytes.next() {
        match (byte, bytes.as_slice().first()) {
            (b'%', Some(&letter)) => {
                bytes.next();
                has_pid |= letter == b'p';
                name.extend(value(letter));
            }
            (b'%', None) => {}
            _ => name.push(byte),
        }
    }
    (name, has_pid)
}

/// Returns bytes as one component of a path.
fn one_name(bytes: &[u8]) -> Vec<u8> {
    match bytes {
        // As in Linux: they would be other directories.
        b"." => b"!".to_vec(),
        b".." => b"!.".to_vec(),
        _ => bytes.iter().map(|byte| if *byte == b'/' { b'!' } else { *byte }).collect(),
    }
}

fn executable(thread: &Thread) -> Vec<u8> {
    match &thread.process.program.lock().executable {
        Some(LinkTarget::Location(location)) => location.path(None),
        _ => thread.state.name.lock().clone(),
    }
}

/// `core_pattern`.
pub(crate) struct PatternFile(pub Weak<System>);

impl GeneratedText for PatternFile {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        let system = self.0.upgrade().ok_or(Errno::ESRCH)?;
        let mut text = system.core_pattern.pattern.lock().clone();
        text.push(b'\n');
        Ok(text)
    }

    fn write(&self, bytes: &[u8], _: CallerIds) -> Result<(), Errno> {
        self.0.upgrade().ok_or(Errno::ESRCH)?.core_pattern.set(bytes)
    }

    fn permissions(&self) -> u32 {
        0o644
    }
}

/// `core_uses_pid`.
pub(crate) struct UsesPidFile(pub Weak<System>);

impl GeneratedText for UsesPidFile {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        let uses_pid = self.0.upgrade().ok_or(Errno::ESRCH)?.core_pattern.uses_pid.load(Ordering::Relaxed);
        Ok(if uses_pid { b"1\n".to_vec() } else { b"0\n".to_vec() })
    }

    fn write(&self, bytes: &[u8], _: CallerIds) -> Result<(), Errno> {
        let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
        let uses_pid: u32 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
        let system = self.0.upgrade().ok_or(Errno::ESRCH)?;
        system.core_pattern.uses_pid.store(uses_pid != 0, Ordering::Relaxed);
        Ok(())
    }

    fn permissions(&self) -> u32 {
        0o644
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_letters_for_facts() {
        let value = |letter: u8| match letter {
            b'%' => b"%".to_vec(),
            b'p' => b"12".to_vec(),
            b'e' => one_name(b"a/b"),
            _ => Vec::new(),
        };
        let expanded = |pattern: &[u8]| expand(pattern, value);
        assert_eq!(expanded(b"core"), (b"core".to_vec(), false));
        assert_eq!(expanded(b"/tmp/%e.%p%%%x"), (b"/tmp/a!b.12%".to_vec(), true));
        assert_eq!(expanded(b"core%"), (b"core".to_vec(), false));
        assert_eq!(one_name(b".."), b"!.");
    }

    #[test]
    fn patterns_for_pipes_and_long_ones_are_refused() {
        let pattern = CorePattern::default();
        for bad in [&b"|/usr/bin/dump %p"[..], b"a\0b", &[b'x'; 128]] {
            assert_eq!(pattern.set(bad), Err(Errno::EINVAL));
        }
        assert_eq!(pattern.set(b"/cores/%p\n"), Ok(()));
        assert_eq!(*pattern.pattern.lock(), b"/cores/%p");
    }
}
