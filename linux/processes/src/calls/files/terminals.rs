//! Calls on terminals: reads that wait for a number of bytes or for a time, and `ioctl`.

use super::descriptors::install;
use crate::Errno;
use crate::calls::CallResult;
use crate::job_control::{check_change, check_read};
use crate::thread::Thread;
use isola_linux_abi::numbers::CAP_SYS_ADMIN;
use isola_linux_files::{FileObject, OpenFile, ReadPlan, TerminalAnswer, TerminalFile, changes_terminal};
use isola_linux_memory::UserBuffer;

/// Reads from a terminal.
pub async fn read(
    thread: &Thread,
    file: &OpenFile,
    terminal: &TerminalFile,
    mut buffer: UserBuffer,
    offset: Option<u64>,
) -> CallResult {
    if offset.is_some() {
        return Err(Errno::ESPIPE);
    }
    if !file.is_readable() {
        return Err(Errno::EBADF);
    }
    check_read(thread, terminal)?;
    let plan = terminal.read_plan().filter(|_| !file.is_nonblocking());
    let Some(plan) = plan else {
        return thread.interruptible(file.read(&mut buffer)).await?.map(|count| count as u64);
    };
    let len = buffer.len();
    match read_by_plan(thread, terminal, &mut buffer, plan).await {
        Err(Errno::ERESTARTSYS) if buffer.len() < len => Ok((len - buffer.len()) as u64),
        result => result,
    }
}

/// Reads without lines: until there are `VMIN` bytes, or until the time of `VTIME` has passed.
async fn read_by_plan(
    thread: &Thread,
    terminal: &TerminalFile,
    buffer: &mut UserBuffer,
    plan: ReadPlan,
) -> CallResult {
    let until = |limit: u64| thread.system.environment.monotonic_ns().saturating_add(limit);
    let mut until_ns = plan.limit_ns.filter(|_| plan.least == 0).map(until);
    let mut total = 0;
    while !buffer.is_empty() {
        match terminal.read(buffer) {
            Ok(0) => break,
            Ok(count) => {
                total += count as u64;
                if total >= plan.least as u64 {
                    break;
                }
                until_ns = plan.limit_ns.map(until);
            }
            Err(Errno::EAGAIN) => {
                let arrived = thread.interruptible_until(until_ns, terminal.input_arrived()).await?;
                if arrived.is_none() {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

/// Executes a request of `ioctl`.
pub fn request(
    thread: &Thread,
    terminal: &TerminalFile,
    request: u32,
    argument: u64,
    buffer: &mut UserBuffer,
) -> CallResult {
    if changes_terminal(request) {
        check_change(thread, terminal)?;
    }
    let is_privileged = thread.file_credentials.has_capability(CAP_SYS_ADMIN);
    match terminal.request(thread.caller().ids, is_privileged, request, argument, buffer)? {
        TerminalAnswer::Value(value) => Ok(value),
        TerminalAnswer::File(file, flags) => install(thread, file, flags),
    }
}
